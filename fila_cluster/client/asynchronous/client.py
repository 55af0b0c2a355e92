"""The calls that carry messages, any other command, how a client is opened and closed, and its interface for deliveries and
consumers."""

import math
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from random import Random
from types import TracebackType
from typing import Any, Literal, Self

from fila_cluster.client import checks
from fila_cluster.client.asynchronous.administration import AsyncAdministration
from fila_cluster.client.asynchronous.batches import AsyncBatchConsumer
from fila_cluster.client.asynchronous.consumer import AsyncConsumer
from fila_cluster.client.asynchronous.message_batches import AsyncMessageBatch
from fila_cluster.client.asynchronous.producer import AsyncProducer
from fila_cluster.client.asynchronous.schedules import AsyncScheduling
from fila_cluster.client.calls import messages
from fila_cluster.client.calls.batches import BatchTerms
from fila_cluster.client.calls.request import Request, as_request
from fila_cluster.client.checks import endpoint_or_default, timeout_seconds
from fila_cluster.client.io.confirming import LoopConfirmer, Unseen
from fila_cluster.client.io.reactor import Reactor
from fila_cluster.client.message import BytesLike, Message
from fila_cluster.client.protocol import tracer
from fila_cluster.client.protocol.delivery import AsyncDelivery, Delivery
from fila_cluster.client.protocol.encoding import seal_row
from fila_cluster.client.protocol.lease import Lease
from fila_cluster.client.protocol.ordering import CHUNKS_UNDER_WAY, Chunk
from fila_cluster.client.protocol.pipelining import Pipe
from fila_cluster.client.protocol.producing import Bulk
from fila_cluster.client.protocol.session import CLIENT_VERSION, Session
from fila_cluster.client.protocol.settling import ACK, RELEASE, Settlement, Settling, settlement
from fila_cluster.client.protocol.subscription import Subscription
from fila_cluster.client.requests.call import Call
from fila_cluster.client.requests.endpoints import Rounds, parse_endpoints
from fila_proto_zmq.commands import Command, Verb
from fila_proto_zmq.errors import FilaError


class AsyncClient(AsyncAdministration, AsyncScheduling):
    """A connection to a broker for asyncio programs; it belongs to the event loop that first uses it.

    Calls are awaited and may run concurrently: calls of one tick of the loop travel together, so
    ``gather`` over many ``enqueue`` or ``ack`` costs a few frames.

    It connects, and reconnects, by itself; every call answers or raises within ``timeout`` seconds (plus ``wait``, where
    there is one). Calls that the broker refused before any work are retried until then. Use it as a context manager or
    close it: that gives back received and unsettled messages at once. All durations are seconds.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        api_key: str | None = None,
        server_key: str | None = None,
        timeout: float = 5.0,
        direct: bool | None = None,
    ) -> None:
        """Make a client of the broker at ``endpoint`` (default: ``FILA_ENDPOINT``, else tcp://127.0.0.1:5555).

        Several routers of a cluster are several endpoints with commas between, or one name with several addresses. The client uses one of
        them, and goes on to another when that one is lost. ``memory://NAME`` is a broker in this process: of ``fila_cluster.testing`` or
        ``fila_cluster.embedded``.
        ``direct``: whether calls that concern one shard go straight to its worker where that can be reached, and else through the
        router (default: ``FILA_DIRECT``, else true). ``api_key``, ``server_key``: who the client is, and the public key of the server,
        if the cluster has authentication (default: ``FILA_API_KEY``, or the file ``FILA_API_KEY_FILE``; ``FILA_SERVER_KEY``). Several
        public keys, with commas between, are tried in turn.
        """
        self.endpoint = endpoint_or_default(endpoint)
        random = Random()
        rounds = Rounds(parse_endpoints(self.endpoint), random)
        self._session = Session(
            self.endpoint,
            self,
            AsyncDelivery,
            timeout_s=timeout_seconds(timeout),
            client_version=CLIENT_VERSION,
            random=random,
            api_key=checks.api_key_or_default(api_key),
            direct=checks.direct_or_default(direct),
        )
        self._io = self._shell(rounds, checks.server_keys(server_key))
        self._confirmer = LoopConfirmer(self._io, self._session.pipelines)

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
        dedup_mode: Literal["first", "last"] = "first",
        max_attempts: int | None = None,
    ) -> str:
        """Enqueue a message and return its id once it is durable. See :class:`Message` for the options.

        After a retryable error it may or may not be in the queue; ``details["refused"]`` means that it is not. With a
        ``dedup_id`` it may be enqueued again without harm, and the client itself does so while the timeout lasts.
        """
        options = (
            fairness_key, weight, throttle_keys, priority, cost, delay, deliver_at, ttl, lease, dedup_id, dedup_mode, max_attempts,
        )  # fmt: skip
        name = checks.queue_name(queue)
        trace = None if (installed := tracer.installed) is None else installed.enqueuing(name)
        try:  # not in a coroutine of its own: that would cost 3 % of an enqueue
            row = seal_row(payload, headers if trace is None else trace.carried(headers), options)
            self._io.prepare()
            pending = self._session.enqueue(name, row)
            await self._io.complete(pending)
            message_id = pending.outcome()
        except BaseException as error:
            if trace is not None:
                trace.failed(error)
            raise
        if trace is not None:
            trace.accepted(message_id, options)
        return message_id

    async def enqueue_many(self, queue: str, messages: Iterable[Message]) -> list[str]:
        """Enqueue messages, of any number, in frames of up to 500; return their ids in order, once all are durable.

        ``messages`` is read as the frames are sent, several of which are under way: a generator of any length is fine. The
        order is kept within each fairness key among those that are accepted. :class:`BatchError` if some were not; the others are in, also those
        behind them. The timeout counts from the last progress of the broker.
        """
        return await self._enqueue_all(queue, messages)

    def producer(
        self,
        queue: str | None = None,
        *,
        linger: float = 0.005,
        batch: int = 500,
        max_outstanding: int = 10_000,
        on_error: Callable[[FilaError], object] | None = None,
    ) -> AsyncProducer:
        """Return a producer that does not wait for each message. Use it in an ``async with``, or close it.

        It sends messages in batches of ``batch``, the last ones after ``linger`` seconds. At most ``max_outstanding`` are
        unconfirmed at a time. ``on_error`` gets the errors that are not looked at, in any thread.
        """
        name = None if queue is None else checks.queue_name(queue)
        pipe = Pipe(self._session.pipelines, *messages.pipe_options(linger, batch, max_outstanding))
        return AsyncProducer(self, name, pipe, Unseen(messages.error_callback(on_error), self._confirmer))

    def batch(self, callback: Message, queue: str, *, name: str | None = None) -> AsyncMessageBatch:
        """Return a batch of messages, to be used in an ``async with``: ``callback`` is enqueued into ``queue`` when all are done.

        The callback is enqueued exactly once, when the last message of the batch is acked or dead-lettered. Its headers have the
        counts: ``fila-batch-total``, ``-acked``, ``-dead`` and ``-removed`` (by a purge, a cancel, or with their queue), besides
        the batch's id (``fila-batch``) and its ``name``, which is for people.
        """
        return AsyncMessageBatch(self, BatchTerms(callback, queue, name))

    # --- consuming ----------------------------------------------------------------------------------------------------

    async def receive(self, queue: str, max_messages: int = 1, *, wait: float = 0.0) -> list[AsyncDelivery]:
        """Return up to ``max_messages`` that are ready now; if none is, the next ones within ``wait`` seconds.

        Each is leased to this client for the queue's visibility timeout, or until the client is closed or lost. The messages
        of a receive that is interrupted or cancelled go back.
        """
        return await self._receive(messages.one_queue(queue, max_messages), checks.wait_ms(wait))

    async def receive_any(self, queues: Mapping[str, int], *, wait: float = 0.0) -> list[AsyncDelivery]:
        """Return messages that are ready now in any of these queues; if none is, the next ones within ``wait`` seconds.

        ``queues`` is how many messages to take from which queue; the result has them in its order.
        """
        return await self._receive(messages.several_queues(queues), checks.wait_ms(wait))

    def consume(self, queue: str, *, prefetch: int = 100, auto_extend: bool = True) -> AsyncConsumer:
        """Return an async iterator of deliveries. Use it in an ``async with``, close it, or leave it when its loop ends.

        At most ``prefetch`` are leased to it and unsettled at a time. ``auto_extend`` renews their leases, also those of
        deliveries that the caller holds, as long as this client lives. Deliveries of a queue that delivers at most once are
        settled when they are handed over.
        """
        name, count = checks.queue_name(queue), messages.prefetch_count(prefetch)
        subscribe = self._session.subscribe
        return AsyncConsumer(self, self._io.ask(lambda now: subscribe(name, count, now, auto_extend=bool(auto_extend))))

    def consume_batches(
        self, queue: str, *, max_messages: int = 500, max_wait: float = 0.05, prefetch: int | None = None
    ) -> AsyncBatchConsumer:
        """Return an async iterator of batches of deliveries. Use it in an ``async with``, or close it.

        A batch has up to ``max_messages``; it is handed over ``max_wait`` seconds after there is a message, if there are not
        more. A settlement of a batch is sent at once, and confirmed while the next batches are taken. At most ``prefetch``
        messages (by default four batches) are leased and unsettled at a time; their leases are renewed.
        """
        name = checks.queue_name(queue)
        count, max_wait_s, unsettled = messages.batch_options(max_messages, max_wait, prefetch)
        subscribe = self._session.subscribe
        subscription = self._io.ask(lambda now: subscribe(name, unsettled, now, auto_extend=True))
        return AsyncBatchConsumer(self, subscription, count, max_wait_s)

    async def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge many at once. :class:`BatchError` if some failed; the others are acknowledged."""
        await self._settle(messages.as_deliveries(deliveries), ACK, messages.failure_of)

    async def nack(self, deliveries: Iterable[Delivery], error: str = "") -> None:
        """Fail many at once. :class:`BatchError` if some could not be failed; the others are."""
        batch = messages.as_deliveries(deliveries)
        await self._settle(batch, settlement(Verb.NACK, error), messages.failure_of)

    def ack_soon(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge many without waiting: the acks are sent at once, and again until the broker has confirmed them.

        If this process dies before, or a lease ends before, the message is delivered again. Closing the client sends what is
        not confirmed once more. :class:`AlreadySettledError` if one of them was settled before: then none is acknowledged.
        """
        batch = messages.as_deliveries(deliveries)
        trace = None if (installed := tracer.installed) is None else installed.settling(batch, ACK)
        settling = self._io.ask(lambda _: self._session.ack_soon(batch))
        if trace is not None:
            trace.ended(settling)
        if settling.errors:
            raise settling.errors.popitem()[1]  # an error's traceback holds the settling: no cycle through it

    async def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Give back many at once, unharmed: no attempt is counted, and each is delivered again, in its place, at once.

        :class:`BatchError` if some could not be given back; the others are.
        """
        await self._settle(messages.as_deliveries(deliveries), RELEASE, messages.failure_of)

    # --- life ---------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._io.closed or self._session.has_left

    async def close(self) -> None:
        """Give back everything unsettled, end all calls and iterators, and disconnect. Takes a second at most."""
        await self._io.close(FilaError("this client is closed: open another one"))
        self._confirmer.close()
        if (installed := tracer.installed) is not None:
            installed.closed(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        io = getattr(self, "_io", None)  # None if the endpoint was refused
        if io is not None and not io.closed:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return f"<AsyncClient of {self.endpoint}{', closed' if self.closed else ''}>"

    # --- commands -----------------------------------------------------------------------------------------------------

    async def request(self, command: Command | Request) -> Any:
        """Send a command of the protocol, and return its reply: for programs that need more than the other methods.

        ``command`` is one of ``fila_proto_zmq.commands`` for the cluster, or ``Request(queue, command)`` for a queue.
        ``docs/protocol.md`` describes each.
        """
        call = self.start(command)
        await self._io.wait(call)
        return call.outcome()

    def start(self, command: Command | Request) -> Call:
        """Send a command as :meth:`request` does; :meth:`outcome` waits for its reply."""
        return self._start(*as_request(command))

    async def outcome(self, call: Call) -> Any:
        """Return the reply to a command that :meth:`start` sent, or raise its error."""
        await self._io.wait(call)
        return call.outcome()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _shell(self, rounds: Rounds, server_keys: tuple[str, ...]) -> Reactor:
        return Reactor(self._session, rounds, server_keys)

    def _start(self, key: str, command: Command, then: Callable[[Call], None] | None = None) -> Call:
        return self._io.ask(lambda now: self._session.call(key, command, now, then))

    async def _enqueue_all(self, queue: str, messages: Iterable[Message], batch_id: str = "") -> list[str]:
        """Enqueue messages, as members of the batch with this id if it is not empty."""
        name, batch = checks.queue_name(queue), checks.several("messages", messages)
        trace = None if (installed := tracer.installed) is None else installed.enqueuing(name)
        try:
            ids = await self._enqueue_many(name, batch if trace is None else trace.carrying(batch), batch_id)
        except BaseException as error:
            if trace is not None:
                trace.failed(error)
            raise
        if trace is not None:
            trace.all_accepted(len(ids))
        return ids

    async def _enqueue_many(self, name: str, batch: Iterable[Message], batch_id: str) -> list[str]:
        in_flight = deque[Chunk]()
        bulk, line, send = Bulk(name, batch, batch_id), self._session.line(name), self._session.send
        for chunk in bulk.chunks():
            in_flight.append(self._io.ask(lambda now, chunk=chunk: send(line, chunk, now)))  # type: ignore[misc]
            if len(in_flight) == CHUNKS_UNDER_WAY:
                await self._io.wait(in_flight.popleft())
        for chunk in in_flight:
            await self._io.wait(chunk)
        return bulk.ids()

    async def _receive(self, queues: Mapping[str, int], wait_ms: int, *, whole: bool = True) -> list[AsyncDelivery]:
        receiving = self._io.ask(lambda now: self._session.receive(queues, wait_ms, now, whole=whole))
        try:
            await self._io.wait(receiving)
        except self._io.INTERRUPTION:
            with suppress(FilaError):  # closed meanwhile
                self._io.ask(lambda now: self._session.give_up(receiving, now))
            raise
        deliveries: list[Any] = receiving.outcome()  # of the class that the session makes
        if (installed := tracer.installed) is not None:
            installed.handed_over(deliveries)
        return deliveries

    async def _settle(
        self, deliveries: Sequence[Delivery], how: Settlement, failure: Callable[[Settling], FilaError]
    ) -> None:
        self._io.prepare()
        trace = None if (installed := tracer.installed) is None else installed.settling(deliveries, how)
        settling = self._session.settle(deliveries, how)
        try:
            if not settling.done:
                await self._io.complete(settling)
        except self._io.INTERRUPTION:
            with suppress(FilaError):  # closed meanwhile
                self._io.ask(lambda now: self._session.abandon(settling, now))
            raise
        finally:
            if trace is not None:
                trace.ended(settling)
        if settling.errors:
            raise failure(settling)

    def settle_one(self, delivery: Delivery, how: Settlement) -> Coroutine[Any, Any, None]:
        """Settle one delivery, for its own methods."""
        return self._settle((delivery,), how, messages.failure_of_one)

    async def extend_one(self, delivery: Delivery, duration_ms: int) -> None:
        """Extend one lease, for ``delivery.extend``."""
        await self.outcome(self._io.ask(lambda now: self._session.extend(delivery, duration_ms, now)))

    def forgotten(self, lease: Lease) -> None:
        """Note a delivery that was garbage-collected unsettled."""
        self._session.forgotten.append(lease)

    async def _wait_for_delivery(self, subscription: Subscription) -> None:
        try:
            pending = self._io.note(lambda _: subscription.want())
        except FilaError:
            if subscription.ended:  # closed meanwhile: its end, and no failure
                return
            raise
        try:
            await self._io.wait(pending)
        except BaseException:
            with suppress(FilaError):  # closed meanwhile
                self._io.note(lambda _: subscription.unwant(pending))
            raise

    async def _gather(self, subscription: Subscription, count: int, max_wait_s: float, timeout_s: float = math.inf) -> None:
        """Wait for a batch, for its end, or ``timeout_s``."""
        gather = self._session.gather
        try:
            gathering = self._io.ask(lambda now: gather(subscription, count, max_wait_s, now, timeout_s))
        except FilaError:
            if subscription.ended:  # closed meanwhile: its end, and no failure
                return
            raise
        try:
            await self._io.wait(gathering)
        except BaseException:
            with suppress(FilaError):  # closed meanwhile
                self._io.note(lambda _: gathering.end())
            raise

    def _hand_over(self, delivery: Delivery) -> None:
        self._io.ask(lambda _: self._session.hand_over(delivery))

    async def _unsubscribe(self, subscription: Subscription) -> None:
        if subscription.ended or self.closed:
            return
        with suppress(FilaError):  # closed meanwhile
            call = self._io.ask(lambda now: self._session.unsubscribe(subscription, now))
            if call is not None:
                await self._io.wait(call)

    def _abandon(self, subscription: Subscription) -> None:
        self._session.abandoned.append(subscription)
        self._io.push()
