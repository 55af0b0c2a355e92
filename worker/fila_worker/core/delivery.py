"""Delivering: DRR picks messages for demands with credit, and their leases go into the turn's batch.

A demand gets messages in batches, at most its share of what is pending, so that a second consumer of the queue is not left
with nothing; demands take turns. A turn delivers a bounded number, so that commands are never kept waiting for long.
"""

from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeVar

from fila_proto_zmq.commands import Delivered, LeaseBatch, Receive
from fila_proto_zmq.limits import DELIVERY_BYTES_MAX, DELIVERY_MESSAGES_MAX
from fila_proto_zmq.record import EXTENDED, unpack_record
from fila_worker.core.consumers import Demand, Subscription
from fila_worker.core.effects import Push, answer
from fila_worker.core.lanes import ENTRY_BYTES
from fila_worker.core.leases import Lease

if TYPE_CHECKING:
    from fila_worker.core.fairness import FairnessKey, Ring
    from fila_worker.core.lanes import Entry, Lane
    from fila_worker.core.leases import Member
    from fila_worker.core.queues import Queue
    from fila_worker.core.state import State

T = TypeVar("T", int, str)
_low_flags = itemgetter(1)
"""The byte of a record's flags that says whether it is extended; 0 for most."""

TURN_MESSAGES_MAX: Final = 2000
"""Deliveries in one turn; a large one counts once for every :data:`WEIGHT_BYTES`."""

WEIGHT_BYTES: Final = 16 * 1024
"""So a turn holds at most 32 MiB and one delivery in memory until its commit."""

REFILL_MESSAGES: Final = 512
REFILL_BYTES: Final = 256 * 1024
"""What one refill of a lane reads: enough to forget the cost of a seek, little enough for thousands of lanes."""


class Parcel:
    """Messages picked for one demand, in delivery order, column by column."""

    __slots__ = ("keys", "members", "records", "size_bytes")

    def __init__(self) -> None:
        self.members: list[tuple[bytes, Lane]] = []
        self.records: list[bytes] = []
        self.keys: list[FairnessKey] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.members)


def deliver(shard: "State", now_ms: int) -> None:
    """Serve the queues that have demands, one after the other, up to :data:`TURN_MESSAGES_MAX` messages in all."""
    left = TURN_MESSAGES_MAX
    for queue_id, queue in list(shard.wanted.items()):
        if left <= 0:
            return
        del shard.wanted[queue_id]
        left -= _serve(shard, queue, left, now_ms)
        if queue.demands and queue.pending:
            shard.wanted[queue_id] = queue  # behind the others


def _serve(shard: "State", queue: "Queue", count_max: int, now_ms: int) -> int:
    """Deliver up to ``count_max`` messages of one queue; returns how many."""
    served = left_of_round = share = 0
    while queue.demands and queue.pending and served < count_max:
        if left_of_round == 0:
            left_of_round = len(queue.demands)
            share = max(1, queue.pending // left_of_round)
        left_of_round -= 1
        demand = queue.demands.popleft()
        demand.queued = False
        count = min(demand.credit, share, DELIVERY_MESSAGES_MAX, count_max - served)
        if count > 0:
            parcel = pick(shard, queue.ring, count)
            queue.pending -= len(parcel)
            _hand_over(shard, queue, demand, parcel, now_ms)
            served += max(len(parcel), parcel.size_bytes // WEIGHT_BYTES)
        queue.want(demand)
    return served


def pick(shard: "State", ring: "Ring", count: int) -> Parcel:
    """Take up to ``count`` messages out of their lanes in DRR order; no more than :data:`DELIVERY_BYTES_MAX` and one."""
    parcel = Parcel()
    members, records, keys = parcel.members, parcel.records, parcel.keys
    bytes_left = DELIVERY_BYTES_MAX
    unbuffered = 0
    while count > 0 and bytes_left > 0 and (key := ring.current or ring.begin_turn()):
        lane = key.lane
        line, leased = lane.line, lane.leased
        turn = turn_left = min(key.credit, count, lane.stored - len(leased))
        while turn_left and bytes_left > 0:
            # where the line is in order, what lane.pop() does without the call: 10 % of a delivery
            message_key, record = line.popleft() if line and not lane.returned else next_entry(shard, lane)
            if record is None:
                record = shard.read((message_key,))[0]
                unbuffered += len(record) + ENTRY_BYTES
            leased.add(message_key)
            members.append((message_key, lane))
            records.append(record)
            keys.append(key)
            bytes_left -= len(record)
            turn_left -= 1
        served = turn - turn_left
        count -= served
        key.credit -= served
        key.delivered += served
        if lane.stored == len(leased):
            ring.leave(key)
        elif key.credit <= 0:
            ring.end_turn(key)
    parcel.size_bytes = DELIVERY_BYTES_MAX - bytes_left
    shard.buffered_bytes -= parcel.size_bytes + len(members) * ENTRY_BYTES - unbuffered
    return parcel


def next_entry(shard: "State", lane: "Lane") -> "Entry":
    """Pop the next message of a lane that has one, from disk if need be."""
    entry = lane.pop()
    if entry is None:
        refill(shard, lane)
        entry = lane.pop()
    assert entry is not None, f"lane {lane.id} counts {lane.pending} pending messages and has none"
    return entry


def refill(shard: "State", lane: "Lane") -> None:
    """Read on from the lane's tail until something is in memory, or nothing is left."""
    shard.settle_writes()
    families = shard.store.families
    bytes_max = min(REFILL_BYTES, shard.settings.buffer_bytes // (len(lane.key.queue.ring) + 1))
    while lane.tail is not None and not lane.line:
        items: list[Entry] = []
        bytes_read = 0
        for key, record in islice(shard.store.scan(lane.tail, lane.end, families.messages), REFILL_MESSAGES):
            keep = shard.buffered_bytes + len(record) + ENTRY_BYTES <= shard.settings.buffer_bytes
            items.append((key, record if keep else None))
            if keep and key not in lane.leased:
                shard.buffered_bytes += len(record) + ENTRY_BYTES
            bytes_read += len(record)
            if bytes_read >= bytes_max:
                break
        lane.refill(items, exhausted=len(items) < REFILL_MESSAGES and bytes_read < bytes_max)


def _hand_over(shard: "State", queue: "Queue", demand: Demand, parcel: Parcel, now_ms: int) -> None:
    """Lease a parcel to a demand and send it."""
    batches = [
        _grant(shard, queue, demand, parcel, span, duration_ms, now_ms)
        for span, duration_ms in _durations(queue.visibility_timeout_ms(shard.settings), parcel.records)
    ]
    queue.in_flight += len(parcel)
    queue.delivered += len(parcel)
    if isinstance(demand, Subscription):
        shard.effects.append(Push(demand.consumer.client, queue.name, Delivered(demand.id, batches)))
    else:
        demand.finish()
        shard.effects.append(answer(demand.call, Receive, Delivered(0, batches)))


def _durations(default_ms: int, records: list[bytes]) -> list[tuple[slice, int]]:
    """Split a parcel into runs of messages with the same visibility timeout."""
    if not any(map(_low_flags, records)):
        return [(slice(None), default_ms)]
    runs, start = [], 0
    for duration_ms, run in groupby(_own_duration(record) or default_ms for record in records):
        end = start + len(list(run))
        runs.append((slice(start, end), duration_ms))
        start = end
    return runs


def _own_duration(record: bytes) -> int | None:
    return unpack_record(record).extension.lease_ms if record[1] & EXTENDED else None


def _grant(
    shard: "State", queue: "Queue", demand: Demand, parcel: Parcel, span: slice, duration_ms: int, now_ms: int
) -> LeaseBatch:
    """Enter one lease for a run of a parcel."""
    members: list[Member] = list(parcel.members[span])
    lease = Lease(shard.leases.new_id(), demand.consumer, queue, members, now_ms, duration_ms)
    lease.size_bytes = parcel.size_bytes
    if isinstance(demand, Subscription):
        lease.belongs_to(demand)
    shard.leases.add(lease)
    shard.leases.save(lease, shard.batch)
    keys = parcel.keys[span]
    names, weights = _column([key.name for key in keys]), _column([key.weight for key in keys])
    return LeaseBatch(lease.id, now_ms, lease.expires_ms, names, weights, parcel.records[span])


def _column(values: list[T]) -> T | list[T]:
    """One value if all are the same."""
    return values[0] if values.count(values[0]) == len(values) else values
