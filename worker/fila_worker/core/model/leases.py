"""Who holds leases: a client, by its id, or a reservation, by its name.

They are two types, and a lease's record has a field for each. So nothing that a client may choose, its id least of all, makes it
a reservation, or the other way round. A holder has ``leases``, by lease id, and ``shown``, its text for people.
"""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from fila_worker.core.keys import MESSAGE_KEY_BYTES, pack_u64
from fila_worker.core.model.lanes import Lane
from fila_worker.core.settings import Limits
from fila_worker.core.timer import Timer

if TYPE_CHECKING:
    from fila_worker.core.model.consumers import Consumer, Subscription
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.store import Batch, Family


class Reservation:
    """A reservation on one queue: on each queue a name is something of its own.

    Invariant: ``parts`` are its leases by the numbers of their parts; one that comes with the number of another is in ``leases``
    only, and is settled with the others.
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
        """It holds one more part."""
        self.leases[lease.id] = lease
        self.parts.setdefault(lease.part, lease)

    def remove(self, lease: "Lease") -> None:
        """One of its leases ended."""
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
    """A lease at rest. ``keys`` is the concatenation of its members' message keys, blanked where they ended."""

    client: bytes
    """Whose it is; empty for a reservation's."""
    reservation: str
    """The name of the reservation that holds it; empty for a client's."""
    subscription: int
    """Of a reservation: the number of its part."""
    queue: int
    leased_ms: int
    duration_ms: int
    expires_ms: int
    keys: bytes
    extended: dict[int, int]
    at_most_once: bool = False
    request: int = 0


_encode = msgspec.msgpack.Encoder().encode
decode_lease = msgspec.msgpack.Decoder(LeaseRecord).decode


class Finished(NamedTuple):
    """A lease that is over: whose it was, None for a reservation, and how its members ended, or :data:`SETTLED` for all."""

    client: bytes | None
    members: "list[Member] | bool"


FINISHED: Final = b"\x01"
"""First byte of the record of a lease that is over, which no open lease's begins with; the client's id follows."""


class Lease:
    """Messages that went out together.

    Invariants: ``open`` counts the members that have not ended; a lease in the book has ``open > 0``.
    """

    __slots__ = (
        "at_most_once",
        "duration_ms",
        "expires_ms",
        "extended",
        "holder",
        "id",
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
        """Whether its members are gone however it ends, unless they are given back: as the queue was when it was granted."""
        self.mortal = False
        """Whether one of its messages has a time to live, and must be judged when it comes back."""
        self.taken = False
        """Whether a member was taken from its holder: the others are told apart from it as long as the lease is remembered."""
        self.leased_ms = now_ms
        self.duration_ms = duration_ms
        self.expires_ms = now_ms + duration_ms
        self.extended: dict[int, int] = {}
        """Members whose own expiry differs, by index."""
        self.subscription: Subscription | None = None
        """Where its members count as held; None for a receive, and when the subscription has ended."""
        self.subscription_id = 0
        """The subscription it was granted to, 0 for a receive."""
        self.request = 0
        """The receive that it was granted to, 0 for a subscription: it gets the same answer if it is repeated."""

    def belongs_to(self, subscription: "Subscription") -> None:
        """Count the open members as held by ``subscription``."""
        self.subscription = subscription
        self.subscription_id = subscription.id
        subscription.held += self.open

    @property
    def client(self) -> bytes | None:
        """The client that may settle its members by their fences; None for a reservation's, which are ended by name."""
        return None if isinstance(self.holder, Reservation) else self.holder.client

    @property
    def part(self) -> int:
        """Its number in the reservation that it belongs to."""
        return self.subscription_id

    def expiry_of(self, index: int) -> int:
        """When one member's lease ends, Unix ms."""
        return self.extended.get(index, self.expires_ms) if self.extended else self.expires_ms

    def open_members(self) -> Iterator[tuple[int, bytes, Lane]]:
        """``(index, key, lane)`` of the members that have not ended."""
        for index, member in enumerate(self.members):
            if not isinstance(member, bool):
                yield index, member[0], member[1]

    def next_expiry(self) -> int:
        """When the first of the open members' leases ends, Unix ms."""
        if not self.extended:
            return self.expires_ms
        return min((self.expiry_of(index) for index, _, _ in self.open_members()), default=self.expires_ms)

    def to_bytes(self) -> bytes:
        """The lease's record."""
        if self.open == len(self.members):
            keys = [member[0] for member in self.members]  # type: ignore[index]  # all are pairs
        else:
            keys = [_BLANK[member] if isinstance(member, bool) else member[0] for member in self.members]
        record = LeaseRecord(
            self.client or b"", self.holder.name if isinstance(self.holder, Reservation) else "", self.subscription_id,
            self.queue.id, self.leased_ms, self.duration_ms, self.expires_ms, b"".join(keys), self.extended, self.at_most_once,
            self.request,
        )  # fmt: skip
        return _encode(record)


def member_ended(key: bytes) -> bool | None:
    """How a member with this key in a lease record ended: :data:`SETTLED`, :data:`TAKEN`, or None if it is a real key."""
    for ended, blank in _BLANK.items():
        if key == blank:
            return ended
    return None


_LEASE_BITS: Final = 40


def first_lease(epoch: int, entropy: int) -> int:
    """The first lease id of an opening; half of its range, some 10^11 ids, is certain to follow."""
    return (epoch << _LEASE_BITS) + entropy % (1 << _LEASE_BITS - 1) + 1


class LeaseBook:
    """All leases of a shard, by id and by expiry.

    The heap ``due`` is lazy: an entry may be too early (the lease was renewed) or stale (it is finished), never too late.
    """

    def __init__(self, family: "Family", first_id: int, limits: Limits) -> None:
        self._family = family
        self._limits = limits
        self._next_id = first_id
        self.leases: dict[int, Lease] = {}
        self.finished: OrderedDict[int, Finished] = OrderedDict()
        """How leases ended that have no messages on disk: acked leases whose messages
        still lie there are in the graveyard instead: so to forget one of these never takes a mark away."""
        self.due: list[tuple[int, int]] = []
        self.expiry = Timer()
        """When the first lease may end."""
        self.reservations: dict[tuple[int, str], Reservation] = {}
        """Those that hold something, by queue id and name."""

    def __len__(self) -> int:
        return len(self.leases)

    def new_id(self) -> int:
        """An id that was never given out before."""
        lease_id = self._next_id
        self._next_id += 1
        return lease_id

    def add(self, lease: Lease) -> None:
        """Enter a lease, new or recovered."""
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

    def save(self, lease: Lease, batch: "Batch") -> None:
        """Write the lease's record: on granting, when members are given back, and when its expiry changes."""
        batch.put(pack_u64(lease.id), lease.to_bytes(), self._family)

    def close_members(self, lease: Lease, ended: int, batch: "Batch", *, given_back: bool) -> None:
        """Count ``ended`` members as ended; finish the lease with its last one.

        ``given_back``: their messages still exist, so the record must not list them any more.
        """
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
        """End a lease all of whose members were acked at once; it lies in the graveyard, which remembers it later."""
        if lease.subscription is not None:
            lease.subscription.held -= lease.open
        lease.open = 0
        self._take_out(lease)

    def remember(self, lease_id: int, finished: Finished, batch: "Batch") -> None:
        """Keep how a lease ended that has no messages any more, and forget the one that ended first if there are too many.

        One that was settled as a whole is known after a restart too. A reservation's is not kept: nobody asks by its fence.
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

    def drop(self, lease: Lease, batch: "Batch") -> None:
        """Forget a lease whose queue is deleted; settling it is refused from now on."""
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
        """A reservation on a queue; a new one if it holds nothing."""
        return self.reservations.get((queue_id, name)) or Reservation(queue_id, name)

    def part(self, queue_id: int, name: str, part: int) -> Lease | None:
        """One part of a reservation, if it has it."""
        return self.reservation(queue_id, name).parts.get(part)

    def reschedule(self, lease: Lease) -> None:
        """Make sure that an expiry that came closer is noticed in time."""
        expires_ms = lease.next_expiry()
        heappush(self.due, (expires_ms, lease.id))
        self.expiry.due_ms = min(self.expiry.due_ms, expires_ms)

    def pop_expired(self, now_ms: int) -> Lease | None:
        """A lease some of whose members have expired; None if there is none."""
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
        """No lease expires before this time, Unix ms; None if there are no leases."""
        return self.due[0][0] if self.due else None


def _ungrant(consumer: "Consumer", lease: Lease) -> None:
    granted = consumer.granted
    granted[lease.request].remove(lease)
    if not granted[lease.request]:
        del granted[lease.request]
