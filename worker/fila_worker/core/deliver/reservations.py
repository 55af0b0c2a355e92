"""Reservations: messages leased to a name, for readers that outlive their connections.

A reader that works in batches (a Spark stream) must get the same messages again when it repeats a batch after a crash, from
another process. It must settle all of them at once when the batch is written. So their leases belong to the name of the
batch: each client with the name may fetch, renew and end them. Otherwise they are ordinary leases, picked by the ordinary
delivery with its fair shares, tokens and caps. But they are ended together, by name, and not one by one by fence.

A reservation is taken in *parts*, one delivery each, numbered by the client that takes it. So a repeated command finds the
part that it took before. A reservation does not end with a client: it ends when it was not renewed within its timeout, and
its messages are then given back, uncounted. No list of reservations is on disk: each lease's record names its holder.
"""

from typing import TYPE_CHECKING, ClassVar, Final

from fila_proto_zmq.commands import (
    Delivered,
    EndReservation,
    FetchReserved,
    RenewReservation,
    ReservationEnded,
    Reserve,
    Reserved,
    Verb,
)
from fila_proto_zmq.errors import InvalidArgumentError, LeaseExpiredError
from fila_proto_zmq.limits import (
    LEASE_MS_MAX,
    PREFETCH_MAX,
    RESERVATION_BYTES_MAX,
    RESERVATION_MS_MIN,
    RESERVATION_PARTS_MAX,
    WAIT_MS_MAX,
)
from fila_worker.core.deliver.delivery import ReservedCache, lease_batch
from fila_worker.core.deliver.subscriptions import line_up
from fila_worker.core.model.component import Component
from fila_worker.core.model.consumers import Reserving
from fila_worker.core.model.leases import SETTLED
from fila_worker.core.settle.failed_attempts import LEASE_COST, give_back
from fila_worker.core.settle.settle import ack

if TYPE_CHECKING:
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

LEASES_AT_ONCE: Final = 200
"""The most leases of a reservation that are renewed in one step. Each has a record of up to 10 KiB."""


def reserve(state: "State", call: "ClientCall", command: Reserve) -> Reserved | None:
    """Return a part of a reservation that was taken before. Else put a demand for it in line, which a delivery answers."""
    queue = state.queues.find(call.queue)
    _check(command, queue)
    lease = state.leases.part(queue.id, command.reservation, command.part)
    if lease is not None:
        return Reserved([(command.part, lease.open)], lease.next_expiry())
    consumer = state.consumers.open(call.client, call.now_ms)
    waiter = consumer.waiters.get(call.request)
    if waiter is None:
        line_up(state, Reserving(call, consumer, queue, command, state.leases))
    else:
        waiter.call.link = call.link  # a repeated frame: the answer to the first serves both
    return None


def fetch(state: "State", call: "ClientCall", command: FetchReserved) -> Delivered:
    """Return the messages of a part."""
    queue = state.queues.find(call.queue)
    lease = state.leases.part(queue.id, command.reservation, command.part)
    if lease is None:
        raise LeaseExpiredError(
            f"reservation {command.reservation!r} of queue {queue.name!r} holds no part {command.part}: it was settled, or "
            "it was not renewed within its timeout and its messages were given back"
        )
    members = [(key, lane) for _, key, lane in lease.open_members()]
    labelled = any(lane.throttle_keys for _, lane in members)
    records = state.part(ReservedCache).take(lease.id) or state.read([key for key, _ in members])
    batch = lease_batch(members, [lane.key for _, lane in members], records, labelled=labelled)
    batch.leased_ms, batch.expires_ms = lease.leased_ms, lease.expires_ms  # no lease: it is ended by name, not by fences
    return Delivered(0, [batch])


def renew_reservation(state: "State", call: "ClientCall", command: RenewReservation) -> "Work":
    """Start a reservation's leases again."""
    _check_timeout(command.timeout_ms)
    reservation = state.leases.reservation(state.queues.find(call.queue).id, command.reservation)
    now_ms = call.now_ms
    for number, lease in enumerate(list(reservation.leases.values())):
        if number and number % LEASES_AT_ONCE == 0:
            now_ms = yield state.settings.limits.step_effort
        if state.leases.leases.get(lease.id) is lease:
            lease.duration_ms = command.timeout_ms
            lease.expires_ms = now_ms + command.timeout_ms
            state.leases.save(lease, state.batch)
            state.leases.reschedule(lease)
    leases = state.leases.reservation(state.queues.find(call.queue).id, command.reservation).leases.values()
    parts = sorted((lease.part, lease.open) for lease in leases)
    return Reserved(parts, min((lease.next_expiry() for lease in leases), default=0))


def end_reservation(state: "State", call: "ClientCall", command: EndReservation) -> "Work":
    """Settle all messages that a reservation holds of a queue."""
    queue = state.queues.find(call.queue)
    if command.verb not in {Verb.ACK, Verb.RELEASE}:
        raise InvalidArgumentError(
            f"verb {command.verb}: a reservation ends with {Verb.ACK:d} (ack) or {Verb.RELEASE:d} (release)"
        )
    count, now_ms, effort = 0, call.now_ms, 0
    for lease in list(state.leases.reservation(queue.id, command.reservation).leases.values()):
        if effort >= state.settings.limits.step_effort:
            now_ms = yield effort
            effort = 0
        if state.leases.leases.get(lease.id) is not lease:
            continue
        indexes = [index for index, _, _ in lease.open_members()]
        count += len(indexes)
        effort += LEASE_COST + len(indexes)
        if command.verb == Verb.ACK:
            ack(state, queue, lease, indexes, now_ms)
        else:
            give_back(state, lease, indexes, SETTLED, now_ms)
    return ReservationEnded(count)


def _check(command: Reserve, queue: "Queue") -> None:
    if queue.at_most_once:
        raise InvalidArgumentError(
            f"queue {queue.name!r} delivers at most once: what is reserved may be read again; use an at_least_once queue"
        )
    if not 0 < len(command.reservation.encode()) <= RESERVATION_BYTES_MAX:
        raise InvalidArgumentError(
            f"reservation name of {len(command.reservation.encode())} bytes: use 1 to {RESERVATION_BYTES_MAX}"
        )
    if not 0 <= command.part < RESERVATION_PARTS_MAX:
        raise InvalidArgumentError(f"part {command.part}: use 0 to {RESERVATION_PARTS_MAX - 1}")
    if not 1 <= command.count <= PREFETCH_MAX:
        raise InvalidArgumentError(f"reservation of {command.count} messages: ask for 1 to {PREFETCH_MAX}")
    if not 0 <= command.wait_ms <= WAIT_MS_MAX:
        raise InvalidArgumentError(f"wait of {command.wait_ms} ms: use 0 to {WAIT_MS_MAX}")
    _check_timeout(command.timeout_ms)


def _check_timeout(timeout_ms: int) -> None:
    if not RESERVATION_MS_MIN <= timeout_ms <= LEASE_MS_MAX:
        raise InvalidArgumentError(f"reservation timeout of {timeout_ms} ms: use {RESERVATION_MS_MIN} to {LEASE_MS_MAX}")


class ReservedMessages(Component):
    """Messages leased to a name."""

    verbs: ClassVar = {
        Reserve: reserve,
        FetchReserved: fetch,
        RenewReservation: renew_reservation,
        EndReservation: end_reservation,
    }

    def __init__(self, state: "State") -> None:
        super().__init__(state)
        state.keep(ReservedCache(state.settings.limits))
