"""A shard under construction: its content, and how far the old shards were copied."""

from typing import Final, TypeAlias

import msgspec

from fila_proto_zmq.commands import QueueOptions
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import HAS_TTL
from fila_worker.core.enqueue.insert import add_queue, bind_dead_letters
from fila_worker.core.hooks import no_hooks
from fila_worker.core.keys import pack_u32, pack_u64
from fila_worker.core.manage.deletion import watch
from fila_worker.core.model.due_index import Delayed, DueKind, delay, on_the_grid
from fila_worker.core.model.lanes import Lane, extension_of
from fila_worker.core.model.leases import LeaseRecord, encode_lease
from fila_worker.core.model.ledger import Counters, LaneRecord, Ledger, write_generations
from fila_worker.core.model.queues import Queue, QueueRecord
from fila_worker.core.model.runtime_config import RuntimeConfig
from fila_worker.core.model.shard_transfers import OUTBOX_KEY_BYTES, OutboxEntry, encode_entry, size_of
from fila_worker.core.recovery import read_identity, recover, write_identity
from fila_worker.core.settings import DEFAULTS, ShardSettings
from fila_worker.core.shard import Shard
from fila_worker.core.store import Store
from fila_worker.core.stored.messages import LedgerFolds
from fila_worker.reshard.survey import Survey

Position: TypeAlias = tuple[int, int, bytes]
"""How far the old shards were copied: an old shard, a stage of its copy, and the last key of the stage. Positions sort in the
order of the copy."""

BEGIN: Final[Position] = (0, 0, b"")
COMPLETE: Final[Position] = (2**32, 0, b"")

_POSITION: Final = b"reshard position"
COPYING: Final = ShardSettings(buffer_bytes=0)
"""The settings of shards that are copied: no message is kept in memory, because none will be delivered."""

CHANGES_AT_ONCE: Final = 4096
BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""The changes and bytes of a commit. A crash repeats about as many for each new shard."""

_decode_position = msgspec.msgpack.Decoder(Position).decode


class NewShard:
    """A new shard. :meth:`commit` makes changes durable, together with the position of the copy."""

    def __init__(self, store: Store, index: int, shards: int, survey: Survey, now_ms: int, entropy: int) -> None:
        """Begin a new shard in an empty store, or continue with one. ``entropy``: 64 random bits.

        Raise :class:`~fila_proto_zmq.errors.StorageError`.
        """
        self._now_ms = now_ms
        if read_identity(store) is None:
            _found(store, index, shards, survey)
        self.shard: Shard = recover(store, COPYING, no_hooks, index=index, shards=shards, now_ms=now_ms, entropy=entropy)
        stored = store.get(_POSITION, store.families.state)
        self.position: Position = COMPLETE if stored is None else _decode_position(stored)
        self._folds = next(each for each in self.shard.components if isinstance(each, LedgerFolds))
        self._changes = self._size_bytes = 0
        """The changes since the last commit."""

    @property
    def full(self) -> bool:
        """Whether there are enough changes for a commit."""
        return self._changes >= CHANGES_AT_ONCE or self._size_bytes >= BYTES_AT_ONCE

    def define(self, record: QueueRecord, dead_letters: QueueRecord | None) -> None:
        """Add a queue with its dead letter queue, unless it is there."""
        if record.name in self.shard.queues:
            return
        queue = self._add(record)
        if dead_letters is not None:
            bind_dead_letters(queue, self._add(dead_letters))
            self.shard.save_queue(queue)
        watch(self.shard, queue, queue.used_ms)

    def _add(self, record: QueueRecord) -> Queue:
        queue = add_queue(self.shard, record.name, record.options or QueueOptions(), record.created_ms)
        queue.recover(record)
        queue.size_bytes = 0
        self.shard.save_queue(queue)
        return queue

    def lane(self, name: str, record: LaneRecord) -> Lane:
        """Return the lane for the messages of an old one. It is valid until the next commit."""
        lane = self.shard.lane(self.shard.queues[name], record.fairness_key, tuple(record.throttle_keys))
        self.shard.set_weight(lane.key, record.weight)
        return lane

    def put(self, lane: Lane, place: bytes, message: bytes) -> None:
        """Put a message in line."""
        self.shard.put_in_line(lane, place, message)
        self._watch_age(lane, place, message)

    def put_delayed(self, lane: Lane, place: bytes, delayed: Delayed) -> None:
        """Put a message to the delayed ones."""
        delay(
            self.shard,
            lane,
            lane.prefix + place,
            delayed.record,
            delayed.due_ms,
            retrying=delayed.retrying,
            deferred=delayed.deferred,
        )
        self._watch_age(lane, place, delayed.record)

    def _watch_age(self, lane: Lane, place: bytes, message: bytes) -> None:
        """Add the end of the message's time to live to the due index, and count it."""
        if message[1] & HAS_TTL:
            expires_ms = extension_of(message).expires_ms
            if expires_ms is not None:
                self.shard.due_index.add(on_the_grid(expires_ms), DueKind.EXPIRE, lane.prefix + place, self.shard.batch)
        self._changes += 1
        self._size_bytes += len(message)

    def put_lease(self, key: bytes, name: str, record: LeaseRecord) -> None:
        """Put an open lease whose members have the keys of this shard.

        Its id stays, so its holder may settle it. If two old shards gave out the same id, which is most unlikely, the lease
        gets another one: then its holder's settlement comes too late, and the lease ends when it expires.
        """
        shard, leases = self.shard, self.shard.store.families.leases
        record.queue = shard.queues[name].id
        if shard.store.get(key, leases) is not None:
            key = pack_u64(shard.leases.new_id())
        shard.batch.put(key, encode_lease(record), leases)
        self._changes += 1

    def put_dedup(self, name: str, dedup_id: bytes, value: bytes) -> None:
        """Put a dedup id of a queue."""
        shard = self.shard
        shard.batch.put(pack_u32(shard.queues[name].id) + dedup_id, value, shard.store.families.dedup)
        self._changes += 1

    def put_window(self, name: str, end_ms: int, number: bytes, note: bytes) -> None:
        """Put the end of the window of some dedup ids of a queue. ``number`` distinguishes it from others that end then."""
        shard = self.shard
        subject = pack_u32(shard.queues[name].id) + number
        shard.due_index.add(end_ms, DueKind.FORGET, subject, shard.batch, note)
        self._changes += 1
        self._size_bytes += len(note)

    def put_transfer(self, origin: str | None, entry: OutboxEntry, to_shard: int) -> None:
        """Put a message on its way to a queue of shard ``to_shard``. ``origin``: its queue here; None: that was deleted."""
        entry.origin = 0 if origin is None else self.shard.queues[origin].id
        self.shard.outbox.add(to_shard, entry, self.shard.batch)
        self._changes += 1
        self._size_bytes += len(entry.transfer.record)

    def put_enqueue(self, entry: OutboxEntry, from_shard: int, key: bytes) -> None:
        """Put an enqueue by the broker: on its way, or to the due index if it was carried out.
        ``key``: in old shard ``from_shard``."""
        shard = self.shard
        if entry.outcome is None:
            shard.outbox.add(shard_of(entry.transfer.queue, shard.shards), entry, shard.batch)
        else:  # due at once: the time only distinguishes it from those of other shards
            shard.due_index.add(from_shard, DueKind.ENQUEUE, key[-OUTBOX_KEY_BYTES:], shard.batch, encode_entry(entry))
        self._changes += 1
        self._size_bytes += size_of(entry.transfer)

    def put_state(self, key: bytes, value: bytes) -> None:
        """Put a value of the ``state`` family, as it is. It is read when the shard is opened next."""
        self.shard.batch.put(key, value, self.shard.store.families.state)
        self._changes += 1
        self._size_bytes += len(value)

    def commit(self, position: Position) -> None:
        """Make all changes durable, and the position of the copy with them."""
        shard = self.shard
        self.position = position
        shard.batch.put(_POSITION, msgspec.msgpack.encode(position), shard.store.families.state)
        if shard.ledger.fold_due:
            self._folds.tick(self._now_ms)
        shard.commit()
        self._changes = self._size_bytes = 0

    def complete(self) -> None:
        """Make everything durable, also against a power cut, and forget the position, because the copy is done."""
        shard = self.shard
        shard.batch.delete(_POSITION, shard.store.families.state)
        shard.to_be_synced = True
        shard.commit()
        self.position = COMPLETE

    def close(self) -> None:
        """Release the store. What is not committed is dropped."""
        self.shard.store.close()


def _found(store: Store, index: int, shards: int, survey: Survey) -> None:
    """Make an empty store that of a new shard, which continues behind all old ones."""
    batch, families = store.new_batch(), store.families
    counters = Counters()
    counters.sequence, counters.clock_ms = survey.sequence, survey.clock_ms
    Ledger(families, counters, DEFAULTS).write_entry(batch)
    write_generations(survey.generations, families, batch)
    config = RuntimeConfig(families)
    if survey.config_version > 0 or survey.config:
        config.change(survey.config_version, survey.config, batch)
    if index == 0:  # that shard numbers the changes
        for stored, edit in survey.config_edits.items():
            batch.put(stored, edit, families.state)
    for key, until_ms in survey.parks.items():
        config.save_park(key, until_ms, batch)
    batch.put(_POSITION, msgspec.msgpack.encode(BEGIN), families.state)
    write_identity(store, batch, index=index, shards=shards, epoch=survey.epoch)
    store.commit(batch, sync=True)
