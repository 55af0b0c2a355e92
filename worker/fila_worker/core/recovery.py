"""From a store to a running shard: after a crash, a stop, or for the first time.

Reads the queues, the lanes with their counts (not the messages), the leases with the keys that they list, and the first
delayed message: so a restart costs what is in flight and how many lanes there are, never the backlog.

It goes in steps of a bounded number of records, so that the other shards of a process go on meanwhile. Nothing is written before
the last step. What can't be read, or contradicts something else, is a :class:`DamageError` that says so: a shard that went on
without it would overwrite what may still be rescued.
"""

from collections.abc import Callable, Generator, Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter
from struct import error as StructError  # noqa: N812  # it is a class
from traceback import extract_tb
from typing import Final, TypeAlias, TypeVar

import msgspec

from fila_proto_zmq.errors import LuaCompilationError
from fila_proto_zmq.events import HookMissing
from fila_proto_zmq.record import HAS_TTL
from fila_worker.core.enqueue.breaker import GuardedHooks
from fila_worker.core.enqueue.insert import LAST_QUEUE_ID, bind_dead_letters
from fila_worker.core.enqueue.policy import compile_hooks
from fila_worker.core.hooks import HookCompiler
from fila_worker.core.keys import FIRST, FIRST_PLACE, LAST, MESSAGE_KEY_BYTES, lane_of, u64
from fila_worker.core.manage.deletion import clear
from fila_worker.core.manage.queue_commands import recount_held
from fila_worker.core.model.acked_messages import purge, recover_mark
from fila_worker.core.model.cold_lanes import COUNT_MAX, packed, pending_cold
from fila_worker.core.model.fairness_keys import FairnessKey
from fila_worker.core.model.lanes import Lane
from fila_worker.core.model.leases import (
    FINISHED,
    SETTLED,
    TAKEN,
    Finished,
    Holder,
    Lease,
    LeaseRecord,
    Member,
    decode_lease,
    member_ended,
)
from fila_worker.core.model.ledger import LaneRecord, decode_lane
from fila_worker.core.model.queues import USED_SAVE_MS, Queue, QueueRecord, decode_queue
from fila_worker.core.settings import ShardSettings
from fila_worker.core.shard import Shard
from fila_worker.core.store import DamageError, Store, WrongStoreError

FORMAT: Final = 3
_IDENTITY: Final = b"identity"

_Record = TypeVar("_Record")


class Identity(msgspec.Struct, array_like=True):
    """Which shard a store holds. ``epoch`` grows with every opening."""

    format: int
    shard: int
    shards: int
    epoch: int


Steps: TypeAlias = Generator[None, int | None, None]
"""What is done in steps. It may be sent the time with each, Unix ms."""

_CONTRADICTIONS: Final = (LookupError, ValueError, TypeError, AssertionError, StructError, msgspec.MsgspecError)
"""What code meets that reads records of which one is not what another says."""


def recover(
    store: Store,
    settings: ShardSettings,
    compile_hooks: HookCompiler,
    *,
    index: int,
    shards: int,
    now_ms: int,
    entropy: int = 0,
) -> Shard:
    """Open shard ``index`` of ``shards`` in ``store``, new if the store is empty, without a pause.

    ``entropy``: 64 random bits, which tell this opening from any other, also where the epoch is given out again because the store
    was restored from a copy. The epoch is synced before anything is served.

    Raises what :func:`recover_in_steps` does.
    """
    steps = recover_in_steps(store, settings, compile_hooks, index=index, shards=shards, now_ms=now_ms, entropy=entropy)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            shard: Shard = done.value
            return shard


def recover_in_steps(
    store: Store,
    settings: ShardSettings,
    compile_hooks: HookCompiler,
    *,
    index: int,
    shards: int,
    now_ms: int,
    entropy: int = 0,
) -> Generator[None, int | None, Shard]:
    """The same in steps; send the time with each. Returns the shard.

    Raises :class:`WrongStoreError` if the store holds another shard, or another format, and :class:`DamageError`.
    """
    identity = _claim(store, index, shards)
    shard = Shard(store, settings, compile_hooks, index=index, shards=shards, epoch=identity.epoch, entropy=entropy)
    try:
        yield from _take_up(shard, now_ms)
    except _CONTRADICTIONS as cause:
        raise DamageError(f"the records of shard {index} contradict each other: {_said(cause)}") from cause
    shard.batch.put(_IDENTITY, msgspec.msgpack.encode(identity), store.families.state)
    shard.to_be_synced = True
    shard.commit()
    return shard


def _said(cause: Exception) -> str:
    """What was found, and where, without the records' contents."""
    frame = extract_tb(cause.__traceback__)[-1]
    text = str(cause) if isinstance(cause, (msgspec.MsgspecError, KeyError, AssertionError)) else ""
    return f"{type(cause).__name__} {text} in {frame.name}".replace("  ", " ")


def _take_up(shard: Shard, now_ms: int) -> Steps:
    at_once = shard.settings.limits.recovery_records_max
    parks = yield from shard.runtime.recover(shard.store, at_once)
    shard.park(parks, now_ms)
    for throttle_key in parks.keys() - shard.token_client.parks.keys():
        shard.runtime.forget_park(throttle_key, shard.batch)  # its time has come meanwhile
    yield from shard.token_client.recover(shard.runtime.limits, at_once, now_ms)
    yield from _recover_queues(shard, now_ms)
    yield from _recover_lanes(shard)
    yield from _recover_leases(shard, now_ms)
    purge(shard)
    late = yield from _late(shard)
    for queue in shard.queues_by_id.values():
        yield from _activate(shard, queue, late.get(queue.id, []))
        _check_counts(queue)
        if queue.options.max_in_flight_per_key is not None:
            yield from _recount(shard, queue)
        yield
    shard.due_index.recover()
    shard.outbox.recover(shard.store, shard.batch)
    yield from _fold(shard)
    for queue in shard.queues_by_id.values():
        if queue.gone:
            shard.jobs.start_own(clear(shard, queue))


def _recount(shard: Shard, queue: Queue) -> Steps:
    """Count what the keys of a queue with a cap have in flight."""
    keys = iter(queue.keys.values())
    while some := list(islice(keys, shard.settings.limits.recovery_records_max)):
        recount_held(shard, some)
        yield


def _fold(shard: Shard) -> Steps:
    """Fold the ledger, and drop the lanes of which nothing is left; with them, their keys."""
    while True:
        for lane in shard.ledger.fold(shard.batch):
            shard.forget_lane(lane)
        if not shard.ledger.folding:
            return
        yield


def _check_counts(queue: Queue) -> None:
    counts = {"pending": queue.pending, "in flight": queue.in_flight, "delayed": queue.delayed, "bytes": queue.size_bytes}
    if min(counts.values()) < 0:
        raise DamageError(f"the records of queue {queue.name!r} contradict each other: they count {counts}")


def _claim(store: Store, index: int, shards: int) -> Identity:
    data = store.get(_IDENTITY, store.families.state)
    if data is None:
        return Identity(FORMAT, index, shards, 1)
    try:
        identity = msgspec.msgpack.decode(data, type=Identity)
    except msgspec.MsgspecError as cause:
        raise DamageError(f"the data of shard {index} is damaged: its identity can't be read ({cause})") from cause
    if identity.format > FORMAT:
        raise WrongStoreError(f"the data was written by a later version (format {identity.format}): upgrade fila-cluster")
    if identity.format < FORMAT:
        raise WrongStoreError(
            f"the data was written by a preview (format {identity.format}, this version reads {FORMAT}): "
            "use another data directory, or consume what is in it with the version that wrote it"
        )
    if (identity.shard, identity.shards) != (index, shards):
        raise WrongStoreError(
            f"the data is of shard {identity.shard} of {identity.shards}, not of shard {index} of {shards}: "
            "start with the data directory and the number of shards that belong together"
        )
    identity.epoch += 1
    return identity


def _recover_queues(shard: Shard, now_ms: int) -> Steps:
    records: dict[int, QueueRecord] = {}
    for key, data in shard.store.scan(FIRST, LAST, shard.store.families.queues):
        queue_id = int.from_bytes(key, "big")
        record = records[queue_id] = _decoded(decode_queue, data, "queue number", queue_id)
        queue = Queue(queue_id, record.name, record.options, shard.settings.limits, shard.lanes)
        shard.queues_by_id[queue_id] = queue
        queue.recover(record)
        if queue.gone:
            continue  # there may be another of this name
        shard.name_queue(queue)
        queue.used_ms = max(queue.used_ms, min(now_ms, queue.used_ms + USED_SAVE_MS))
        queue.hooks = _recompiled(shard, queue)
        yield  # hooks take half a millisecond to compile
    shard.last_queue_id = int.from_bytes(shard.store.get(LAST_QUEUE_ID, shard.store.families.state) or b"", "big")
    for queue_id, record in records.items():
        if record.dead_letters and not record.gone:
            bind_dead_letters(shard.queues_by_id[queue_id], shard.queues_by_id[record.dead_letters])


def _recompiled(shard: Shard, queue: Queue) -> GuardedHooks | None:
    """A queue's hooks; without them if they compile no more (a stricter version, another config): a queue must come back."""
    try:
        return compile_hooks(shard, queue.name, queue.options)
    except LuaCompilationError:
        shard.notes.append(HookMissing(queue.name, shard.index))
        return None


def _recover_lanes(shard: Shard) -> Steps:
    changed = yield from shard.ledger.replay(shard.store, shard.queues_by_id)
    step, queues = shard.settings.limits.recovery_records_max, shard.queues_by_id
    for number, (key, data) in enumerate(shard.store.scan(FIRST, LAST, shard.store.families.lanes)):
        lane_id = u64(key)
        try:
            record = decode_lane(data)
        except msgspec.MsgspecError as cause:
            raise _damaged("lane", lane_id, cause) from cause
        queue = queues.get(record.queue)
        if queue is None:
            raise DamageError(f"lane {lane_id} is of queue number {record.queue}, which has no record")
        if lane_id in changed:
            record.stored, record.delayed, record.retrying, record.weight = changed[lane_id]
            shard.ledger.recovered(_recover_lane(shard, queue, lane_id, record))
        elif _is_simple(record) and queue.keys.get(record.fairness_key) is None:
            _recover_cold(queue, lane_id, record)
        else:
            _recover_lane(shard, queue, lane_id, record)
        queue.pending += record.stored
        queue.delayed += record.delayed
        if number % step == 0:
            yield


def _decoded(decode: Callable[[bytes], _Record], data: bytes, what: str, number: int) -> _Record:
    try:
        return decode(data)
    except msgspec.MsgspecError as cause:
        raise _damaged(what, number, cause) from cause


def _damaged(what: str, number: int, cause: Exception) -> DamageError:
    return DamageError(f"the record of {what} {number} is damaged: {cause}")


def _is_simple(record: LaneRecord) -> bool:
    """Whether a lane, the first of its key, may be cold."""
    if record.retrying or record.throttle_keys:
        return False
    return 0 < record.stored + record.delayed <= COUNT_MAX


def _recover_cold(queue: Queue, lane_id: int, record: LaneRecord) -> None:
    name = record.fairness_key
    key = FairnessKey(name, queue)
    queue.keys.add(key)
    key.paused = name in queue.paused_keys
    key.weight = record.weight
    key.cold = packed(lane_id, record.stored, record.delayed, record.floor)
    queue.lanes += 1


def _recover_lane(shard: Shard, queue: Queue, lane_id: int, record: LaneRecord) -> Lane:
    lane = shard.open_lane(queue, record.fairness_key, tuple(record.throttle_keys), lane_id)
    lane.key.weight = record.weight
    lane.stored, lane.delayed, lane.retrying, lane.floor = record.stored, record.delayed, record.retrying, record.floor
    lane.tail = lane.floor if lane.stored else None
    lane.recorded = True
    return lane


def _activate(shard: Shard, queue: Queue, late: list[tuple[int, FairnessKey]]) -> Steps:
    """Give the recovered keys that have something pending their places in the ring, in the order of their first lanes that have."""
    in_order = (key for _, key in merge(_on_time(queue), late, key=itemgetter(0))) if late else queue.keys.values()
    join, step = queue.ring.join, shard.settings.limits.recovery_records_max
    uncapped = queue.options.max_in_flight_per_key is None
    for number, key in enumerate(in_order):
        if number % step == 0:
            yield
        if key.cold is None:
            for lane in key.lanes.values():
                if lane.pending:
                    shard.activate(lane, lane.prefix + FIRST_PLACE)
        elif pending_cold(key):
            key.ready = 1
            if not key.paused and (uncapped or key.deliverable):
                join(key)


def _on_time(queue: Queue) -> Iterator[tuple[int, FairnessKey]]:
    """The keys whose first lanes have something pending; they were met in the order of those."""
    for key in queue.keys.values():
        for first in islice(key.views, 1):
            if first.pending:
                yield first.id, key


def _late(shard: Shard) -> Generator[None, int | None, dict[int, list[tuple[int, FairnessKey]]]]:
    """The others, of which a later lane has, by queue. They are warm: who has one lane is on time or has nothing."""
    found: dict[int, dict[FairnessKey, int]] = {}
    step = shard.settings.limits.recovery_records_max
    for number, lane in enumerate(shard.lanes.values()):
        if number % step == 0:
            yield
        key = lane.key
        if lane.pending and len(key.lanes) > 1 and not next(iter(key.lanes.values())).pending:
            firsts = found.setdefault(key.queue.id, {})
            firsts[key] = min(lane.id, firsts.get(key, lane.id))
    return {
        queue_id: sorted(((lane_id, key) for key, lane_id in firsts.items()), key=itemgetter(0))
        for queue_id, firsts in found.items()
    }


def _recover_leases(shard: Shard, now_ms: int) -> Steps:
    step = shard.settings.limits.recovery_records_max
    for number, (key, data) in enumerate(shard.store.scan(FIRST, LAST, shard.store.families.leases)):
        if number % step == 0:
            now_ms = (yield) or now_ms  # consumers have their whole timeout from now on
        if recover_mark(shard, u64(key), data):
            continue
        if data.startswith(FINISHED):
            shard.leases.remember(u64(key), Finished(data.removeprefix(FINISHED), SETTLED), shard.batch)
            continue
        record = _decoded(decode_lease, data, "lease", u64(key))
        holder = _holder(shard, record, now_ms)
        found = _found(shard, record)
        members = list(_members(shard, record, found))
        queue = shard.queues_by_id[record.queue]
        lease = Lease(u64(key), holder, queue, members, record.leased_ms, record.duration_ms)
        lease.sizes = [len(message or b"") for message in found]
        lease.mortal = any(message and message[1] & HAS_TTL for message in found)
        lease.expires_ms, lease.extended, lease.subscription_id, lease.at_most_once, lease.request = (
            record.expires_ms, record.extended, record.subscription, record.at_most_once, record.request,
        )  # fmt: skip
        _restore(shard, lease, key)


def _holder(shard: Shard, record: LeaseRecord, now_ms: int) -> Holder:
    """Whose a lease is: a client, which now has to give a sign of life, or a reservation."""
    if record.reservation:
        return shard.leases.reservation(record.queue, record.reservation)
    return shard.consumers.open(record.client, now_ms)


def _found(shard: Shard, record: LeaseRecord) -> list[bytes | None]:
    """The messages of a lease record that are still there."""
    return shard.store.get_many(_keys(record), shard.store.families.messages)


def _keys(record: LeaseRecord) -> list[bytes]:
    starts = range(0, len(record.keys), MESSAGE_KEY_BYTES)
    return [record.keys[start : start + MESSAGE_KEY_BYTES] for start in starts]


def _members(shard: Shard, record: LeaseRecord, found: list[bytes | None]) -> Iterator[Member]:
    """The members of a lease record: those whose message is gone were acked."""
    for key, message in zip(_keys(record), found, strict=True):
        ended = member_ended(key)
        if ended is not None:
            yield ended
        else:
            yield SETTLED if message is None else (key, shard.known_lane(lane_of(key)))


def _restore(shard: Shard, lease: Lease, key: bytes) -> None:
    """Enter a recovered lease; one whose members had all ended is over."""
    open_members = list(lease.open_members())
    lease.open = len(open_members)
    lease.taken = any(member is TAKEN for member in lease.members)
    if not open_members:
        shard.batch.delete(key, shard.store.families.leases)
        return
    for _, message_key, lane in open_members:
        lane.leases().add(message_key)
    lease.queue.pending -= lease.open
    lease.queue.in_flight += lease.open
    shard.leases.add(lease)
