"""Leases and their holders: a client, by its id, or a reservation, by its name.

The holders are two types, and a lease's record has a field for each. So no value that a client may choose, such as its id,
can make it a reservation, or a reservation a client. A holder has ``leases``, by lease id, and ``shown``, its displayed text.
"""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from fila_worker.core.due_time import DueTime
from fila_worker.core.keys import MESSAGE_KEY_BYTES, pack_u64
from fila_worker.core.model.lanes import Lane
from fila_worker.core.settings import Limits

if TYPE_CHECKING:
    from fila_worker.core.model.consumers import Consumer, Subscription
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.store import Family, StoreBatch


class Reservation:
    """A reservation on one queue. The same name on another queue is another reservation.

    Invariant: ``parts`` are its leases by the numbers of their parts. A lease whose number is taken is in ``leases`` only,
    and is settled with the others.
    """

    __slots__ = ("leases", "name", "parts", "queue_id")

    def __init__(self, queue_id: int, name: str) -> None:
        self.queue_id = queue_id
        self.name = name
        self.leases: dict[int, Lease] = {}
        """By lease id, in the order in which they were taken."""
        self.parts: dict[int, Lease] = {}

    @property
    def shown(self) -> str:
        """Its name."""
        return self.name

    def add(self, lease: "Lease") -> None:
        """Add the lease of one more part."""
        self.leases[lease.id] = lease
        self.parts.setdefault(lease.part, lease)

    def remove(self, lease: "Lease") -> None:
        """Remove a lease that ended."""
        del self.leases[lease.id]
        if self.parts.get(lease.part) is lease:
            del self.parts[lease.part]


Holder: TypeAlias = "Consumer | Reservation"


Member: TypeAlias = tuple[bytes, Lane] | bool
"""A leased message, or how its lease ended: :data:`SETTLED` by its holder, or :data:`TAKEN` from it."""

SETTLED: Final = True
TAKEN: Final = False

_BLANK: Final = {SETTLED: b"\x00" * MESSAGE_KEY_BYTES, TAKEN: b"\xff" * MESSAGE_KEY_BYTES}


class LeaseRecord(msgspec.Struct, array_like=True):
    """The record of a lease. ``keys`` is the concatenation of its members' message keys, blanked for members that ended."""

    client: bytes
    """The client that holds it; empty if a reservation does."""
    reservation: str
    """The name of the reservation that holds it; empty if a client does."""
    subscription: int
    """The id of the subscription it was granted to. For a reservation: the number of its part."""
    queue: int
    leased_ms: int
    duration_ms: int
    expires_ms: int
    keys: bytes
    extended: dict[int, int]
    at_most_once: bool = False
    request: int = 0


encode_lease = msgspec.msgpack.Encoder().encode
decode_lease = msgspec.msgpack.Decoder(LeaseRecord).decode


class Finished(NamedTuple):
    """An ended lease: its client (None: a reservation), and how its members ended, or :data:`SETTLED` for all."""

    client: bytes | None
    members: "list[Member] | bool"


FINISHED: Final = b"\x01"
"""The first byte of the record of a lease that is over. No open lease's record begins with it. The client's id follows."""


class Lease:
    """Messages that were delivered together. ``open`` counts the members that have not ended: above 0 in the book."""

    __slots__ = (
        "at_most_once",
        "batches",
        "duration_ms",
        "expires_ms",
        "extended",
        "holder",
        "id",
        "labelled",
        "leased_ms",
        "members",
        "mortal",
        "open",
        "queue",
        "request",
        "sizes",
        "subscription",
        "subscription_id",
        "taken",
    )

    def __init__(
        self, lease_id: int, holder: "Holder", queue: "Queue", members: list[Member], now_ms: int, duration_ms: int
    ) -> None:
        self.id = lease_id
        self.holder = holder
        self.queue = queue
        self.members = members
        self.open = len(members)
        self.sizes: list[int] = []
        """Record bytes of each member."""
        self.at_most_once = False
        """Whether its members are gone however it ends, unless they are given back. Set by the queue when it is granted."""
        self.labelled = False
        """Whether any of its messages has throttle keys."""
        self.mortal = False
        """Whether one of its messages has a time to live, which must be checked when the message comes back."""
        self.batches: dict[int, bytes] | None = None
        """The tokens of its messages' batches, by index; None: its messages are in no batch."""
        self.taken = False
        """Whether a member was taken from its holder. Then the end of each member is remembered as long as the lease is."""
        self.leased_ms = now_ms
        self.duration_ms = duration_ms
        self.expires_ms = now_ms + duration_ms
        self.extended: dict[int, int] = {}
        """The expiry of members that have one of their own, by index."""
        self.subscription: Subscription | None = None
        """The subscription that counts its members as held. None for a receive, and when the subscription has ended."""
        self.subscription_id = 0
        """The subscription it was granted to, 0 for a receive."""
        self.request = 0
        """The receive that it was granted to, which gets the same answer if it is repeated; 0 for a subscription."""

    def belongs_to(self, subscription: "Subscription") -> None:
        """Count the open members as held by ``subscription``."""
        self.subscription = subscription
        self.subscription_id = subscription.id
        subscription.held += self.open

    @property
    def client(self) -> bytes | None:
        """The client that may settle its members by their fences. None for a reservation, which is ended by its name."""
        return None if isinstance(self.holder, Reservation) else self.holder.client

    @property
    def part(self) -> int:
        """The number of its part in its reservation."""
        return self.subscription_id

    def expiry_of(self, index: int) -> int:
        """Return when one member's lease ends, Unix ms."""
        return self.extended.get(index, self.expires_ms) if self.extended else self.expires_ms

    def open_members(self) -> Iterator[tuple[int, bytes, Lane]]:
        """Yield ``(index, key, lane)`` of the members that have not ended."""
        for index, member in enumerate(self.members):
            if not isinstance(member, bool):
                yield index, member[0], member[1]

    def next_expiry(self) -> int:
        """Return when the first of the open members' leases ends, Unix ms."""
        if not self.extended:
            return self.expires_ms
        return min((self.expiry_of(index) for index, _, _ in self.open_members()), default=self.expires_ms)

    def to_bytes(self) -> bytes:
        """Return the lease's record."""
        if self.open == len(self.members):
            keys = [member[0] for member in self.members]  # type: ignore[index]  # all are pairs
        else:
            keys = [_BLANK[member] if isinstance(member, bool) else member[0] for member in self.members]
        record = LeaseRecord(
            self.client or b"",
            self.holder.name if isinstance(self.holder, Reservation) else "",
            self.subscription_id,
            self.queue.id,
            self.leased_ms,
            self.duration_ms,
            self.expires_ms,
            b"".join(keys),
            self.extended,
            self.at_most_once,
            self.request,
        )
        return encode_lease(record)


def ended_key(ended: bool) -> bytes:
    """Return what stands in a lease's record for a member that ended."""
    return _BLANK[ended]


def member_ended(key: bytes) -> bool | None:
    """Return how a member with this key ended: :data:`SETTLED`, :data:`TAKEN`, or None if it is a real key."""
    for ended, blank in _BLANK.items():
        if key == blank:
            return ended
    return None


_LEASE_BITS: Final = 40


def first_lease(epoch: int, entropy: int) -> int:
    """Return the first lease id of an opening. At least half of its range, some 10^11 ids, follows."""
    return (epoch << _LEASE_BITS) + entropy % (1 << _LEASE_BITS - 1) + 1


class LeaseBook:
    """All leases of a shard, by id and by expiry.

    The heap ``due`` is lazy: an entry may be too early (its lease was renewed) or stale (its lease is over), never too late.
    """

    def __init__(self, family: "Family", first_id: int, limits: Limits) -> None:
        self._family = family
        self._limits = limits
        self._next_id = first_id
        self.leases: dict[int, Lease] = {}
        self.finished: OrderedDict[int, Finished] = OrderedDict()
        """How leases ended that have no messages on disk. Acked leases whose messages are still on disk are in
        :class:`core.model.acked_messages.AckedMessages` instead, so forgetting one of these never removes a mark."""
        self.due: list[tuple[int, int]] = []
        self.expiry = DueTime()
        """When the first lease may end."""
        self.reservations: dict[tuple[int, str], Reservation] = {}
        """The reservations that hold a lease, by queue id and name."""

    def __len__(self) -> int:
        return len(self.leases)

    def new_id(self) -> int:
        """Return an id that was never used before."""
        lease_id = self._next_id
        self._next_id += 1
        return lease_id

    def add(self, lease: Lease) -> None:
        """Add a lease, new or recovered."""
        self.leases[lease.id] = lease
        holder = lease.holder
        if isinstance(holder, Reservation):
            self.reservations[holder.queue_id, holder.name] = holder
            holder.add(lease)
        else:
            holder.leases[lease.id] = lease
            if lease.request:
                holder.granted.setdefault(lease.request, []).append(lease)
        if len(self.due) > 2 * len(self.leases) + 1000:
            self.due = [(each.next_expiry(), each.id) for each in self.leases.values() if each is not lease]
            heapify(self.due)
        self.reschedule(lease)

    def save(self, lease: Lease, batch: "StoreBatch") -> None:
        """Write the lease's record: when it is granted, when members are given back, and when its expiry changes."""
        batch.put(pack_u64(lease.id), lease.to_bytes(), self._family)

    def close_members(self, lease: Lease, ended: int, batch: "StoreBatch", *, given_back: bool) -> None:
        """Count ``ended`` members; the last one finishes the lease. ``given_back``: unlist the messages, which exist."""
        lease.open -= ended
        if lease.subscription is not None:
            lease.subscription.held -= ended
        if lease.open:
            if given_back:
                self.save(lease, batch)
            return
        self._take_out(lease)
        self.remember(lease.id, Finished(lease.client, lease.members if lease.taken else SETTLED), batch)

    def close_acked(self, lease: Lease) -> None:
        """End a lease whose members were all acked at once. It is remembered when its messages are purged."""
        if lease.subscription is not None:
            lease.subscription.held -= lease.open
        lease.open = 0
        self._take_out(lease)

    def remember(self, lease_id: int, finished: Finished, batch: "StoreBatch") -> None:
        """Remember how a lease without messages ended. If there are too many, forget the one that ended first.

        A lease that was settled as a whole is remembered over a restart. A reservation's lease is not: it is never settled by
        a fence.
        """
        if finished.client is None or finished.members is not SETTLED:
            batch.delete(pack_u64(lease_id), self._family)
        else:
            batch.put(pack_u64(lease_id), FINISHED + finished.client, self._family)
        if finished.client is None:
            return
        self.finished[lease_id] = finished
        if len(self.finished) > self._limits.finished_leases_max:
            forgotten, _ = self.finished.popitem(last=False)
            batch.delete(pack_u64(forgotten), self._family)

    def drop(self, lease: Lease, batch: "StoreBatch") -> None:
        """Forget a lease whose queue is deleted. Settling it is then refused."""
        if lease.subscription is not None:
            lease.subscription.held -= lease.open
        self._take_out(lease)
        batch.delete(pack_u64(lease.id), self._family)

    def _take_out(self, lease: Lease) -> None:
        del self.leases[lease.id]
        holder = lease.holder
        if not isinstance(holder, Reservation):
            del holder.leases[lease.id]
            if lease.request:
                _ungrant(holder, lease)
            return
        holder.remove(lease)
        if not holder.leases:
            del self.reservations[holder.queue_id, holder.name]

    def reservation(self, queue_id: int, name: str) -> Reservation:
        """Return a reservation on a queue, a new one if it holds no lease."""
        return self.reservations.get((queue_id, name)) or Reservation(queue_id, name)

    def part(self, queue_id: int, name: str, part: int) -> Lease | None:
        """Return the lease of one part of a reservation, or None."""
        return self.reservation(queue_id, name).parts.get(part)

    def start_again(self, lease: Lease, now_ms: int) -> None:
        """Let a lease last its whole time from now on. It may end sooner than before if the clock was set back."""
        before_ms, lease.expires_ms = lease.expires_ms, now_ms + lease.duration_ms
        if lease.expires_ms < before_ms:
            self.reschedule(lease)

    def reschedule(self, lease: Lease) -> None:
        """Add an entry to ``due`` for a lease whose expiry came closer."""
        expires_ms = lease.next_expiry()
        heappush(self.due, (expires_ms, lease.id))
        self.expiry.by(expires_ms)

    def pop_expired(self, now_ms: int) -> Lease | None:
        """Return a lease with expired members; None: no lease has any."""
        while self.due and self.due[0][0] <= now_ms:
            _, lease_id = heappop(self.due)
            lease = self.leases.get(lease_id)
            if lease is None:
                continue
            expiry = lease.next_expiry()
            if expiry <= now_ms:
                return lease
            heappush(self.due, (expiry, lease_id))
        return None

    def next_expiry(self) -> int | None:
        """Return a time before which no lease expires, Unix ms; None without leases."""
        return self.due[0][0] if self.due else None


def _ungrant(consumer: "Consumer", lease: Lease) -> None:
    granted = consumer.granted
    granted[lease.request].remove(lease)
    if not granted[lease.request]:
        del granted[lease.request]
