"""The invariants of a shard between turns, as code: run after every test, and by ``fila-cluster check``.

Each check compares kept data with the data that it is derived from; the messages on disk are the ground truth.
"""

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from fila_proto_zmq.record import unpack_fixed
from fila_worker.core.keys import FIRST, LAST, first_of_all, lane_of, own_place, pack_u64, place_of, u64
from fila_worker.core.model.acked_messages import is_mark
from fila_worker.core.model.cold_lanes import unpacked
from fila_worker.core.model.component import InvariantBroken
from fila_worker.core.model.consumers import Subscription
from fila_worker.core.model.due_index import DueKind, parse_delayed
from fila_worker.core.model.lanes import held_bytes
from fila_worker.core.model.leases import FINISHED, SETTLED
from fila_worker.core.model.ledger import decode_lane

if TYPE_CHECKING:
    from fila_worker.core.model.cold_lanes import ColdLane
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.lane_tokens import LaneTokens
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.leases import Lease
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State


def check_stored(state: "State") -> None:
    """Compare what is kept of the messages, leases and tokens with what is on disk."""
    on_disk = _keys_on_disk(state)
    for lane in state.lanes.values():
        _check_lane(lane, on_disk.pop(lane.id, []))
        waits = (lane.throttle is not None and lane in lane.throttle.waiting) + (lane in state.places.where)
        _expect(f"lane {lane.id}: lines in which it waits", waits, int(lane.blocked))
    _check_cold(state, on_disk)
    _expect("messages of unknown lanes", {lane: len(keys) for lane, keys in on_disk.items()}, {})
    _expect("names of queues", list(state.queues.names), sorted(state.queues))
    _check_leases(state)
    _check_delayed(state)
    _check_throttles(state)
    _check_sizes(state)
    for queue in state.queues.values():
        _check_queue(state, queue.name)
    _expect("buffered bytes", state.buffers.used_bytes, sum(_buffered_bytes(lane) for lane in state.lanes.values()))


def _expect(what: str, kept: object, derived: object) -> None:
    if kept != derived:
        raise InvariantBroken(f"{what}: kept {kept!r}, derived {derived!r}")


def _keys_on_disk(state: "State") -> dict[int, list[bytes]]:
    keys: dict[int, list[bytes]] = {}
    for key, _ in state.store.scan(FIRST, LAST, state.store.families.messages):
        keys.setdefault(lane_of(key), []).append(key)
    return keys


def _check_lane(lane: "Lane", on_disk: list[bytes]) -> None:
    name = f"lane {lane.id} ({lane.key.queue.name}, {lane.key.name!r})"
    claimed = lane.claimed
    _expect(f"{name}: stored", lane.stored, len(on_disk))
    _expect(f"{name}: leased keys without a message", claimed - set(on_disk), set())
    _expect(f"{name}: first key below its floor", [key for key in on_disk if key < lane.floor], [])
    in_memory = [key for key, _ in lane.buffered()]
    beyond = [key for key in on_disk if lane.tail is not None and key >= lane.tail]
    in_line = sorted(in_memory + [key for key in beyond if key not in claimed])
    _expect(f"{name}: pending", in_line, [key for key in on_disk if key not in claimed])
    _expect(f"{name}: line in order", list(lane.line), sorted(lane.line, key=lambda entry: entry[0]))
    behind = [key for key, _ in lane.returned if not lane.line or key > lane.line[-1][0]]
    _expect(f"{name}: returned, and behind the line", behind, [])
    _expect(f"{name}: active", lane.active, lane.pending > 0)
    head = lane.peek()
    if lane.active and not lane.blocked and lane.key.only_lane is None and head is not None:
        _expect(f"{name}: is in its key's heap", (lane.head_place, lane.id, lane) in (lane.key.heads or ()), True)
        _expect(f"{name}: first place at or before its head", lane.head_place <= head[0][8:], True)


def _cold_lanes(state: "State") -> "list[ColdLane]":
    return [unpacked(key) for queue in state.queues.by_id.values() for key in queue.keys.values() if key.cold is not None]


def _check_cold(state: "State", on_disk: dict[int, list[bytes]]) -> None:
    """Check that a cold lane equals its record on disk, and that its messages are there."""
    for lane in _cold_lanes(state):
        key = lane.key
        name = f"cold lane {lane.id} ({key.queue.name}, {key.name!r})"
        keys = on_disk.pop(lane.id, [])
        _expect(f"{name}: stored", lane.stored, len(keys))
        _expect(f"{name}: first key below its floor", [each for each in keys if each < lane.floor], [])
        _expect(
            f"{name}: warm, too", (lane.id in state.lanes, key.only, key.several, key.only_lane), (False, None, None, None)
        )
        data = state.store.get(lane.prefix, state.store.families.lanes)
        record = decode_lane(data) if data is not None else None
        _expect(f"{name}: recorded", record is not None, True)
        if record is not None:
            kept: tuple[object, ...] = (key.queue.id, key.name, key.weight, lane.stored, lane.delayed, 0, [])
            _expect(f"{name}: record", kept, (*list(msgspec.structs.astuple(record))[:6], record.throttle_keys))
            _expect(f"{name}: floor of the record", record.floor <= lane.floor, True)


def _buffered_bytes(lane: "Lane") -> int:
    return held_bytes(lane.buffered())


def _check_leases(state: "State") -> None:
    leased = Counter(key for lease in state.leases.leases.values() for _, key, _ in lease.open_members())
    _expect("messages leased twice", [key for key, times in leased.items() if times > 1], [])
    _expect("leased keys", {key for lane in state.lanes.values() for key in lane.leased}, set(leased))
    acked = [key for lane in state.lanes.values() for key in lane.acked]
    _expect("messages both leased and acked", set(acked) & set(leased), set())
    _expect("messages acked twice", len(acked), len(set(acked)))
    _expect("acked messages", len(acked), state.acked.messages)
    _expect("lanes with acked messages", {lane for lane in state.lanes.values() if lane.acked}, set(state.acked.lanes))
    _check_lease_records(state)
    due = {lease_id: expiry for expiry, lease_id in sorted(state.leases.due, reverse=True)}
    for lease in state.leases.leases.values():
        _expect(f"lease {lease.id}: open", lease.open, len(list(lease.open_members())))
        if not lease.open or due.get(lease.id, lease.next_expiry() + 1) > lease.next_expiry():
            raise InvariantBroken(f"lease {lease.id}: finished but kept, or its expiry will not be noticed")
    _check_holders(state)
    for consumer in state.consumers.by_client.values():
        granted: dict[int, list[Lease]] = {}
        for lease in consumer.leases.values():
            if lease.request:
                granted.setdefault(lease.request, []).append(lease)
        _expect("leases granted to receives", consumer.granted, granted)
        for subscription in consumer.subscriptions.values():
            held = sum(lease.open for lease in consumer.leases.values() if lease.subscription is subscription)
            _expect(f"subscription {subscription.id}: held", subscription.held, held)


def _check_holders(state: "State") -> None:
    """Check that each lease is known to its holder, and to no other."""
    book, clients = state.leases, (*state.consumers.by_client.values(), *state.consumers.leaving)
    _expect("subscriptions", state.consumers.subscriptions, sum(len(each.subscriptions) for each in clients))
    held = [pair for each in clients for pair in each.leases.items()]
    held += [pair for each in book.reservations.values() for pair in each.leases.items()]
    _expect("leases by holder", dict(held), book.leases)
    _expect("leases with two holders", len(held), len(book.leases))
    for (queue_id, name), reservation in book.reservations.items():
        _expect(f"reservation {name!r}: key", (reservation.queue_id, reservation.name), (queue_id, name))
        _expect(f"reservation {name!r}: empty", not reservation.leases, False)
        _expect(f"reservation {name!r}: holder", {each.holder for each in reservation.leases.values()}, {reservation})
        parts = {part: lease.part for part, lease in reservation.parts.items()}
        _expect(f"reservation {name!r}: parts", parts, {each.part: each.part for each in reservation.leases.values()})


def _check_lease_records(state: "State") -> None:
    """Check the records of open and finished leases, and the marks of acked ones with their messages: each once."""
    book, dead = state.leases, state.acked.leases
    both = [lease_id for lease_id in dead if lease_id in book.finished or lease_id in book.leases]
    _expect("leases with a mark that are known elsewhere too", both, [])
    records = {u64(key): data for key, data in state.store.scan(FIRST, LAST, state.store.families.leases)}
    marked = {lease_id for lease_id, data in records.items() if is_mark(data)}
    _expect("marks of acked leases", set(dead), marked)
    settled = {lease_id: ended.client for lease_id, ended in book.finished.items() if ended.members is SETTLED}
    finished = {lease_id: data[1:] for lease_id, data in records.items() if data.startswith(FINISHED)}
    _expect("finished leases", settled, finished)
    _expect("leases on disk", set(book.leases), records.keys() - marked - settled.keys())


def _check_delayed(state: "State") -> None:
    families = state.store.families
    entries: dict[bytes, list[int]] = {}
    first = None
    for key, _ in state.store.scan(FIRST, LAST, families.schedule):
        first = first or key
        if key[8] == DueKind.RELEASE:
            entries.setdefault(key[9:], []).append(u64(key))
    delayed: Counter[int] = Counter()
    retrying: Counter[int] = Counter()
    for key, value in state.store.scan(FIRST, LAST, families.delayed):
        message = parse_delayed(value)
        delayed[lane_of(key)] += 1
        retrying[lane_of(key)] += message.retrying
        if message.due_ms not in entries.get(key, []):
            raise InvariantBroken(f"a message is delayed until {message.due_ms} and has no entry in the due index")
    lanes: list[Lane | ColdLane] = [*state.lanes.values(), *_cold_lanes(state)]
    _expect("delayed messages of unknown lanes", set(delayed) - {lane.id for lane in lanes}, set())
    for lane in lanes:
        _expect(f"lane {lane.id}: delayed, retrying", (lane.delayed, lane.retrying), (delayed[lane.id], retrying[lane.id]))
    earliest, cursor = state.due_index.next_due_ms, max(state.due_index.cursor, state.due_index.checkpoint)
    if first is not None and (earliest is None or pack_u64(earliest) > first or cursor > first):
        raise InvariantBroken(f"something is due before {earliest}")


def _check_throttles(state: "State") -> None:
    lanes: Counter[tuple[str, ...]] = Counter()
    for lane in state.lanes.values():
        if lane.throttle is not None:
            lanes[lane.throttle_keys] += 1
    used = {keys: each.lanes for keys, each in state.token_client.throttles.items() if each.lanes}
    _expect("throttles", used, dict(lanes))
    by_throttle: dict[LaneTokens, list[Lane]] = {}
    for lane in state.lanes.values():
        if lane.throttle is not None:
            by_throttle.setdefault(lane.throttle, []).append(lane)
    for throttle in state.token_client.throttles.values():
        _check_throttle(state, throttle, by_throttle.get(throttle, []))


def _check_throttle(state: "State", throttle: "LaneTokens", lanes: "list[Lane]") -> None:
    name = f"throttle {throttle.keys}"
    if throttle not in state.token_client._changed:
        _expect(f"{name}: tokens that no lane has", throttle.pool, 0)
    _expect(f"{name}: holders", set(throttle.holders), {lane for lane in lanes if lane.tokens})
    _expect(f"{name}: dealt", throttle.dealt, sum(lane.tokens for lane in lanes))
    _expect(f"{name}: tokens of lanes that wait", sum(lane.tokens for lane in throttle.waiting), 0)
    for lane in lanes:
        if lane.tokens < 0:
            raise InvariantBroken(f"lane {lane.id} spent {-lane.tokens} millionths of a token more than it was dealt")
    noticed = [lane for due_ms, _, lane in state.token_client._holds if lane.look_ms == due_ms]
    _expect(f"{name}: holds tokens and will not be checked", set(throttle.holders) - set(noticed), set())
    _expect(f"{name}: checked more than once", len(noticed), len(set(noticed)))
    if throttle.waiting and not _will_be_woken(state, throttle):
        raise InvariantBroken(f"{name}: {len(throttle.waiting)} lanes wait, and no request for their tokens is under way")


def _will_be_woken(state: "State", throttle: "LaneTokens") -> bool:
    """Return whether a park will end, the bank was asked and will be asked again, or another lane will give tokens back."""
    if state.token_client.catching_up or state.token_client.held:
        return True
    parks = [state.token_client.parks.get(key, 0) for key in throttle.keys]
    asked = throttle.told is not None and throttle.told[0] > 0 and throttle.news_due_ms is not None
    return throttle.parked_until_ms <= max(parks) or (throttle.limited and (asked or throttle.dealt > 0))


def _check_queue(state: "State", name: str) -> None:
    queue = state.queues[name]
    names = list(queue.keys)
    _expect(f"{name}: keys", (len(names), len(set(names))), (len(queue.keys), len(queue.keys)))
    _expect(f"{name}: keys by name", [queue.keys[each].name for each in names], names)
    lanes = [lane for key in queue.keys.values() for lane in key.views]
    _expect(f"{name}: lanes", queue.lanes, len(lanes))
    _expect(f"{name}: pending", queue.pending, sum(lane.pending for lane in lanes))
    _expect(f"{name}: in flight", queue.in_flight, sum(len(lane.leased) for lane in lanes))
    _expect(f"{name}: delayed", queue.delayed, sum(lane.delayed for lane in lanes))
    for key in queue.keys.values() if not queue.reshaping else ():
        _check_key(key)
    ring = Counter(key.name for key in queue.ring.active_keys())
    _expect(f"{name}: weight", queue.ring.weight, sum(key.weight for key in queue.keys.values() if key.active))
    _expect(f"{name}: ring", ring, Counter(key.name for key in queue.keys.values() if key.active))
    _check_demands(state, queue)


def _check_key(key: "FairnessKey") -> None:
    lanes = key.views
    _expect(f"{key.name}: ready", key.ready, sum(lane.active and not lane.blocked for lane in lanes))
    _expect(f"{key.name}: blocked", key.blocked, sum(lane.blocked for lane in lanes))
    _expect(f"{key.name}: a blocked head without a blocked lane", bool(key.blocked_head) and not key.blocked, False)
    _expect(f"{key.name}: active", key.active, key.deliverable)
    cap = key.queue.options.max_in_flight_per_key
    if cap is not None:
        held = sum(len(lane.leased) + lane.retrying for lane in lanes)
        _expect(f"{key.name}: held", key.held, held)


def _check_demands(state: "State", queue: "Queue") -> None:
    name = queue.name
    for demand in queue.demands:
        _expect(f"{name}: queued demand", demand.queued, True)
    for consumer in state.consumers.by_client.values():
        for subscription in consumer.subscriptions.values():
            if subscription.queue is queue and subscription.credit > 0 and not subscription.queued:
                raise InvariantBroken(f"{name}: subscription {subscription.id} has credit and is not queued")
    served = [demand for demand in queue.demands if isinstance(demand, Subscription) and demand.credit > 0]
    if served and len(queue.ring) and queue.open and queue.id not in state.runnable:
        raise InvariantBroken(f"{name}: {len(served)} subscriptions want messages, and the queue is not runnable")


def _check_sizes(state: "State") -> None:
    sizes: Counter[int] = Counter()
    lanes: list[Lane | ColdLane] = [*state.lanes.values(), *_cold_lanes(state)]
    queue_of = {lane.id: lane.key.queue.id for lane in lanes}
    dead = {key for lane in state.lanes.values() for key in lane.acked}
    for key, record in state.store.scan(FIRST, LAST, state.store.families.messages):
        _check_place(key, record)
        if key not in dead:
            sizes[queue_of[lane_of(key)]] += len(record)
    for key, value in state.store.scan(FIRST, LAST, state.store.families.delayed):
        record = parse_delayed(value).record
        _check_place(key, record)
        sizes[queue_of[lane_of(key)]] += len(record)
    for queue in state.queues.values():
        _expect(f"{queue.name}: size", queue.size_bytes, sizes[queue.id])


def _check_place(key: bytes, record: bytes) -> None:
    """Check that a message is at the place of its priority, or before all others."""
    if place_of(key) != own_place(key, unpack_fixed(record)[2]) and key != first_of_all(key):
        raise InvariantBroken(f"message {key.hex()} is not at the place of its priority")
