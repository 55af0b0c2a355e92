"""Messages leased together, as the client keeps them.

The broker leases in batches, and the client keeps them so: one object per batch, a byte per message. A lease is held
(kept alive, where its subscription says so) until its last delivery is settled or forgotten.
"""

from typing import TYPE_CHECKING, Any, Protocol

from fila_proto_zmq.commands import LeaseBatch
from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.record import FIXED_BYTES

if TYPE_CHECKING:
    from fila_cluster.client.protocol.delivery import Delivery
    from fila_cluster.client.protocol.settling import Settlement

NO_LEASE = 0
"""The lease id of messages that were removed when they were delivered: there is nothing to settle."""


class LeaseOwner(Protocol):
    """The client that received a lease, as its deliveries need it."""

    @property
    def closed(self) -> bool:
        """Whether it is closed: then its leases were given back."""

    def settle_one(self, delivery: "Delivery", settlement: "Settlement") -> Any:
        """End a delivery's lease. Returns None, or an awaitable."""

    def extend_one(self, delivery: "Delivery", duration_ms: int) -> Any:
        """Renew a delivery's lease. Returns None, or an awaitable."""

    def forgotten(self, lease: "ClientLease") -> None:
        """Note that a delivery of ``lease`` was garbage-collected unsettled. Called at any time, in any thread."""


class LeaseFeed(Protocol):
    """What asks for messages, and counts those that are leased to it."""

    held: int

    def freed(self, count: int) -> None:
        """Count messages off whose leases have ended."""


class ClientLease:
    """One delivered batch: ``size`` messages, of which ``unsettled`` are neither settled nor forgotten.

    ``terms`` is what the broker says of it; whoever makes deliveries of it takes the records away.
    ``renewed``: whether ``consume()`` renews it. ``renewal_ms`` is the length of a renewal: its own duration, or the longest
    extension that its caller asked for, because a renewal must not cut an extension short.
    ``at_most_once`` deliveries are settled without their holder: those without a lease were removed when they were sent, the
    others are acked when they are handed over.
    ``settled`` has a byte for each delivery: 1 if it was settled here, or needs no settlement. ``priced``: whether what one of
    them really cost was set.
    ``feed``: what asked for it, and counts what is leased.
    ``group`` is the dict that holds this lease while it is held; the lease removes itself from there.
    """

    __slots__ = (
        "at_most_once",
        "feed",
        "group",
        "id",
        "owner",
        "priced",
        "queue",
        "renewal_ms",
        "renewed",
        "settled",
        "size",
        "terms",
        "unsettled",
    )

    def __init__(self, queue: str, batch: LeaseBatch, owner: LeaseOwner, *, renewed: bool) -> None:
        """Raises :class:`InvalidFrameError` for a batch with deliveries that could not be read."""
        size = len(batch.records)
        if size and min(map(len, batch.records)) < FIXED_BYTES:
            raise InvalidFrameError(f"lease {batch.lease} has a record of less than {FIXED_BYTES} bytes")
        if type(batch.fairness_key) is list or type(batch.weight) is list or len(batch.throttle_keys) > 1:
            _check_columns(batch, size)
        self.id = batch.lease
        self.queue = queue
        self.terms = batch
        self.at_most_once = batch.at_most_once or batch.lease == NO_LEASE
        self.size = self.unsettled = size
        self.settled = bytearray(b"\1" * size if self.at_most_once else size)
        self.priced = False
        self.owner = owner
        self.renewed = renewed
        duration_ms = batch.expires_ms - batch.leased_ms
        self.renewal_ms = duration_ms if duration_ms > 0 else 1
        self.group: dict[int, ClientLease] | None = None
        self.feed: LeaseFeed | None = None

    def hold(self, group: "dict[int, ClientLease]") -> None:
        """Be held in ``group`` and in no other."""
        if self.group is not None:
            self.let_go()
        if self.unsettled > 0 and self.id != NO_LEASE:
            group[self.id] = self
            self.group = group

    def let_go(self) -> None:
        """Leave the group that holds it."""
        if self.feed is not None:
            feed, self.feed = self.feed, None
            feed.freed(max(0, self.unsettled))
        if self.group is not None:
            self.group.pop(self.id, None)
            self.group = None

    def ended(self, count: int) -> None:
        """Count deliveries that are settled, expired or forgotten."""
        self.unsettled -= count
        if self.feed is not None:
            self.feed.freed(count)
        if self.unsettled <= 0 and self.group is not None:
            self.let_go()


def _check_columns(batch: LeaseBatch, size: int) -> None:
    keys = batch.throttle_keys if len(batch.throttle_keys) > 1 else None
    for column in (batch.fairness_key, batch.weight, keys):
        if type(column) is list and len(column) != size:
            raise InvalidFrameError(f"lease {batch.lease} has a column of {len(column)} values for {size} records")
