"""Delivery: deficit round robin picks messages for demands with credit, and their leases go into the turn's batch.

Demands take turns. A demand gets messages in batches, at most its share of the pending messages, so that a second consumer of
the queue gets some, too. A turn delivers a bounded number, so that commands do not wait long.

:class:`ReservedCache` has the records of reserved messages from the reservation to the first fetch, soon after. Reading them
again from disk would be a third of the cost of a reserved message. Each part is kept until it is fetched once. If the cache
is full, the oldest parts are forgotten.
"""

from collections import OrderedDict
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeVar

from fila_proto_zmq.commands import Delivered, Grants, LeaseBatch, Receive, Tokens
from fila_proto_zmq.limits import DELIVERY_BYTES_MAX, DELIVERY_MESSAGES_MAX
from fila_proto_zmq.record import EXTENDED, HAS_TTL
from fila_worker.core.callback_group_parts import MemberOutcome
from fila_worker.core.due_time import AT_ONCE
from fila_worker.core.effects import Post, Push, answer
from fila_worker.core.enqueue.enqueue_rates import EnqueueRates
from fila_worker.core.model.cold_lanes import warm_up_next
from fila_worker.core.model.component import Component
from fila_worker.core.model.consumers import Demand, Reserving, Subscription, Waiter
from fila_worker.core.model.due_index import too_old
from fila_worker.core.model.fairness_keys import MILLI
from fila_worker.core.model.lanes import ENTRY_BYTES, NO_LEASES, SHORT, extension_of, head, next_entry, tokens_of
from fila_worker.core.model.leases import Lease
from fila_worker.core.places.taking import may_take, room, take, use_room
from fila_worker.core.settings import Limits
from fila_worker.core.settle import dead_letters

if TYPE_CHECKING:
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.leases import Member
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

T = TypeVar("T", int, str)
_low_flags = itemgetter(1)
"""Returns the byte of a record's flags that is 0 for usual records."""

WEIGHT_BYTES: Final = 16 * 1024
"""The bytes that count as one message of a turn. So a turn has at most 32 MiB and one delivery in memory until its commit."""

LOOK_BYTES: Final = WEIGHT_BYTES
"""The bytes that a message takes from a batch's room if it was read and not delivered (it is too old, or waits for tokens).
A turn must also end where many messages are read and none can be delivered. A read costs as much as a delivery."""


class PickedBatch:
    """Messages picked for one demand, in delivery order, column by column."""

    __slots__ = ("keys", "labelled", "members", "records", "room_bytes")

    def __init__(self) -> None:
        self.members: list[tuple[bytes, Lane]] = []
        self.records: list[bytes] = []
        self.keys: list[FairnessKey] = []
        self.room_bytes = DELIVERY_BYTES_MAX
        """The bytes that still fit. The last message may exceed them. See also :data:`LOOK_BYTES`."""
        self.labelled = False
        """Whether any of the messages has throttle keys."""

    def __len__(self) -> int:
        return len(self.members)

    def add(self, key: "FairnessKey", lane: "Lane", message_key: bytes, record: bytes) -> None:
        """Add a message that was taken out of its line, and make it leased. (The hot loop inlines this.)"""
        lane.leases().add(message_key)
        self.members.append((message_key, lane))
        self.records.append(record)
        self.keys.append(key)
        self.room_bytes -= len(record)
        self.labelled = self.labelled or lane.throttle_keys != ()

    @property
    def size_bytes(self) -> int:
        """The bytes of its records, and :data:`LOOK_BYTES` for each message read in vain."""
        return DELIVERY_BYTES_MAX - self.room_bytes


def deliver(state: "State", now_ms: int) -> None:
    """Serve the queues that have demands one after the other, up to the messages of one turn in all."""
    limits = state.settings.limits
    left = limits.turn_messages_max
    queues = list(state.runnable.values())
    for index, queue in enumerate(queues):
        if left <= 0:
            return
        del state.runnable[queue.id]
        share = max(limits.queue_turn_messages_min, left // (len(queues) - index))
        left -= _serve(state, queue, min(left, share), now_ms)
        state.mark_runnable(queue)  # behind the others


def _serve(state: "State", queue: "Queue", count_max: int, now_ms: int) -> int:
    """Deliver up to ``count_max`` messages of one queue, and return how many."""
    served = left_of_round = share = 0
    delivered = queue.delivered
    while queue.demands and len(queue.ring) and served < count_max and queue.open and (free := room(state, queue)) > 0:
        if left_of_round == 0:
            left_of_round = len(queue.demands)
            share = max(1, queue.pending // left_of_round)
        left_of_round -= 1
        demand = queue.next_demand()
        if isinstance(demand, Waiter) and demand.looks:
            if ready(state, queue, now_ms):
                demand.finish()
                state.effects.append(demand.answer_nothing(strays_of(state, queue)))
            queue.want(demand)
            continue
        count = min(demand.credit, share, DELIVERY_MESSAGES_MAX, count_max - served)
        if count > free:
            count = int(free)
        if count > 0:
            parcel = pick(state, queue, count, now_ms)
            queue.count_leased(len(parcel))
            use_room(state, queue, len(parcel))
            if parcel.members:
                _hand_over(state, queue, demand, parcel, now_ms)
            served += max(len(parcel), parcel.size_bytes // WEIGHT_BYTES)
        queue.want(demand)
    queue.served_ms, queue.served = now_ms, served or queue.served
    if queue.delivered > delivered:
        queue.delivery_rate.note(queue.delivered - delivered, now_ms)
    return served


# --- picking ----------------------------------------------------------------------------------------------------------


def pick(state: "State", queue: "Queue", count: int, now_ms: int) -> PickedBatch:
    """Take up to ``count`` messages out of their lanes, in DRR order, and return them.

    They have at most :data:`DELIVERY_BYTES_MAX` and one message more. This is the hot loop of a delivery, over locals, for
    the usual key that has one lane and nothing that could block it.
    """
    parcel, ring, released = PickedBatch(), queue.ring, 0
    members, records, keys, room_bytes = parcel.members, parcel.records, parcel.keys, parcel.room_bytes
    while count > 0 and room_bytes > 0 and (key := ring.current or ring.begin_turn()):
        lane = key.only_lane
        if lane is None and (key.cold is None or (lane := warm_up_next(state, queue, key)) is None):
            parcel.room_bytes = room_bytes
            count -= _pick_among(state, key, parcel, count, now_ms)
            room_bytes = parcel.room_bytes
            continue
        line, leased, credit = lane.line, lane.leases() if lane.leased is NO_LEASES else lane.leased, key.credit
        if (short := line.__class__ is list) and len(line) > SHORT:
            line, short = lane.lengthen(), False
        turn = left = min(count, lane.stored - len(leased) - len(lane.acked))
        while left and credit > 0 and room_bytes > 0:
            # lane.pop() of a line in order, without the call, which is 10 % of a delivery
            message_key, record = (
                (line.pop(0) if short else line.popleft())  # type: ignore[call-arg, union-attr]
                if line and not lane.returned
                else next_entry(state, lane)
            )
            left -= 1
            if record is None:
                record = state.read((message_key,))[0]
            else:
                released += len(record) + ENTRY_BYTES
            if record[1] > EXTENDED:
                cost = _cost_unless_too_old(state, lane, message_key, record, now_ms)
                if not cost:
                    turn -= 1
                    room_bytes -= LOOK_BYTES
                    continue
                credit -= cost
            else:
                credit -= MILLI
            leased.add(message_key)
            members.append((message_key, lane))
            records.append(record)
            keys.append(key)
            room_bytes -= len(record)
        count -= turn - left
        key.delivered += turn - left
        key.spent += key.credit - credit
        key.credit = credit
        if lane.throttle_keys:
            parcel.labelled = True
        if not lane.stored - len(leased) - len(lane.acked):
            lane.active = False
            key.ready -= 1
            ring.leave(key)
        elif credit <= 0:
            ring.end_turn(key)
    parcel.room_bytes = room_bytes
    state.buffers.used_bytes -= released
    return parcel


def _cost_unless_too_old(state: "State", lane: "Lane", message_key: bytes, record: bytes, now_ms: int) -> int:
    """Return the cost of a popped message. If it is too old to be delivered, dead-letter it and return 0."""
    extension = extension_of(record)
    if extension.expires_ms is not None and extension.expires_ms <= now_ms:
        dead_letters.expire(state, lane, message_key, record, now_ms)
        return 0
    return extension.cost_milli


def _pick_among(state: "State", key: "FairnessKey", parcel: PickedBatch, count: int, now_ms: int) -> int:
    """Serve a turn of a key with several lanes, throttle keys or a cap, message by message. Return the number taken."""
    cap, ring = key.queue.options.max_in_flight_per_key, key.queue.ring
    if key.only is not None and cap is None and not key.paused:
        return _pick_of_one(state, key, key.only, parcel, count, now_ms)
    served, credit = 0, key.credit
    while served < count and key.credit > 0 and parcel.room_bytes > 0 and key.deliverable:
        lane = key.first_lane(lambda lane: head(state, lane)[0])
        assert lane is not None, f"{key.name!r} counts {key.ready} lanes that may deliver and has none"
        message_key, kept = head(state, lane)
        if cap == 1 and key.blocked and (waiting := _first_blocked(state, key)) < message_key[8:]:
            key.blocked_head = waiting
            break
        record = kept or state.read((message_key,))[0]
        if too_old(record, now_ms):
            _pop_head(state, lane, kept)
            dead_letters.expire(state, lane, message_key, record, now_ms)
            parcel.room_bytes -= LOOK_BYTES
        else:
            cost = extension_of(record).cost_milli
            if lane.throttle and not take(state, lane, lane.throttle, cost, now_ms):
                key.first_is_blocked()
                parcel.room_bytes -= LOOK_BYTES
                continue
            _pop_head(state, lane, kept)
            parcel.add(key, lane, message_key, record)
            key.credit -= cost
            key.held += cap is not None
            served += 1
        if not lane.pending:
            lane.active = False
            key.ready -= 1
    key.delivered += served
    key.spent += credit - key.credit
    if not key.deliverable:
        ring.leave(key)
    elif key.credit <= 0:
        ring.end_turn(key)
    return served


def _pick_of_one(state: "State", key: "FairnessKey", lane: "Lane", parcel: PickedBatch, count: int, now_ms: int) -> int:
    """Do what :func:`_pick_among` does for a key with one lane and no cap, with less work. Return the number taken."""
    served, released, spent, throttle, line = 0, 0, key.credit, lane.throttle, lane.line
    if line.__class__ is list and len(line) > SHORT:
        line = lane.lengthen()
    while served < count and key.credit > 0 and parcel.room_bytes > 0 and key.ready:
        in_order = line and not lane.returned
        message_key, kept = line[0] if in_order else head(state, lane)
        record = kept or state.read((message_key,))[0]
        usual = record[1] <= EXTENDED
        cost = MILLI if usual else extension_of(record).cost_milli
        if not usual and too_old(record, now_ms):
            _pop_head(state, lane, kept)
            dead_letters.expire(state, lane, message_key, record, now_ms)
            parcel.room_bytes -= LOOK_BYTES
            line = lane.line
        elif throttle is not None and not take(state, lane, throttle, cost, now_ms):
            key.only_is_blocked()
            parcel.room_bytes -= LOOK_BYTES
            break
        else:
            if in_order:  # without calls, as in the hot loop
                line.pop(0) if line.__class__ is list else line.popleft()  # type: ignore[union-attr]
                released += 0 if kept is None else len(kept) + ENTRY_BYTES
            else:
                _pop_head(state, lane, kept)
                line = lane.line
            lane.leases().add(message_key)
            parcel.members.append((message_key, lane))
            parcel.records.append(record)
            parcel.keys.append(key)
            parcel.room_bytes -= len(record)
            key.credit -= cost
            served += 1
        if not lane.pending:
            lane.active = False
            key.ready -= 1
    parcel.labelled = parcel.labelled or (served > 0 and lane.throttle_keys != ())
    state.buffers.used_bytes -= released
    key.delivered += served
    key.spent += spent - key.credit
    if not key.ready:
        key.queue.ring.leave(key)
    elif key.credit <= 0:
        key.queue.ring.end_turn(key)
    return served


def _first_blocked(state: "State", key: "FairnessKey") -> bytes:
    """Return the place of the first message of a strictly ordered key that waits for tokens."""
    return min(head(state, lane)[0][8:] for lane in key.lanes.values() if lane.blocked)


def _pop_head(state: "State", lane: "Lane", kept: bytes | None) -> None:
    if len(lane.line) > SHORT and isinstance(lane.line, list):
        lane.lengthen()
    lane.pop()
    state.buffers.release(kept)


def strays_of(state: "State", queue: "Queue") -> int:
    """Return :attr:`~fila_proto_zmq.commands.Delivered.strays` of a queue."""
    partition, outbox = queue.partition, state.outbox
    if partition is None:
        return 0
    late = partition.strays or outbox.carries_older
    return 2 * partition.came + bool(late or not all(outbox.has_arrived(*each) for each in partition.sent.items()))


def ready(state: "State", queue: "Queue", now_ms: int) -> bool:
    """Return whether a message could be delivered now. Lanes that lack tokens or places wait for them, as after a pick."""
    ring = queue.ring
    while key := ring.current or ring.begin_turn():
        if key.only_lane is not None or key.cold is not None or _has_ready(state, key, now_ms):
            return True
        ring.leave(key)
    return False


def _has_ready(state: "State", key: "FairnessKey", now_ms: int) -> bool:
    while key.deliverable:
        lane = key.only or key.first_lane(lambda lane: head(state, lane)[0])
        assert lane is not None, f"{key.name!r} counts {key.ready} lanes that may deliver and has none"
        message_key, kept = head(state, lane)
        if (
            key.queue.options.max_in_flight_per_key == 1
            and key.blocked
            and ((waiting := _first_blocked(state, key)) < message_key[8:])
        ):
            key.blocked_head = waiting
            return False
        cost = extension_of(kept or state.read((message_key,))[0]).cost_milli
        if not lane.throttle or may_take(state, lane, lane.throttle, cost, now_ms):
            return True
        if key.only is not None:
            key.only_is_blocked()
        else:
            key.first_is_blocked()
    return False


# --- handing over -----------------------------------------------------------------------------------------------------


def _hand_over(state: "State", queue: "Queue", demand: Demand, parcel: PickedBatch, now_ms: int) -> None:
    """Lease a batch to a demand and send it."""
    queue.delivered += len(parcel)
    queue.meter.delivered(parcel.records[0], len(parcel), now_ms)
    if isinstance(demand, Subscription):
        demand.pushes += 1
        delivered = Delivered(demand.id, _lease(state, demand, parcel, now_ms), demand.incarnation)
        state.effects.append(Push(demand.consumer.client, queue.name, delivered, demand.link))
        return
    if isinstance(demand, Reserving):
        _reserve(state, demand, parcel, now_ms)
        return
    gone = queue.at_most_once and not demand.leases
    batches = [_give_away(state, queue, parcel, now_ms)] if gone else _lease(state, demand, parcel, now_ms)
    demand.finish()
    state.effects.append(answer(demand.call, Receive, Delivered(0, batches, weight=queue.weight)))


def _reserve(state: "State", demand: Reserving, parcel: PickedBatch, now_ms: int) -> None:
    """Lease a batch to a reservation, and answer with its size. The messages are fetched by the reservation's name."""
    holder = state.leases.reservation(demand.queue.id, demand.reservation)
    lease = Lease(state.leases.new_id(), holder, demand.queue, list(parcel.members), now_ms, demand.timeout_ms)
    lease.labelled = parcel.labelled
    lease.sizes = list(map(len, parcel.records))
    lease.mortal = any(record[1] & HAS_TTL for record in parcel.records)
    lease.batches = tokens_of(parcel.records) or None
    lease.subscription_id = demand.part
    state.leases.add(lease)
    state.leases.save(lease, state.batch)
    state.part(ReservedCache).keep(lease.id, parcel.records, sum(lease.sizes))
    demand.finish()
    state.effects.append(demand.answer_with(lease))


def _lease(state: "State", demand: Demand, parcel: PickedBatch, now_ms: int) -> list[LeaseBatch]:
    duration_ms = demand.queue.visibility_timeout_ms(state.settings)
    if not any(map(_low_flags, parcel.records)):
        return [_grant(state, demand, parcel, slice(None), duration_ms, now_ms)]
    batches = []
    for span, own_ms in _durations(duration_ms, parcel.records):
        batches.append(_grant(state, demand, parcel, span, own_ms, now_ms, usual=False))
    return batches


def _durations(default_ms: int, records: list[bytes]) -> list[tuple[slice, int]]:
    """Split a batch into runs of messages with the same visibility timeout, and return them."""
    runs, start = [], 0
    for duration_ms, run in groupby(extension_of(record).lease_ms or default_ms for record in records):
        end = start + len(list(run))
        runs.append((slice(start, end), duration_ms))
        start = end
    return runs


def _grant(
    state: "State", demand: Demand, parcel: PickedBatch, span: slice, duration_ms: int, now_ms: int, *, usual: bool = True
) -> LeaseBatch:
    """Add one lease for a run of a batch, and return its columns. ``usual``: none of the records has flags."""
    queue = demand.queue
    members: list[Member] = list(parcel.members[span])
    lease = Lease(state.leases.new_id(), demand.consumer, queue, members, now_ms, duration_ms)
    lease.sizes = list(map(len, parcel.records[span]))
    lease.at_most_once, lease.labelled = queue.at_most_once, parcel.labelled
    if not usual:
        lease.mortal = any(record[1] & HAS_TTL for record in parcel.records[span])
        lease.batches = tokens_of(parcel.records[span]) or None
    if isinstance(demand, Subscription):
        lease.belongs_to(demand)
    else:
        lease.request = demand.call.request
    state.leases.add(lease)
    state.leases.save(lease, state.batch)
    batch = _batch(parcel, span)
    batch.lease, batch.leased_ms, batch.expires_ms, batch.at_most_once = (
        lease.id,
        now_ms,
        lease.expires_ms,
        lease.at_most_once,
    )
    return batch


def answer_again(state: "State", leases: list[Lease], now_ms: int) -> Delivered:
    """Return the answer to a receive again, because it was lost. The leases start again."""
    batches = []
    for lease in leases:
        members = [(key, lane) for _, key, lane in lease.open_members()]
        labelled = any(lane.throttle_keys for _, lane in members)
        batch = lease_batch(
            members, [lane.key for _, lane in members], state.read([key for key, _ in members]), labelled=labelled
        )
        state.leases.start_again(lease, now_ms)
        state.leases.save(lease, state.batch)
        batch.lease, batch.leased_ms, batch.expires_ms = lease.id, lease.leased_ms, lease.expires_ms
        batches.append(batch)
    return Delivered(0, batches, weight=leases[0].queue.weight)


def _give_away(state: "State", queue: "Queue", parcel: PickedBatch, now_ms: int) -> LeaseBatch:
    """Deliver at most once, and return the columns: the messages are removed at delivery, and there is no lease."""
    for (message_key, lane), record in zip(parcel.members, parcel.records, strict=True):
        lane.unlease(message_key)
        state.delete_pending(lane, message_key, len(record))
        state.release_slot(lane.key)
    queue.acked += len(parcel)
    if any(map(_low_flags, parcel.records)):
        state.end_members(queue, tokens_of(parcel.records).values(), MemberOutcome.ACKED)
    batch = _batch(parcel, slice(None))
    batch.leased_ms = batch.expires_ms = now_ms
    batch.at_most_once = True
    return batch


def _batch(parcel: PickedBatch, span: slice) -> LeaseBatch:
    """Return the columns of a run of a batch, without its lease."""
    return lease_batch(parcel.members[span], parcel.keys[span], parcel.records[span], labelled=parcel.labelled)


def lease_batch(
    members: "list[tuple[bytes, Lane]]", keys: "list[FairnessKey]", records: list[bytes], *, labelled: bool
) -> LeaseBatch:
    """Return the columns of some messages. The caller fills in the lease. ``labelled``: some have throttle keys."""
    names, weights = _column([key.name for key in keys]), _column([key.weight for key in keys])
    throttle_keys = [lane.throttle_keys for _, lane in members] if labelled else []
    if throttle_keys and throttle_keys.count(throttle_keys[0]) == len(throttle_keys):
        del throttle_keys[1:]  # one element holds for all
    return LeaseBatch(0, 0, 0, names, weights, records, list(map(list, throttle_keys)))


def _column(values: list[T]) -> T | list[T]:
    """Return one value if all are the same, else the list."""
    return values[0] if values.count(values[0]) == len(values) else values


class Deliveries(Component):
    """Delivery to demands. It comes after all components that may put messages in line in a turn."""

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.delivery)

    def tick(self, now_ms: int) -> int | None:
        """Deliver the messages of one turn."""
        deliver(self.state, now_ms)
        return AT_ONCE if self.state.runnable else None


class ReservedCache:
    """The records of some leases, by lease id. ``size_bytes`` is the size of all of them together."""

    def __init__(self, limits: Limits) -> None:
        self._bytes_max = limits.reserved_bytes_max
        self.size_bytes = 0
        self._records: OrderedDict[int, tuple[list[bytes], int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def keep(self, lease_id: int, records: list[bytes], size_bytes: int) -> None:
        """Keep the records of a new lease, in the order of its members."""
        self._records[lease_id] = records, size_bytes
        self.size_bytes += size_bytes
        while self.size_bytes > self._bytes_max:
            _, (_, forgotten_bytes) = self._records.popitem(last=False)
            self.size_bytes -= forgotten_bytes

    def take(self, lease_id: int) -> list[bytes] | None:
        """Return the records of a lease, and forget them; None if they are not in the cache."""
        records, size_bytes = self._records.pop(lease_id, (None, 0))
        self.size_bytes -= size_bytes
        return records


class IdleTokens(Component):
    """Tokens that no lane uses, and throttle keys whose park ends."""

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.token_client.idleness)

    def tick(self, now_ms: int) -> int | None:
        """End the parks whose time is up, and take back idle tokens."""
        self.state.unpark(now_ms)
        self.state.token_client.let_go(now_ms)
        return self.state.token_client.next_idle()

    def on_grants(self, grants: Grants, now_ms: int) -> None:
        """Unblock the lanes that got tokens."""
        self.state.wake(self.state.token_client.granted(grants, now_ms), now_ms)

    def on_session(self, now_ms: int) -> None:
        """Begin a session: the held tokens are void."""
        self.state.token_client.new_session(self.state.token_client.session + 1)


class BankRequests(Component):
    """The reports and wants for the token bank. They come after the delivery, which spends tokens and finds some missing."""

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.token_client.bank)

    def tick(self, now_ms: int) -> int | None:
        """Deal the tokens again, and ask for the missing ones."""
        state, client = self.state, self.state.token_client
        state.unblock(client.settle(now_ms))
        wants = client.repeat(now_ms) + client.wants(now_ms) + state.part(EnqueueRates).wants()
        if wants:
            state.effects.append(Post(Tokens(state.index, client.session, wants)))
        return client.next_settling()
