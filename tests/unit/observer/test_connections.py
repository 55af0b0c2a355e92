"""Connections to the observer's address that ask for nothing, or for too much: each is closed, and takes bounded room until then."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import pytest

from fila_cluster.ops.observer.serving import HEAD_BYTES_MAX, BoundedConnection, _answer, listen
from tests.support.cluster.cluster import PATIENCE_S

HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _page(scope: Any, receive: Any, send: Any) -> None:
    """A page that waits for its whole body, and for what the request's header says."""
    if scope["type"] == "lifespan":
        return
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(float(dict(scope["headers"]).get(b"wait", b"0")))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


class Server:
    """The address, and what is connected to it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._opened: list[asyncio.StreamWriter] = []

    async def connect(self) -> Streams:
        streams = await asyncio.open_connection("127.0.0.1", self._port)
        self._opened.append(streams[1])
        return streams

    async def leave(self) -> None:
        for writer in self._opened:
            await close(writer)


@asynccontextmanager
async def address() -> AsyncIterator[Server]:
    with listen("127.0.0.1", 0) as listener:
        serving = asyncio.ensure_future(_answer(_page, listener, None))
        server = Server(listener.getsockname()[1])
        try:
            yield server
        finally:
            await server.leave()
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def send(writer: asyncio.StreamWriter, piece: bytes, times: int) -> None:
    for _ in range(times):
        writer.write(piece)
        await writer.drain()


async def end_of(streams: Streams) -> bytes:
    """What comes until the other side closes."""
    with suppress(ConnectionError):
        return await asyncio.wait_for(streams[0].read(), PATIENCE_S)
    return b""


async def answer_of(streams: Streams, request: bytes) -> bytes:
    streams[1].write(request)
    head = await asyncio.wait_for(streams[0].readuntil(b"\r\n\r\n"), PATIENCE_S)
    assert await streams[0].readexactly(2) == b"ok"
    return head.partition(b"\r\n")[0]


OK = b"HTTP/1.1 200 OK"


@pytest.mark.parametrize(
    ("sent", "more"),
    [(b"GET / HTTP/1.1\r\nX: ", b"x" * 1000), (HEAD, b"X: %s\r\n" % (b"x" * 995)), (b"GET /", b"x" * 1000)],
)
def test_the_head_of_a_request_has_a_bound(sent: bytes, more: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with address() as server:
            _, writer = await server.connect()
            writer.write(sent)
            with pytest.raises(ConnectionError):
                await send(writer, more, 100 * HEAD_BYTES_MAX // len(more))

    caplog.set_level(logging.CRITICAL, "uvicorn.error")
    asyncio.run(test())


def test_who_asks_for_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also who sends a byte of a head now and then, at first and after an answer. A request takes the time that it takes."""
    monkeypatch.setattr(BoundedConnection, "head_s_max", 0.3)

    async def drip(writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            for number in count():
                writer.write(b"X-%d: y\r\n" % number)
                await writer.drain()
                await asyncio.sleep(0.05)

    async def test() -> None:
        async with address() as server:
            silent, slow, second, waiting = [await server.connect() for _ in range(4)]
            slow[1].write(HEAD)
            assert await answer_of(second, HEAD + b"\r\n") == OK
            second[1].write(HEAD)
            async with asyncio.TaskGroup() as group:
                drips = [group.create_task(drip(streams[1])) for streams in (slow, second)]
                assert await answer_of(waiting, HEAD + b"Wait: 1\r\n\r\n") == OK
                for streams in (silent, slow, second):
                    assert await end_of(streams) == b""
                for task in drips:
                    task.cancel()
            assert await answer_of(waiting, HEAD + b"\r\n") == OK

    asyncio.run(test())


def test_their_number_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedConnection, "connections_max", 2)

    async def test() -> None:
        async with address() as server:
            first, second = [await server.connect() for _ in range(2)]
            assert [await answer_of(streams, HEAD + b"\r\n") for streams in (first, second)] == [OK, OK]
            assert await end_of(await server.connect()) == b""
            await close(first[1])
            assert await answer_of(second, HEAD + b"\r\n") == OK  # it has seen by then that the first one is gone
            assert await answer_of(await server.connect(), HEAD + b"\r\n") == OK

    asyncio.run(test())
