"""The ledger: the number of messages in each lane and the size of each queue, durable at one small write a turn.

Rejected: counting by reading all messages at a restart (0.7 µs each: 7 s for ten million), and rewriting a lane's record in
each turn that touches it (a write per message when every message has its own key). Instead each commit carries one *entry*:
the new counts of the lanes and the sizes of the queues that changed in it, and the shard's sequence counters. From time to
time the ledger *folds*: it rewrites the records of all lanes that changed since the last fold, and removes the entries.
Recovery reads the records, then the entries in order. The last value read counts.

A fold goes in steps of some lanes a turn. The entries that it replaces are removed with the last step. Until then a record
may be newer than the last entry that it replaces, but never newer than the last entry of its lane. So the order of reading is
right at any moment.
"""

from collections.abc import Callable, Collection, Generator
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import msgspec

from fila_worker.core.due_time import AT_ONCE, DueTime
from fila_worker.core.keys import FIRST, LAST, pack_u32, pack_u64, u64
from fila_worker.core.model.cold_lanes import ColdLane
from fila_worker.core.model.lanes import Lane
from fila_worker.core.model.queues import Queue
from fila_worker.core.settings import Limits
from fila_worker.core.store import Families, Store, StoreBatch

_HEAD: Final = Struct(">QQQI")
_COUNTS: Final = Struct(">QQQQI")
_SIZE: Final = Struct(">IQ")
_ONE: Final = Struct(">QQQIQQQQIIQ")
"""An entry of one lane and one queue."""


class LaneRecord(msgspec.Struct, array_like=True):
    """The record of a lane. ``floor``: no message of the lane has a smaller key."""

    queue: int
    fairness_key: str
    weight: int
    stored: int
    delayed: int
    retrying: int
    floor: bytes
    throttle_keys: list[str]


encode_lane = msgspec.msgpack.Encoder().encode
decode_lane = msgspec.msgpack.Decoder(LaneRecord).decode


class LaneCounts(NamedTuple):
    """The counts of a lane in an entry."""

    stored: int
    delayed: int
    retrying: int
    weight: int


class LedgerEntry(NamedTuple):
    """An entry: the shard's counters, the counts of lanes by lane id, and the sizes of queues by queue id."""

    sequence: int
    lane: int
    clock_ms: int
    lanes: dict[int, LaneCounts]
    sizes: dict[int, int]


def parse_entry(data: bytes) -> LedgerEntry:
    """Return an entry. Raise :class:`struct.error` if it is malformed."""
    sequence, lane, clock_ms, lanes = _HEAD.unpack_from(data)
    sizes_at = _HEAD.size + lanes * _COUNTS.size
    counted = {lane_id: LaneCounts(*counts) for lane_id, *counts in _COUNTS.iter_unpack(data[_HEAD.size : sizes_at])}
    return LedgerEntry(sequence, lane, clock_ms, counted, dict(_SIZE.iter_unpack(data[sizes_at:])))


def pack_entry(entry: LedgerEntry) -> bytes:
    """Return the bytes of an entry."""
    parts = [_HEAD.pack(entry.sequence, entry.lane, entry.clock_ms, len(entry.lanes))]
    parts += [_COUNTS.pack(lane_id, *counts) for lane_id, counts in entry.lanes.items()]
    parts += [_SIZE.pack(queue_id, size_bytes) for queue_id, size_bytes in entry.sizes.items()]
    return b"".join(parts)


class Generation(NamedTuple):
    """A time with a certain number of shards. ``last``: the highest sequence number that any of them gave."""

    last: int
    shards: int


class Counters:
    """The shard's sequence counters. They only grow, and are durable with the commit that used them."""

    __slots__ = ("clock_ms", "earlier", "lane", "sequence")

    def __init__(self) -> None:
        self.sequence = 0
        """The number of messages accepted so far: the last sequence number given out."""
        self.lane = 0
        """The number of lanes made so far. No value of either counter is used twice."""
        self.clock_ms = 0
        """The time of the last id. Ids never go back, whatever the clock does."""
        self.earlier: list[Generation] = []
        """The earlier numbers of shards, the oldest first (:mod:`fila_worker.reshard`)."""


Watch: TypeAlias = "Callable[[Lane | ColdLane, bytes | None], None]"
"""Gets a lane before it changes, and the key of a message that has left its line; see :meth:`Ledger.show`."""


class Ledger:
    """The durable counts of lanes. A lane must be passed to :meth:`touch` before its counts change."""

    def __init__(self, families: Families, counters: Counters, limits: Limits) -> None:
        self._families = families
        self._limits = limits
        self.counters = counters
        self.changed: list[Lane] = []
        """Lanes that changed since the last commit."""
        self.changed_queues: dict[int, Queue] = {}
        """Queues whose size changed since the last commit, by id."""
        self._sized: dict[int, Queue] = {}
        """Queues whose size changed since the last fold."""
        self._unfolded: dict[int, Lane] = {}
        """Lanes with counts in entries that the fold in progress does not replace."""
        self._folding: dict[int, Lane] = {}
        """Lanes that the fold in progress has still to write."""
        self._first_entry = self._next_entry = 0
        self._fold_end: int | None = None
        """The entries before this one are removed when the fold in progress ends; None without a fold."""
        self._counts_written = 0
        """The number of lane counts in the entries that the fold in progress does not replace."""
        self._counts_kept_up = 0
        """The number of those for which the fold in progress has taken a lane."""
        self._used = (0, 0)
        """The sequence counters as of the last entry."""
        self.timer = DueTime()
        """When a fold is due."""
        self.watches: list[Watch] = []
        """Callbacks of copies that take several turns and need each lane as it was when they began."""

    @property
    def entry_due(self) -> bool:
        """Whether a commit must carry an entry: counts changed, or numbers were used (even if their messages are gone)."""
        return bool(self.changed or self.changed_queues) or (self.counters.sequence, self.counters.lane) != self._used

    def touch(self, lane: Lane, leaving: bytes | None = None) -> None:
        """Note that the lane's counts or weight are going to change. (The enqueue and ack loops inline this.)

        ``leaving``: the key of a message that was taken out of its line and not leased.
        """
        if not lane.changed:
            if self.watches:
                self.show(lane, leaving)
            lane.changed = True
            self.changed.append(lane)

    def show(self, lane: "Lane | ColdLane", leaving: bytes | None = None) -> None:
        """Pass a lane to the watches before its counts change, or before messages leave its line or their leases for good."""
        for watch in self.watches:
            watch(lane, leaving)

    def touch_queue(self, queue: Queue) -> None:
        """Note that the queue's size changed."""
        self.changed_queues[queue.id] = queue

    def write_entry(self, batch: StoreBatch) -> None:
        """Add the counts of all changed lanes, and the sizes of all changed queues, to a batch."""
        counters, queues = self.counters, self.changed_queues
        self._used = counters.sequence, counters.lane
        if len(self.changed) == len(queues) == 1:  # as a rule
            batch.put(pack_u64(self._next_entry), self._only_change(batch), self._families.ledger)
        else:
            batch.put(pack_u64(self._next_entry), self._changes(batch), self._families.ledger)
        self._next_entry += 1
        self._counts_written += len(self.changed)
        if (self.changed or queues) and self.fold_due:
            self.timer.by(AT_ONCE)
        self.changed.clear()
        queues.clear()

    def _only_change(self, batch: StoreBatch) -> bytes:
        """Return an entry of the one lane and the one queue that changed."""
        counters, (lane,), (queue,) = self.counters, self.changed, self.changed_queues.values()
        lane.changed = False
        if not lane.recorded:
            self._record(lane, batch)
        self._unfolded[lane.id] = lane
        self._sized[queue.id] = queue
        return _ONE.pack(
            counters.sequence,
            counters.lane,
            counters.clock_ms,
            1,
            lane.id,
            lane.stored,
            lane.delayed,
            lane.retrying,
            lane.key.weight,
            queue.id,
            queue.size_bytes,
        )

    def _changes(self, batch: StoreBatch) -> bytes:
        """Return an entry of all that changed."""
        counters = self.counters
        parts = [_HEAD.pack(counters.sequence, counters.lane, counters.clock_ms, len(self.changed))]
        for lane in self.changed:
            lane.changed = False
            if not lane.recorded:
                self._record(lane, batch)
            parts.append(_COUNTS.pack(lane.id, lane.stored, lane.delayed, lane.retrying, lane.key.weight))
            self._unfolded[lane.id] = lane
        parts += [_SIZE.pack(queue_id, queue.size_bytes) for queue_id, queue in self.changed_queues.items()]
        self._sized.update(self.changed_queues)
        return b"".join(parts)

    @property
    def fold_due(self) -> bool:
        """Whether a fold is in progress, or there are enough entries for one."""
        entries = self._next_entry - self._first_entry
        return (
            self.folding
            or self._counts_written >= self._limits.ledger_counts_max
            or entries >= self._limits.ledger_entries_max
        )

    @property
    def folding(self) -> bool:
        """Whether a fold is in progress."""
        return self._fold_end is not None

    def fold(self, batch: StoreBatch) -> list[Lane]:
        """Take a step of a fold: write the records of some lanes. The last step removes the entries.

        Return the idle lanes among those that were written. For each lane that changed since the fold began, one lane is
        folded, in this step or a later one. So a fold ends before the next one is much larger. Call it only at the end of a
        turn, when every message that left its line is in a lease.
        """
        if not self.folding:
            self._begin_fold(batch)
        behind = self._counts_written + len(self.changed) - self._counts_kept_up
        count = min(max(self._limits.ledger_fold_lanes_min, behind), self._limits.ledger_fold_lanes_max)
        self._counts_kept_up += min(count, behind)
        idle = []
        for _ in range(min(count, len(self._folding))):
            _, lane = self._folding.popitem()
            if lane.idle:
                batch.delete(lane.prefix, self._families.lanes)
                lane.recorded = False
                idle.append(lane)
            else:
                lane.floor = _floor(lane)
                self._record(lane, batch)
        if not self._folding:
            self._end_fold(batch)
        return idle

    def _begin_fold(self, batch: StoreBatch) -> None:
        if self.entry_due:
            self.write_entry(batch)
        self._fold_end = self._next_entry
        self._folding, self._unfolded = self._unfolded, {}
        self._counts_written = self._counts_kept_up = 0

    def _end_fold(self, batch: StoreBatch) -> None:
        assert self._fold_end is not None
        self._sized.update(self.changed_queues)
        for queue in self._sized.values():
            batch.put(pack_u32(queue.id), queue.to_bytes(), self._families.queues)
        self._sized.clear()
        batch.delete_range(pack_u64(self._first_entry), pack_u64(self._fold_end), self._families.ledger)
        self._first_entry, self._fold_end = self._fold_end, None
        if self._next_entry == self._first_entry:
            self.write_entry(batch)  # the counters are in entries only

    def is_folded(self, lane: Lane) -> bool:
        """Return whether no entry has counts of a lane, so that its record is exact."""
        return lane.id not in self._unfolded and lane.id not in self._folding

    def unfolded(self) -> list[Lane]:
        """Return the lanes that changed since the last fold."""
        lanes = self._folding | self._unfolded
        lanes.update((lane.id, lane) for lane in self.changed)
        return list(lanes.values())

    def forget_queue(self, queue: Queue) -> None:
        """Forget a queue that is deleted. The caller forgets its lanes, too."""
        self.changed_queues.pop(queue.id, None)
        self._sized.pop(queue.id, None)

    def forget(self, lanes: Collection[Lane], batch: StoreBatch) -> None:
        """Remove the records of lanes that are gone."""
        for lane in lanes:
            if lane.recorded:
                batch.delete(lane.prefix, self._families.lanes)
                lane.recorded = False
            self._unfolded.pop(lane.id, None)
            self._folding.pop(lane.id, None)
        if any(lane.changed for lane in lanes):
            gone = {lane.id for lane in lanes}
            self.changed[:] = [lane for lane in self.changed if lane.id not in gone]  # in place: the enqueue loop has it

    def _record(self, lane: Lane, batch: StoreBatch) -> None:
        key = lane.key
        record = LaneRecord(
            key.queue.id, key.name, key.weight, lane.stored, lane.delayed, lane.retrying, lane.floor, list(lane.throttle_keys)
        )
        batch.put(lane.prefix, encode_lane(record), self._families.lanes)
        lane.recorded = True

    def recovered(self, lane: Lane) -> None:
        """Add a lane that was rebuilt from its record and entries to the next fold."""
        self._unfolded[lane.id] = lane

    def replay(self, store: Store, queues: dict[int, Queue]) -> "Generator[None, int | None, dict[int, LaneCounts]]":
        """Bring the counters and the sizes of queues up to the last commit, in steps of some entries and counts.

        Return the counts of the lanes that changed since the last fold.
        """
        counters = self.counters
        changed: dict[int, LaneCounts] = {}
        step = 0
        for number, (key, entry) in enumerate(store.scan(FIRST, LAST, self._families.ledger)):
            self._next_entry = u64(key) + 1
            if number == 0:
                self._first_entry = u64(key)
            sequence, lane, clock_ms, lanes, sizes = parse_entry(entry)
            counters.sequence, counters.lane, counters.clock_ms = sequence, lane, clock_ms
            self._used = counters.sequence, counters.lane
            self._counts_written += len(lanes)
            changed |= lanes
            for queue_id, size_bytes in sizes.items():
                queue = queues.get(queue_id)
                if queue is not None:
                    queue.size_bytes = size_bytes
                    self._sized[queue_id] = queue
            step += 1 + len(lanes)
            if step >= self._limits.recovery_records_max:
                step = 0
                yield
        return changed


EARLIER: Final = b"earlier shards"
decode_generations = msgspec.msgpack.Decoder(list[Generation]).decode


def stored_generations(store: Store) -> list[Generation]:
    """Return the earlier numbers of shards, the oldest first."""
    data = store.get(EARLIER, store.families.state)
    return decode_generations(data) if data is not None else []


def write_generations(generations: list[Generation], families: Families, batch: StoreBatch) -> None:
    """Make the earlier numbers of shards durable."""
    batch.put(EARLIER, msgspec.msgpack.encode(generations), families.state)


def _floor(lane: Lane) -> bytes:
    head = lane.peek()
    bounds = [head[0] if head else None, lane.tail, min(lane.claimed, default=None)]
    return min((bound for bound in bounds if bound is not None), default=lane.floor)
