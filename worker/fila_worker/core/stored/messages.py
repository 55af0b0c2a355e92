"""The recovery of queues, lanes with their counts, leases and deliverable keys from disk; and the folds of the ledger.

The messages themselves are not read. So the cost of a restart grows with the messages in flight and the lanes, never with the
backlog.
"""

from collections.abc import Callable, Generator, Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

import msgspec

from fila_proto_zmq.errors import LuaCompilationError
from fila_proto_zmq.events import HookMissing
from fila_proto_zmq.record import HAS_TTL, PLAIN_BYTES
from fila_worker.core.due_time import AT_ONCE
from fila_worker.core.enqueue.insert import LAST_QUEUE_ID, bind_dead_letters
from fila_worker.core.enqueue.policy import compile_hooks
from fila_worker.core.hooks import GuardedHooks
from fila_worker.core.keys import FIRST, FIRST_PLACE, LAST, MESSAGE_KEY_BYTES, lane_of, u64
from fila_worker.core.manage.queue_commands import recount_held
from fila_worker.core.model.acked_messages import purge, recover_mark
from fila_worker.core.model.cold_lanes import COUNT_MAX, packed, pending_cold
from fila_worker.core.model.component import Component, Steps
from fila_worker.core.model.fairness_keys import FairnessKey
from fila_worker.core.model.lanes import Lane, tokens_of
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
from fila_worker.core.model.ledger import LaneRecord, decode_lane, stored_generations
from fila_worker.core.model.queues import USED_SAVE_MS, Queue, QueueRecord, decode_queue
from fila_worker.core.store import DamageError
from fila_worker.core.stored.invariants import check_stored

if TYPE_CHECKING:
    from fila_worker.core.model.state import State

_Record = TypeVar("_Record")


class StoredMessages(Component):
    """Queues, lanes and leases: the base of all other components."""

    def recover(self, now_ms: int) -> Steps:
        """Read them, and give the keys with pending messages their places in the rings."""
        state = self.state
        yield from _recover_queues(state, now_ms)
        yield from _recover_lanes(state)
        yield from _recover_leases(state, now_ms)
        purge(state)
        late = yield from _late(state)
        for queue in state.queues.by_id.values():
            yield from _activate(state, queue, late.get(queue.id, []))
            _check_counts(queue)
            if queue.options.max_in_flight_per_key is not None:
                yield from _recount(state, queue)
            yield

    def check(self) -> None:
        """Compare what is kept with the messages on disk."""
        check_stored(self.state)


# --- recovery ---------------------------------------------------------------------------------------------------------


def _check_counts(queue: Queue) -> None:
    counts = {"pending": queue.pending, "in flight": queue.in_flight, "delayed": queue.delayed, "bytes": queue.size_bytes}
    if min(counts.values()) < 0:
        raise DamageError(f"the records of queue {queue.name!r} contradict each other: they count {counts}")


def _recount(state: "State", queue: Queue) -> Steps:
    """Count what the keys of a queue with a cap have in flight."""
    keys = iter(queue.keys.values())
    while some := list(islice(keys, state.settings.limits.recovery_records_max)):
        recount_held(state, some)
        yield


def _recover_queues(state: "State", now_ms: int) -> Steps:
    records: dict[int, QueueRecord] = {}
    for key, data in state.store.scan(FIRST, LAST, state.store.families.queues):
        queue_id = int.from_bytes(key, "big")
        record = records[queue_id] = _decoded(decode_queue, data, "queue number", queue_id)
        queue = Queue(queue_id, record.name, record.options, state.settings.limits, state.lanes)
        state.queues.by_id[queue_id] = queue
        queue.recover(record)
        if queue.partition is not None and (definition := state.runtime.definitions.find(queue.name)) is not None:
            queue.partition.follow(definition)
        if queue.gone:
            continue  # there may be another queue of this name
        state.queues.enter(queue)
        queue.used_ms = max(queue.used_ms, min(now_ms, queue.used_ms + USED_SAVE_MS))
        queue.hooks = _recompiled(state, queue)
        queue.judge()
        yield  # hooks take half a millisecond to compile
    state.queues.last_id = int.from_bytes(state.store.get(LAST_QUEUE_ID, state.store.families.state) or b"", "big")
    state.counters.earlier = stored_generations(state.store)
    for queue_id, record in records.items():
        if record.dead_letters and not record.gone:
            bind_dead_letters(state.queues.by_id[queue_id], state.queues.by_id[record.dead_letters])


def _recompiled(state: "State", queue: Queue) -> GuardedHooks | None:
    """Return a queue's hooks; None if they do not compile (a stricter version, another config): the queue must work again."""
    try:
        return compile_hooks(state, queue.name, queue.options)
    except LuaCompilationError:
        state.notes.append(HookMissing(queue.name, state.index))
        return None


def _recover_lanes(state: "State") -> Steps:
    changed = yield from state.ledger.replay(state.store, state.queues.by_id)
    step, queues = state.settings.limits.recovery_records_max, state.queues.by_id
    for number, (key, data) in enumerate(state.store.scan(FIRST, LAST, state.store.families.lanes)):
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
            state.ledger.recovered(_recover_lane(state, queue, lane_id, record))
        elif _is_simple(record) and queue.keys.get(record.fairness_key) is None:
            _recover_cold(state, queue, lane_id, record)
        else:
            _recover_lane(state, queue, lane_id, record)
        queue.count_lane(record.stored, record.delayed)
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
    """Return whether a lane, the first of its key, may be cold."""
    if record.retrying or record.throttle_keys:
        return False
    return 0 < record.stored + record.delayed <= COUNT_MAX


def _recover_cold(state: "State", queue: Queue, lane_id: int, record: LaneRecord) -> None:
    key = state.open_key(queue, record.fairness_key)
    key.weight = record.weight
    key.cold = packed(lane_id, record.stored, record.delayed, record.floor)
    queue.lanes += 1


def _recover_lane(state: "State", queue: Queue, lane_id: int, record: LaneRecord) -> Lane:
    lane = state.open_lane(queue, record.fairness_key, tuple(record.throttle_keys), lane_id)
    lane.key.weight = record.weight
    lane.stored, lane.delayed, lane.retrying, lane.floor = record.stored, record.delayed, record.retrying, record.floor
    lane.tail = lane.floor if lane.stored else None
    lane.recorded = True
    return lane


def _activate(state: "State", queue: Queue, late: list[tuple[int, FairnessKey]]) -> Steps:
    """Give the recovered keys with pending messages their places in the ring, in the order of their first such lanes."""
    in_order = (key for _, key in merge(_on_time(queue), late, key=itemgetter(0))) if late else queue.keys.values()
    join, step = queue.ring.join, state.settings.limits.recovery_records_max
    uncapped = queue.options.max_in_flight_per_key is None
    for number, key in enumerate(in_order):
        if number % step == 0:
            yield
        if key.cold is None:
            for lane in key.lanes.values():
                if lane.pending:
                    state.activate(lane, lane.prefix + FIRST_PLACE)
        elif pending_cold(key):
            key.ready = 1
            if not key.paused and (uncapped or key.deliverable):
                join(key)


def _on_time(queue: Queue) -> Iterator[tuple[int, FairnessKey]]:
    """Yield the keys whose first lanes have pending messages, in the order of these lanes: that is the order of recovery."""
    for key in queue.keys.values():
        for first in islice(key.views, 1):
            if first.pending:
                yield first.id, key


def _late(state: "State") -> Generator[None, int | None, dict[int, list[tuple[int, FairnessKey]]]]:
    """Return the keys with pending messages only in a later lane, by queue. They are warm: cold ones have one lane."""
    found: dict[int, dict[FairnessKey, int]] = {}
    step = state.settings.limits.recovery_records_max
    for number, lane in enumerate(state.lanes.values()):
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


def _recover_leases(state: "State", now_ms: int) -> Steps:
    step = state.settings.limits.recovery_records_max
    for number, (key, data) in enumerate(state.store.scan(FIRST, LAST, state.store.families.leases)):
        if number % step == 0:
            now_ms = (yield) or now_ms  # the whole timeout of a consumer begins here
        if recover_mark(state, u64(key), data):
            continue
        if data.startswith(FINISHED):
            state.leases.remember(u64(key), Finished(data.removeprefix(FINISHED), SETTLED), state.batch)
            continue
        record = _decoded(decode_lease, data, "lease", u64(key))
        holder = _holder(state, record, now_ms)
        found = _found(state, record)
        members = list(_members(state, record, found))
        queue = state.queues.by_id[record.queue]
        lease = Lease(u64(key), holder, queue, members, record.leased_ms, record.duration_ms)
        lease.sizes = [len(message or b"") for message in found]
        lease.mortal = any(message and message[1] & HAS_TTL for message in found)
        lease.batches = tokens_of([message or PLAIN_BYTES for message in found]) or None
        lease.expires_ms, lease.extended, lease.subscription_id, lease.at_most_once, lease.request = (
            record.expires_ms,
            record.extended,
            record.subscription,
            record.at_most_once,
            record.request,
        )
        _restore(state, lease, key)


def _holder(state: "State", record: LeaseRecord, now_ms: int) -> Holder:
    """Return the holder of a lease: a client, which must send a frame in time from now on, or a reservation."""
    if record.reservation:
        return state.leases.reservation(record.queue, record.reservation)
    return state.consumers.open(record.client, now_ms)


def _found(state: "State", record: LeaseRecord) -> list[bytes | None]:
    """Return the messages of a lease record; None for those that are gone."""
    return state.store.get_many(_keys(record), state.store.families.messages)


def _keys(record: LeaseRecord) -> list[bytes]:
    starts = range(0, len(record.keys), MESSAGE_KEY_BYTES)
    return [record.keys[start : start + MESSAGE_KEY_BYTES] for start in starts]


def _members(state: "State", record: LeaseRecord, found: list[bytes | None]) -> Iterator[Member]:
    """Yield the members of a lease record. A member without a message was acked."""
    for key, message in zip(_keys(record), found, strict=True):
        ended = member_ended(key)
        if ended is not None:
            yield ended
        else:
            yield SETTLED if message is None else (key, state.known_lane(lane_of(key)))


def _restore(state: "State", lease: Lease, key: bytes) -> None:
    """Add a recovered lease; delete its record if all its members have ended."""
    open_members = list(lease.open_members())
    lease.open = len(open_members)
    lease.taken = any(member is TAKEN for member in lease.members)
    if not open_members:
        state.batch.delete(key, state.store.families.leases)
        return
    for _, message_key, lane in open_members:
        lane.leases().add(message_key)
    lease.labelled = any(lane.throttle_keys for _, _, lane in open_members)
    state.count_leased(lease, range(len(lease.members)), 1)
    lease.queue.count_leased(lease.open)
    state.leases.add(lease)


class LedgerFolds(Component):
    """The ledger's folds, at the end of a turn: by then every message that left its line is in a lease."""

    in_passing = True

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.ledger.timer)

    def recover(self, now_ms: int) -> Steps:
        """Fold the entries, and drop the lanes without messages; with them, their keys."""
        state = self.state
        while True:
            for lane in state.ledger.fold(state.batch):
                state.forget_lane(lane)
            if not state.ledger.folding:
                return
            yield

    def tick(self, now_ms: int) -> int | None:
        """Take a step of a fold, and forget idle lanes in queues that keep more than their share, the oldest first."""
        state, ledger = self.state, self.state.ledger
        if not ledger.fold_due:
            return None
        if not ledger.folding:
            purge(state)  # a lane is idle only when its acked messages are removed
        forgotten: list[Lane] = []
        most = self._share()
        for lane in ledger.fold(state.batch):
            if lane.id in state.lanes:  # else it was the oldest one of its queue
                resting = lane.key.queue.resting
                resting.pop(lane.id, None)
                resting[lane.id] = lane  # the last one now
                forgotten += self._forget_oldest(lane.key.queue, most)
        ledger.forget(forgotten, state.batch)
        return AT_ONCE if ledger.folding else None

    def _share(self) -> int:
        """Return how many lanes a queue may have before its idle ones are forgotten."""
        limits = self.state.settings.limits
        return min(limits.idle_lanes_max, max(1, limits.idle_lanes_of_shard_max // max(1, len(self.state.queues.by_id))))

    def _forget_oldest(self, queue: "Queue", most: int) -> "Iterator[Lane]":
        """Forget up to two idle lanes of a queue for each that comes, so that it is down at its share before long."""
        for _ in range(2):
            if queue.lanes <= most or not queue.resting:
                return
            lane = queue.resting.pop(next(iter(queue.resting)))
            if lane.idle:  # else it has messages again, and comes back when it has none
                self.state.forget_lane(lane)
                yield lane
