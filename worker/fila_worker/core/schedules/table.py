"""The schedules of a shard: their records, and the rules of their due times.

::

    schedule:NAME           the definition: its queue, its due times
    schedule at:NAME        the progress: the due time that was carried out last, and counts
    schedule message:NAME   the message with its options, read when it is due

All are in the ``state`` family. A due time is carried out by writing ``schedule at`` in the batch that has its message.
"""

from collections.abc import Iterator
from hashlib import blake2b
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

import msgspec
from sortedcontainers import SortedDict

from fila_proto_zmq.commands import Enqueue, Fault
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import SCHEDULE_INTERVAL_MS_MAX, SCHEDULE_INTERVAL_MS_MIN, SCHEDULE_JITTER_MS_MAX
from fila_worker.core.calendar import Calendar, DueTimes
from fila_worker.core.due_time import DueTime
from fila_worker.core.keys import range_of

if TYPE_CHECKING:
    from fila_worker.core.store import Store, StoreBatch

SKIP: Final = "skip"
ONCE: Final = "once"
ALL: Final = "all"
CATCH_UPS: Final = (SKIP, ONCE, ALL)
"""The messages for the due times of an outage: none, one for the last due time, or one for each."""


class Interval:
    """The times ``anchor + every``, ``anchor + 2 · every`` and so on."""

    def __init__(self, anchor_ms: int, every_ms: int) -> None:
        self.anchor_ms = anchor_ms
        self.every_ms = every_ms

    def after(self, time_ms: int) -> int | None:
        """Return the first one after a time."""
        return self.anchor_ms + max(1, (time_ms - self.anchor_ms) // self.every_ms + 1) * self.every_ms

    def before(self, time_ms: int) -> int | None:
        """Return the last one up to a time, included; None: all are later."""
        number = (time_ms - self.anchor_ms) // self.every_ms
        return self.anchor_ms + number * self.every_ms if number >= 1 else None


def due_times(calendar: Calendar, cron: str, every_ms: int, timezone: str, anchor_ms: int) -> DueTimes:
    """Return the due times of a rule. ``anchor_ms``: where intervals begin. Raise :class:`InvalidArgumentError`."""
    if bool(cron) == bool(every_ms):
        raise InvalidArgumentError("a schedule has either a cron expression or an interval (every): give one of them")
    if cron:
        return calendar.times(cron, timezone)
    if not SCHEDULE_INTERVAL_MS_MIN <= every_ms <= SCHEDULE_INTERVAL_MS_MAX:
        raise InvalidArgumentError(
            f"interval of {every_ms} ms: use {SCHEDULE_INTERVAL_MS_MIN} to {SCHEDULE_INTERVAL_MS_MAX} (a second to a year)"
        )
    return Interval(anchor_ms, every_ms)


def check_rest(catch_up: str, jitter_ms: int, every_ms: int) -> None:
    """Raise :class:`InvalidArgumentError` for a bad catch-up or jitter."""
    if catch_up not in CATCH_UPS:
        raise InvalidArgumentError(f"catch_up={catch_up[:100]!r}: use 'skip', 'once' or 'all'")
    most = min(SCHEDULE_JITTER_MS_MAX, every_ms or SCHEDULE_JITTER_MS_MAX)
    if not 0 <= jitter_ms <= most:
        raise InvalidArgumentError(f"jitter of {jitter_ms} ms: use 0 to {most} (a day, or the interval)")


def jitter_of(name: str, due_ms: int, jitter_ms: int) -> int:
    """Return how much later than its due time a message comes, 0 to ``jitter_ms``. The result is always the same."""
    if not jitter_ms:
        return 0
    digest = blake2b(f"{due_ms} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % (jitter_ms + 1)


SCHEDULE: Final = b"schedule:"
PROGRESS: Final = b"schedule at:"
MESSAGE: Final = b"schedule message:"
PREFIXES: Final = (SCHEDULE, PROGRESS, MESSAGE)


class ScheduleRecord(msgspec.Struct, array_like=True):
    """The definition of a schedule. Times are Unix ms."""

    queue: str
    cron: str
    every_ms: int
    timezone: str
    catch_up: str
    jitter_ms: int
    anchor_ms: int
    """When its due times began: intervals count from here."""
    created_ms: int
    size_bytes: int
    """Of its message."""

    def same_times(self, other: "ScheduleRecord") -> bool:
        """Return whether another record has the same due times, so that it continues where this one is."""
        mine = (self.cron, self.every_ms, self.timezone, self.jitter_ms)
        return mine == (other.cron, other.every_ms, other.timezone, other.jitter_ms)


class ScheduleProgress(msgspec.Struct, array_like=True):
    """The progress of a schedule. ``handled_ms``: all due times up to it are carried out, or skipped. It never decreases."""

    handled_ms: int
    under_way_ms: int = 0
    """The due time whose enqueue has no final outcome yet; 0: none."""
    last_due_ms: int = 0
    last_at_ms: int = 0
    id_high: int = 0
    id_low: int = 0
    fired: int = 0
    skipped: int = 0
    failed: int = 0
    in_a_row: int = 0
    """Due times of an outage that were carried out one after the other."""
    fault: Fault | None = None


encode: Final = msgspec.msgpack.Encoder().encode
decode_schedule: Final = msgspec.msgpack.Decoder(ScheduleRecord).decode
decode_progress: Final = msgspec.msgpack.Decoder(ScheduleProgress).decode
decode_message: Final = msgspec.msgpack.Decoder(Enqueue).decode


class KeptSchedule:
    """A schedule in memory. ``times`` None: its rule can't be read here, so it is never due.

    Invariant: it has a next due time, unless one is under way, or the last one is past, or its rule can't be read.
    """

    __slots__ = ("at_ms", "due_ms", "name", "progress", "record", "times")

    def __init__(self, name: str, record: ScheduleRecord, progress: ScheduleProgress, times: "DueTimes | None") -> None:
        self.name = name
        self.record = record
        self.progress = progress
        self.times = times
        self.due_ms: int | None = None
        """The next due time, if it is planned."""
        self.at_ms = 0
        """When its message is to be enqueued: the due time and its jitter, and not before that of the due time before."""

    def save(self, batch: "StoreBatch", family: object) -> None:
        """Make its progress durable with the batch."""
        batch.put(PROGRESS + self.name.encode(), encode(self.progress), family)


class ScheduleTable:
    """All schedules of a shard, by name and by time.

    Invariants: each planned schedule is in the heap with its time. ``size_bytes`` is the sum of the messages. An entry of the
    heap whose schedule has another time, or is gone, is dropped when it comes up; there is at most one entry more than twice
    the number of schedules.
    """

    def __init__(self) -> None:
        self.by_name: SortedDict[str, KeptSchedule] = SortedDict()
        self.size_bytes = 0
        self.under_way = 0
        self.fired = self.late = self.skipped = self.failed = 0
        """Since the shard started."""
        self.timer = DueTime()
        self._heap: list[tuple[int, str, int]] = []

    def add(self, schedule: KeptSchedule) -> None:
        """Add a schedule, instead of one of the same name."""
        self.remove(schedule.name)
        self.by_name[schedule.name] = schedule
        self.size_bytes += schedule.record.size_bytes
        self.under_way += schedule.progress.under_way_ms != 0
        self.plan(schedule)

    def remove(self, name: str) -> None:
        """Remove a schedule, if there is one of this name."""
        schedule = self.by_name.pop(name, None)
        if schedule is not None:
            self.size_bytes -= schedule.record.size_bytes
            self.under_way -= schedule.progress.under_way_ms != 0
            schedule.due_ms = None
            self._trim()

    def plan(self, schedule: KeptSchedule) -> None:
        """Find the next due time of a schedule."""
        schedule.due_ms = None
        if schedule.times is None or schedule.progress.under_way_ms:
            return
        due_ms = schedule.times.after(schedule.progress.handled_ms)
        if due_ms is None:
            return
        schedule.due_ms = due_ms
        schedule.at_ms = max(schedule.at_ms, due_ms + jitter_of(schedule.name, due_ms, schedule.record.jitter_ms))
        heappush(self._heap, (schedule.at_ms, schedule.name, due_ms))
        self.timer.by(schedule.at_ms)
        self._trim()

    def _trim(self) -> None:
        """Drop the entries of the heap that are void, or there twice, once there are too many."""
        if self.is_crowded:
            planned = ((each.at_ms, each.name, each.due_ms) for each in self.by_name.values())
            self._heap = sorted((at_ms, name, due_ms) for at_ms, name, due_ms in planned if due_ms is not None)

    @property
    def is_crowded(self) -> bool:
        """Whether the heap has more entries than it may keep."""
        return len(self._heap) > 2 * len(self.by_name) + 1

    def _is_planned(self, at_ms: int, name: str, due_ms: int) -> bool:
        schedule = self.by_name.get(name)
        return schedule is not None and (schedule.at_ms, schedule.due_ms) == (at_ms, due_ms)

    def take_due(self, now_ms: int) -> Iterator[KeptSchedule]:
        """Yield the schedules that are due, the first one first. Each has to be planned again, or be under way."""
        while self._heap and self._heap[0][0] <= now_ms:
            entry = heappop(self._heap)
            if self._is_planned(*entry):
                schedule = self.by_name[entry[1]]
                schedule.due_ms = None
                yield schedule

    def next_due(self) -> int | None:
        """Return when something may be due next, Unix ms."""
        return self._heap[0][0] if self._heap else None


def schedule_name(key: bytes) -> str:
    """Return the name of the schedule that a stored key is of."""
    return key.partition(b":")[2].decode()


def stored_schedules(store: "Store") -> Iterator[tuple[str, ScheduleRecord, ScheduleProgress]]:
    """Yield the stored schedules by name. Raise :class:`msgspec.MsgspecError`; :class:`KeyError` without progress."""
    state = store.families.state
    for key, value in store.scan(*range_of(SCHEDULE), state):
        name = key.removeprefix(SCHEDULE)
        progress = store.get(PROGRESS + name, state)
        if progress is None:
            raise KeyError(f"schedule {name.decode()!r} has no progress")
        yield name.decode(), decode_schedule(value), decode_progress(progress)
