"""The client of a test, with a clock, assertions, and the story of each queue."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Protocol

from fila_cluster.client import Client, MessageView, QueueStats, Request, checks
from fila_cluster.errors import FilaError, InvalidArgumentError, QueueNotFoundError
from fila_cluster.testing.memory import Clock, MemoryBroker, RealClock, VirtualClock
from fila_cluster.testing.story import StoryEvent, shown_payload, told
from fila_proto_zmq.commands import DescribeQueue, QueueDescription
from fila_proto_zmq.limits import DELAY_MS_MAX, LEASE_MS_MAX
from fila_worker.core.settings import ShardSettings

MESSAGES_TOLD: Final = 20
"""Messages in a story, the latest ones."""
DLQ: Final = ".dlq"
QUEUE_MESSAGES_MAX: Final = 2**63 - 1
_numbers = count(1)


class WorksUntilIdle(Protocol):
    """The argument of :meth:`Fila.run_until_idle`: :class:`fila_cluster.app.App`, or anything else with this method."""

    def run_until_idle(self, client: Any) -> int:
        """Handle all messages that are deliverable now, and return the number of deliveries."""


@dataclass(frozen=True, slots=True, repr=False)
class QueueState:
    """A queue as it was when it was asked for. Its ``repr`` is the story of its messages, so a plain ``assert`` shows it.

    ``messages`` are those in the queue, ``dead`` those that came from it and are among the first 1,000 of its dead letter
    queue, or of the queue that it names as ``dead_letter``. The counters are as in :class:`~fila_cluster.QueueStats`.
    """

    name: str
    pending: int
    delayed: int
    in_flight: int
    enqueued: int
    delivered: int
    acked: int
    dead_lettered: int
    messages: tuple[MessageView, ...]
    dead: tuple[MessageView, ...]
    story: str

    @property
    def depth(self) -> int:
        """All messages in the queue."""
        return self.pending + self.delayed + self.in_flight

    def __repr__(self) -> str:
        return self.story


class Fila(Client):
    """A :class:`~fila_cluster.Client` of a test's own broker. ``clock``: the broker's time. ``endpoint``: for other clients."""

    clock: Clock

    def __init__(self, endpoint: str, clock: Clock, memory: MemoryBroker | None) -> None:
        """``memory``: the broker, if it is in memory. Use :func:`broker`, or the fixture ``fila``, instead."""
        super().__init__(endpoint)
        self.clock = clock
        self._memory = memory

    def run_until_idle(self, app: WorksUntilIdle) -> int:
        """Handle all messages that are deliverable now, or enqueued meanwhile; return the number of deliveries.

        Messages that are due later stay: ``clock.advance`` and call it again. ``app``: a :class:`fila_cluster.app.App`, a
        ``fila_cluster.celery.testing.InlineWorker``, or anything with their method ``run_until_idle(client)``.
        """
        run = getattr(app, "run_until_idle", None)
        if not callable(run):
            raise InvalidArgumentError(
                f"run_until_idle({app!r}): pass an App, the InlineWorker of a Celery app, or an object with a method "
                "run_until_idle(client)"
            )
        return int(run(self))

    # --- looking ------------------------------------------------------------------------------------------------------

    def queue(self, name: str) -> QueueState:
        """Return a queue as it is now. Nothing is leased."""
        stats = self.queue_stats(name)
        messages = tuple(self.browse(name, limit=1000))
        dead = () if stats.is_dead_letter else self._dead_letters(name)
        return QueueState(
            name,
            stats.pending,
            stats.delayed,
            stats.in_flight,
            stats.enqueued,
            stats.delivered,
            stats.acked,
            stats.dead_lettered,
            messages,
            dead,
            self._story(name, stats, messages, dead),
        )

    def story(self, queue: str) -> str:
        """Return the events of a queue's messages and their present states; of a broker outside only the states."""
        try:
            return self.queue(queue).story
        except QueueNotFoundError:
            events = [] if self._memory is None else self._memory.story.of(queue)
            return "\n".join([f"queue {queue!r}: there is none", *_lines_of(told(events), {})])

    @property
    def stories(self) -> list[str]:
        """The stories of all queues with events."""
        if self._memory is not None:
            names = self._memory.story.queues
        else:
            names = [info.name for info in self.list_queues() if info.depth and not info.is_dead_letter]
        return [self.story(name) for name in names]

    # --- asserting ----------------------------------------------------------------------------------------------------

    def assert_delivered(self, queue: str, count: int) -> None:
        """Assert that a queue has delivered so many messages; one that was delivered twice counts twice."""
        __tracebackhide__ = True
        state = self.queue(queue)
        _expect(state, "deliveries", state.delivered, count)

    def assert_acked(self, queue: str, count: int) -> None:
        """Assert that so many messages of a queue were acknowledged."""
        __tracebackhide__ = True
        state = self.queue(queue)
        _expect(state, "acked messages", state.acked, count)

    def assert_pending(self, queue: str, count: int) -> None:
        """Assert that so many messages are ready to be delivered."""
        __tracebackhide__ = True
        state = self.queue(queue)
        _expect(state, "pending messages", state.pending, count)

    def assert_delayed(self, queue: str, count: int) -> None:
        """Assert that so many messages wait for their time."""
        __tracebackhide__ = True
        state = self.queue(queue)
        _expect(state, "delayed messages", state.delayed, count)

    def assert_dead(self, queue: str, count: int) -> None:
        """Assert that so many messages of a queue are in its dead letter queue."""
        __tracebackhide__ = True
        state = self.queue(queue)
        _expect(state, "dead letters", len(state.dead), count)

    def assert_empty(self, queue: str) -> None:
        """Assert that a queue has no pending, delayed or leased messages."""
        __tracebackhide__ = True
        state = self.queue(queue)
        _expect(state, "messages", state.depth, 0)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _dead_letters(self, queue: str) -> tuple[MessageView, ...]:
        found: list[MessageView] = []
        for name in self._dead_letter_queues(queue):
            with suppress(QueueNotFoundError):
                found += [view for view in self.browse(name, limit=1000) if view.source_queue == queue]
        return tuple(found)

    def _dead_letter_queues(self, queue: str) -> list[str]:
        """Return its own, and the one that it names instead: that may have been changed while there were letters."""
        described: QueueDescription = self.request(Request(queue, DescribeQueue()))
        named = described.options.dead_letter
        return [queue + DLQ] if named in {None, "dlq", "discard"} else [queue + DLQ, str(named)]

    def _story(self, name: str, stats: QueueStats, messages: tuple[MessageView, ...], dead: tuple[MessageView, ...]) -> str:
        since = "" if self._memory is None else f", {self._memory.age:.3f} s after its broker's start"
        counts = f"{stats.pending} pending, {stats.delayed} delayed, {stats.in_flight} leased, {len(dead)} dead"
        events: list[StoryEvent] = [] if self._memory is None else self._memory.story.of(name)
        now = self.clock.now()
        states = {view.id: _state_of(view, (now.timestamp())) for view in messages}
        states |= {view.id: f"dead letter: {view.reason}, attempts {view.attempts}{_error_of(view)}" for view in dead}
        payloads = {view.id: shown_payload(view.payload) for view in (*messages, *dead)}
        return "\n".join([f"queue {name!r}: {counts}{since}", *_lines_of(told(events), states, payloads)])


def _expect(state: QueueState, what: str, found: int, expected: int) -> None:
    __tracebackhide__ = True
    if found != expected:
        raise AssertionError(f"queue {state.name!r}: {what}: {found}, expected: {expected}\n{state.story}")


@contextmanager
def broker(
    name: str | None = None,
    *,
    visibility_timeout: float = 30.0,
    max_queue_messages: int | None = None,
    dedup_window: float = 300.0,
) -> Iterator[Fila]:
    """Open a broker in memory, with a clock of its own, for a context, and a client of it. It takes a few milliseconds.

    ``name``: clients of this process find it as ``memory://NAME``; by default a new one. The other options are those of a
    cluster's configuration, durations in seconds.
    """
    settings = ShardSettings(
        visibility_timeout_ms=checks.positive_milliseconds("visibility_timeout", visibility_timeout, LEASE_MS_MAX),
        max_queue_messages=None
        if max_queue_messages is None
        else checks.whole_number("max_queue_messages", max_queue_messages, 1, QUEUE_MESSAGES_MAX),
        dedup_window_ms=checks.positive_milliseconds("dedup_window", dedup_window, DELAY_MS_MAX),
    )
    memory = MemoryBroker(name or f"test-{next(_numbers)}", settings)
    try:
        with Fila(f"memory://{memory.name}", VirtualClock(memory), memory) as fila:
            yield fila
    finally:
        memory.close()


class NotEmptyError(Exception):
    """A broker outside is in use, and tests would delete its contents."""


@contextmanager
def broker_at(endpoint: str, clock: RealClock) -> Iterator[Fila]:
    """Use a broker outside, and empty it at the end. :class:`NotEmptyError` if it has queues, schedules or templates before."""
    with Fila(endpoint, clock, None) as fila:
        for kind, names in _contents(fila).items():
            if names:
                some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
                raise NotEmptyError(
                    f"the broker at {endpoint} has {len(names)} {kind} ({some}): tests need a broker of their own, because "
                    f"they delete all {kind} at the end"
                )
        config = fila.list_config()
        try:
            yield fila
        finally:
            _clear(endpoint, config)


def _contents(client: Client) -> dict[str, list[str]]:
    """Return the names of objects that tests may make, by kind."""
    return {
        "queues": _queues(client),
        "schedules": [schedule.name for schedule in client.list_schedules()],
        "templates": list(client.list_templates()),
    }


def _queues(client: Client) -> list[str]:
    return [info.name for info in client.list_queues() if not info.is_dead_letter]


def _clear(endpoint: str, config: dict[str, str]) -> None:
    """Delete the objects of tests, and restore the runtime config. By a new client: the test may have closed its own."""
    with Client(endpoint) as client:
        for schedule in client.list_schedules():  # first what makes queues and messages
            client.delete_schedule(schedule.name)
        for template in client.list_templates():
            client.delete_template(template)
        for queue in _queues(client):
            with suppress(QueueNotFoundError):
                client.delete_queue(queue, force=True)
        now = client.list_config()
        for key in now.keys() - config.keys():
            client.delete_config(key)
        for key, value in config.items():
            if now.get(key) != value:
                client.set_config(key, value)


def _state_of(view: MessageView, now_s: float) -> str:
    if view.state == "delayed" and view.due_at is not None:
        state = f"delayed, due in {view.due_at.timestamp() - now_s:.3f} s"
    elif view.state == "leased" and view.lease_expires_at is not None:
        state = f"leased by client {view.consumer}, for {view.lease_expires_at.timestamp() - now_s:.3f} s more"
    else:
        state = view.state
    return f"{state}, attempts {view.attempts}{_error_of(view)}"


def _error_of(view: MessageView) -> str:
    return f", error {view.error!r}" if view.error else ""


def _lines_of(events: dict[str, list[str]], states: dict[str, str], payloads: dict[str, str] | None = None) -> Iterator[str]:
    """Yield the lines of a story, message by message, with how each is now."""
    of_queue = events.pop("", [])
    messages = list(dict.fromkeys([*events, *states]))
    for line in of_queue[-MESSAGES_TOLD:]:
        yield f"  {line}"
    if len(messages) > MESSAGES_TOLD:
        yield f"  … {len(messages) - MESSAGES_TOLD} earlier messages"
    for message in messages[-MESSAGES_TOLD:]:
        payload = f"  {payloads[message]}" if payloads and message in payloads and message not in events else ""
        yield f"  message {message}{payload}"
        for line in events.get(message, []):
            yield f"    {line}"
        if message in states:
            yield f"          now  {states[message]}"


def stories_for(fila: Fila, report: str) -> str:
    """Return the stories that the report of a failure lacks."""
    if fila.closed:
        return ""
    try:
        return "\n".join(story for story in fila.stories if story.partition("\n")[0] not in report)
    except FilaError as error:
        return f"no stories: {error}"
