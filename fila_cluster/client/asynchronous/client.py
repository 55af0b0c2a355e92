"""The calls that send messages, any other command, and how a client is opened and closed."""

import asyncio
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from random import Random
from typing import Any, Literal, Self

from fila_cluster.client import checks
from fila_cluster.client.asynchronous.consuming import AsyncConsuming, AsyncDeliveryOwner
from fila_cluster.client.asynchronous.message_batches import AsyncMessageBatch
from fila_cluster.client.asynchronous.producer import AsyncProducer
from fila_cluster.client.asynchronous.schedules import AsyncScheduling
from fila_cluster.client.calls import messages
from fila_cluster.client.calls.messages import BatchTerms
from fila_cluster.client.calls.partitioned import Fan, ask_partitions, is_of_all
from fila_cluster.client.calls.request import Request, as_request
from fila_cluster.client.io.confirming import LoopConfirmer, Unseen
from fila_cluster.client.io.reactor import Reactor
from fila_cluster.client.message import BytesLike, Message
from fila_cluster.client.protocol import tracer
from fila_cluster.client.protocol.delivery import AsyncDelivery
from fila_cluster.client.protocol.encoding import Row, seal_row
from fila_cluster.client.protocol.ordering import CHUNKS_UNDER_WAY, Chunk
from fila_cluster.client.protocol.partitions.plans import pauses
from fila_cluster.client.protocol.pipelining import Pipeline
from fila_cluster.client.protocol.producing import Bulk, id_of
from fila_cluster.client.protocol.session import CLIENT_VERSION, ClientSession
from fila_cluster.client.protocol.short_calls import SHORT_BYTES_MAX
from fila_cluster.client.requests.call import PendingCall
from fila_cluster.client.requests.endpoints import EndpointRounds, parse_endpoints
from fila_proto_zmq.commands import Command, CreateByTemplate, DeleteQueue, Enqueue
from fila_proto_zmq.errors import (
    FilaError,
    PartitionedError,
    QueueExistsError,
    QueueNotFoundError,
    RequestTimeoutError,
    ShardUnavailableError,
)
from fila_proto_zmq.names import PARTITION_MARK


class AsyncClient(AsyncConsuming, AsyncScheduling):
    """A connection to a broker for asyncio programs; it belongs to the event loop that first uses it.

    Calls are awaited and may run concurrently: calls of one tick of the loop travel together, so
    ``gather`` over many ``enqueue`` or ``ack`` costs a few frames.

    It connects, and reconnects, by itself; every call answers or raises within ``timeout`` seconds (plus ``wait``, where
    there is one). Calls that the broker refused before any work are retried until then. Use it as a context manager or
    close it: that gives back received and unsettled messages at once. All durations are seconds.
    """

    endpoint: str
    """The endpoint, or the list of endpoints, that it was made with."""

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        api_key: str | None = None,
        server_key: str | None = None,
        timeout: float = 5.0,
        direct: bool | None = None,
    ) -> None:
        """Make a client. It connects when it is first used.

        Args:
            endpoint: The broker: ``tcp://HOST:PORT`` or ``ipc://PATH``. Several routers of a cluster are several endpoints
                with commas between, or one name with several addresses: the client uses one of them, and goes on to another
                when that one is lost. ``memory://NAME`` is a broker in this process, of ``fila_cluster.testing`` or
                ``fila_cluster.embedded``. None: ``FILA_ENDPOINT``, else ``tcp://127.0.0.1:5555``.
            api_key: The API key, if the cluster has authentication. None: ``FILA_API_KEY``, or the file that
                ``FILA_API_KEY_FILE`` names.
            server_key: The public key of the server, if the cluster encrypts; several, with commas between, are tried in
                turn. None: ``FILA_SERVER_KEY``.
            timeout: How long a call may take, in seconds; at most a day.
            direct: Whether calls that concern one shard go straight to its worker where that can be reached, and else
                through the router. None: ``FILA_DIRECT``, else true.

        Raises:
            InvalidArgumentError: An argument, or a variable of the environment, is malformed.
        """
        self.endpoint = checks.endpoint_or_default(endpoint)
        self._owner = AsyncDeliveryOwner(self)
        random = Random()
        rounds = EndpointRounds(parse_endpoints(self.endpoint), random)
        self._session = ClientSession(
            self.endpoint,
            self._owner,
            AsyncDelivery,
            timeout_s=checks.timeout_seconds(timeout),
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
        """Enqueue a message, and return its id once it is durable. See :class:`Message` for the options.

        After a retryable error the message may or may not be in the queue; with ``details["refused"]`` it is not. A message
        with a ``dedup_id`` may be enqueued again without harm, and the client itself does so while its timeout lasts.

        Args:
            queue: The queue.
            payload: The payload, as bytes.
            headers: Names and values, both text; at most 64 KiB.

        Raises:
            QueueNotFoundError: There is no such queue, and no template matches its name.
            PayloadTooLargeError: The payload is larger than the broker accepts.
            OverloadedError: The queue, the fairness key or the disk is full.
            RateLimitedError: The namespace of the queue is over its rate.
        """
        options = (
            fairness_key, weight, throttle_keys, priority, cost, delay, deliver_at, ttl, lease, dedup_id, dedup_mode, max_attempts,
        )  # fmt: skip
        name = checks.queue_name(queue)
        trace = None if (installed := tracer.installed) is None else installed.enqueuing(name)
        try:  # not in a coroutine of its own: that would cost 3 % of an enqueue
            row = seal_row(payload, headers if trace is None else trace.carried(headers), options)
            place, is_short = self._session.plans.place(name, row), self._io.is_alone and len(row[0]) < SHORT_BYTES_MAX
            short = self._io.short(place, partial(Enqueue, [row[0]], *row[1])) if is_short else None
            try:
                if short is not None:
                    message_id = id_of(await short)
                else:
                    self._io.prepare()
                    await self._io.complete(pending := self._session.enqueue(place, row))
                    message_id = pending.outcome()
            except (PartitionedError, QueueNotFoundError) as error:
                message_id = await self._enqueue_anew(name, place, row, error)
        except BaseException as error:
            if trace is not None:
                trace.failed(error)
            raise
        if trace is not None:
            trace.accepted(message_id, options)
        return message_id

    async def enqueue_many(self, queue: str, messages: Iterable[Message]) -> list[str]:
        """Enqueue messages, of any number, in frames of up to 500; return their ids in order, once all are durable.

        The messages are read as the frames are sent, several of which are under way: a generator of any length is fine. The
        order is kept within each fairness key among the messages that are accepted. The client's timeout counts from the
        last progress of the broker.

        Args:
            queue: The queue of all messages.
            messages: The messages.

        Raises:
            BatchError: Some messages were not accepted. The others are in the queue, also those behind them.
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

        Args:
            queue: The queue of messages for which :meth:`Producer.send` names no queue.
            linger: How long the last messages wait for more, in seconds.
            batch: The most messages that travel together.
            max_outstanding: The most messages that may be unconfirmed.
            on_error: A function of one error. It gets the errors that nobody looked at, in any thread. None: they go to the
                log.
        """
        name = None if queue is None else checks.queue_name(queue)
        pipe = Pipeline(self._session.pipelines, *messages.pipe_options(linger, batch, max_outstanding))
        return AsyncProducer(self, name, pipe, Unseen(messages.error_callback(on_error), self._confirmer))

    def batch(self, callback: Message, queue: str, *, name: str | None = None) -> AsyncMessageBatch:
        """Return a batch of messages, to be used in an ``async with``: the callback is enqueued when all of them are done.

        It is enqueued exactly once, when the last message of the batch is acked or dead-lettered. Its headers have the
        counts: ``fila-batch-total``, ``-acked``, ``-dead`` and ``-removed`` (by a purge, a cancel, or with their queue),
        besides the batch's id (``fila-batch``) and name (``fila-batch-name``).

        Args:
            callback: The message to enqueue at the end. It has no ``dedup_id``.
            queue: The queue of the callback.
            name: A name for people, at most 200 bytes.
        """
        return AsyncMessageBatch(self, BatchTerms(callback, queue, name))

    # --- life ---------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Give back all that is unsettled, end all calls and iterators, and disconnect. Takes a second at most."""
        await self._io.close(FilaError("this client is closed: open another one"))
        self._confirmer.close()
        if (installed := tracer.installed) is not None:
            installed.closed(self._owner)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
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

        Args:
            command: A command of ``fila_proto_zmq.commands`` for the cluster, or ``Request(queue, command)`` for a queue.
                ``docs/protocol.md`` describes each.
        """
        key, asked = as_request(command)
        fan: Fan | None = None
        ends_at: float | None = None
        for pause_s in pauses(self._session.timeout_s):
            await self._rest(pause_s)
            known = self._session.plans.get(key) if is_of_all(key, asked) else None
            call = self._start(key, asked, ends_at=ends_at, is_last=known is None)
            await self._io.wait(call)
            if isinstance(call.error, PartitionedError):
                plan = self._session.plans.learn(key, call.error)
            else:  # the first partition may be down, and the others not
                plan = known if isinstance(call.error, (ShardUnavailableError, RequestTimeoutError)) else None
            if fan is not None and isinstance(call.error, RequestTimeoutError):
                break
            if plan is None or PARTITION_MARK in key:
                return call.outcome()
            fan = ask_partitions(key, plan, asked, fan)
            ends_at = ends_at or (call.deadline if known is None else call.deadline + call.timeout)
            await self._ask_partitions(fan, ends_at)
            if fan.lost is None:
                break
        assert fan is not None
        return fan.result

    async def _is_undivided(self, describe: Request) -> bool:
        """Return whether there is surely a queue without partitions of this name."""
        call = self._start(describe.queue, describe.command)
        await self._io.wait(call)
        return call.error is None

    async def _ask_partitions(self, fan: Fan, ends_at: float) -> None:
        """Ask the partitions of a queue that a command concerns, until a time, or until they are other ones."""
        under_way = deque[PendingCall]()
        while True:
            while (fan.at_once or not under_way) and (request := fan.next_request()) is not None:
                until = None if fan.is_anew else ends_at
                under_way.append(self._start(*request, ends_at=until, is_last=fan.at_once or fan.is_last))
            if not under_way:
                break
            call = under_way.popleft()
            await self._io.wait(call)
            if call.error is None:
                fan.answered(call.outcome())
            elif isinstance(call.error, PartitionedError) or (
                isinstance(call.error, QueueNotFoundError) and not fan.may_lack
            ):
                self._session.plans.forget(fan.queue)
                fan.lose(call.error)
                return
            else:
                try:
                    fan.refused(call.error)
                finally:
                    call.error = None
        if isinstance(fan.command, DeleteQueue):
            self._session.plans.forget(fan.queue)

    async def _rest(self, pause_s: float) -> None:
        if pause_s:
            await asyncio.sleep(pause_s)

    def _shell(self, rounds: EndpointRounds, server_keys: tuple[str, ...]) -> Reactor:
        return Reactor(self._session, rounds, server_keys)

    def _start(self, key: str, command: Command, *, ends_at: float | None = None, is_last: bool = True) -> PendingCall:
        return self._io.ask(lambda now: self._session.call(key, command, now, ends_at=ends_at, is_last=is_last))

    async def _enqueue_anew(self, name: str, place: str, row: Row, error: FilaError) -> str:
        """Enqueue a message whose queue has partitions that are not known, or are others by now."""
        for pause_s in pauses(self._session.timeout_s):
            await self._rest(pause_s)
            if self._session.plans.learn(name, error) is None:
                if "template" in error.details and isinstance(error, PartitionedError):
                    with suppress(QueueExistsError):
                        await self.request(CreateByTemplate(name))
                elif place == name:
                    break
            place = self._session.plans.place(name, row)
            pending = self._io.ask(lambda _, place=place: self._session.enqueue(place, row))  # type: ignore[misc]
            await self._io.wait(pending)
            if pending.error is None or not isinstance(pending.error, (PartitionedError, QueueNotFoundError)):
                return pending.outcome()
            error = pending.error
        raise error

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
        bulk = Bulk(name, batch, batch_id, self._session.plans.get)
        sender, send = self._session.sender(name), self._session.send
        for chunk in bulk.chunks():
            in_flight.append(self._io.ask(lambda now, chunk=chunk: send(sender, chunk, now)))  # type: ignore[misc]
            if len(in_flight) == CHUNKS_UNDER_WAY:
                await self._io.wait(in_flight.popleft())
        for chunk in in_flight:
            await self._io.wait(chunk)
        return bulk.ids()
