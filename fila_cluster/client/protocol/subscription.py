"""One ``consume()`` as the session sees it."""

import math
from collections import deque
from collections.abc import Callable, Collection
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from fila_cluster.client.protocol.lease import ClientLease
from fila_cluster.client.protocol.settling import Indexes
from fila_cluster.client.protocol.timers import SessionTimer, Timers
from fila_cluster.client.requests.call import Pending
from fila_proto_zmq.errors import FilaError


@dataclass(slots=True, eq=False)
class ClientSubscription:
    """The deliveries that wait to be taken, in ``ready``, and the callers that wait for deliveries.

    ``confirm_by`` is when it fails unless the broker has confirmed it once; after that it survives every outage.
    ``error`` is why it ended, if its caller did not end it.

    ``incarnation`` is the one whose pushes it takes in, of which it has seen ``seen``; 0: none, because pushes may have been
    lost. Then it ignores pushes until the broker has answered a heartbeat that names its leases: those in ``leases``,
    and in ``lapsing`` (by lease, until when) if nothing of it can be settled any more. ``beating``: a heartbeat is under way.
    """

    id: int
    queue: str
    prefetch: int
    confirm_by: float
    auto_extend: bool = field(kw_only=True)
    ready: deque[Any] = field(default_factory=deque)  # deliveries, of the class that the shell makes
    waiting: list[Pending[None]] = field(default_factory=list)
    leases: dict[int, ClientLease] = field(default_factory=dict)
    lapsing: dict[int, float] = field(default_factory=dict)
    incarnation: int = 0
    seen: int = 0
    beat_at: float = -math.inf
    beating: bool = False
    failures: int = 0
    ended: bool = False
    error: FilaError | None = None
    feeds: "ClientSubscription | None" = None
    """Of a member, which is for one partition: the subscription of the queue."""
    hungry: Callable[[], object] | None = None
    """Called when a caller begins to wait, if the messages of its partitions are asked for."""
    partitions: int = 0
    """Of a member: how many there are."""

    def member(self, number: int, queue: str, partitions: int) -> "ClientSubscription":
        """Return a subscription for one of so many partitions of the queue: for no messages, with the same takers."""
        return ClientSubscription(
            number,
            queue,
            0,
            math.inf,
            auto_extend=self.auto_extend,
            ready=self.ready,
            feeds=self,
            partitions=partitions,
        )

    def wake(self) -> None:
        """Wake all waiting callers."""
        waiting, self.waiting = self.waiting, []
        for pending in waiting:
            pending.finish()

    def want(self) -> Pending[None]:
        """Return a pending that is done when there is a delivery, or at the end."""
        pending: Pending[None] = Pending()
        if self.ready or self.ended:
            pending.finish()
        else:
            self.wait(pending)
        return pending

    def wait(self, pending: Pending[None]) -> None:
        """Have a pending finished when something has come, or at the end."""
        self.waiting.append(pending)
        if self.hungry is not None:
            self.hungry()

    def unwant(self, pending: Pending[None]) -> None:
        """Stop waiting."""
        if not pending.done and pending in self.waiting:
            self.waiting.remove(pending)

    def failure(self) -> FilaError:
        """Return the error that ended it, to be raised; a copy, because several threads may raise it."""
        assert self.error is not None
        return copy(self.error)

    def follow(self, incarnation: int) -> None:
        """Take in pushes of this incarnation, and no others."""
        self.incarnation = incarnation
        self.seen = 0

    def lose(self, lease_ids: Collection[int]) -> None:
        """Drop deliveries of leases that have ended at the broker, if they were not taken. At-most-once deliveries stay."""
        gone = {lease for lease in map(self.leases.get, lease_ids) if lease is not None}
        if not gone:
            return
        for _ in range(len(self.ready)):
            try:
                delivery = self.ready.popleft()
            except IndexError:  # another thread takes, too
                break
            if delivery._lease in gone and not delivery._lease.at_most_once:
                delivery._settled = True
            else:
                self.ready.append(delivery)
        for lease in gone:
            lease.let_go()

    def take_back(self) -> Indexes:
        """Empty ``ready`` and return its deliveries: no caller will see them."""
        leases: Indexes = {}
        while self.ready:
            delivery = self.ready.popleft()
            delivery._settled = True
            leases.setdefault(delivery._lease, []).append(delivery._index)
        for lease, indexes in leases.items():
            lease.ended(len(indexes))
        return leases


class Gathering(Pending[None]):
    """Done when ``count`` deliveries are ready, ``max_wait_s`` after there is one, after ``timeout_s`` in any case, or at
    the end of the subscription."""

    __slots__ = ("_count", "_limit", "_max_wait_s", "_now", "_subscription", "_timer", "_timers", "_waiter")

    def __init__(
        self,
        subscription: ClientSubscription,
        count: int,
        max_wait_s: float,
        timers: Timers,
        now: Callable[[], float],
        timeout_s: float = math.inf,
    ) -> None:
        super().__init__()
        self._subscription = subscription
        self._count = count
        self._max_wait_s = max_wait_s
        self._timers = timers
        self._now = now
        self._timer: SessionTimer | None = None
        self._limit = None if timeout_s == math.inf else timers.at(now() + timeout_s, self.end)
        self._waiter: Pending[None] | None = None

    def look(self) -> None:
        """End it, or wait for the next deliveries."""
        ready = len(self._subscription.ready)
        if ready >= self._count or self._subscription.ended:
            self.end()
            return
        if ready and self._timer is None:
            self._timer = self._timers.at(self._now() + self._max_wait_s, self.end)
        self._waiter = Pending()
        self._waiter.wake = self.look
        self._subscription.wait(self._waiter)

    def end(self) -> None:
        """Wait no longer."""
        for timer in (self._timer, self._limit):
            if timer is not None:
                self._timers.cancel(timer)
        if self._waiter is not None:
            self._subscription.unwant(self._waiter)
        self.finish()
