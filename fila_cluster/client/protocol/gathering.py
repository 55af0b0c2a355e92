"""Waits for a batch of deliveries: until there are enough, or the first ones have waited for long enough."""

import math
from collections.abc import Callable

from fila_cluster.client.protocol.subscription import ClientSubscription
from fila_cluster.client.protocol.timers import SessionTimer, Timers
from fila_cluster.client.requests.call import Pending


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
        self._subscription.waiting.append(self._waiter)

    def end(self) -> None:
        """Wait no longer."""
        for timer in (self._timer, self._limit):
            if timer is not None:
                self._timers.cancel(timer)
        if self._waiter is not None:
            self._subscription.unwant(self._waiter)
        self.finish()
