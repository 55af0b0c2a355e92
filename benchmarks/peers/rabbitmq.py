"""RabbitMQ: a quorum queue of one node for each queue, and pika on uvloop.

Messages are persistent; 2,000 are published without a confirmation. A consumer has 2,000 unacknowledged, and acknowledges 500
at a time. pika's connection for asyncio: aio-pika takes five times as long for a message, and pika's blocking connection
waits for each confirmation. A quorum queue confirms a message when it is synced to the disk, many at a time. Acknowledgements
are not confirmed.
"""

import asyncio
import os
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel
from pika.spec import Basic

from benchmarks.harness.messages import Check, Load
from benchmarks.harness.systems import Pushed
from benchmarks.peers.programs import HOST, Program, accepts, free_port, required, started

PACKAGE = "rabbitmq-server"
UNCONFIRMED_MAX = 2_000
PREFETCH = 2_000
ACK_BATCH = 500


@dataclass(frozen=True)
class RabbitMQ:
    """A RabbitMQ server of one node."""

    name: str = "RabbitMQ, quorum queue"

    def environment(self) -> Mapping[str, str]:
        """Return what clients have in their environment: nothing."""
        return {}

    @contextmanager
    def serve(self, directory: Path) -> Iterator[Program]:
        """Start a node, and the name server of Erlang that belongs to it."""
        program = required("rabbitmq-server", PACKAGE)
        names = required("epmd", "erlang-base")
        port, names_port, node_port = free_port(), free_port(), free_port()
        directory.mkdir(parents=True)
        (directory / "plugins").write_text("[].")
        (directory / "node.conf").write_text(f"listeners.tcp.local = {HOST}:{port}\n")
        env = {
            "HOME": str(directory),
            "ERL_EPMD_PORT": str(names_port),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_NODENAME": f"measured-{port}@localhost",
            "RABBITMQ_DIST_PORT": str(node_port),
            "RABBITMQ_CONFIG_FILE": str(directory / "node.conf"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-start_epmd false -setcookie {secrets.token_hex(16)}",
        }
        with (
            started(
                [names, "-port", str(names_port), "-address", HOST], directory / "names", lambda: accepts(HOST, names_port)
            ),
            started([program], directory / "node", lambda: accepts(HOST, port), env) as process,
        ):
            facts = {
                "version": _version(directory),
                "durability": "quorum queue, publisher confirms",
                "client": f"pika {version('pika')} on uvloop",
            }
            yield Program("rabbitmq", process, f"{HOST}:{port}", facts, directory)

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator["RabbitConnection"]:
        """Open a client."""
        host, _, port = address.partition(":")
        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        closed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        connection = AsyncioConnection(
            pika.ConnectionParameters(host, int(port)),
            on_open_callback=opened.set_result,
            on_open_error_callback=lambda _, error: opened.set_exception(error),
            on_close_callback=lambda _, error: closed.set_result(error),
            custom_ioloop=asyncio.get_running_loop(),
        )
        await opened
        try:
            channel = await _called(lambda done: connection.channel(on_open_callback=done))
            yield await RabbitConnection.open(channel)
        finally:
            if connection.is_open:
                connection.close()
            await closed


class RabbitConnection:
    """A client: one channel, with confirmations."""

    def __init__(self, channel: Channel) -> None:
        self._channel: Any = channel
        self._published = 0
        self._unconfirmed: dict[int, asyncio.Future[None] | None] = {}
        """By number, in order; with what waits for the confirmation of this one."""
        self._at_most = 0
        self._few: asyncio.Future[None] | None = None
        """What waits until at most so many are unconfirmed."""

    @classmethod
    async def open(cls, channel: Channel) -> Self:
        """Make a client of a channel."""
        made = cls(channel)
        await _called(lambda done: channel.confirm_delivery(made._note, callback=done))
        return made

    async def create(self, queue: str) -> None:
        """Declare a queue."""
        arguments = {"x-queue-type": "quorum"}
        await _called(lambda done: self._channel.queue_declare(queue, durable=True, arguments=arguments, callback=done))

    def prepare(self, load: Load) -> tuple[list[bytes], pika.BasicProperties]:
        """Return payloads, and what all of them have in common."""
        return load.payloads(), _properties(load.headers)

    async def send_all(self, queue: str, prepared: tuple[list[bytes], pika.BasicProperties]) -> Sequence[object]:
        """Publish with many unconfirmed. There are no ids."""
        payloads, properties = prepared
        for payload in payloads:
            self._publish(queue, payload, properties)
            if len(self._unconfirmed) >= UNCONFIRMED_MAX:
                await self._until_unconfirmed(UNCONFIRMED_MAX // 2)
        await self._until_unconfirmed(0)
        return ()

    async def send(self, queue: str, payload: bytes, headers: dict[str, str]) -> None:
        """Publish a message."""
        number = self._publish(queue, payload, _properties(headers))
        confirmed = self._unconfirmed[number] = asyncio.get_running_loop().create_future()
        await confirmed

    async def drain(self, queue: str, check: Check) -> None:
        """Take what is delivered, and acknowledge many at once."""
        all_there = asyncio.Event()

        def delivered(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            check.note([body])
            if check.received % ACK_BATCH == 0 or not check.left:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if not check.left:
                all_there.set()

        tag = await self._consume(queue, PREFETCH, delivered)
        await all_there.wait()
        await _called(lambda done: self._channel.basic_cancel(tag, callback=done))  # answered behind the last acknowledgement

    async def follow(self, queue: str, ahead: int) -> Pushed:
        """Yield messages as they are delivered."""
        messages: asyncio.Queue[tuple[bytes, int]] = asyncio.Queue()

        def delivered(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            messages.put_nowait((body, method.delivery_tag))

        await self._consume(queue, ahead, delivered)
        while True:
            body, tag = await messages.get()

            async def ack(tag: int = tag) -> None:
                self._channel.basic_ack(tag)

            yield body, ack

    async def _consume(self, queue: str, ahead: int, delivered: Callable[[Any, Any, Any, bytes], None]) -> str:
        await _called(lambda done: self._channel.basic_qos(prefetch_count=ahead, callback=done))
        tag: str = self._channel.basic_consume(queue, delivered)
        return tag

    def _publish(self, queue: str, payload: bytes, properties: pika.BasicProperties) -> int:
        self._published += 1
        self._unconfirmed[self._published] = None
        self._channel.basic_publish("", queue, payload, properties)
        return self._published

    async def _until_unconfirmed(self, at_most: int) -> None:
        if len(self._unconfirmed) > at_most:
            self._at_most, self._few = at_most, asyncio.get_running_loop().create_future()
            await self._few

    def _note(self, frame: Any) -> None:
        """Note a confirmation: for one message, or for all up to one."""
        method = frame.method
        if isinstance(method, Basic.Nack):
            raise SystemExit("RabbitMQ did not store a message")
        tag, unconfirmed = method.delivery_tag, self._unconfirmed
        for each in list(takewhile(lambda number: number <= tag, unconfirmed)) if method.multiple else [tag]:
            awaited = unconfirmed.pop(each)
            if awaited is not None:
                awaited.set_result(None)
        if self._few is not None and len(unconfirmed) <= self._at_most:
            self._few.set_result(None)
            self._few = None


def _properties(headers: dict[str, str]) -> pika.BasicProperties:
    return pika.BasicProperties(headers=headers, delivery_mode=pika.DeliveryMode.Persistent.value)


async def _called(start: Callable[[Callable[[Any], None]], Any]) -> Any:
    """Start something that calls back when it is done. Return what it calls back with."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    start(done.set_result)
    return await done


def _version(directory: Path) -> str:
    """Return the version, which the node writes into its log."""
    found = re.search(r"RabbitMQ (\d[\w.]*)", "".join(log.read_text() for log in (directory / "log").glob("*.log")))
    return found[1] if found else ""
