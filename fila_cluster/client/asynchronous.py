"""The asyncio client: the same methods as the blocking one, awaited."""

import asyncio
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from random import Random
from types import TracebackType
from typing import Any, Self, cast

from fila_cluster.client import checks, tracer
from fila_cluster.client.administration import AsyncAdministration
from fila_cluster.client.calls import requests
from fila_cluster.client.consumers import AsyncConsumer
from fila_cluster.client.io.reactor import Reactor
from fila_cluster.client.message import BytesLike, Message
from fila_cluster.client.options import CLIENT_VERSION, endpoint_or_default, refuse_keys, timeout_seconds
from fila_cluster.client.protocol.call import Call
from fila_cluster.client.protocol.delivery import AsyncDelivery, Delivery
from fila_cluster.client.protocol.encoding import seal_row
from fila_cluster.client.protocol.lease import Lease
from fila_cluster.client.protocol.producing import FRAMES_IN_FLIGHT, Bulk
from fila_cluster.client.protocol.session import Session
from fila_cluster.client.protocol.settling import ACK, Settlement, settlement
from fila_cluster.client.protocol.subscription import Subscription
from fila_proto_zmq.commands import Command, Verb
from fila_proto_zmq.errors import FilaError


class AsyncClient(AsyncAdministration):
    """A connection to a broker for asyncio programs; it belongs to the event loop that first uses it.

    Calls are awaited and may run concurrently: what is asked for in one tick of the loop travels together, so
    ``gather`` over many ``enqueue`` or ``ack`` costs a few frames. Everything else is as :class:`~fila_cluster.Client`
    says.
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
            AsyncDelivery,
            timeout_s=timeout_seconds(timeout),
            client_version=CLIENT_VERSION,
            random=Random(),
        )
        self._reactor = Reactor(self._session, self.endpoint)

    # --- producing ----------------------------------------------------------------------------------------------------

    async def enqueue(
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
        """Enqueue a message and return its id once it is durable. See :meth:`Client.enqueue`."""
        options = fairness_key, weight, throttle_keys, priority, cost, delay, deliver_at, ttl, lease, dedup_id
        name = checks.queue_name(queue)
        trace = None if (installed := tracer.installed) is None else installed.enqueuing(name)
        try:  # no coroutine around another one: it would cost 3 % of an enqueue
            row = seal_row(payload, headers if trace is None else trace.carried(headers), *options)
            self._reactor.now()
            pending = self._session.enqueue(name, row)
            await self._reactor.done(pending)
            message_id = pending.outcome()
        except BaseException as error:
            if trace is not None:
                trace.failed(error)
            raise
        if trace is not None:
            trace.accepted(message_id, options)
        return message_id

    async def enqueue_many(self, queue: str, messages: Iterable[Message]) -> list[str]:
        """Enqueue messages, of any number; their ids in order. See :meth:`Client.enqueue_many`."""
        name, batch = checks.queue_name(queue), checks.several("messages", messages)
        trace = None if (installed := tracer.installed) is None else installed.enqueuing(name)
        try:
            ids = await self._enqueue_many(name, batch if trace is None else trace.carrying(batch))
        except BaseException as error:
            if trace is not None:
                trace.failed(error)
            raise
        if trace is not None:
            trace.all_accepted(len(ids))
        return ids

    # --- consuming ----------------------------------------------------------------------------------------------------

    async def receive(self, queue: str, max_messages: int = 1, *, wait: float = 0.0) -> list[AsyncDelivery]:
        """Up to ``max_messages`` that are ready now; if none is, what is ready first within ``wait`` seconds.

        See :meth:`Client.receive`. What a cancelled receive would have got goes back.
        """
        return await self._receive(requests.one_queue(queue, max_messages), checks.wait_ms(wait))

    async def receive_any(self, queues: Mapping[str, int], *, wait: float = 0.0) -> list[AsyncDelivery]:
        """What is ready now in any of these queues; if nothing is, what is ready first. See :meth:`Client.receive_any`."""
        return await self._receive(requests.several_queues(queues), checks.wait_ms(wait))

    def consume(self, queue: str, *, prefetch: int = 100, auto_extend: bool = True) -> AsyncConsumer:
        """Deliveries as they come: an async iterator, to be used in an ``async with`` or closed. See :meth:`Client.consume`."""
        name, count = checks.queue_name(queue), requests.prefetch_count(prefetch)
        now = self._reactor.now()
        return AsyncConsumer(self, self._session.subscribe(name, count, now, auto_extend=bool(auto_extend)))

    async def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge many at once. :class:`BatchError` if some failed; the others are done."""
        await self._settle_many(deliveries, ACK)

    async def nack(self, deliveries: Iterable[Delivery], error: str = "") -> None:
        """Fail many at once. :class:`BatchError` if some could not be; the others are done."""
        await self._settle_many(deliveries, settlement(Verb.NACK, error))

    # --- life ---------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._reactor.closed or self._session.has_left

    async def close(self) -> None:
        """Give back everything unsettled, end all calls and iterators, and disconnect. Takes a second at most."""
        await self._reactor.close(FilaError("this client is closed: open another one"))
        if (installed := tracer.installed) is not None:
            installed.closed(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        reactor = getattr(self, "_reactor", None)  # None if the endpoint would not do
        if reactor is not None and not reactor.closed:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return f"<AsyncClient of {self.endpoint}{', closed' if self.closed else ''}>"

    # --- inside -------------------------------------------------------------------------------------------------------

    def _start(self, key: str, command: Command, then: Callable[[Call], None] | None = None) -> Call:
        return self._session.call(key, command, self._reactor.now(), then)

    async def _ask(self, request: requests.Request) -> Any:
        call = self._start(request.key, request.command)
        await self._reactor.done(call)
        return call.outcome()

    async def _enqueue_many(self, name: str, messages: Iterable[Message]) -> list[str]:
        in_flight = deque[Call]()
        bulk = Bulk(name, messages)
        for command, then in bulk.frames():
            in_flight.append(self._start(name, command, then))
            if len(in_flight) == FRAMES_IN_FLIGHT:
                await self._reactor.done(in_flight.popleft())
        for call in in_flight:
            await self._reactor.done(call)
        return bulk.ids()

    async def _receive(self, queues: Mapping[str, int], wait_ms: int) -> list[AsyncDelivery]:
        receiving = self._session.receive(queues, wait_ms, self._reactor.now())
        try:
            await self._reactor.done(receiving)
        except asyncio.CancelledError:
            with suppress(FilaError):  # closed meanwhile
                self._session.give_up(receiving, self._reactor.now())
            raise
        deliveries = receiving.outcome()
        if (installed := tracer.installed) is not None:
            installed.handed_over(deliveries)
        return cast(list[AsyncDelivery], deliveries)

    async def _settle_many(self, deliveries: Iterable[Delivery], how: Settlement) -> None:
        batch = requests.as_deliveries(deliveries)
        self._reactor.now()
        trace = None if (installed := tracer.installed) is None else installed.settling(batch, how)
        settling = self._session.settle(batch, how)
        try:
            await self._reactor.done(settling)
        except asyncio.CancelledError:
            self._session.abandon(settling, time.monotonic())
            raise
        finally:
            if trace is not None:
                trace.ended(settling)
        failure = requests.failure_of(settling)
        if failure is not None:
            raise failure

    async def settle_one(self, delivery: Delivery, how: Settlement) -> None:
        """What a delivery's verbs do."""
        self._reactor.now()
        trace = None if (installed := tracer.installed) is None else installed.settling((delivery,), how)
        settling = self._session.settle((delivery,), how)
        try:
            await self._reactor.done(settling)
        except asyncio.CancelledError:
            self._session.abandon(settling, time.monotonic())
            raise
        finally:
            if trace is not None:
                trace.ended(settling)
        if settling.errors:
            raise settling.errors.pop(0)

    async def extend_one(self, delivery: Delivery, duration_ms: int) -> None:
        """What ``delivery.extend`` does."""
        call = self._session.extend(delivery, duration_ms, self._reactor.now())
        await self._reactor.done(call)
        call.outcome()

    def forgotten(self, lease: Lease) -> None:
        """A delivery was garbage-collected unsettled."""
        self._session.forgotten.append(lease)

    async def _wait_for_delivery(self, subscription: Subscription) -> None:
        pending = subscription.want()
        try:
            await self._reactor.done(pending)
        finally:
            subscription.unwant(pending)

    def _hand_over(self, delivery: Delivery) -> None:
        self._reactor.now()
        self._session.hand_over(delivery)

    async def _unsubscribe(self, subscription: Subscription) -> None:
        if subscription.ended or self.closed:
            return
        call = self._session.unsubscribe(subscription, self._reactor.now())
        if call is not None:
            await self._reactor.done(call)

    def _abandon(self, subscription: Subscription) -> None:
        self._session.abandoned.append(subscription)
        self._reactor.push_soon()
