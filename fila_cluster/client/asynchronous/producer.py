"""The producer that ``producer()`` returns: it sends messages without waiting for each."""

import asyncio
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Self

from fila_cluster.client.calls import messages
from fila_cluster.client.io.confirming import Unseen
from fila_cluster.client.message import BytesLike
from fila_cluster.client.protocol import tracer
from fila_cluster.client.protocol.encoding import Row, seal_row
from fila_cluster.client.protocol.pipelining import FULL, TO_TEND, Confirmed, Pipeline
from fila_proto_zmq.errors import FilaError

if TYPE_CHECKING:
    from fila_cluster.client.asynchronous.client import AsyncClient


class AsyncProducer:
    """Sends messages in batches, several of them under way, and confirms each message later.

    The order of :meth:`send` is kept within each queue and fairness key. A future that fails and is not looked at goes to
    ``on_error``, or else to the log. Use it as a context manager: leaving it waits until every message is confirmed or has
    failed. It ends with its client: messages that are not confirmed by then fail. Several tasks may share it.
    """

    def __init__(self, client: "AsyncClient", queue: str | None, pipe: Pipeline, unseen: Unseen) -> None:
        self._client = client
        self._io = client._io
        self._confirmer = client._confirmer
        self._queue = queue
        self._pipe = pipe
        self._unseen = unseen
        self._closed = False
        self._batch_is_full = False

    async def send(
        self,
        payload: BytesLike,
        headers: Mapping[str, str] | None = None,
        *,
        queue: str | None = None,
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
    ) -> "asyncio.Future[str]":
        """Take in a message, and return a future of its id. See :class:`Message` for the options.

        Waits while ``max_outstanding`` messages, or 64 MiB of messages of this client's producers, are unconfirmed. The
        future fails as :meth:`Client.enqueue` does, after the client has tried again while its timeout lasts.

        Args:
            payload: The payload, as bytes.
            headers: Names and values, both text; at most 64 KiB.
            queue: The queue; None: the one of the producer.

        Raises:
            InvalidArgumentError: An argument is malformed. The message is not sent.
            FilaError: The producer or its client is closed. The message is not sent.
        """
        if self._closed:
            raise FilaError("this producer is closed: open another one")
        name = messages.queue_of(queue, self._queue)
        options = (
            fairness_key, weight, throttle_keys, priority, cost, delay, deliver_at, ttl, lease, dedup_id, dedup_mode, max_attempts,
        )  # fmt: skip
        trace = None if (installed := tracer.installed) is None else installed.enqueuing(name)
        try:
            row = seal_row(payload, headers if trace is None else trace.carried(headers), options)
            if self._batch_is_full:
                self._batch_is_full = False
                await self._confirmer.breathe()
            future = self._confirmer.future(self._unseen, None if trace is None else (trace, options))
            if taken := self._io.collect(self._pipe.put, name, row, future):
                await self._go_on(taken, name, row, future)
        except BaseException as error:
            if trace is not None:
                trace.failed(error)
            raise
        return future

    async def flush(self, timeout: float | None = None) -> None:
        """Send the collected messages, and return when all messages so far are confirmed or have failed.

        The errors of messages are in their futures.

        Args:
            timeout: How long to wait, in seconds; at most a day. None: as long as it takes.

        Raises:
            RequestTimeoutError: It takes longer. The messages are sent nevertheless.
        """
        seconds = messages.patience_s(timeout)
        flush = self._io.ask(lambda now: self._pipe.flush(now, seconds))
        self._confirmer.tend(self._pipe)
        try:
            await self._io.wait(flush)
        except BaseException:
            with suppress(FilaError):  # closed meanwhile
                self._io.note(lambda _: self._pipe.unflush(flush))
            raise
        self._confirmer.resolve()
        flush.outcome()

    async def close(self) -> None:
        """Take in no more messages, and return when all are confirmed or have failed."""
        self._closed = True
        if not (self._pipe.idle or self._io.closed):  # a client that takes leave ends the collected messages at once
            await self.flush()
        self._confirmer.resolve()
        self._unseen.log()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if not self._closed and self._pipe.outstanding and not self._client.closed:
            text = f"{self!r} was not closed: its messages are sent, as long as its client is open"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        queue = "any queue" if self._queue is None else f"queue {self._queue!r}"
        return (
            f"<AsyncProducer of {queue}, {self._pipe.outstanding} messages unconfirmed{', closed' if self._closed else ''}>"
        )

    async def _go_on(self, taken: int, name: str, row: Row, future: Confirmed) -> None:
        """Wait until a pipeline has room and has the message, and send its full batches."""
        while taken == FULL:
            room = self._io.ask(self._pipe.want_room)
            self._confirmer.tend(self._pipe)
            try:
                await self._io.wait(room)
            except BaseException:
                with suppress(FilaError):  # closed meanwhile
                    self._io.note(lambda _, room=room: self._client._session.pipelines.unwant(room))  # type: ignore[misc]
                raise
            taken = self._io.collect(self._pipe.put, name, row, future)
        if taken == TO_TEND:
            self._confirmer.tend(self._pipe)
            self._batch_is_full = True
