"""Streams: an answer without an end, with a line for each delivery as it comes.

A stream receives as any request does, as much as its credit allows, and receives again when the client has read that. So the
observer holds no more of it than one frame of the broker: 1 MiB, or a single larger message.
"""

import asyncio
from collections import deque
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from fila_cluster.client.forwarding import give_back, receive_frame
from fila_cluster.client.protocol.delivery import AsyncDelivery
from fila_cluster.errors import FilaError, OverloadedError
from fila_cluster.ops.analysis.visitor import SCOPE_KEY, Visitor, end_of
from fila_cluster.ops.observer.http_api import bodies
from fila_cluster.ops.observer.http_api.operations import ApiRequest, abandon, encoded, hang_up, keep, number_of
from fila_cluster.ops.observer.http_api.receivers import StreamCredit
from fila_proto_zmq.limits import DELIVERY_MESSAGES_MAX

_SILENCE_S: Final = bodies.BEAT_S / 2
"""How long nothing is sent: an empty line may be late by as much."""
_LOOK_S: Final = 0.5
"""How often it is seen whether the key still counts."""


async def consume(asked: ApiRequest) -> Response:
    """Lease messages of the queue as they come."""
    rule = f"give a number from 1 to {DELIVERY_MESSAGES_MAX}"
    prefetch = number_of(asked.request, "prefetch", bodies.PREFETCH, bodies.Prefetch, rule)
    asked.receiver.check_room(prefetch)
    return Stream(asked, prefetch)


class Stream(Response):
    """The answer. Errors before its first byte are answered as those of any request, later ones are its last line."""

    media_type = bodies.LINES

    def __init__(self, asked: ApiRequest, prefetch: int) -> None:
        super().__init__(headers=bodies.FRESH | {"X-Accel-Buffering": "no"})  # which nginx reads
        del self.headers["content-length"]
        self._asked = asked
        self._credit = StreamCredit(prefetch)
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send deliveries until the client hangs up, the observer stops, or an error comes."""
        receiver = self._asked.receiver
        with receiver.wait():
            gone = asyncio.ensure_future(hang_up(self._asked.request))
            sending = asyncio.ensure_future(self._send_all(_until(gone, send)))
            stopping = asyncio.ensure_future(receiver.stopping.wait())
            revoked = asyncio.ensure_future(self._revoked())
            try:
                await asyncio.wait([sending, gone, stopping, revoked], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in (gone, stopping, revoked, sending):
                    each.cancel()
                await asyncio.wait([sending])  # what was not sent goes back
            if gone.done() and not gone.cancelled():
                raise ClientDisconnect
            if not sending.cancelled():
                sending.result()
            elif revoked.done() and not revoked.cancelled():
                await self._send_error(revoked.result(), send)
            if not self._begun:
                raise OverloadedError("the observer stops: try again", retry_after=1.0)
            await send({"type": "http.response.body", "body": b""})

    async def _send_all(self, send: Send) -> None:
        receiver, queue = self._asked.receiver, self._asked.queue
        try:
            deliveries = await receive_frame(receiver.client, queue, self._credit.free, 0.0)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            self._begun = True
            while True:
                await self._send_each(deliveries, send)
                await self._beating(asyncio.ensure_future(self._credit.wait()), send)
                deliveries = await self._next(send)
        except FilaError as error:
            await self._send_error(receiver.reason(error), send)

    async def _revoked(self) -> FilaError:
        """Return when the key has ended, with the error that says so."""
        visitor: Visitor | None = self._asked.request.scope.get(SCOPE_KEY)
        if visitor is not None:
            return await end_of(visitor, _LOOK_S)
        forever: asyncio.Future[FilaError] = asyncio.Future()
        return await forever

    async def _send_error(self, error: FilaError, send: Send) -> None:
        if not self._begun:
            raise error
        await self._send_line(encoded(bodies.error_body(error)), send)

    async def _send_each(self, deliveries: list[AsyncDelivery], send: Send) -> None:
        receiver, unsent = self._asked.receiver, deque(keep(self._asked, deliveries, self._credit))
        try:
            while unsent:
                await self._send_line(unsent[0].encoded, send)
                unsent.popleft()
        finally:
            receiver.forget([each.token for each in unsent])
            give_back(receiver.client, [each.delivery for each in unsent])
            self._asked.load.end()

    async def _next(self, send: Send) -> list[AsyncDelivery]:
        """Return the deliveries that come next; they may be none."""
        client = self._asked.receiver.client
        coming = asyncio.ensure_future(receive_frame(client, self._asked.queue, self._credit.free, bodies.WAIT_S_MAX))
        try:
            await self._beating(coming, send)
            return coming.result()
        except BaseException:
            await abandon(client, coming)
            raise

    async def _beating(self, awaited: "asyncio.Future[Any]", send: Send) -> None:
        """Send empty lines until something is done."""
        try:
            while not (await asyncio.wait([awaited], timeout=_SILENCE_S))[0]:
                await self._send_line(b"", send)
        finally:
            awaited.cancel()

    async def _send_line(self, line: bytes, send: Send) -> None:
        await send({"type": "http.response.body", "body": line + b"\n", "more_body": True})


def _until(gone: "asyncio.Future[None]", send: Send) -> Send:
    """Raise :class:`ClientDisconnect` for what was not sent, because the client has hung up: the server drops that silently."""

    async def send_it(message: Message) -> None:
        await asyncio.sleep(0)  # others come between two lines, and so does the news that the client has hung up
        await send(message)
        if gone.done():
            raise ClientDisconnect

    return send_it
