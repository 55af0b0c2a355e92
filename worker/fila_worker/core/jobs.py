"""Work that may be long, done in steps over many turns.

A turn must be short whatever is asked (:class:`~core.settings.Limits`), because all queues of a shard wait for it. So what may
be long is written as a generator, :data:`Work`: it yields now and then, between two moments at which the state of the shard is
whole, and says how much *effort* it took since it yielded before. The core has no clock, so effort is counted in things that
are read, moved or compared, about 2 µs each; what scripts take is measured by their engine and counted in the same unit.

A command begins at once, and goes on as long as the turn has effort for it. Usually it ends there, and is no job at all. Else it
is a *job*: it goes on later, a step at a time, in rotation with the others, and its last step answers.

Such work at once may take half of a turn's effort. The rest is for the commands behind it that take no steps, because all frames come one
after the other: a hundred clients that ask for pages must not keep an enqueue waiting for each of them.

Jobs wait in *lines*, and only the first of a line goes on. Commands of one client are in one line, so they take effect in the
order in which it sent them. Enqueues are in their queue's line: a later enqueue never overtakes an earlier one.

Between two steps anything may happen: queues are deleted and made anew, lanes are forgotten, messages move. So a job keeps as
little as it can from one step to the next, and asks again whether that still holds. A restart drops all jobs; their clients
get no answer, and repeat what they asked for.

Rejected: threads (the state has one owner), a clock in the core (runs would not repeat), and a state machine for each verb
(a generator is one, and reads like the loop that it is).
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, TypeAlias

from fila_proto_zmq.errors import FilaError, OverloadedError, StorageError
from fila_worker.core.measures import DeliveryRate
from fila_worker.core.timer import AT_ONCE, Timer

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Command, Reply
    from fila_worker.core.effects import Call
    from fila_worker.core.settings import Limits

Work: TypeAlias = "Generator[int, int, Reply | None]"
"""Yields the effort since it yielded before, is sent the time (Unix ms), and returns the answer to its command."""

Line: TypeAlias = "bytes | str | int"
"""The name of a line: a client, a queue, or the number of a job that the shard started itself."""

Conclude: TypeAlias = "Callable[[Call, Command, Reply | FilaError | None], None]"
"""Answers a command."""

REST: Final = -1
"""Yielded by work that waits for something outside of the shard: to go on in this turn is of no use."""

REST_MS: Final = 2
"""How long a shard may sleep where all that is left to do is such work."""

EFFORT_NS: Final = 2000
"""Time of a script that counts as one unit of effort."""

RETRY_S_MIN: Final = 0.1
RETRY_S_MAX: Final = 10.0
"""When to come again if too many jobs are open: no sooner than a few turns take, and no later than a patient client's timeout."""


class Job:
    """Work with more than a turn's effort in it. ``call`` and ``command`` are None for work that nobody asked for."""

    __slots__ = ("begun", "call", "command", "resting", "size_bytes", "work")

    def __init__(self, work: Work, call: "Call | None", command: "Command | None", size_bytes: int) -> None:
        self.work = work
        self.call = call
        self.command = command
        self.size_bytes = size_bytes
        self.begun = False
        self.resting = False
        """Whether its last step found nothing to do yet."""


class Jobs:
    """The open jobs of a shard, in lines, and what effort the turn has left.

    Invariants: no line is empty; ``size_bytes`` and the counts are the sums over all jobs.
    """

    def __init__(self, limits: "Limits", conclude: Conclude) -> None:
        """``conclude`` answers a command."""
        self._limits = limits
        self._conclude = conclude
        self._lines: OrderedDict[Line, deque[Job]] = OrderedDict()
        self._of_client: Counter[bytes] = Counter()
        self._internal = 0
        self.open = 0
        """How many jobs there are."""
        self.size_bytes = 0
        self.stepping: Job | None = None
        """The job whose step is being taken; after an exception, the one to blame."""
        self._pace = DeliveryRate()
        """How fast jobs end."""
        self.left = limits.turn_effort
        """Effort that this turn may still cause; at its end the shard gives it all to the next."""
        self.timer = Timer()

    def __contains__(self, line: Line) -> bool:
        """Whether a line has jobs."""
        return line in self._lines

    def has(self, call: "Call") -> bool:
        """Whether a command's job is still open. Looks at all of them."""
        return any(job.call == call for jobs in self._lines.values() for job in jobs)

    def next_step(self, now_ms: int) -> int | None:
        """When a job can go on, Unix ms."""
        if not self.open:
            return None
        return now_ms + REST_MS if all(jobs[0].resting for jobs in self._lines.values()) else AT_ONCE

    @property
    def full(self) -> bool:
        """Whether the turn should take in no more commands."""
        return self.left <= 0

    def charge(self, effort: int) -> None:
        """Something took so much effort, beside what steps say of themselves."""
        self.left -= effort

    @property
    def time_left_ns(self) -> int:
        """For how long scripts may run now: a step's part of what the turn has left."""
        return max(1, min(self.left, self._limits.step_effort)) * EFFORT_NS

    def charge_ns(self, took_ns: int) -> None:
        """Scripts ran for so long."""
        self.left -= took_ns // EFFORT_NS

    @property
    def _left_at_once(self) -> int:
        """Effort that work may still cause before the other frames of the turn are read."""
        return self.left - self._limits.turn_effort // 2

    def start(
        self, work: Work, line: Line, call: "Call", command: "Command", size_bytes: int = 0, *, refusable: bool = True
    ) -> None:
        """Begin to carry out a command; :class:`OverloadedError` if too many are under way, unless it has begun already."""
        if self.open and refusable:
            self._refuse_if_crowded(call, size_bytes)
        job = Job(work, call, command, size_bytes)
        if line in self._lines or not self._go_on(job, call.now_ms):
            self._append(line, job)

    def start_own(self, work: Work) -> None:
        """Begin something that no client asked for, and that is never refused."""
        self._internal += 1
        self._append(self._internal, Job(work, None, None, 0))

    def run(self, now_ms: int) -> None:
        """Go on with all jobs, a step of each in turn, until the turn's effort is used up; half a turn's is theirs at least."""
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

    def _refuse_if_crowded(self, call: "Call", size_bytes: int) -> None:
        limits, mine = self._limits, self._of_client[call.client]
        has_room = not size_bytes or self.size_bytes + size_bytes <= limits.jobs_bytes_max
        if has_room and mine < limits.client_jobs_max and self.open < limits.jobs_max:
            return
        raise OverloadedError(
            f"{self.open} commands that take long are under way on this shard, {mine} of them of this client: try again later",
            retry_after=self._retry_s(mine, call.now_ms),
            details={"refused": True},
        )

    def _retry_s(self, mine: int, now_ms: int) -> float:
        """When half of a client's jobs have ended, or half of all, whichever is sooner."""
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
        """Take steps while there is effort left for that; returns whether the job is done."""
        while self._left_at_once > 0 and not job.resting:
            if self._step(job, now_ms):
                return True
        return False

    def _step(self, job: Job, now_ms: int) -> bool:
        """Take one step, and answer with the last one; returns whether that was it."""
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
            raise  # no refusal: what the turn has done is not on the disk, or may not be
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
