"""The blocking client."""

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from random import Random
from types import TracebackType
from typing import Any, Self

from fila_cluster.client import checks, tracer
from fila_cluster.client.administration import Administration
from fila_cluster.client.calls import requests
from fila_cluster.client.consumers import Consumer
from fila_cluster.client.io.pump import Pump
from fila_cluster.client.message import BytesLike, Message
from fila_cluster.client.options import CLIENT_VERSION, endpoint_or_default, refuse_keys, timeout_seconds
from fila_cluster.client.protocol.call import Call
from fila_cluster.client.protocol.delivery import Delivery
from fila_cluster.client.protocol.encoding import seal_row
from fila_cluster.client.protocol.lease import Lease
from fila_cluster.client.protocol.producing import FRAMES_IN_FLIGHT, Bulk
from fila_cluster.client.protocol.session import Session
from fila_cluster.client.protocol.settling import ACK, Settlement, Settling, settlement
from fila_cluster.client.protocol.subscription import Subscription
from fila_proto_zmq.commands import Command, Verb
from fila_proto_zmq.errors import FilaError


class Client(Administration):
    """A connection to a broker for programs that block. Thread-safe: share one among threads.

    It connects, and reconnects, by itself; every call answers or raises within ``timeout`` seconds (plus ``wait``, where
    there is one). Calls that the broker refused before any work are retried until then. Use it as a context manager or
    close it: that gives back at once what was received and not settled. All durations are seconds.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        api_key: str | None = None,
        server_key: str | None = None,
        timeout: float = 5.0,
    ) -> None:
        """Make a client of the broker at ``endpoint`` (default: ``FILA_ENDPOINT``, else tcp://127.0.0.1:5555).

        There is no authentication yet: a key is refused.
        """
        refuse_keys(api_key=api_key, server_key=server_key)
        self.endpoint = endpoint_or_default(endpoint)
        self._session = Session(
            self.endpoint,
            self,
            Delivery,
            timeout_s=timeout_seconds(timeout),
            client_version=CLIENT_VERSION,
            random=Random(),
        )
        self._pump = Pump(self._session, self.endpoint)

    # --- producing ----------------------------------------------------------------------------------------------------

    def enqueue(
        self,
        queue: str,
        payload: BytesLike,
        headers: Mapping[str, str] | None = None,
        *,
        fairness_key: str | None = None,
        weight: int | None = None,
        throttle_keys: Iterable[str] | None = None,
        priority: int = 0,
        cost: float = 1,
        delay: float = 0.0,
        deliver_at: datetime | None = None,
        ttl: float | None = None,
        lease: float | None = None,
        dedup_id: str | None = None,
    ) -> str:
        """Enqueue a message and return its id once it is durable. See :class:`Message` for the options.

        After a retryable error it may or may not be in the queue, unless ``details["refused"]`` says that it is not. With a
        ``dedup_id`` it may be enqueued again without harm, and the client does so itself while the timeout lasts.
        """
        options = fairness_key, weight, throttle_keys, priority, cost, delay, deliver_at, ttl, lease, dedup_id
        name = checks.queue_name(queue)
        trace = None if (installed := tracer.installed) is None else installed.enqueuing(name)
        try:
            row = seal_row(payload, headers if trace is None else trace.carried(headers), *options)
            pending = self._session.enqueue(name, row)
            self._pump.complete(pending)
            message_id = pending.outcome()
        except BaseException as error:
            if trace is not None:
                trace.failed(error)
            raise
        if trace is not None:
            trace.accepted(message_id, options)
        return message_id

    def enqueue_many(self, queue: str, messages: Iterable[Message]) -> list[str]:
        """Enqueue messages, of any number, in frames of up to a thousand; their ids in order, once all are durable.

        :class:`BatchError` if some were not accepted; the others are in. The timeout counts for each frame.
        """
        name, batch = checks.queue_name(queue), checks.several("messages", messages)
        trace = None if (installed := tracer.installed) is None else installed.enqueuing(name)
        try:
            ids = self._enqueue_many(name, batch if trace is None else trace.carrying(batch))
        except BaseException as error:
            if trace is not None:
                trace.failed(error)
            raise
        if trace is not None:
            trace.all_accepted(len(ids))
        return ids

    # --- consuming ----------------------------------------------------------------------------------------------------

    def receive(self, queue: str, max_messages: int = 1, *, wait: float = 0.0) -> list[Delivery]:
        """Up to ``max_messages`` that are ready now; if none is, what is ready first within ``wait`` seconds.

        Each is leased to this client for the queue's visibility timeout, or until the client is closed or gone.
        """
        return self._receive(requests.one_queue(queue, max_messages), checks.wait_ms(wait))

    def receive_any(self, queues: Mapping[str, int], *, wait: float = 0.0) -> list[Delivery]:
        """What is ready now in any of these queues; if nothing is, what is ready first within ``wait`` seconds.

        ``queues`` says how many messages are wanted of which queue; the result has them in its order.
        """
        return self._receive(requests.several_queues(queues), checks.wait_ms(wait))

    def consume(self, queue: str, *, prefetch: int = 100, auto_extend: bool = True) -> Consumer:
        """Deliveries as they come: an iterator, to be used in a ``with`` or closed, or left when its loop ends.

        At most ``prefetch`` are leased to it and unsettled at a time. ``auto_extend`` renews their leases, those that the
        caller holds included, as long as this client lives. From a queue that delivers at most once each is settled when it is
        handed over.
        """
        name, count = checks.queue_name(queue), requests.prefetch_count(prefetch)
        subscribe = self._session.subscribe
        return Consumer(self, self._pump.ask(lambda now: subscribe(name, count, now, auto_extend=bool(auto_extend))))

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge many at once. :class:`BatchError` if some failed; the others are done."""
        self._settle_many(deliveries, ACK)

    def nack(self, deliveries: Iterable[Delivery], error: str = "") -> None:
        """Fail many at once. :class:`BatchError` if some could not be; the others are done."""
        self._settle_many(deliveries, settlement(Verb.NACK, error))

    # --- life ---------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._pump.closed or self._session.has_left

    def close(self) -> None:
        """Give back everything unsettled, end all calls and iterators, and disconnect. Takes a second at most."""
        self._pump.close(FilaError("this client is closed: open another one"))
        if (installed := tracer.installed) is not None:
            installed.closed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        pump = getattr(self, "_pump", None)  # None if the endpoint would not do
        if pump is not None and not pump.closed:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return f"<Client of {self.endpoint}{', closed' if self.closed else ''}>"

    # --- inside -------------------------------------------------------------------------------------------------------

    def _start(self, key: str, command: Command, then: Callable[[Call], None] | None = None) -> Call:
        return self._pump.ask(lambda now: self._session.call(key, command, now, then))

    def _outcome(self, call: Call) -> Any:
        """Wait for the answer to a call; it, or the error that it was, raised."""
        self._pump.wait(call)
        return call.outcome()

    def _ask(self, request: requests.Request) -> Any:
        return self._outcome(self._start(request.key, request.command))

    def _enqueue_many(self, name: str, messages: Iterable[Message]) -> list[str]:
        in_flight = deque[Call]()
        bulk = Bulk(name, messages)
        for command, then in bulk.frames():
            in_flight.append(self._start(name, command, then))
            if len(in_flight) == FRAMES_IN_FLIGHT:
                self._pump.wait(in_flight.popleft())
        for call in in_flight:
            self._pump.wait(call)
        return bulk.ids()

    def _receive(self, queues: Mapping[str, int], wait_ms: int) -> list[Delivery]:
        receiving = self._pump.ask(lambda now: self._session.receive(queues, wait_ms, now))
        try:
            self._pump.wait(receiving)
        except BaseException:
            with suppress(FilaError):  # closed meanwhile
                self._pump.ask(lambda now: self._session.give_up(receiving, now))
            raise
        deliveries = receiving.outcome()
        if (installed := tracer.installed) is not None:
            installed.handed_over(deliveries)
        return deliveries

    def _settle_many(self, deliveries: Iterable[Delivery], how: Settlement) -> None:
        settling = self._settle(requests.as_deliveries(deliveries), how)
        failure = requests.failure_of(settling)
        if failure is not None:
            raise failure

    def settle_one(self, delivery: Delivery, how: Settlement) -> None:
        """What a delivery's verbs do."""
        settling = self._settle((delivery,), how)
        if settling.errors:
            raise settling.errors.pop(0)

    def _settle(self, deliveries: Sequence[Delivery], how: Settlement) -> Settling:
        trace = None if (installed := tracer.installed) is None else installed.settling(deliveries, how)
        settling = self._session.settle(deliveries, how)
        try:
            if not settling.done:
                self._pump.complete(settling)
        except KeyboardInterrupt:
            with suppress(FilaError):  # closed meanwhile
                self._pump.ask(lambda now: self._session.abandon(settling, now))
            raise
        finally:
            if trace is not None:
                trace.ended(settling)
        return settling

    def extend_one(self, delivery: Delivery, duration_ms: int) -> None:
        """What ``delivery.extend`` does."""
        self._outcome(self._pump.ask(lambda now: self._session.extend(delivery, duration_ms, now)))

    def forgotten(self, lease: Lease) -> None:
        """A delivery was garbage-collected unsettled."""
        self._session.forgotten.append(lease)

    def _wait_for_delivery(self, subscription: Subscription) -> None:
        try:
            pending = self._pump.ask(lambda _: subscription.want())
        except FilaError:
            if subscription.ended:  # closed meanwhile, which is its end and no failure
                return
            raise
        try:
            self._pump.wait(pending)
        except BaseException:
            with suppress(FilaError):  # closed meanwhile
                self._pump.ask(lambda _: subscription.unwant(pending))
            raise

    def _hand_over(self, delivery: Delivery) -> None:
        self._pump.ask(lambda _: self._session.hand_over(delivery))

    def _unsubscribe(self, subscription: Subscription) -> None:
        if subscription.ended or self.closed:
            return
        with suppress(FilaError):  # closed meanwhile
            call = self._pump.ask(lambda now: self._session.unsubscribe(subscription, now))
            if call is not None:
                self._pump.wait(call)

    def _abandon(self, subscription: Subscription) -> None:
        self._session.abandoned.append(subscription)
        self._pump.try_push()
