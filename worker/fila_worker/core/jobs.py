"""Jobs: work that may be long, done in steps over many turns.

A turn must be short whatever the command is (:class:`~core.settings.Limits`), because all queues of a shard wait for it. So
work that may be long is written as a generator, :data:`Work`. It yields at points where the state of the shard is consistent,
and yields the *effort* since the last point. The core has no clock, so effort is counted in things that are read, moved or
compared, about 2 µs each. The time of scripts is measured by their engine and counted in the same unit.

A command begins at once, and runs as long as the turn has effort for it. Usually it ends within the turn. Else it becomes a
*job*: it continues later, a step at a time, in rotation with other jobs, and its last step answers.

Work that begins at once may take half of a turn's effort. The rest is for the commands behind it that take no steps, because
frames are read one after the other: a hundred clients that read pages must not delay an enqueue by all their pages.

Jobs wait in *lines*, and only the first of a line runs. Commands of one client are in one line, so they take effect in the
order in which it sent them. Enqueues are in their queue's line: a later enqueue never overtakes an earlier one.

Between two steps anything may happen: queues are deleted and created again, lanes are forgotten, messages move. So a job
keeps as little as possible between steps, and checks again whether it is still valid. A restart drops all jobs. Their clients
get no answer, and repeat their commands.

Rejected: threads (the state has one owner), a clock in the core (runs would not repeat), and a state machine for each verb (a
generator is one).
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, TypeAlias

from fila_proto_zmq.errors import FilaError, OverloadedError, StorageError
from fila_worker.core.due_time import AT_ONCE, DueTime
from fila_worker.core.measures import DeliveryRate

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Command, Reply
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.settings import Limits

Work: TypeAlias = "Generator[int, int, Reply | None]"
"""A generator that yields the effort since its last yield, is sent the time (Unix ms), and returns its command's answer."""

Line: TypeAlias = "bytes | str | int"
"""The name of a line: a client, a queue, or the number of a job that the shard started itself."""

Conclude: TypeAlias = "Callable[[ClientCall, Command, Reply | FilaError | None], None]"
"""Answers a command."""

REST: Final = -1
"""Yielded by work that waits for something outside of the shard, so that another step in this turn is useless."""

REST_MS: Final = 2
"""How long a shard may sleep if all remaining work is resting."""

EFFORT_NS: Final = 2000
"""The time of a script that counts as one unit of effort."""

RETRY_S_MIN: Final = 0.1
RETRY_S_MAX: Final = 10.0
"""The bounds of the time to try again if too many jobs are open: a few turns, and the usual timeout of a client."""


class Job:
    """Work of more than one turn. ``call`` and ``command`` are None for work that the shard started itself."""

    __slots__ = ("begun", "call", "command", "resting", "size_bytes", "work")

    def __init__(self, work: Work, call: "ClientCall | None", command: "Command | None", size_bytes: int) -> None:
        self.work = work
        self.call = call
        self.command = command
        self.size_bytes = size_bytes
        self.begun = False
        self.resting = False
        """Whether its last step had nothing to do yet."""


class Jobs:
    """The open jobs of a shard, in lines, and the effort that the turn has left.

    Invariants: no line is empty. ``size_bytes`` and the counts are the sums over all jobs.
    """

    def __init__(self, limits: "Limits", conclude: Conclude) -> None:
        """``conclude`` answers a command."""
        self._limits = limits
        self._conclude = conclude
        self._lines: OrderedDict[Line, deque[Job]] = OrderedDict()
        self._of_client: Counter[bytes] = Counter()
        self._internal = 0
        self.open = 0
        """The number of jobs."""
        self.size_bytes = 0
        self.stepping: Job | None = None
        """The job whose step is in progress; after an exception, the job that raised it."""
        self._pace = DeliveryRate()
        """The rate at which jobs end."""
        self.left = limits.turn_effort
        """The effort that this turn may still cause. At the end of a turn the shard sets it to that of a whole turn."""
        self.timer = DueTime()

    def __contains__(self, line: Line) -> bool:
        """Return whether a line has jobs."""
        return line in self._lines

    def has(self, call: "ClientCall") -> bool:
        """Return whether a command's job is open. All jobs are searched."""
        return any(job.call == call for jobs in self._lines.values() for job in jobs)

    def next_step(self, now_ms: int) -> int | None:
        """Return when a job can continue, Unix ms."""
        if not self.open:
            return None
        return now_ms + REST_MS if all(jobs[0].resting for jobs in self._lines.values()) else AT_ONCE

    @property
    def full(self) -> bool:
        """Whether the turn should take in no more commands."""
        return self.left <= 0

    def charge(self, effort: int) -> None:
        """Count effort beside the effort that steps yield."""
        self.left -= effort

    @property
    def time_left_ns(self) -> int:
        """How long scripts may run: a step's part of what the turn has left."""
        return max(1, min(self.left, self._limits.step_effort)) * EFFORT_NS

    def charge_ns(self, took_ns: int) -> None:
        """Count the running time of scripts as effort."""
        self.left -= took_ns // EFFORT_NS

    @property
    def _left_at_once(self) -> int:
        """Return the effort that work may still cause before the other frames of the turn are read."""
        return self.left - self._limits.turn_effort // 2

    def start(
        self, work: Work, line: Line, call: "ClientCall", command: "Command", size_bytes: int = 0, *, refusable: bool = True
    ) -> None:
        """Begin the work of a command. Raise :class:`OverloadedError` for too many jobs, unless it has begun already."""
        if self.open and refusable:
            self._refuse_if_crowded(call, size_bytes)
        job = Job(work, call, command, size_bytes)
        if line in self._lines or not self._go_on(job, call.now_ms):
            self._append(line, job)

    def start_own(self, work: Work) -> None:
        """Begin work of the shard itself, which is never refused."""
        self._internal += 1
        self._append(self._internal, Job(work, None, None, 0))

    def run(self, now_ms: int) -> None:
        """Take a step of each job in rotation, until the turn's effort is used up. Jobs get at least half a turn's effort."""
        self.left = max(self.left, self._limits.turn_effort // 2, 1)
        resting = 0
        while self.left > 0 and len(self._lines) > resting:
            line, jobs = self._lines.popitem(last=False)
            job = jobs[0]
            if self._step(job, now_ms):
                jobs.popleft()
                self._count(job, -1)
                self._pace.note(1, now_ms)
            resting = resting + 1 if job.resting else 0
            if jobs:
                self._lines[line] = jobs  # behind the others

    def _refuse_if_crowded(self, call: "ClientCall", size_bytes: int) -> None:
        limits, mine = self._limits, self._of_client[call.client]
        has_room = not size_bytes or self.size_bytes + size_bytes <= limits.jobs_bytes_max
        if has_room and mine < limits.client_jobs_max and self.open < limits.jobs_max:
            return
        raise OverloadedError(
            f"{self.open} long commands are in progress on this shard, {mine} of them from this client: try again later",
            retry_after=self._retry_s(mine, call.now_ms),
            details={"refused": True},
        )

    def _retry_s(self, mine: int, now_ms: int) -> float:
        """Return the time until half of a client's jobs have ended, or half of all jobs, whichever is shorter."""
        rate = self._pace.per_second(now_ms)
        in_front = min(mine * len(self._lines), self.open) / 2 if mine else self.open / 2
        return min(max(in_front / rate, RETRY_S_MIN), RETRY_S_MAX) if rate else RETRY_S_MIN

    def _append(self, line: Line, job: Job) -> None:
        self._lines.setdefault(line, deque()).append(job)
        self.timer.by(AT_ONCE)
        self._count(job, 1)

    def _count(self, job: Job, change: int) -> None:
        self.open += change
        self.size_bytes += change * job.size_bytes
        if job.call is not None:
            client = job.call.client
            self._of_client[client] += change
            if not self._of_client[client]:
                del self._of_client[client]

    def _go_on(self, job: Job, now_ms: int) -> bool:
        """Take steps while there is effort left for them. Return whether the job is done."""
        while self._left_at_once > 0 and not job.resting:
            if self._step(job, now_ms):
                return True
        return False

    def _step(self, job: Job, now_ms: int) -> bool:
        """Take one step. The last step answers. Return whether it was the last."""
        self.stepping, job.resting = job, False
        outcome: Reply | FilaError | None
        try:
            if job.begun:
                effort = job.work.send(now_ms)
            else:
                job.begun = True
                effort = next(job.work)
        except StopIteration as end:
            outcome = end.value
        except StorageError:
            raise  # not a refusal: the turn's changes may not be on disk
        except FilaError as error:
            outcome = error
        else:
            self.stepping = None
            job.resting = effort == REST
            self.left -= max(1, effort)
            return False
        self.left -= 1
        self._answer(job, outcome)
        self.stepping = None
        return True

    def _answer(self, job: Job, outcome: "Reply | FilaError | None") -> None:
        if job.call is not None and job.command is not None:
            self._conclude(job.call, job.command, outcome)
