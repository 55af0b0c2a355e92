"""The copy of the old shards into the new ones, in an order that is the same each time."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from gc import collect
from typing import Final

from fila_proto_zmq.names import shard_of
from fila_worker.core.callback_groups.owned import PREFIXES, batch_queue
from fila_worker.core.enqueue.dedup import RECORD_BYTES
from fila_worker.core.hooks import no_hooks
from fila_worker.core.keys import (
    FIRST,
    LANE_BYTES,
    LAST,
    MESSAGE_KEY_BYTES,
    after,
    first_of_all,
    lane_of,
    place_of,
    range_of,
    u32,
    u64,
)
from fila_worker.core.model.due_index import DueKind, parse_delayed
from fila_worker.core.model.lanes import Lane
from fila_worker.core.model.leases import FINISHED, SETTLED, LeaseRecord, decode_lease, ended_key, member_ended
from fila_worker.core.model.ledger import LaneRecord, decode_lane
from fila_worker.core.model.queues import Queue, decode_queue
from fila_worker.core.model.shard_transfers import OutboxEntry, decode_outbox, stored_entries
from fila_worker.core.recovery import recover
from fila_worker.core.schedules import table
from fila_worker.core.shard import Shard
from fila_worker.core.store import DamageError, Store
from fila_worker.reshard.new_shard import COPYING, NewShard, Position
from fila_worker.reshard.survey import Survey, survey

PIECE_MESSAGES: Final = 512
PIECE_BYTES: Final = 1024 * 1024
"""The messages and bytes that are read at once. The last message may exceed them."""

QUEUE_BYTES: Final = 4
_IN_LINE: Final = b"\x00"
_DELAYED: Final = b"\x01"
"""The parts of a lane. A position within a lane is its prefix, the part, and a place in line."""
_PART: Final = slice(LANE_BYTES, LANE_BYTES + 1)


class CopyStage(IntEnum):
    """The kinds of data of an old shard, in the order of the copy."""

    QUEUES = 0
    MESSAGES = 1
    LEASES = 2
    DEDUP = 3
    WINDOWS = 4
    OUTBOX = 5
    SCHEDULES = 6
    BATCHES = 7
    END = 8


@dataclass(frozen=True, slots=True)
class Shards:
    """The old and the new shards: how many, and functions that open their stores."""

    before: int
    after: int
    open_old: Callable[[int], Store]
    open_new: Callable[[int], Store]


@dataclass(slots=True)
class Totals:
    """The content of the new shards."""

    queues: int = 0
    messages: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ReshardProgress:
    """Callbacks during the copy.

    ``shard(index, messages)``: the copy of an old shard begins, with so many messages. ``copied(messages)``: so many more
    were copied, or were there already. ``step(name)``: before a commit, or after a step; tests end the process there.
    """

    shard: Callable[[int, int], None] = lambda index, messages: None
    copied: Callable[[int], None] = lambda messages: None
    step: Callable[[str], None] = lambda name: None


def copy_all(shards: Shards, now_ms: int, entropy: Callable[[], int], progress: ReshardProgress) -> Totals:
    """Copy all queues, or the rest after an earlier run. Return the content of the new shards.

    ``entropy`` returns 64 random bits. Raise :class:`~fila_proto_zmq.errors.StorageError` if a disk refuses, and
    :class:`DamageError` if an old shard is damaged or a count differs from its copy.
    """
    facts = survey(shards.open_old, shards.before)
    progress.step("surveyed")
    news: list[NewShard] = []
    try:
        for index in range(shards.after):
            news.append(NewShard(shards.open_new(index), index, shards.after, facts, now_ms, entropy()))
            progress.step(f"new shard {index} open")
        totals = Totals()
        for index in range(shards.before):
            _copy_shard(shards, index, facts, news, totals, now_ms, progress)
        for new in news:
            new.complete()
            progress.step("new shard complete")
    finally:
        for new in news:
            new.close()
    return totals


def _copy_shard(
    shards: Shards, index: int, facts: Survey, news: list[NewShard], totals: Totals, now_ms: int, progress: ReshardProgress
) -> None:
    store = shards.open_old(index)
    try:
        old = recover(store, COPYING, no_hooks, index=index, shards=shards.before, now_ms=now_ms)
        _Copy(old, facts, news, progress).run(totals)
    finally:
        store.close()
    collect()  # the objects of the old shard refer to each other in cycles, and may take much memory


class _Copy:
    """The copy of one old shard."""

    def __init__(self, old: Shard, facts: Survey, news: list[NewShard], progress: ReshardProgress) -> None:
        self._old, self._facts, self._news, self._progress = old, facts, news, progress
        self._store, self._families = old.store, old.store.families
        self._homes: dict[int, tuple[NewShard, str]] = {}
        """The new shard and the name of each queue, by its number in the old shard, without deleted queues."""
        for queue in old.queues.values():
            self._homes[queue.id] = news[shard_of(queue.name, len(news))], queue.name

    def run(self, totals: Totals) -> None:
        """Copy everything, and compare the counts."""
        queues = self._old.queues.values()
        self._progress.shard(self._old.index, sum(queue.depth for queue in queues))
        self._queues()
        self._messages()
        self._leases()
        self._dedup()
        self._windows()
        self._outbox()
        self._schedules()
        self._batches()
        for queue in queues:
            self._compare(queue)
            totals.queues += not queue.is_dead_letter
            totals.messages += queue.depth
            totals.size_bytes += queue.size_bytes

    # --- queues -------------------------------------------------------------------------------------------------------

    def _queues(self) -> None:
        records = {u32(key): decode_queue(data) for key, data in self._store.scan(FIRST, LAST, self._families.queues)}
        for number, (new, _) in self._homes.items():
            if not self._old.queues.by_id[number].is_dead_letter and new.position < self._at(CopyStage.MESSAGES):
                record = records[number]
                new.define(record, records[record.dead_letters] if record.dead_letters else None)
        self._end(CopyStage.QUEUES)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _messages(self) -> None:
        if self._done(CopyStage.MESSAGES):
            self._progress.copied(sum(queue.depth for queue in self._old.queues.values()))
            return
        start = self._start(CopyStage.MESSAGES)[:LANE_BYTES]
        for prefix, data in self._store.scan(start, LAST, self._families.lanes):
            record = decode_lane(data)
            home = self._homes.get(record.queue)
            if home is not None and (record.stored or record.delayed):
                self._lane(*home, prefix, record)
        self._end(CopyStage.MESSAGES)

    def _lane(self, new: NewShard, name: str, prefix: bytes, record: LaneRecord) -> None:
        """Copy a lane: its messages in line, leased ones among them, then its delayed ones."""
        if new.position[:2] > self._at(CopyStage.MESSAGES)[:2] or new.position > self._at(CopyStage.MESSAGES, prefix + LAST):
            self._progress.copied(record.stored + record.delayed)
            return
        for part, family in ((_IN_LINE, self._families.messages), (_DELAYED, self._families.delayed)):
            begin = self._begin(new, prefix, part)
            for piece in _pieces(self._store.scan(begin, prefix + LAST, family)):
                self._piece(new, new.lane(name, record), part, piece)
        lane = new.lane(name, record)
        if (lane.stored, lane.delayed, lane.retrying) != (record.stored, record.delayed, record.retrying):
            raise DamageError(
                f"a lane of queue {name!r} counts {record.stored} messages in line and {record.delayed} delayed ones, "
                f"but {lane.stored} and {lane.delayed} were found: restore shard {self._old.index} from a backup"
            )

    def _begin(self, new: NewShard, prefix: bytes, part: bytes) -> bytes:
        """Return the first key of a part of a lane that a new shard may lack."""
        at = new.position[2]
        if new.position[:2] != self._at(CopyStage.MESSAGES)[:2] or at[:LANE_BYTES] != prefix or part > at[_PART]:
            return prefix
        return after(prefix + at[_PART.stop :]) if part == at[_PART] else prefix + LAST

    def _piece(self, new: NewShard, lane: Lane, part: bytes, piece: list[tuple[bytes, bytes]]) -> None:
        for key, value in piece:
            if part == _IN_LINE:
                new.put(lane, place_of(key), value)
            else:
                new.put_delayed(lane, place_of(key), parse_delayed(value))
        self._progress.copied(len(piece))
        last = piece[-1][0]
        self._commit_if_full(new, self._at(CopyStage.MESSAGES, last[:LANE_BYTES] + part + place_of(last)))

    # --- what belongs to messages and queues --------------------------------------------------------------------------

    def _leases(self) -> None:
        """Copy the open leases. Leases that are over are not remembered: their records do not name a queue."""
        stage = CopyStage.LEASES
        for key, data in self._store.scan(self._start(stage), LAST, self._families.leases):
            if data.startswith(FINISHED):
                continue
            record = decode_lease(data)
            home = self._homes.get(record.queue)
            if home is not None and home[0].position < self._at(stage, key):
                self._lease(*home, key, record)
                self._commit_if_full(home[0], self._at(stage, key))
        self._end(stage)

    def _lease(self, new: NewShard, name: str, key: bytes, record: LeaseRecord) -> None:
        keys = [record.keys[at : at + MESSAGE_KEY_BYTES] for at in range(0, len(record.keys), MESSAGE_KEY_BYTES)]
        found = self._store.get_many(keys, self._families.messages)
        record.keys = b"".join(
            each
            if member_ended(each) is not None
            else ended_key(SETTLED)
            if message is None
            else self._moved(new, name, each)
            for each, message in zip(keys, found, strict=True)
        )
        new.put_lease(key, name, record)

    def _moved(self, new: NewShard, name: str, message_key: bytes) -> bytes:
        """Return the key that a message has in its new shard."""
        data = self._store.get(message_key[:LANE_BYTES], self._families.lanes)
        if data is None:
            raise DamageError(f"a message of queue {name!r} is in lane {lane_of(message_key)}, which has no record")
        return new.lane(name, decode_lane(data)).prefix + place_of(message_key)

    def _dedup(self) -> None:
        """Copy the dedup ids."""
        stage = CopyStage.DEDUP
        for key, data in self._store.scan(self._start(stage), LAST, self._families.dedup):
            home = self._homes.get(u32(key))
            if home is not None and home[0].position < self._at(stage, key):
                home[0].put_dedup(home[1], key[QUEUE_BYTES:], self._placed(*home, data))
                self._commit_if_full(home[0], self._at(stage, key))
        self._end(stage)

    def _placed(self, new: NewShard, name: str, data: bytes) -> bytes:
        """Return the record of a dedup id, with its message's key in the new shard, if the message is still there."""
        record, message_key = data[:RECORD_BYTES], data[RECORD_BYTES:]
        if not message_key:
            return record
        families = (self._families.messages, self._families.delayed)
        keys = (message_key, first_of_all(message_key))  # it moves up if it was delivered in strict order
        if all(self._store.get(key, family) is None for family in families for key in keys):
            return record
        return record + self._moved(new, name, message_key)

    def _windows(self) -> None:
        """Copy the ends of the dedup windows, and the broker's waiting enqueues; the other entries follow from the rest."""
        stage = CopyStage.WINDOWS
        begin = max(self._old.due_index.checkpoint, self._start(stage))
        for key, note in self._store.scan(begin, LAST, self._families.schedule):
            if key[8] == DueKind.ENQUEUE:
                self._enqueue(stage, key, decode_outbox(note))
            if key[8] != DueKind.FORGET:
                continue
            home = self._homes.get(u32(key[9:]))
            if home is not None and home[0].position < self._at(stage, key):
                home[0].put_window(home[1], u64(key), key[9 + QUEUE_BYTES :], note)
                self._commit_if_full(home[0], self._at(stage, key))
        self._end(stage)

    def _outbox(self) -> None:
        """Copy the messages on their way to other shards that have not arrived, or were refused there."""
        stage = CopyStage.OUTBOX
        for key, to_shard, stream, number, entry in stored_entries(self._store, b""):
            if entry.owner is not None:
                entry.outcome = self._facts.outcome(self._old.index, to_shard, stream, number)
                self._enqueue(stage, key, entry)
                continue
            if self._facts.arrived(self._old.index, to_shard, stream, number):
                continue
            target = entry.transfer.queue
            new, origin = self._homes.get(entry.origin) or (self._news[shard_of(target, len(self._news))], None)
            if new.position < self._at(stage, key):
                new.put_transfer(origin, entry, shard_of(target, len(self._news)))
                self._commit_if_full(new, self._at(stage, key))
        self._end(stage)

    def _schedules(self) -> None:
        """Copy the schedules to the shards of their names, with their progress."""
        self._values(CopyStage.SCHEDULES, table.PREFIXES, table.schedule_name)

    def _enqueue(self, stage: CopyStage, key: bytes, entry: OutboxEntry) -> None:
        """Copy an enqueue by the broker to the shard of its owner, which gets the outcome if it was carried out."""
        assert entry.owner is not None
        new = self._news[shard_of(entry.owner.name, len(self._news))]
        if new.position < self._at(stage, key):
            new.put_enqueue(entry, self._old.index, key)
            self._commit_if_full(new, self._at(stage, key))

    def _batches(self) -> None:
        """Copy batches, which go with their callbacks' queues, and their parts, which go with the queues of the members.

        A part goes to the shard of a deleted queue, too: its counts are not reported yet.
        """
        self._values(CopyStage.BATCHES, PREFIXES, batch_queue)

    def _values(self, stage: CopyStage, prefixes: Iterable[bytes], name_of: Callable[[bytes], str]) -> None:
        """Copy the values of the ``state`` family with some prefixes. ``name_of``: the name that decides the shard."""
        start = self._start(stage)
        for first, end in map(range_of, sorted(prefixes)):
            begin = max(first, start)
            for key, value in self._store.scan(begin, end, self._families.state) if begin < end else ():
                new = self._news[shard_of(name_of(key), len(self._news))]
                if new.position < self._at(stage, key):
                    new.put_state(key, value)
                    self._commit_if_full(new, self._at(stage, key))
        self._end(stage)

    # --- commits and counts -------------------------------------------------------------------------------------------

    def _at(self, stage: CopyStage, key: bytes = b"") -> Position:
        return (self._old.index, stage, key)

    def _start(self, stage: CopyStage) -> bytes:
        """Return the key at which the copy of a stage continues."""
        least = min(new.position for new in self._news)
        return least[2] if least[:2] == (self._old.index, stage) else FIRST

    def _done(self, stage: CopyStage) -> bool:
        """Return whether all new shards have a whole stage."""
        return all(new.position >= self._at(CopyStage(stage + 1)) for new in self._news)

    def _commit_if_full(self, new: NewShard, position: Position) -> None:
        if new.full:
            self._commit(new, position)

    def _commit(self, new: NewShard, position: Position) -> None:
        self._progress.step("commit")
        new.commit(position)
        self._progress.step("committed")

    def _end(self, stage: CopyStage) -> None:
        """Commit the rest of a stage."""
        following = self._at(CopyStage(stage + 1))
        for new in self._news:
            if new.position < following:
                self._commit(new, following)

    def _compare(self, queue: Queue) -> None:
        new, name = self._homes[queue.id]
        copy = new.shard.queues[name]
        if (copy.depth, copy.size_bytes) != (queue.depth, queue.size_bytes):
            raise DamageError(
                f"queue {name!r} has {queue.depth} messages of {queue.size_bytes} bytes in shard {self._old.index}, and "
                f"{copy.depth} of {copy.size_bytes} in its copy: the old shards are as they were; please report this"
            )


def _pieces(items: Iterator[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield items in pieces of a bounded number and size."""
    piece: list[tuple[bytes, bytes]] = []
    left_bytes = PIECE_BYTES
    for item in items:
        piece.append(item)
        left_bytes -= len(item[1])
        if len(piece) == PIECE_MESSAGES or left_bytes <= 0:
            yield piece
            piece, left_bytes = [], PIECE_BYTES
    if piece:
        yield piece
