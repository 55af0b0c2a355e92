"""The consuming side: subscriptions, their prefetched messages, and heartbeats for the leases of the client.

A heartbeat *is* the subscription (queue, credit, leases to renew): the same frame opens it, keeps its client alive, renews
its leases and restores it after a restart of the router or a worker. Leases without a subscription (of ``receive``, and those
that their caller kept after leaving ``consume``) are *loose*: their shard gets a plain heartbeat, and those of ``consume`` an
extension. A waiting receive is kept alive in the same way.

Messages that were lost on their way go back. Each subscription has an incarnation (see ``docs/protocol.md``): pushes of
another one are ignored, and the broker takes back the leases that the client does not name. Frames that must reach the broker
at some time (the end of a subscription, a receive whose caller is gone) are *owed*: they are sent again until they are
confirmed.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import partial
from random import Random

from fila_cluster.client.protocol.lease import ClientLease, LeaseOwner
from fila_cluster.client.protocol.loose import HEARTBEAT_S_MAX, HEARTBEAT_S_MIN, LooseLeases, Make
from fila_cluster.client.protocol.partitions.feeds import Feeds
from fila_cluster.client.protocol.partitions.plans import Plans
from fila_cluster.client.protocol.settling import pieces_of
from fila_cluster.client.protocol.subscription import ClientSubscription
from fila_cluster.client.protocol.timers import Timers
from fila_cluster.client.requests.call import PendingCall, StartCall
from fila_proto_zmq import commands
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.names import root_name

SHORT_LEASE_MS = 3000 * HEARTBEAT_S_MAX
"""A shorter lease needs an earlier heartbeat: each renews a lease two times before it could end."""
RETRY_S_MAX = 0.5
"""How long a subscription whose heartbeat was refused may take to notice that its worker is back."""
LEAVING_TIMEOUT_S = 1.0
"""How long leaving and closing wait for the broker's confirmation at most."""


class Consumption(LooseLeases):
    """All messages that the client receives and holds.

    ``now`` and ``timeout_s`` (the broker's patience with a silent client) are kept up to date by the session. ``due_at`` is
    a lower bound of the time when :meth:`tick` has something to do.
    """

    def __init__(
        self,
        owner: LeaseOwner,
        make: Make,
        send: StartCall,
        call_timeout_s: float,
        timers: Timers,
        plans: Plans,
        random: Random,
    ) -> None:
        super().__init__(owner, make, send, call_timeout_s, min(LEAVING_TIMEOUT_S, call_timeout_s))
        self.forgotten: deque[ClientLease] = deque()
        self.abandoned: deque[ClientSubscription] = deque()
        """Leases of deliveries, and subscriptions, that were garbage-collected. Appended to at any time, in any thread."""
        self._opened = 0
        self._timers = timers
        self._feeds = Feeds(self, send, timers, plans, random)

    # --- what callers ask ---------------------------------------------------------------------------------------------

    def subscribe(self, queue: str, prefetch: int, *, auto_extend: bool) -> ClientSubscription:
        """Open a subscription; its first heartbeat opens it at the broker."""
        self._opened += 1
        subscription = ClientSubscription(self._opened, queue, prefetch, math.inf, auto_extend=auto_extend)
        if not self._feeds.open_if_spread(subscription):
            self.open_whole(subscription)
        return subscription

    def open_whole(self, subscription: ClientSubscription) -> None:
        """Open a subscription for a queue without partitions, as far as is known."""
        subscription.confirm_by = self.now + self._call_timeout_s
        self._start(subscription)

    def _start(self, subscription: ClientSubscription) -> None:
        self.subscriptions[subscription.id] = subscription
        self._roots.add(root_name(subscription.queue))
        self._beat(subscription)

    def set_prefetch(self, subscription: ClientSubscription, prefetch: int) -> None:
        """Give a subscription another credit: its next heartbeat, which is due now, says so."""
        subscription.prefetch = prefetch
        self._schedule(subscription, self.now)

    def unsubscribe(self, subscription: ClientSubscription) -> PendingCall | None:
        """End a subscription and give back the untaken messages. Return the call that confirms it, None if it had ended."""
        if (feed := self._feeds.get(subscription)) is not None:
            return self._feeds.close(feed)
        if self.subscriptions.pop(subscription.id, None) is None:
            return None
        held = [*subscription.leases, *subscription.lapsing]
        untaken = subscription.take_back()
        call = self._take_leave(subscription, held)  # before the messages go back, or the broker would push them again
        return self.release(subscription.queue, untaken) or call

    def _take_leave(self, subscription: ClientSubscription, held: list[int]) -> PendingCall:
        self._end(subscription)
        return self._owe(subscription.queue, commands.Unsubscribe(subscription.id, held), self._leaving_timeout_s)

    @property
    def holds_anything(self) -> bool:
        """Whether there is something to keep alive."""
        return bool(self.subscriptions or self._receives or self._owed) or any(self._loose.values())

    def end_all(self) -> None:
        """End all subscriptions in this client."""
        self._feeds.end_all(None)
        for subscription in list(self.subscriptions.values()):
            self._discard(subscription)
        self._owed.clear()

    def goodbye(self, taken: Mapping[str, commands.Fences]) -> list[PendingCall]:
        """Ask the broker to give back all unsettled messages except those ``taken`` for good, by queue.

        Each shard gives back the messages of all its queues with the first goodbye that comes. So each goodbye names what was
        taken of any queue, and what they have no room for is acked before: a shard keeps a client's order.
        """
        farewell = _farewell(self._roots, taken)
        return [self._send(root, command, timeout=self._leaving_timeout_s) for root, command in farewell]

    def disown(self, error: FilaError) -> None:
        """Leave everything to the parent, in the child of a fork."""
        self._feeds.end_all(error, wake=False)
        for subscription in list(self.subscriptions.values()):
            subscription.waiting.clear()  # their threads are not here
            subscription.error = error
            self._discard(subscription)

    def leave_untaken(self) -> None:
        """Mark the deliveries that were not taken as settled: they can't be settled any more."""
        for subscription in self.subscriptions.values():
            subscription.take_back()

    # --- queues with several partitions -------------------------------------------------------------------------------

    def open_member(self, subscription: ClientSubscription, queue: str, partitions: int) -> ClientSubscription:
        """Open the subscription for one partition: see :class:`PartitionFeed`."""
        self._opened += 1
        self._start(member := subscription.member(self._opened, queue, partitions))
        return member

    def let_go(self, subscription: ClientSubscription) -> list[ClientLease]:
        """End a subscription whose queue has partitions now, but not for its caller. Return what is leased to it."""
        self.subscriptions.pop(subscription.id, None)
        leases = list(subscription.leases.values())
        self._loosen(subscription, leases)
        return leases

    def close_member(self, member: ClientSubscription) -> PendingCall | None:
        """End the subscription for one partition. What its caller holds stays leased."""
        was_open = self.subscriptions.pop(member.id, None) is not None
        return self._take_leave(member, [*member.leases, *member.lapsing]) if was_open else None

    def fed(self, member: ClientSubscription, delivered: commands.Delivered) -> list[ClientLease]:
        """Take in deliveries of a partition, and return their leases."""
        deliveries = self._take(member.queue, delivered.batches, member.leases, renewed=member.auto_extend)
        member.ready += deliveries
        self._renew_in_time(member, delivered.batches)
        return list(dict.fromkeys(delivery._lease for delivery in deliveries))

    def beat_soon(self, member: ClientSubscription) -> None:
        """Send the heartbeat of a member with the next flush."""
        self._schedule(member, self.now)

    # --- what the broker sends ----------------------------------------------------------------------------------------

    def pushed(self, queue: str, delivered: commands.Delivered) -> None:
        """Take in deliveries for a subscription."""
        subscription = self.subscriptions.get(delivered.subscription)
        if subscription is None:
            # It was ended here, and the broker has not read that yet.
            self._send(queue, commands.Unsubscribe(delivered.subscription, list(self._loose[queue])))
            return
        if delivered.incarnation != subscription.incarnation:
            return
        renewed = subscription.auto_extend
        subscription.ready += self._take(queue, delivered.batches, subscription.leases, renewed=renewed)
        subscription.seen += 1
        self._renew_in_time(subscription, delivered.batches)
        if subscription.waiting:
            subscription.wake()

    def _renew_in_time(self, subscription: ClientSubscription, batches: Iterable[commands.LeaseBatch]) -> None:
        """Send an earlier heartbeat if leases are short."""
        for batch in batches if subscription.auto_extend else ():
            if batch.expires_ms - batch.leased_ms < SHORT_LEASE_MS:
                self._schedule(subscription, self.now + self._interval_s((batch,)))

    def refused(self, error: FilaError) -> None:
        """End all subscriptions: the broker does not let this client in (any more)."""
        self._feeds.end_all(copy(error))
        for subscription in list(self.subscriptions.values()):
            subscription.error = copy(error)
            self._discard(subscription)

    def disconnected(self, concerns: Callable[[str], bool]) -> None:
        """Note the loss of a link, on which pushes of some queues may have been lost."""
        for subscription in self.subscriptions.values():
            if concerns(subscription.queue):
                subscription.follow(0)

    def moved(self, concerns: Callable[[str], bool]) -> None:
        """Send heartbeats for the subscriptions of some queues: pushes may be lost, and the next ones come another way."""
        for subscription in self.subscriptions.values():
            if concerns(subscription.queue):
                subscription.follow(0)
                self._schedule(subscription, self.now)

    def welcomed(self, timeout_s: float) -> None:
        """Send heartbeats for everything that is held, to a broker that answers (again)."""
        self.timeout_s = timeout_s
        for subscription in self.subscriptions.values():
            self._schedule(subscription, self.now)
        if self._loose or self._receives or self._owed or self._lapsing:
            self._loose_beat_at = self.due_at = self.now

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Send the heartbeats that are due."""
        while self.forgotten:
            self._forget(self.forgotten.popleft())
        while self.abandoned:
            self.unsubscribe(self.abandoned.popleft())
        if self.now < self.due_at:
            return
        self.due_at = math.inf
        self._feeds.go_on()
        for subscription in list(self.subscriptions.values()):
            if subscription.beat_at <= self.now:
                self._beat(subscription)
            self.due_at = min(self.due_at, subscription.beat_at)
        if self._loose_beat_at <= self.now:
            self._beat_loose()
        self.due_at = min(self.due_at, self._loose_beat_at)

    def _beat(self, subscription: ClientSubscription) -> None:
        held = [lease.terms for lease in subscription.leases.values()] if subscription.auto_extend else []
        subscription.beat_at = math.inf
        self._schedule(subscription, self.now + self._interval_s(held))
        if subscription.beating:  # the broker is slow: another heartbeat would only wait behind the first
            return
        subscription.beating = True
        then = partial(self._beaten, subscription)
        self._send(subscription.queue, self._heartbeat(subscription), then, timeout=self._call_timeout_s, persistent=False)

    def _heartbeat(self, subscription: ClientSubscription) -> commands.Subscribe:
        """Return a subscription's heartbeat: it names everything that the client holds."""
        lapsed = [lease for lease, until in subscription.lapsing.items() if until <= self.now]
        for lease in lapsed:
            del subscription.lapsing[lease]
        renew, holds = list(subscription.leases), list(subscription.lapsing)
        if not subscription.auto_extend:
            renew, holds = [], renew + holds
        partitions = subscription.partitions
        return commands.Subscribe(subscription.id, subscription.prefetch, renew, subscription.incarnation, holds, partitions)

    def _beaten(self, subscription: ClientSubscription, call: PendingCall) -> None:
        subscription.beating = False
        error = call.error
        if subscription.ended:
            return
        if error is not None and not error.retryable and self._feeds.follow(subscription, error):
            return
        if error is None:
            subscription.confirm_by = math.inf
            subscription.failures = 0
            self._compare(subscription, call.command, call.value)  # type: ignore[arg-type]  # as it was asked
            return
        delay_s = min(RETRY_S_MAX, HEARTBEAT_S_MIN * 2.0**subscription.failures)
        if error.retryable and self.now + delay_s < subscription.confirm_by:
            subscription.failures = min(10, subscription.failures + 1)
            self._schedule(subscription, self.now + delay_s)
        else:
            subscription.error = error
            if error.retryable:
                self.unsubscribe(subscription)  # the broker may have opened it, and its pushes may be lost
            else:
                self._discard(subscription)

    def _compare(self, subscription: ClientSubscription, asked: commands.Subscribe, answer: commands.Subscribed) -> None:
        """Follow the broker's answer; where pushes may have been lost, name the held leases at once."""
        subscription.lose(answer.gone)
        if answer.incarnation != subscription.incarnation:
            subscription.follow(answer.incarnation)
            # The broker was restarted: it gives back earlier leases that the next heartbeat does not name, so send that now.
            if asked.incarnation:
                self._schedule(subscription, self.now)
        # Fewer pushes seen than sent: some were lost. Ignore further ones until a heartbeat has named the held leases.
        if answer.incarnation and answer.pushes != subscription.seen:
            subscription.follow(0)
            self._schedule(subscription, self.now)

    def _forget(self, lease: ClientLease) -> None:
        """Note a delivery that was dropped unsettled: it stays leased until its time is up."""
        group, feed = lease.group, lease.feed
        lease.ended(1)
        if feed is not None:  # it counts until its lease ends
            feed.held += 1
            self._timers.at(self.now + lease.renewal_ms / 1000, partial(feed.freed, 1))
        if group is None or lease.group is not None:
            return
        until = self.now + lease.renewal_ms / 1000
        for subscription in self.subscriptions.values():
            if subscription.leases is group:
                subscription.lapsing[lease.id] = until
        if self._loose.get(lease.queue) is group:
            self._lapsing[lease.queue] = max(until, self._lapsing.get(lease.queue, 0.0))

    def _schedule(self, subscription: ClientSubscription, when: float) -> None:
        subscription.beat_at = min(subscription.beat_at, when)
        self.due_at = min(self.due_at, subscription.beat_at)

    def _end(self, subscription: ClientSubscription) -> None:
        subscription.ended = True
        self._loosen(subscription, list(subscription.leases.values()))
        subscription.wake()

    def _loosen(self, subscription: ClientSubscription, leases: list[ClientLease]) -> None:
        """Keep leases alive without their subscription."""
        for lease in leases:
            lease.hold(self._loose[subscription.queue])
        if leases:
            self._schedule_loose([lease.terms for lease in leases] if subscription.auto_extend else ())

    def _discard(self, subscription: ClientSubscription) -> None:
        self.subscriptions.pop(subscription.id, None)
        subscription.take_back()
        self._end(subscription)


def _farewell(roots: Iterable[str], taken: Mapping[str, commands.Fences]) -> list[tuple[str, commands.Command]]:
    """Return the frames of a goodbye: what was taken, by its root, and a goodbye for each root."""
    by_root: defaultdict[str, commands.Fences] = defaultdict(list)
    for queue, fences in taken.items():
        by_root[root_name(queue)] += fences
    *more, last = pieces_of([fence for fences in by_root.values() for fence in fences])
    farewell: list[tuple[str, commands.Command]] = []
    left = sum(map(len, more))
    for root, fences in by_root.items():
        acked, left = fences[:left], left - len(fences[:left])
        farewell += [(root, commands.Settle(commands.Verb.ACK, piece)) for piece in pieces_of(acked) if piece]
    farewell += [(root, commands.Goodbye(last)) for root in roots]
    return farewell
