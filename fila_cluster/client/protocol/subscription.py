"""One ``consume()`` as the session sees it."""

import math
from collections import deque
from collections.abc import Collection
from copy import copy
from typing import Any

from fila_cluster.client.protocol.call import Pending
from fila_cluster.client.protocol.lease import Lease
from fila_cluster.client.protocol.settling import Indexes
from fila_proto_zmq.errors import FilaError


class Subscription:
    """The deliveries that wait to be taken, in ``ready``, and those who wait for deliveries.

    ``confirm_by`` is when it fails unless the broker has confirmed it once; from then on it rides through everything.
    ``error`` says why it ended, if its caller did not end it.

    ``incarnation`` is the one that it believes in, of which it has seen ``seen`` pushes; 0: none, because pushes may have been lost. Then
    it ignores what is pushed until the broker has answered a heartbeat that names what it holds: that is in ``leases``, and in
    ``lapsing`` (by lease, until when) if nothing of it can be settled any more. ``beating``: a heartbeat is under way.
    """

    __slots__ = (
        "auto_extend",
        "beat_at",
        "beating",
        "confirm_by",
        "ended",
        "error",
        "failures",
        "id",
        "incarnation",
        "lapsing",
        "leases",
        "prefetch",
        "queue",
        "ready",
        "seen",
        "waiting",
    )

    def __init__(self, number: int, queue: str, prefetch: int, confirm_by: float, *, auto_extend: bool) -> None:
        self.id = number
        self.queue = queue
        self.prefetch = prefetch
        self.confirm_by = confirm_by
        self.auto_extend = auto_extend
        self.ready: deque[Any] = deque()  # deliveries, of the kind that the shell makes
        self.waiting: list[Pending[None]] = []
        self.leases: dict[int, Lease] = {}
        self.lapsing: dict[int, float] = {}
        self.incarnation = 0
        self.seen = 0
        self.beat_at = -math.inf
        self.beating = False
        self.failures = 0
        self.ended = False
        self.error: FilaError | None = None

    def wake(self) -> None:
        """Let everybody who waits look again."""
        waiting, self.waiting = self.waiting, []
        for pending in waiting:
            pending.finish()

    def want(self) -> Pending[None]:
        """Something to wait for until there is a delivery, or the end."""
        pending: Pending[None] = Pending()
        if self.ready or self.ended:
            pending.finish()
        else:
            self.waiting.append(pending)
        return pending

    def unwant(self, pending: Pending[None]) -> None:
        """Wait no longer."""
        if not pending.done and pending in self.waiting:
            self.waiting.remove(pending)

    def failure(self) -> FilaError:
        """Return why it ended, to be raised; in each of several threads, hence a copy."""
        assert self.error is not None
        return copy(self.error)

    def believe_in(self, incarnation: int) -> None:
        """Take in what is pushed under this incarnation, and nothing else."""
        self.incarnation = incarnation
        self.seen = 0

    def lose(self, lease_ids: Collection[int]) -> None:
        """These leases have ended at the broker: nobody will see what was not taken of them. What is delivered once stays."""
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
        """Empty ``ready``: nobody will see these deliveries."""
        leases: Indexes = {}
        while self.ready:
            delivery = self.ready.popleft()
            delivery._settled = True
            leases.setdefault(delivery._lease, []).append(delivery._index)
        for lease, indexes in leases.items():
            lease.ended(len(indexes))
        return leases
