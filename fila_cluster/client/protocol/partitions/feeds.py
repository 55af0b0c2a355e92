"""The feeds of a client: one for each ``consume()`` of a queue with several partitions."""

from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Protocol

from fila_cluster.client.protocol.lease import ClientLease
from fila_cluster.client.protocol.partitions.feed import FeedConsumption, PartitionFeed
from fila_cluster.client.protocol.partitions.plans import Plans
from fila_cluster.client.protocol.settling import Indexes
from fila_cluster.client.protocol.subscription import ClientSubscription
from fila_cluster.client.protocol.timers import Timers
from fila_cluster.client.requests.call import PendingCall, StartCall
from fila_proto_zmq.errors import FilaError, QueueNotFoundError
from fila_proto_zmq.partitions import Plan


class FeedsConsumption(FeedConsumption, Protocol):
    """The consumption's interface for its feeds."""

    subscriptions: dict[int, ClientSubscription]

    def open_whole(self, subscription: ClientSubscription) -> None:
        """Open a subscription for a queue without partitions, as far as is known."""

    def let_go(self, subscription: ClientSubscription) -> list[ClientLease]:
        """End a subscription whose queue has partitions now, but not for its caller. Return what is leased to it."""

    def release(self, queue: str, leases: Indexes) -> PendingCall | None:
        """Give back messages that nobody has seen; return the call that confirms it."""


class Feeds:
    """The open feeds, by subscription."""

    def __init__(self, consumption: FeedsConsumption, send: StartCall, timers: Timers, plans: Plans, random: Random) -> None:
        self._consumption = consumption
        self._plans = plans
        self._make: Callable[[ClientSubscription, Plan], PartitionFeed] = lambda subscription, plan: PartitionFeed(
            consumption, send, timers, subscription, plan, random
        )
        self._open: dict[int, PartitionFeed] = {}

    def get(self, subscription: ClientSubscription) -> PartitionFeed | None:
        """Return the feed of a subscription; None: its queue has no partitions, as far as is known."""
        return self._open.get(subscription.id)

    def open_if_spread(self, subscription: ClientSubscription) -> bool:
        """Open a feed if the queue is known to have partitions; return whether it is."""
        plan = self._plans.get(subscription.queue)
        if plan is not None:
            self._feed(subscription, plan)
        return plan is not None

    def go_on(self) -> None:
        """Ask for as many messages as the consumers may hold."""
        for feed in list(self._open.values()):
            feed.go_on()

    def close(self, feed: PartitionFeed) -> PendingCall | None:
        """End a feed, and give back what its caller has not taken; return the call that confirms it."""
        feed.subscription.ended = True
        call = self._close(feed)
        feed.subscription.wake()
        return call

    def _close(self, feed: PartitionFeed) -> PendingCall | None:
        self._open.pop(feed.subscription.id, None)
        untaken = feed.subscription.take_back()
        calls = feed.close()
        by_queue: defaultdict[str, Indexes] = defaultdict(dict)
        for lease, indexes in untaken.items():
            by_queue[lease.queue][lease] = indexes
        released = [self._consumption.release(queue, leases) for queue, leases in by_queue.items()]
        calls += [call for call in released if call is not None]
        return calls[-1] if calls else None

    def end_all(self, error: FilaError | None, *, wake: bool = True) -> None:
        """End all feeds in this client. ``wake``: whether their callers are here."""
        feeds, self._open = self._open, {}
        for feed in feeds.values():
            feed.closed = True
            subscription = feed.subscription
            subscription.hungry = None
            if not wake:
                subscription.waiting.clear()
            subscription.take_back()
            self._end(subscription, error)

    def follow(self, refused: ClientSubscription, error: FilaError) -> bool:
        """Follow the number of partitions that the refusal of a subscription names, or end with its error.

        Return False if it is not about partitions. A queue that lost its partitions may be there without any: else its own
        heartbeat says that it is gone.
        """
        whole = refused.feeds or refused
        plan, feed = self._plans.learn(whole.queue, error), self._open.get(whole.id)
        if feed is not None and plan is not None:
            feed.follow(plan)
        elif plan is not None:
            leases = self._consumption.let_go(whole)
            self._feed(whole, plan).take_over(leases)
        elif feed is not None:
            self._close(feed)
            if isinstance(error, QueueNotFoundError):
                self._consumption.open_whole(whole)
            else:
                self._end(whole, error)
        return feed is not None or plan is not None

    def _feed(self, subscription: ClientSubscription, plan: Plan) -> PartitionFeed:
        feed = self._open[subscription.id] = self._make(subscription, plan)
        feed.open()
        return feed

    @staticmethod
    def _end(subscription: ClientSubscription, error: FilaError | None) -> None:
        subscription.error, subscription.ended = error, True
        subscription.wake()
