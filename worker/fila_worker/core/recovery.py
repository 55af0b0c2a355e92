"""From a store to a running shard: after a crash, a stop, or for the first time.

Reads the queues, the lanes with their counts (not the messages), the leases with the keys that they list, and the first
delayed message: so a restart costs what is in flight and how many lanes there are, never the backlog.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from fila_proto_zmq.errors import StorageError
from fila_worker.core.administration import bind_dead_letters
from fila_worker.core.fairness import FairnessKey
from fila_worker.core.graveyard import exhume, purge
from fila_worker.core.keys import FIRST, LAST, MESSAGE_KEY_BYTES, lane_of, u64
from fila_worker.core.lanes import Lane
from fila_worker.core.leases import SETTLED, TAKEN, Lease, LeaseRecord, Member, decode_lease, member_ended
from fila_worker.core.ledger import LaneRecord, decode_lane
from fila_worker.core.queues import Queue, QueueRecord, decode_queue
from fila_worker.core.settings import ShardSettings
from fila_worker.core.shard import Shard
from fila_worker.core.store import Store

FORMAT: Final = 1
_IDENTITY: Final = b"identity"


class Identity(msgspec.Struct, array_like=True):
    """Which shard a store holds. ``epoch`` grows with every opening."""

    format: int
    shard: int
    shards: int
    epoch: int


def recover(store: Store, settings: ShardSettings, *, index: int, shards: int, now_ms: int) -> Shard:
    """Open shard ``index`` of ``shards`` in ``store``, new if the store is empty.

    Raises :class:`StorageError` if the store holds another shard, or a later format.
    """
    identity = _claim(store, index, shards)
    shard = Shard(store, settings, index=index, epoch=identity.epoch)
    queues = _recover_queues(shard)
    _recover_lanes(shard, queues)
    _recover_leases(shard, queues, now_ms)
    purge(shard)
    for lane in shard.lanes.values():
        if lane.pending:
            lane.key.queue.ring.join(lane.key)
    shard.schedule.recover()
    shard.ledger.fold(shard.batch)
    shard.batch.put(_IDENTITY, msgspec.msgpack.encode(identity), store.families.state)
    shard.commit()
    return shard


def _claim(store: Store, index: int, shards: int) -> Identity:
    data = store.get(_IDENTITY, store.families.state)
    if data is None:
        return Identity(FORMAT, index, shards, 1)
    try:
        identity = msgspec.msgpack.decode(data, type=Identity)
    except msgspec.MsgspecError as cause:
        raise StorageError(f"the data of shard {index} is damaged: its identity can't be read ({cause})") from cause
    if identity.format > FORMAT:
        raise StorageError(f"the data was written by a later version (format {identity.format}): upgrade fila-cluster")
    if (identity.shard, identity.shards) != (index, shards):
        raise StorageError(
            f"the data is of shard {identity.shard} of {identity.shards}, not of shard {index} of {shards}: "
            "start with the data directory and the number of shards that belong together"
        )
    identity.epoch += 1
    return identity


def _recover_queues(shard: Shard) -> dict[int, Queue]:
    queues: dict[int, Queue] = {}
    records: dict[int, QueueRecord] = {}
    for key, data in shard.store.scan(FIRST, LAST, shard.store.families.queues):
        queue_id = int.from_bytes(key, "big")
        record = records[queue_id] = decode_queue(data)
        queues[queue_id] = shard.queues[record.name] = Queue(queue_id, record.name, record.options)
        shard.last_queue_id = queue_id
    for queue_id, record in records.items():
        if record.dead_letters:
            bind_dead_letters(queues[queue_id], queues[record.dead_letters])
    return queues


def _recover_lanes(shard: Shard, queues: dict[int, Queue]) -> None:
    families = shard.store.families
    records = {u64(key): decode_lane(data) for key, data in shard.store.scan(FIRST, LAST, families.lanes)}
    shard.ledger.replay(shard.store, records)
    for lane_id, record in records.items():
        lane = _recover_lane(lane_id, record, queues[record.queue])
        shard.lanes[lane_id] = lane
        shard.ledger.recovered(lane)


def _recover_lane(lane_id: int, record: LaneRecord, queue: Queue) -> Lane:
    key = queue.keys[record.fairness_key] = FairnessKey(record.fairness_key, queue, lane_id)
    key.weight = record.weight
    lane = key.lane
    lane.stored, lane.delayed, lane.floor = record.stored, record.delayed, record.floor
    lane.tail = lane.floor if lane.stored else None
    queue.pending += record.stored
    queue.delayed += record.delayed
    return lane


def _recover_leases(shard: Shard, queues: dict[int, Queue], now_ms: int) -> None:
    for key, data in shard.store.scan(FIRST, LAST, shard.store.families.leases):
        if not data or exhume(shard, u64(key), data):
            shard.leases.finished[u64(key)] = SETTLED
            continue
        record = decode_lease(data)
        consumer = shard.consumers.open(record.client, now_ms)
        members = list(_members(shard, record))
        lease = Lease(u64(key), consumer, queues[record.queue], members, record.leased_ms, record.duration_ms)
        lease.expires_ms, lease.extended, lease.subscription_id = (
            record.expires_ms,
            record.extended,
            record.subscription,
        )
        _restore(shard, lease, key)


def _members(shard: Shard, record: LeaseRecord) -> Iterator[Member]:
    """The members of a lease record: those whose message is gone were acked."""
    starts = range(0, len(record.keys), MESSAGE_KEY_BYTES)
    keys = [record.keys[start : start + MESSAGE_KEY_BYTES] for start in starts]
    found = shard.store.get_many(keys, shard.store.families.messages)
    for key, message in zip(keys, found, strict=True):
        ended = member_ended(key)
        if ended is not None:
            yield ended
        else:
            yield SETTLED if message is None else (key, shard.lanes[lane_of(key)])


def _restore(shard: Shard, lease: Lease, key: bytes) -> None:
    """Enter a recovered lease; one whose members had all ended is over."""
    open_members = list(lease.open_members())
    lease.open = len(open_members)
    lease.taken = any(member is TAKEN for member in lease.members)
    if not open_members:
        shard.batch.delete(key, shard.store.families.leases)
        return
    for _, message_key, lane in open_members:
        lane.leased.add(message_key)
    lease.queue.pending -= lease.open
    lease.queue.in_flight += lease.open
    shard.leases.add(lease)
