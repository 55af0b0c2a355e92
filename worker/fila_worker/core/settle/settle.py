"""The commands of consumers on their deliveries: settle, extend, renew.

Each settlement names its deliveries by fence. A member that its holder settled before is skipped, so a repeated command gets
the first answer again. A member that was taken from its holder (its lease expired, its consumer was lost) is refused. The
later lease of the message is not touched.
"""

from collections import deque
from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar, Final

from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import Extend, Extended, Fault, Fences, Settle, Settled, Verb
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, LeaseExpiredError
from fila_proto_zmq.limits import (
    COST_MILLI_MAX,
    DELAY_MS_MAX,
    ERROR_TEXT_BYTES_MAX,
    FENCES_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    METADATA_BYTES_MAX,
)
from fila_worker.core.callback_group_parts import MemberOutcome
from fila_worker.core.effects import ClientCall
from fila_worker.core.model.acked_messages import mark_acked
from fila_worker.core.model.component import Component
from fila_worker.core.model.leases import SETTLED, TAKEN, Lease
from fila_worker.core.settle.actual_costs import Costs, charge
from fila_worker.core.settle.failed_attempts import (
    ATTEMPT_COST,
    Attempt,
    defer,
    expire,
    expire_leases,
    fail_attempts,
    give_back,
    invite,
)

if TYPE_CHECKING:
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.consumers import Consumer
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.leases import Member
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

Faults = list[tuple[int, int, Fault]]
WHOLE: Final = -1
"""In place of an index: the fault concerns the whole lease."""

FENCES_AT_ONCE: Final = 100
ACKS_AT_ONCE: Final = 1000
"""The most leases that one ack settles at once, and the most messages of several leases. More are settled in steps."""

_COSTS: Final = {
    Verb.ACK: 1,
    Verb.RELEASE: 10,
    Verb.NACK: ATTEMPT_COST,
    Verb.RETRY: ATTEMPT_COST,
    Verb.DEFER: 2 * ATTEMPT_COST,
    Verb.FAIL: 2 * ATTEMPT_COST,
}
"""The effort for each message. A message that is moved costs more."""

FENCE_COST: Final = 5
"""The effort to look up a lease, and to write it."""
_message_key = itemgetter(0)


def settle(state: "State", call: "ClientCall", command: Settle) -> "Settled | Work":
    """End the named deliveries as the verb requires."""
    queue = state.queues.find(call.queue)
    verb = _checked(command)
    if verb is not Verb.ACK or len(command.fences) > FENCES_AT_ONCE or _has_many(state, call.client, command.fences):
        return _settle_in_steps(state, call, queue, command, verb)
    state.jobs.charge(FENCE_COST * len(command.fences))
    faults: Faults = []
    costs = _costs_of(command) if command.costs else None
    for lease, indexes in _fenced(state, call, queue, command.fences, faults):
        if costs:
            charge(state, lease, indexes, costs)
        ack(state, queue, lease, indexes, call.now_ms)
    return Settled(faults)


def settle_usual(state: "State", call: "ClientCall", command: Settle) -> Settled | None:
    """Ack a few deliveries. None, with nothing done: :func:`settle` has to look."""
    queue = state.queues.get(call.queue)
    if (
        queue is None
        or not queue.usual
        or command.verb != Verb.ACK
        or len(command.fences) != 1
        or len(command.fences[0][1]) > 1
        or command.costs
    ):
        return None
    state.jobs.left -= FENCE_COST
    faults: Faults = []
    for lease, indexes in _fenced(state, call, queue, command.fences, faults):
        ack(state, queue, lease, indexes, call.now_ms)
    return Settled(faults)


def _has_many(state: "State", client: bytes, fences: Fences) -> bool:
    """Return whether several leases have many messages together. (Those of one lease were also delivered in one turn.)"""
    consumer = state.consumers.by_client.get(client)
    if len(fences) < 2 or consumer is None:
        return False
    held = consumer.leases
    return sum(len(wanted) or (held[lease].open if lease in held else 0) for lease, wanted in fences) > ACKS_AT_ONCE


def _settle_in_steps(state: "State", call: ClientCall, queue: "Queue", command: Settle, verb: Verb) -> "Work":
    """Settle fence by fence. Members left over by a step are looked up again in the next: they may have expired."""
    faults: Faults = []
    costs = _costs_of(command)
    left, effort = deque(command.fences), 0
    while left:
        effort += FENCE_COST
        for lease, indexes in _fenced(state, call, queue, [left.popleft()], faults):
            some = indexes if verb is Verb.ACK else indexes[: max(1, state.settings.limits.step_effort // _COSTS[verb])]
            if costs:
                charge(state, lease, some, costs)
            done = _settle_some(state, lease, some, command, verb, call.now_ms)
            effort += done * _COSTS[verb]
            if done < len(indexes):
                left.appendleft((lease.id, indexes[done:]))
        if effort >= state.settings.limits.step_effort or state.jobs.full:
            call = ClientCall(call.client, call.request, call.queue, (yield effort))
            effort = 0
    return Settled(faults)


def _settle_some(state: "State", lease: Lease, indexes: list[int], command: Settle, verb: Verb, now_ms: int) -> int:
    """Settle members of one lease in their order. Return how many were settled."""
    queue, done = lease.queue, len(indexes)
    if verb is Verb.ACK:
        ack(state, queue, lease, indexes, now_ms)
    elif verb is Verb.RELEASE:
        give_back(state, lease, indexes, SETTLED, now_ms)
    elif verb is Verb.DEFER:
        defer(state, lease, indexes, SETTLED, now_ms + command.after_ms, now_ms)
    else:
        done = fail_attempts(state, lease, indexes, SETTLED, _attempt(command, verb, now_ms))
        queue.nacked += done
    return done


def check_fences(fences: Fences) -> None:
    """Raise :class:`InvalidArgumentError` for more fences than one turn can check."""
    named = sum(len(indexes) for _, indexes in fences)
    if len(fences) > FENCES_MAX or named > FENCES_MAX:
        raise InvalidArgumentError(
            f"{len(fences):,} leases and {named:,} of their deliveries by index in one frame: name at most {FENCES_MAX:,} "
            "of each"
        )


def _checked(command: Settle) -> Verb:
    try:
        verb = Verb(command.verb)
    except ValueError:
        known = ", ".join(f"{verb.value} ({verb.name.lower()})" for verb in Verb)
        raise InvalidArgumentError(f"unknown verb {command.verb}: use one of {known}") from None
    if not 0 <= command.after_ms <= DELAY_MS_MAX:
        raise InvalidArgumentError(f"retry after {command.after_ms} ms: use 0 to {DELAY_MS_MAX}")
    if len(command.metadata or b"") > METADATA_BYTES_MAX:
        raise InvalidArgumentError(f"metadata of {len(command.metadata or b'')} bytes: use at most {METADATA_BYTES_MAX}")
    check_fences(command.fences)
    if len(command.costs) > FENCES_MAX:
        raise InvalidArgumentError(f"costs of {len(command.costs):,} deliveries in one frame: name at most {FENCES_MAX:,}")
    for _, _, cost_milli in command.costs:
        if not 0 <= cost_milli <= COST_MILLI_MAX:
            raise InvalidArgumentError(f"a cost of {cost_milli} thousandths: use 0 to {COST_MILLI_MAX}")
    return verb


def _costs_of(command: Settle) -> Costs:
    return {(lease, index): cost_milli for lease, index, cost_milli in command.costs}


def _attempt(command: Settle, verb: Verb, now_ms: int) -> Attempt:
    error = command.error.encode()[-ERROR_TEXT_BYTES_MAX:].decode(errors="ignore")
    after_ms = command.after_ms if verb is Verb.RETRY else 0
    return Attempt(error, now_ms, after_ms, command.metadata, dead_letter=verb is Verb.FAIL, hooked=verb is Verb.NACK)


# --- fences -----------------------------------------------------------------------------------------------------------


def _fenced(
    state: "State", call: "ClientCall", queue: "Queue", fences: Fences, faults: Faults, *, repeatable: bool = True
) -> Iterator[tuple[Lease, list[int]]]:
    """Yield the client's leases that ``fences`` name, with the members that are still open. Refusals are added to ``faults``.

    Only the client's own leases are looked up: a fence is valid only for the client that holds the lease. ``repeatable``:
    members that their holder settled are skipped without a fault, also if they were named by index.
    """
    consumer = state.consumers.by_client.get(call.client)
    held = consumer.leases if consumer else {}
    for lease_id, wanted in fences:
        lease = held.get(lease_id)
        if lease is None or lease.queue is not queue:
            _judge_finished(state, call.client, lease_id, wanted, faults, repeatable=repeatable)
            continue
        if lease.next_expiry() <= call.now_ms and not state.behind:
            expire(state, lease, call.now_ms)  # also before the turn that would expire it
        if not wanted and lease.open == len(lease.members):
            yield lease, list(range(lease.open))  # the usual case: a whole batch, not settled before
        elif indexes := _open_ones(lease, wanted, faults, repeatable=repeatable):
            yield lease, indexes


def _open_ones(lease: Lease, wanted: list[int], faults: Faults, *, repeatable: bool) -> list[int]:
    """Return the members among ``wanted`` that are still open. An empty list stands for all members."""
    found = []
    for index in dict.fromkeys(wanted) if wanted else range(len(lease.members)):
        member = lease.members[index] if 0 <= index < len(lease.members) else None
        if member is None:
            faults.append(_refusal(lease.id, index, _nobody(len(lease.members))))
        elif member is TAKEN or (member is SETTLED and wanted and not repeatable):
            faults.append(_refusal(lease.id, index, _expired()))
        elif member is not SETTLED:
            found.append(index)
    return found


def _judge_finished(
    state: "State", client: bytes, lease_id: int, wanted: list[int], faults: Faults, *, repeatable: bool
) -> None:
    """Add the faults for a lease that is over, as if it were open. An unknown or another client's lease counts as expired."""
    members = _finished(state, client, lease_id) if repeatable else TAKEN
    if members is SETTLED:
        return
    if not isinstance(members, list):
        faults.append(_refusal(lease_id, WHOLE, _expired()))
        return
    for index in dict.fromkeys(wanted) or range(len(members)):
        if not 0 <= index < len(members):
            faults.append(_refusal(lease_id, index, _nobody(len(members))))
        elif members[index] is not SETTLED:
            faults.append(_refusal(lease_id, index, _expired()))


def _finished(state: "State", client: bytes, lease_id: int) -> "list[Member] | bool":
    """Return how a client's lease that is over ended. An unknown lease counts as taken from its holder."""
    if lease_id in state.acked.leases:
        return SETTLED if state.acked.leases[lease_id] == client else TAKEN
    finished = state.leases.finished.get(lease_id)
    return finished.members if finished is not None and finished.client == client else TAKEN


def _nobody(size: int) -> FilaError:
    return InvalidArgumentError(f"no such delivery in this lease of {size}")


def _expired() -> FilaError:
    return LeaseExpiredError("the lease ended before this delivery was settled: the message is or was delivered again")


def _refusal(lease_id: int, index: int, error: FilaError) -> tuple[int, int, Fault]:
    return lease_id, index, to_fault(error)


# --- acks -------------------------------------------------------------------------------------------------------------


def ack(state: "State", queue: "Queue", lease: Lease, indexes: list[int], now_ms: int) -> None:
    """Ack messages. A whole batch is marked as acked and purged later. Single messages are removed at once."""
    size_bytes = sum(lease.sizes) if len(indexes) == len(lease.sizes) else sum(lease.sizes[each] for each in indexes)
    queue.count_acked(len(indexes), size_bytes)
    queue.meter.acked(lease.leased_ms, len(indexes), now_ms)
    state.ledger.touch_queue(queue)
    if queue.options.max_in_flight_per_key is not None:
        _free_slots(state, lease, indexes)
    if lease.labelled:
        state.count_leased(lease, indexes, -1)
    if lease.batches is not None:
        state.end_members(queue, [lease.batches[each] for each in indexes if each in lease.batches], MemberOutcome.ACKED)
    if len(indexes) == len(lease.members):
        mark_acked(state, lease)
        state.leases.close_acked(lease)
    else:
        _remove(state, lease, indexes)
        state.leases.close_members(lease, len(indexes), state.batch, given_back=False)
    invite(state, lease)


def ack_taken(state: "State", consumer: "Consumer", fences: Fences, now_ms: int) -> None:
    """Remove the at-most-once messages that a consumer's application has had."""
    for lease_id, wanted in fences:
        lease = consumer.leases.get(lease_id)
        if lease is not None and lease.at_most_once and (indexes := _open_ones(lease, wanted, [], repeatable=True)):
            ack(state, lease.queue, lease, indexes, now_ms)


def _free_slots(state: "State", lease: Lease, indexes: list[int]) -> None:
    """Free the slots of ended members, so that the next messages of their keys may be delivered."""
    for index in indexes:
        member = lease.members[index]
        assert not isinstance(member, bool)
        state.release_slot(member[1].key)


def _remove(state: "State", lease: Lease, indexes: list[int]) -> None:
    ledger, members, messages = state.ledger, lease.members, state.store.families.messages
    changed, watches = ledger.changed, ledger.watches
    delete = state.batch.delete
    ended: list[tuple[bytes, Lane]] = [members[index] for index in indexes]  # type: ignore[misc]  # open ones are pairs
    for index in indexes:
        members[index] = SETTLED
    ended.sort(key=_message_key)  # RocksDB takes a fifth less time for keys in order
    for message_key, lane in ended:
        delete(message_key, messages)
        if not lane.changed:
            if watches:
                ledger.show(lane)
            lane.changed = True
            changed.append(lane)
        lane.stored -= 1
        lane.leased.remove(message_key)


# --- extending --------------------------------------------------------------------------------------------------------


def extend(state: "State", call: "ClientCall", command: Extend) -> "Work":
    """Set the end of the named deliveries' leases to ``duration_ms`` from now, sooner or later than before."""
    queue = state.queues.find(call.queue)
    if not LEASE_MS_MIN <= command.duration_ms <= LEASE_MS_MAX:
        raise InvalidArgumentError(f"extension by {command.duration_ms} ms: use {LEASE_MS_MIN} to {LEASE_MS_MAX}")
    check_fences(command.fences)
    faults: Faults = []
    expires_ms = call.now_ms + command.duration_ms
    effort = 0
    for fence in command.fences:
        effort += FENCE_COST
        for lease, indexes in _fenced(state, call, queue, [fence], faults, repeatable=False):
            lease.extended.update(dict.fromkeys(indexes, expires_ms))
            state.leases.save(lease, state.batch)
            state.leases.reschedule(lease)
            effort += len(indexes)
        if effort >= state.settings.limits.step_effort:
            call = ClientCall(call.client, call.request, call.queue, (yield effort))
            effort = 0
    return Extended(expires_ms, faults)


def renew(state: "State", consumer: "Consumer", lease_ids: list[int], now_ms: int) -> list[int]:
    """Start leases of a live consumer again, once a third of their time is gone. Return those that it does not have."""
    gone = []
    for lease_id in lease_ids:
        lease = consumer.leases.get(lease_id)
        if lease is None:
            gone.append(lease_id)
        elif lease.next_expiry() - now_ms < lease.duration_ms * 2 // 3:
            lease.expires_ms = now_ms + lease.duration_ms
            lease.extended = {
                index: expires_ms for index, expires_ms in lease.extended.items() if expires_ms > lease.expires_ms
            }
            state.leases.save(lease, state.batch)
    return gone


class Settlements(Component):
    """The end of leases, by commands and by time."""

    verbs: ClassVar = {Settle: settle, Extend: extend}
    patient = True

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.leases.expiry)

    def tick(self, now_ms: int) -> int | None:
        """End the leases whose time is up."""
        expire_leases(self.state, now_ms)
        return self.state.leases.next_expiry()
