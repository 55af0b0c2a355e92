"""What must always hold for a shard between turns, as code: run after every test, and by ``fila-cluster check``.

Each check compares a thing that is kept with what it is derived from; the messages on disk are the ground truth.
"""

from collections import Counter
from typing import TYPE_CHECKING

from fila_worker.core.consumers import Subscription
from fila_worker.core.keys import FIRST, LAST, lane_of, message_key_of, pack_u64
from fila_worker.core.lanes import held_bytes

if TYPE_CHECKING:
    from fila_worker.core.lanes import Lane
    from fila_worker.core.shard import Shard


class InvariantBroken(AssertionError):  # noqa: N818
    """A shard contradicts itself: a bug in the broker, never in its input."""


def check(shard: "Shard") -> None:
    """Raise :class:`InvariantBroken` unless all invariants hold. Reads every message key: not for the hot path."""
    if len(shard.batch) or shard.ledger.changed:
        raise InvariantBroken("checked in the middle of a turn: commit first")
    on_disk = _keys_on_disk(shard)
    for lane in shard.lanes.values():
        _check_lane(lane, on_disk.pop(lane.id, []))
    _expect("messages of unknown lanes", {lane: len(keys) for lane, keys in on_disk.items()}, {})
    _check_leases(shard)
    _check_delayed(shard)
    for queue in shard.queues.values():
        _check_queue(shard, queue.name)
    _expect("buffered bytes", shard.buffered_bytes, sum(_buffered_bytes(lane) for lane in shard.lanes.values()))


def _expect(what: str, kept: object, derived: object) -> None:
    if kept != derived:
        raise InvariantBroken(f"{what}: kept {kept!r}, derived {derived!r}")


def _keys_on_disk(shard: "Shard") -> dict[int, list[bytes]]:
    keys: dict[int, list[bytes]] = {}
    for key, _ in shard.store.scan(FIRST, LAST, shard.store.families.messages):
        keys.setdefault(lane_of(key), []).append(key)
    return keys


def _check_lane(lane: "Lane", on_disk: list[bytes]) -> None:
    name = f"lane {lane.id} ({lane.key.queue.name}, {lane.key.name!r})"
    _expect(f"{name}: stored", lane.stored, len(on_disk))
    _expect(f"{name}: leased keys without a message", lane.leased - set(on_disk), set())
    _expect(f"{name}: first key below its floor", [key for key in on_disk if key < lane.floor], [])
    in_memory = [key for key, _ in lane.buffered()]
    beyond = [key for key in on_disk if lane.tail is not None and key >= lane.tail]
    in_line = sorted(in_memory + [key for key in beyond if key not in lane.leased])
    _expect(f"{name}: pending", in_line, [key for key in on_disk if key not in lane.leased])
    _expect(f"{name}: line in order", list(lane.line), sorted(lane.line, key=lambda entry: entry[0]))
    _expect(f"{name}: active", lane.key.active, lane.pending > 0)


def _buffered_bytes(lane: "Lane") -> int:
    return held_bytes(lane.buffered())


def _check_leases(shard: "Shard") -> None:
    leased = Counter(key for lease in shard.leases.leases.values() for _, key, _ in lease.open_members())
    _expect("messages leased twice", [key for key, times in leased.items() if times > 1], [])
    dead = {key for each in shard.graveyard.dead.values() for key, _ in each}
    _expect("messages both leased and dead", dead & set(leased), set())
    _expect("leased keys", {key for lane in shard.lanes.values() for key in lane.leased}, set(leased) | dead)
    due = {lease_id: expiry for expiry, lease_id in sorted(shard.leases.due, reverse=True)}
    for lease in shard.leases.leases.values():
        _expect(f"lease {lease.id}: open", lease.open, len(list(lease.open_members())))
        if not lease.open or due.get(lease.id, lease.next_expiry() + 1) > lease.next_expiry():
            raise InvariantBroken(f"lease {lease.id}: finished but kept, or nobody will notice its expiry")
    for consumer in shard.consumers.by_client.values():
        for subscription in consumer.subscriptions.values():
            held = sum(lease.open for lease in consumer.leases.values() if lease.subscription is subscription)
            _expect(f"subscription {subscription.id}: held", subscription.held, held)


def _check_delayed(shard: "Shard") -> None:
    keys = [key for key, _ in shard.store.scan(FIRST, LAST, shard.store.families.schedule)]
    delayed = Counter(lane_of(message_key_of(key)) for key in keys)
    for lane in shard.lanes.values():
        _expect(f"lane {lane.id}: delayed", lane.delayed, delayed[lane.id])
    earliest = shard.schedule.next_due_ms
    if keys and (earliest is None or pack_u64(earliest) > keys[0] or shard.schedule.cursor > keys[0]):
        raise InvariantBroken(f"a delayed message is due before {earliest}")


def _check_queue(shard: "Shard", name: str) -> None:
    queue = shard.queues[name]
    lanes = [key.lane for key in queue.keys.values()]
    _expect(f"{name}: pending", queue.pending, sum(lane.pending for lane in lanes))
    dead = shard.graveyard.count_by_lane()
    _expect(f"{name}: in flight", queue.in_flight, sum(len(lane.leased) - dead[lane.id] for lane in lanes))
    _expect(f"{name}: delayed", queue.delayed, sum(lane.delayed for lane in lanes))
    ring = Counter(key.name for key in queue.ring.active_keys())
    _expect(f"{name}: ring", ring, Counter(key.name for key in queue.keys.values() if key.active))
    for demand in queue.demands:
        _expect(f"{name}: queued demand", demand.queued, True)
    for consumer in shard.consumers.by_client.values():
        for subscription in consumer.subscriptions.values():
            if subscription.queue is queue and subscription.credit > 0 and not subscription.queued:
                raise InvariantBroken(f"{name}: subscription {subscription.id} has credit and is not in line")
    served = [demand for demand in queue.demands if isinstance(demand, Subscription) and demand.credit > 0]
    if served and queue.pending and queue.id not in shard.wanted:
        raise InvariantBroken(f"{name}: {len(served)} subscriptions want messages and nobody will serve them")
