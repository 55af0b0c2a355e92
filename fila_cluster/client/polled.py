"""A blocking client for programs with an event loop of their own: kombu's, for one.

Its descriptor becomes readable when there may be deliveries. It settles without waiting, and repeats a settlement until
the broker has confirmed it or the lease is gone, because such a loop may not stand still, and nobody there waits for an
answer.
"""

import logging
import select
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fila_cluster.client.blocking.client import Client
from fila_cluster.client.blocking.consumer import Consumer
from fila_cluster.client.calls import messages
from fila_cluster.client.checks import queue_name
from fila_cluster.client.io.link import Bell
from fila_cluster.client.io.pump import EVENTS, Pump
from fila_cluster.client.protocol import tracer
from fila_cluster.client.protocol.delivery import Delivery
from fila_cluster.client.protocol.session import ClientSession
from fila_cluster.client.protocol.settling import ACK, RELEASE, Settlement, Settling, settlement
from fila_cluster.client.protocol.short_calls import AfterShort
from fila_cluster.client.protocol.subscription import ClientSubscription
from fila_cluster.client.protocol.timers import SessionTimer
from fila_cluster.client.protocol.tracer import SettleTrace
from fila_cluster.client.requests.call import Pending
from fila_cluster.client.requests.endpoints import EndpointRounds
from fila_proto_zmq.commands import Command, Verb
from fila_proto_zmq.errors import FilaError

_LINKS_MAX = 64
"""Descriptors that are taken from the epoll at a time; the others stay ready."""


class LentPump(Pump):
    """A pump whose descriptors are lent to an event loop of another library, for any number of threads.

    The loop watches one descriptor: an epoll of the links' descriptors, and of an alarm. The alarm is there because any thread
    may take in frames (one that waits for an answer, the heartbeat's): then the links' descriptors are quiet, and the loop
    would sleep on deliveries that have come.

    ``before`` is called before each exchange with the session, under the lock, in whatever thread does it; ``has_news``
    says whether there is something for the loop.
    """

    def __init__(
        self,
        session: ClientSession,
        rounds: EndpointRounds,
        server_keys: tuple[str, ...],
        before: Callable[[], object],
        has_news: Callable[[], bool],
    ) -> None:
        self._before = before
        self._has_news = has_news
        self._epoll: select.epoll | None = None
        self._alarm: Bell | None = None
        self._taking = False
        """The loop's own thread takes in, and looks for news by itself."""
        super().__init__(session, rounds, server_keys)

    def fileno(self) -> int:
        """Return the descriptor to watch. It is made at the first call: not every program has such a loop, or epoll."""
        with self._lock:
            self._check_open()
            if self._epoll is None:
                self._epoll, self._alarm = select.epoll(), Bell()
                self._epoll.register(self._alarm.descriptor, select.EPOLLIN)
                for descriptor, writable in self._links.descriptors:
                    self._epoll.register(descriptor, EVENTS[writable])
                self._ring()
            return self._epoll.fileno()

    def take_in(self) -> None:
        """Read the frames that have come, and send the collected ones, without waiting."""
        with self._lock:
            self._check_open()
            ready = None
            if self._epoll is not None and self._alarm is not None:
                ready = [descriptor for descriptor, _ in self._epoll.poll(0, _LINKS_MAX)]
                self._alarm.silence()
            self._taking = True
            try:
                self._exchange(self._now(), ready)
            finally:
                self._taking = False

    def call_again(self) -> None:
        """Keep the descriptor readable: there is more for the loop to handle."""
        with self._lock:
            self._ring()

    def disown(self, error: FilaError) -> None:
        """Leave the descriptors to the parent, in the child of a fork: a change of the child in an epoll is one for both."""
        self._epoll = self._alarm = None
        super().disown(error)

    def watch(self, descriptor: int, *, writable: bool) -> None:
        """Look at a descriptor from now on."""
        super().watch(descriptor, writable=writable)
        if self._epoll is not None:
            try:
                self._epoll.register(descriptor, EVENTS[writable])
            except FileExistsError:
                self._epoll.modify(descriptor, EVENTS[writable])

    def unwatch(self, descriptor: int) -> None:
        """Do not look at a descriptor any more."""
        super().unwatch(descriptor)
        if self._epoll is not None:
            with suppress(OSError, ValueError):  # it was closed: then it is not in the epoll any more
                self._epoll.unregister(descriptor)

    def short(self, key: str, make: Callable[[], Command], then: AfterShort | None = None) -> None:
        """Return None: each call begins with an exchange, which calls ``before``."""

    def _exchange(self, now: float, ready: Collection[int] | None = ()) -> None:
        self._before()
        super()._exchange(now, ready)
        self._ring()

    def _ring(self) -> None:
        if self._alarm is not None and self._refusal is None and not self._taking and self._has_news():
            self._alarm.ring()

    def _release(self) -> None:
        super()._release()
        if self._epoll is not None and self._alarm is not None:
            self._epoll.close()
            self._alarm.close()


_log = logging.getLogger("fila_cluster.polled")

__all__ = ["ACK", "RELEASE", "PolledClient", "PolledConsumer", "failed", "to_retry"]


def failed(error: str) -> Settlement:
    """Return how a delivery is dead-lettered."""
    return settlement(Verb.FAIL, error)


def to_retry(error: str) -> Settlement:
    """Return how a delivery is given back at once, with an attempt counted."""
    return settlement(Verb.RETRY, error)


class PolledConsumer(Consumer):
    """The deliveries of one queue, as they come: :meth:`take` them without a timeout. Made by :meth:`PolledClient.feed`."""

    _client: "PolledClient"

    def set_prefetch(self, count: int) -> None:
        """Set how many deliveries may be leased and unsettled at a time."""
        self._client.set_prefetch(self._subscription, messages.prefetch_count(count))

    def close(self) -> None:
        """Give back the deliveries that were not taken."""
        self._client.end(self._subscription)


class PolledClient(Client):
    """A thread-safe :class:`Client` with a descriptor to watch, feeds of deliveries, and settlements without a waiter."""

    _io: LentPump

    def __init__(self, endpoint: str | None = None, **options: Any) -> None:
        """See :class:`Client`."""
        self._subscriptions: list[ClientSubscription] = []
        self._again: deque[tuple[Delivery, Settlement]] = deque()
        """Settlements that could not be confirmed."""
        super().__init__(endpoint, **options)

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`take_in` may find something."""
        return self._io.fileno()

    def take_in(self) -> None:
        """Read the frames of the broker, and send the collected requests, without waiting."""
        self._io.take_in()

    def call_again(self) -> None:
        """Keep the descriptor readable as long as feeds have something to take."""
        self._io.call_again()

    def feed(self, queue: str, prefetch: int) -> PolledConsumer:
        """Begin to receive the messages of a queue, of which at most ``prefetch`` are leased and unsettled at a time."""
        name, count = queue_name(queue), messages.prefetch_count(prefetch)
        subscription = self._io.ask(lambda now: self._session.subscribe(name, count, now, auto_extend=True))
        self._subscriptions = [each for each in self._subscriptions if not each.ended] + [subscription]
        return PolledConsumer(self, subscription)

    def set_prefetch(self, subscription: ClientSubscription, prefetch: int) -> None:
        """Give a subscription another credit."""
        self._io.ask(lambda now: self._session.set_prefetch(subscription, prefetch, now))

    def end(self, subscription: ClientSubscription) -> None:
        """End a subscription, and give back the deliveries that were not taken."""
        self._subscriptions = [each for each in self._subscriptions if each is not subscription]
        self._unsubscribe(subscription)

    def wait(self, timeout: float | None) -> None:
        """Return when a feed has something, or has ended, or ``timeout`` seconds are over."""
        feeds = [each for each in self._subscriptions if not each.ended or each.error is not None]
        pending: Pending[None] = Pending()
        timer = self._io.note(lambda now: self._begin(pending, feeds, now, timeout))
        try:
            self._io.wait(pending)
        finally:
            with suppress(FilaError):  # closed meanwhile
                self._io.note(lambda _: self._end(pending, feeds, timer))

    def settle_soon(self, delivery: Delivery, how: Settlement) -> None:
        """Settle a delivery with the next exchange, and again until that is confirmed. Lasting errors are logged."""
        trace = None if (installed := tracer.installed) is None else installed.settling((delivery,), how)
        settling = self._session.settle((delivery,), how)
        settling.wake = partial(self._settled, settling, how, trace)
        if settling.done:  # of a queue that delivers at most once, or settled before
            settling.wake()

    def push(self) -> None:
        """Send the collected requests now."""
        self._io.ask(lambda _: None)

    def _shell(self, rounds: EndpointRounds, server_keys: tuple[str, ...]) -> LentPump:
        return LentPump(self._session, rounds, server_keys, self._settle_again, self._has_news)

    def _has_news(self) -> bool:
        return any(each.ready or each.error is not None for each in self._subscriptions)

    def _begin(
        self, pending: Pending[None], feeds: Sequence[ClientSubscription], now: float, timeout: float | None
    ) -> SessionTimer | None:
        if any(each.ready or each.ended for each in feeds):
            pending.finish()
            return None
        for each in feeds:
            each.waiting.append(pending)
        return None if timeout is None else self._session.timers.at(now + timeout, pending.finish)

    def _end(self, pending: Pending[None], feeds: Sequence[ClientSubscription], timer: SessionTimer | None) -> None:
        if timer is not None:
            self._session.timers.cancel(timer)
        for each in feeds:
            if pending in each.waiting:
                each.waiting.remove(pending)

    def _settled(self, settling: Settling, how: Settlement, trace: SettleTrace | None) -> None:
        settling.wake = None  # no cycle: it would keep the delivery until the next garbage collection
        if trace is not None:
            trace.ended(settling)
        for position, error in settling.errors.items():
            delivery = settling.deliveries[position]
            if error.retryable and not self._session.has_left:
                self._again.append((delivery, how))
            elif not self._session.has_left:
                _log.warning("%r could not be settled, and may be delivered again: %s", delivery, error)

    def _settle_again(self) -> None:
        for _ in range(len(self._again)):
            self.settle_soon(*self._again.popleft())
