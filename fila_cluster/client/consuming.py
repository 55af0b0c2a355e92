"""Messages on their way out: subscriptions, what they prefetched, and keeping alive what the client holds.

A heartbeat *is* the subscription (queue, credit, leases to renew): the same frame opens it, keeps its client alive, renews
its leases and heals a restarted router or worker. Leases without a subscription (of ``receive``, and those that their
caller kept after leaving ``consume``) are *loose*: their shard gets a plain heartbeat, and those of ``consume`` an
extension. A receive that waits is kept alive in the same way.

What arrives for nobody (a push that crossed an unsubscribe, the answer to a receive that was given up) is given back.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Protocol, TypeAlias

from fila_cluster.client.call import Call
from fila_cluster.client.delivery import Delivery
from fila_cluster.client.lease import NO_LEASE, Lease, Owner, duration_s
from fila_cluster.client.settling import Indexes, fences_of, in_frames
from fila_cluster.client.subscription import Subscription
from fila_proto_zmq.commands import (
    Command,
    Delivered,
    Extend,
    Goodbye,
    Heartbeat,
    LeaseBatch,
    Settle,
    Subscribe,
    Unsubscribe,
    Verb,
)
from fila_proto_zmq.limits import FENCES_MAX
from fila_proto_zmq.names import root_name

HEARTBEAT_S_MAX = 2.0
"""How long an idle consumer may take to notice that its worker was restarted."""
HEARTBEAT_S_MIN = 0.05
RETRY_S_MAX = 0.5
"""How long a subscription whose heartbeat was refused may take to notice that its worker is back."""
LEAVING_TIMEOUT_S = 1.0
"""How long leaving and closing wait for the broker's confirmation, and try, at most."""

Make: TypeAlias = Callable[[Lease, int, bytes, bool], Delivery]


class Send(Protocol):
    """Start a call of the session."""

    def __call__(
        self,
        key: str,
        command: Command,
        then: Callable[[Call], None] | None = None,
        *,
        timeout: float | None = None,
        persistent: bool = True,
    ) -> Call:
        """See :class:`Call`; without ``timeout``, the client's."""


class Consumption:
    """Everything that the client receives and holds.

    ``now`` and ``timeout_s`` (the broker's patience with a silent client) are kept up to date by the session. ``due_at`` is
    a lower bound of the time when :meth:`tick` has something to do.
    """

    def __init__(self, owner: Owner, make: Make, send: Send, call_timeout_s: float) -> None:
        self.now = 0.0
        self.timeout_s = math.inf
        self.due_at = math.inf
        self.subscriptions: dict[int, Subscription] = {}
        self.forgotten: deque[Lease] = deque()
        self.abandoned: deque[Subscription] = deque()
        """Leases of deliveries, and subscriptions of iterators, that were garbage-collected. Appended to at any time, in
        any thread."""
        self._owner = owner
        self._make = make
        self._send = send
        self._call_timeout_s = call_timeout_s
        self._leaving_timeout_s = min(LEAVING_TIMEOUT_S, call_timeout_s)
        self._opened = 0
        self._loose: defaultdict[str, dict[int, Lease]] = defaultdict(dict)
        self._loose_beat_at = math.inf
        self._receives: set[Call] = set()
        self._roots: set[str] = set()

    # --- what callers ask ---------------------------------------------------------------------------------------------

    def subscribe(self, queue: str, prefetch: int, *, auto_extend: bool) -> Subscription:
        """Open a subscription; its first heartbeat is what the broker hears of it."""
        self._opened += 1
        subscription = Subscription(self._opened, queue, prefetch, self.now + self._call_timeout_s, auto_extend=auto_extend)
        self.subscriptions[subscription.id] = subscription
        self._roots.add(root_name(queue))
        self._beat(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> Call | None:
        """End a subscription and give back what nobody took. The call that confirms it, None if it had ended before."""
        if self.subscriptions.pop(subscription.id, None) is None:
            return None
        untaken = subscription.take_back()
        self._end(subscription)
        # First, or they would come straight back.
        call = self._send(subscription.queue, Unsubscribe(subscription.id), timeout=self._leaving_timeout_s)
        return self._release(subscription.queue, untaken) or call

    def expect(self, call: Call) -> None:
        """Note that a receive waits for messages: its client must not seem to be gone meanwhile."""
        self._roots.add(root_name(call.key))
        if not call.done:
            self._receives.add(call)
            self._schedule_loose()

    def expect_no_more(self, call: Call) -> None:
        """A receive is over."""
        self._receives.discard(call)

    @property
    def holds_anything(self) -> bool:
        """Whether there is something to keep alive."""
        return bool(self.subscriptions or self._receives) or any(self._loose.values())

    def end_all(self) -> None:
        """End all subscriptions on this side."""
        for subscription in list(self.subscriptions.values()):
            self._discard(subscription)

    def goodbye(self) -> list[Call]:
        """Have the broker give back everything that is not settled."""
        return [self._send(root, Goodbye(), timeout=self._leaving_timeout_s) for root in self._roots]

    def leave_untaken(self) -> None:
        """Have nobody settle what nobody took."""
        for subscription in self.subscriptions.values():
            subscription.take_back()

    # --- what the broker sends ----------------------------------------------------------------------------------------

    def received(self, queue: str, delivered: Delivered) -> list[Delivery]:
        """The deliveries of a receive."""
        deliveries = self._take(queue, delivered.batches, self._loose[queue], renewed=False)
        self._schedule_loose()
        return deliveries

    def pushed(self, queue: str, delivered: Delivered) -> None:
        """Deliveries for a subscription."""
        subscription = self.subscriptions.get(delivered.subscription)
        if subscription is None:
            self._send(queue, Unsubscribe(delivered.subscription))
            self.give_back(queue, delivered.batches)
            return
        renewed = subscription.auto_extend
        subscription.ready += self._take(queue, delivered.batches, subscription.leases, renewed=renewed)
        if renewed:
            self._schedule(subscription, self.now + self._interval_s(delivered.batches))
        subscription.wake()

    def give_back(self, queue: str, batches: Iterable[LeaseBatch]) -> None:
        """Return what arrived for nobody."""
        fences: list[tuple[int, list[int]]] = [(batch.lease, []) for batch in batches if batch.lease != NO_LEASE]
        if fences:
            self._send(queue, Settle(Verb.RELEASE, fences))

    def welcomed(self, timeout_s: float) -> None:
        """A broker answers (again): tell it at once of everything that is held."""
        self.timeout_s = timeout_s
        for subscription in self.subscriptions.values():
            self._schedule(subscription, self.now)
        if self._loose or self._receives:
            self._loose_beat_at = self.due_at = self.now

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Send the heartbeats that are due."""
        while self.forgotten:
            self.forgotten.popleft().ended(1)
        while self.abandoned:
            self.unsubscribe(self.abandoned.popleft())
        if self.now < self.due_at:
            return
        self.due_at = math.inf
        for subscription in list(self.subscriptions.values()):
            if subscription.beat_at <= self.now:
                self._beat(subscription)
            self.due_at = min(self.due_at, subscription.beat_at)
        if self._loose_beat_at <= self.now:
            self._beat_loose()
        self.due_at = min(self.due_at, self._loose_beat_at)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _take(self, queue: str, batches: Iterable[LeaseBatch], group: dict[int, Lease], *, renewed: bool) -> list[Delivery]:
        deliveries: list[Delivery] = []
        for batch in batches:
            lease = Lease(queue, batch, self._owner, renewed=renewed)
            lease.hold(group)
            count = lease.size
            deliveries += map(self._make, repeat(lease, count), range(count), batch.records, repeat(lease.at_most_once))
        return deliveries

    def _beat(self, subscription: Subscription) -> None:
        held = subscription.leases.values() if subscription.auto_extend else ()
        command = Subscribe(subscription.id, subscription.prefetch, [lease.id for lease in held])
        subscription.beat_at = math.inf
        self._schedule(subscription, self.now + self._interval_s(held))
        then = partial(self._beaten, subscription)
        self._send(subscription.queue, command, then, timeout=self._call_timeout_s, persistent=False)

    def _beaten(self, subscription: Subscription, call: Call) -> None:
        error = call.error
        if subscription.ended:
            return
        if error is None:
            subscription.confirm_by = math.inf
            subscription.failures = 0
            return
        delay_s = min(RETRY_S_MAX, HEARTBEAT_S_MIN * 2.0**subscription.failures)
        if error.retryable and self.now + delay_s < subscription.confirm_by:
            subscription.failures = min(10, subscription.failures + 1)
            self._schedule(subscription, self.now + delay_s)
        else:
            subscription.error = error
            self._discard(subscription)

    def _beat_loose(self) -> None:
        self._loose = defaultdict(dict, {queue: group for queue, group in self._loose.items() if group})
        subscribed = {root_name(subscription.queue) for subscription in self.subscriptions.values()}
        waiting = {call.key for call in self._receives}
        for root in set(map(root_name, waiting | self._loose.keys())) - subscribed:
            self._send(root, Heartbeat(), timeout=self._call_timeout_s, persistent=False)
        for queue, group in self._loose.items():
            self._extend(queue, [lease for lease in group.values() if lease.renewed])
        self._loose_beat_at = math.inf
        if self._loose or self._receives:
            self._schedule_loose(lease for group in self._loose.values() for lease in group.values() if lease.renewed)

    def _extend(self, queue: str, leases: Sequence[Lease]) -> None:
        durations: defaultdict[int, list[tuple[int, list[int]]]] = defaultdict(list)
        for lease in leases:
            durations[lease.renewal_ms].append((lease.id, []))
        for duration_ms, fences in durations.items():
            for start in range(0, len(fences), FENCES_MAX):
                some = Extend(fences[start : start + FENCES_MAX], duration_ms)
                self._send(queue, some, timeout=self._call_timeout_s, persistent=False)

    def _schedule(self, subscription: Subscription, when: float) -> None:
        subscription.beat_at = min(subscription.beat_at, when)
        self.due_at = min(self.due_at, subscription.beat_at)

    def _schedule_loose(self, to_renew: Iterable[Lease] = ()) -> None:
        self._loose_beat_at = min(self._loose_beat_at, self.now + self._interval_s(to_renew))
        self.due_at = min(self.due_at, self._loose_beat_at)

    def _interval_s(self, to_renew: Iterable[Lease | LeaseBatch]) -> float:
        shortest_s = min(map(duration_s, to_renew), default=math.inf)
        return max(HEARTBEAT_S_MIN, min(HEARTBEAT_S_MAX, self.timeout_s / 3, shortest_s / 3))

    def _release(self, queue: str, leases: Indexes) -> Call | None:
        ended = {lease: indexes for lease, indexes in leases.items() if lease.id != NO_LEASE}
        call = None
        for piece in in_frames(ended):
            call = self._send(queue, Settle(Verb.RELEASE, fences_of(piece)), timeout=self._leaving_timeout_s)
        return call  # the last one: a link keeps its order

    def _end(self, subscription: Subscription) -> None:
        subscription.ended = True
        leases = list(subscription.leases.values())
        for lease in leases:
            lease.hold(self._loose[subscription.queue])
        if leases:
            self._schedule_loose(leases if subscription.auto_extend else ())
        subscription.wake()

    def _discard(self, subscription: Subscription) -> None:
        self.subscriptions.pop(subscription.id, None)
        subscription.take_back()
        self._end(subscription)
