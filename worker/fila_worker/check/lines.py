"""The messages: each at its place, in a lane of a queue, counted by the ledger, and in the due index if it is delayed or
expires.

The keys of the three families with messages and lanes begin with the lane's number. So they are read side by side, a lane at
a time, and nothing is kept of earlier lanes.
"""

from collections.abc import Iterator
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

from fila_proto_zmq.ids import sequence, shard_of_id
from fila_proto_zmq.record import BATCHED, FIXED_BYTES, HAS_TTL, PLAIN, extension_of, unpack_fixed, unpack_record
from fila_worker.check.findings import Finding, RecordChange
from fila_worker.check.reading import UNREADABLE, CheckReading, decoded
from fila_worker.check.schedule import Expected
from fila_worker.core.callback_group_parts import PartPlace
from fila_worker.core.keys import LANE_BYTES, MESSAGE_KEY_BYTES, first_of_all, number_of, own_place, place_of, u64
from fila_worker.core.model.due_index import Delayed, DueKind, on_the_grid, parse_delayed
from fila_worker.core.model.ledger import LaneCounts, LaneRecord, decode_lane, encode_lane

Item: TypeAlias = tuple[bytes, int, bytes, bytes]
"""The lane's prefix, which family, and the item."""

_LANE, _MESSAGE, _DELAYED = range(3)


def check_lines(reading: CheckReading) -> Iterator[Finding]:
    """Check all lanes with their messages."""
    expected = Expected(reading)
    families = ("lanes", "messages", "delayed")
    items = merge(*(_tagged(reading, family, rank) for rank, family in enumerate(families)))
    for prefix, group in groupby(items, key=itemgetter(0)):
        if len(prefix) < LANE_BYTES:
            yield from (Finding("key", f"the key {key.hex()} in {families[rank]} is too short") for _, rank, key, _ in group)
            continue
        line = _Line(reading, prefix, expected)
        for _, rank, key, value in group:
            yield from line.take(rank, key, value)
        yield from line.finish()
    yield from expected.check()


def _tagged(reading: CheckReading, family: str, rank: int) -> Iterator[Item]:
    for key, value in reading.scan(family):
        yield key[:LANE_BYTES], rank, key, value


class _Line:
    """One lane, while its messages are read."""

    def __init__(self, reading: CheckReading, prefix: bytes, expected: Expected) -> None:
        self._reading = reading
        self._prefix = prefix
        self._expected = expected
        self._id = u64(prefix)
        self._record: LaneRecord | None = None
        self._unreadable = False
        self._first: bytes | None = None
        self._stored = self._delayed = self._retrying = self._size = self._highest = 0
        self._priorities: set[int] = set()
        self._has_strangers = False

    @property
    def _name(self) -> str:
        if self._record is None:
            return f"lane {self._id}"
        queue = self._reading.name_of(self._record.queue)
        return f"lane {self._id} of {queue}, key {self._record.fairness_key!r}"

    @property
    def _queue(self) -> str | None:
        return None if self._record is None else self._reading.queue_name(self._record.queue)

    def take(self, rank: int, key: bytes, value: bytes) -> Iterator[Finding]:
        """Check one item of the lane: its record, which comes first, then its messages, then the delayed ones."""
        if rank == _LANE:
            yield from self._take_record(key, value)
        elif len(key) != MESSAGE_KEY_BYTES:
            yield Finding("key", f"{self._name}: the key {key.hex()} is not a message key", self._queue)
        elif rank == _MESSAGE:
            yield from self._take_message(key, value)
        else:
            yield from self._take_delayed(key, decoded(parse_delayed, value))

    def _take_record(self, key: bytes, value: bytes) -> Iterator[Finding]:
        self._record = decoded(decode_lane, value) if len(key) == LANE_BYTES else None
        if self._record is None:
            self._unreadable = True
            yield Finding("lane", f"the record of lane {key.hex()} cannot be read")
        elif self._record.queue not in self._reading.queues and "queues" not in self._reading.incomplete:
            yield Finding("lane", f"{self._name}: the queue has no record")

    def _take_message(self, key: bytes, record: bytes) -> Iterator[Finding]:
        self._stored += 1
        self._first = self._first or key
        if key not in self._reading.acked:
            yield from self._check_message(key, record, waits=key not in self._reading.leased)

    def _take_delayed(self, key: bytes, delayed: Delayed | None) -> Iterator[Finding]:
        self._delayed += 1
        if delayed is None:
            yield Finding("message", f"{self._name}: delayed message {key.hex()} cannot be read", self._queue)
            return
        self._retrying += delayed.retrying
        yield from self._check_message(key, delayed.record, waits=True)
        if self._reading.store.get(key, self._reading.families.messages) is not None:
            yield Finding("message", f"{self._name}: message {key.hex()} is both in line and delayed", self._queue)
        text = f"{self._name}: message {key.hex()} is delayed, and would never come due"
        yield from self._expected.entry(delayed.due_ms, DueKind.RELEASE, key, text, self._queue)

    def _check_message(self, key: bytes, record: bytes, *, waits: bool) -> Iterator[Finding]:
        """Check the record of a message that is not acked. ``waits``: whether it is not leased."""
        self._size += len(record)
        if len(record) < FIXED_BYTES:
            yield Finding("message", f"{self._name}: message {key.hex()} has a record of {len(record)} bytes", self._queue)
            return
        flags, _, priority, high, low = unpack_fixed(record)
        self._priorities.add(priority)
        number = number_of(key)
        self._has_strangers = self._has_strangers or number != sequence(low) or self._is_stranger(high, low)
        self._highest = max(self._highest, number)
        if flags != PLAIN and (fault := _unreadable(record)) is not None:
            yield Finding("message", f"{self._name}: message {key.hex()} cannot be read: {fault}", self._queue)
            return
        if place_of(key) != own_place(key, priority) and key != first_of_all(key):
            yield Finding("message", f"{self._name}: message {key.hex()} is not at the place of its priority", self._queue)
        if flags & BATCHED:
            self._count_member(record)
        if waits and flags & HAS_TTL:
            expires_ms = extension_of(record).expires_ms
            if expires_ms is not None:
                text = f"{self._name}: message {key.hex()} has a time to live, and would never expire"
                yield from self._expected.entry(on_the_grid(expires_ms), DueKind.EXPIRE, key, text, self._queue)

    def _is_stranger(self, high: int, low: int) -> bool:
        """Return whether an id is of another shard than held the queue when the id was given out."""
        return self._record is not None and shard_of_id(high) != self._reading.home_of(self._record.queue, sequence(low))

    def _count_member(self, record: bytes) -> None:
        queue = None if self._record is None else self._reading.queues.get(self._record.queue)
        token = extension_of(record).batch
        if queue is not None and not queue.gone and token is not None:
            place = PartPlace(queue.name, token)
            if place in self._reading.batch_parts:
                self._reading.members[place] += 1

    def _note(self) -> None:
        """Note what other parts derive from the lane's messages."""
        reading = self._reading
        number, lane = reading.highest
        reading.highest = (max(number, self._highest), max(lane, self._id))
        if self._record is not None:
            queue = self._record.queue
            reading.sizes[queue] += self._size
            reading.priorities.setdefault(queue, set()).update(self._priorities)
            if self._has_strangers:
                reading.strangers.add(queue)

    def finish(self) -> Iterator[Finding]:
        """Compare the lane's counts with its messages."""
        self._note()
        reading, record = self._reading, self._record
        messages = self._stored + self._delayed
        if record is None:
            if messages and not self._unreadable:
                yield Finding("lane", f"{messages:,} messages are of lane {self._id}, which has no record")
            return
        queue = reading.queues.get(record.queue)
        if reading.incomplete & {"ledger", "queues"} or queue is None or queue.gone:
            return
        yield from self._check_floor(record)
        noted = reading.counts.get(self._id)
        kept = noted or LaneCounts(record.stored, record.delayed, record.retrying, record.weight)
        found = LaneCounts(self._stored, self._delayed, self._retrying, kept.weight)
        if kept != found:
            yield Finding(
                "count",
                f"{self._name}: {_counted(kept)} are counted, {_counted(found)} are there",
                queue.name,
                lanes={self._id: found},
            )
        elif not messages and noted is None:
            changes = (RecordChange("lanes", self._prefix, None),)
            yield Finding("lane", f"{self._name} has a record and no messages", queue.name, changes=changes)

    def _check_floor(self, record: LaneRecord) -> Iterator[Finding]:
        if self._first is None or self._first >= record.floor:
            return
        text = f"{self._name}: message {self._first.hex()} is before the lane's first key, and would never be delivered"
        record.floor = self._first
        yield Finding("lane", text, self._queue, changes=(RecordChange("lanes", self._prefix, encode_lane(record)),))


def _counted(counts: LaneCounts) -> str:
    return f"{counts.stored:,} messages and {counts.delayed:,} delayed ones ({counts.retrying:,} of them again)"


def _unreadable(record: bytes) -> str | None:
    """Return why a record can't be read; None if it can. Its headers are not checked: they are the producer's."""
    try:
        unpack_record(record)
    except UNREADABLE as error:
        return str(error)
    return None
