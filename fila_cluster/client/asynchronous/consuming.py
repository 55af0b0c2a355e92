"""The calls that receive messages and settle them, and the client's interface for consumers and batches."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fila_cluster.client import checks
from fila_cluster.client.asynchronous.batches import AsyncBatchConsumer
from fila_cluster.client.asynchronous.consumer import AsyncConsumer
from fila_cluster.client.calls import messages
from fila_cluster.client.io.reactor import Reactor
from fila_cluster.client.protocol import tracer
from fila_cluster.client.protocol.delivery import AsyncDelivery, Delivery
from fila_cluster.client.protocol.lease import ClientLease
from fila_cluster.client.protocol.session import ClientSession
from fila_cluster.client.protocol.settling import ACK, RELEASE, LoneAck, Settlement, Settling, settlement
from fila_cluster.client.protocol.subscription import ClientSubscription
from fila_proto_zmq.commands import Verb
from fila_proto_zmq.errors import FilaError

if TYPE_CHECKING:
    from fila_cluster.client.asynchronous.client import AsyncClient


class AsyncConsuming:
    """The calls of an :class:`AsyncClient` that receive messages and settle them."""

    _session: ClientSession
    _io: Reactor
    _owner: "AsyncDeliveryOwner"

    async def receive(self, queue: str, max_messages: int = 1, *, wait: float = 0.0) -> list[AsyncDelivery]:
        """Return messages that are ready now; if there are none, the next ones that come in time. The list may be empty.

        Each message is leased to this client for the queue's visibility timeout, or until the client is closed or lost. The
        messages of a receive that is interrupted or cancelled go back.

        Args:
            queue: The queue.
            max_messages: The most messages to return, up to 100,000.
            wait: How long to wait for the first message, in seconds; at most a day.

        Raises:
            QueueNotFoundError: There is no such queue.
        """
        return await self._receive(messages.one_queue(queue, max_messages), checks.wait_ms(wait))

    async def receive_any(self, queues: Mapping[str, int], *, wait: float = 0.0) -> list[AsyncDelivery]:
        """Return messages that are ready now in any of several queues; if there are none, the next ones that come in time.

        Args:
            queues: The most messages to take of each queue. The result has the messages in the order of the queues.
            wait: How long to wait for the first message, in seconds; at most a day.

        Raises:
            QueueNotFoundError: One of the queues does not exist.
        """
        return await self._receive(messages.several_queues(queues), checks.wait_ms(wait))

    def consume(self, queue: str, *, prefetch: int = 100, auto_extend: bool = True) -> AsyncConsumer:
        """Return an async iterator of deliveries. Use it in an ``async with``, close it, or leave it when its loop ends.

        Deliveries of a queue that delivers at most once are settled when they are handed over. The iterator raises
        :class:`QueueNotFoundError` if there is no such queue.

        Args:
            queue: The queue.
            prefetch: The most messages that are leased to it and unsettled, up to 100,000.
            auto_extend: Whether to renew their leases, also those of deliveries that the caller holds, as long as this
                client lives.
        """
        name, count = checks.queue_name(queue), messages.prefetch_count(prefetch)
        subscribe = self._session.subscribe
        return AsyncConsumer(self, self._io.ask(lambda now: subscribe(name, count, now, auto_extend=bool(auto_extend))))

    def consume_batches(
        self, queue: str, *, max_messages: int = 500, max_wait: float = 0.05, prefetch: int | None = None
    ) -> AsyncBatchConsumer:
        """Return an async iterator of batches of deliveries. Use it in an ``async with``, or close it.

        A settlement of a batch is sent at once, and confirmed while the next batches are taken. Leases are renewed. The
        iterator raises :class:`QueueNotFoundError` if there is no such queue, and :class:`BatchError` for settlements that
        failed.

        Args:
            queue: The queue.
            max_messages: The most messages of a batch, up to 100,000.
            max_wait: How long a batch waits for more messages after its first one, in seconds.
            prefetch: The most messages that are leased and unsettled. None: four batches.
        """
        name = checks.queue_name(queue)
        count, max_wait_s, unsettled = messages.batch_options(max_messages, max_wait, prefetch)
        subscribe = self._session.subscribe
        subscription = self._io.ask(lambda now: subscribe(name, unsettled, now, auto_extend=True))
        return AsyncBatchConsumer(self, subscription, count, max_wait_s)

    async def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge many deliveries at once.

        Args:
            deliveries: Deliveries of this client.

        Raises:
            BatchError: Some could not be acknowledged. The others are.
        """
        await self._settle(messages.as_deliveries(deliveries), ACK, messages.failure_of)

    async def nack(self, deliveries: Iterable[Delivery], error: str = "") -> None:
        """Fail many deliveries at once: each counts an attempt, and its queue decides what is next.

        They travel in frames of up to 100. The client's timeout counts from the last progress of the broker.

        Args:
            deliveries: Deliveries of this client.
            error: Why, for the next attempt and for people; the last 4 KiB are kept.

        Raises:
            BatchError: Some could not be failed. The others are.
        """
        batch = messages.as_deliveries(deliveries)
        await self._settle(batch, settlement(Verb.NACK, error), messages.failure_of)

    def ack_soon(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge many deliveries without waiting: the acks are sent at once, and again until the broker has confirmed
        them.

        If this process dies before, or a lease ends before, the message is delivered again. Closing the client sends the
        acks that are not confirmed once more.

        Args:
            deliveries: Deliveries of this client.

        Raises:
            AlreadySettledError: One of them was settled before. Then none is acknowledged.
        """
        batch = messages.as_deliveries(deliveries)
        trace = None if (installed := tracer.installed) is None else installed.settling(batch, ACK)
        settling = self._io.ask(lambda _: self._session.ack_soon(batch))
        if trace is not None:
            trace.ended(settling)
        if settling.errors:
            raise settling.errors.popitem()[1]  # an error's traceback holds the settling: no cycle through it

    async def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Give many deliveries back at once, unharmed: no attempt is counted, and each is delivered again at once, in its
        place.

        Args:
            deliveries: Deliveries of this client.

        Raises:
            BatchError: Some could not be given back. The others are.
        """
        await self._settle(messages.as_deliveries(deliveries), RELEASE, messages.failure_of)

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._io.closed or self._session.has_left

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

    async def _settle_one(self, delivery: Delivery, how: Settlement) -> None:
        lease = delivery._lease
        is_short = how is ACK and delivery._cost_milli is None and self._io.is_alone and tracer.installed is None
        if not is_short or lease.settled[delivery._index] or lease.owner is not self._owner:
            await self._settle((delivery,), how, messages.failure_of_one)
            return
        ack = LoneAck(delivery)
        try:
            lease.settled[delivery._index] = 1
            short = self._io.short(lease.queue, ack.command, ack)
            answer = None if short is None else await short
            if answer is None:
                ack.abandon()
        except self._io.INTERRUPTION:
            with suppress(FilaError):  # closed meanwhile
                self._io.note(lambda _: ack.abandon())
            raise
        if answer is None:
            await self._settle((delivery,), how, messages.failure_of_one)
        elif ack.settling is not None and ack.settling.errors:
            raise messages.failure_of_one(ack.settling)

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

    async def _wait_for_delivery(self, subscription: ClientSubscription) -> None:
        try:
            pending = self._io.note(lambda _: subscription.want())
            if subscription.hungry is not None:
                self._io.prepare()
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

    async def _gather(
        self, subscription: ClientSubscription, count: int, max_wait_s: float, timeout_s: float = math.inf
    ) -> None:
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

    async def _unsubscribe(self, subscription: ClientSubscription) -> None:
        if subscription.ended or self.closed:
            return
        with suppress(FilaError):  # closed meanwhile
            call = self._io.ask(lambda now: self._session.unsubscribe(subscription, now))
            if call is not None:
                await self._io.wait(call)

    def _abandon(self, subscription: ClientSubscription) -> None:
        self._session.abandoned.append(subscription)
        self._io.push()


class AsyncDeliveryOwner:
    """The :class:`LeaseOwner` of a client: verbs and finalizers of its deliveries end here. It keeps the client alive."""

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client
        self.settle_one = client._settle_one

    @property
    def closed(self) -> bool:
        """Whether the client is closed: then its leases were given back."""
        return self._client.closed

    async def extend_one(self, delivery: Delivery, duration_ms: int) -> None:
        """Renew the lease of one delivery for this many milliseconds."""
        client = self._client
        call = client._io.ask(lambda now: client._session.extend(delivery, duration_ms, now))
        await client._io.wait(call)
        call.outcome()

    def forgotten(self, lease: ClientLease) -> None:
        """Note that a delivery was garbage-collected unsettled. Called at any time, in any thread."""
        self._client._session.forgotten.append(lease)
