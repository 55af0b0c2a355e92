"""NATS JetStream: a stream in files with the retention of a work queue for each queue, and nats-py on uvloop.

Messages are published asynchronously, with 4,000 unconfirmed and one inbox for all confirmations (``publish_async`` of
nats-py takes twice as long). A consumer has messages pushed with 4,000 unacknowledged, and acknowledges each;
acknowledgements are not confirmed, except for the last one. This version of the server syncs its files to the disk every two
minutes: a confirmed message is in the hands of the operating system.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from benchmarks.harness.messages import Check, Load
from benchmarks.harness.systems import Pushed
from benchmarks.peers.programs import HOST, Program, accepts, free_port, output_of, required, started

PACKAGE = "nats-server"
UNCONFIRMED_MAX = 4_000
UNACKED_MAX = 4_000
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Nats:
    """A NATS server with JetStream."""

    name: str = "NATS JetStream, file store"

    def environment(self) -> Mapping[str, str]:
        """Return what clients have in their environment: nothing."""
        return {}

    @contextmanager
    def serve(self, directory: Path) -> Iterator[Program]:
        """Start a server."""
        program = required("nats-server", PACKAGE)
        port = free_port()
        command = [program, "-js", "-a", HOST, "-p", str(port), "-sd", str(directory)]
        facts = {
            "version": output_of(program, "--version").rpartition("v")[2],
            "durability": "file store, fsync every 2 minutes",
            "client": f"nats-py {version('nats-py')} on uvloop",
        }
        with started(command, directory, lambda: accepts(HOST, port)) as process:
            yield Program("nats", process, f"nats://{HOST}:{port}", facts, directory)

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator["NatsConnection"]:
        """Open a client."""
        client = await nats.connect(address, pending_size=64 << 20)
        try:
            yield NatsConnection(client)
        finally:
            await client.close()


class NatsConnection:
    """A client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stream: Any = client.jetstream(timeout=TIMEOUT_S)

    async def create(self, queue: str) -> None:
        """Make a stream."""
        config = StreamConfig(name=queue, subjects=[queue], storage=StorageType.FILE, retention=RetentionPolicy.WORK_QUEUE)
        for _ in range(50):
            try:
                await self._stream.add_stream(config)
            except nats.js.errors.ServiceUnavailableError:  # the server listens before JetStream is ready
                await asyncio.sleep(0.1)
            else:
                return
        raise SystemExit("JetStream does not become ready")

    def prepare(self, load: Load) -> list[tuple[bytes, dict[str, str]]]:
        """Return payloads and headers."""
        return [(payload, load.headers) for payload in load.payloads()]

    async def send_all(self, queue: str, prepared: list[tuple[bytes, dict[str, str]]]) -> Sequence[object]:
        """Publish with many unconfirmed; the confirmations come to one inbox."""
        ids: list[int] = []
        room, all_there = asyncio.Semaphore(UNCONFIRMED_MAX), asyncio.Event()

        async def confirmed(answer: Msg) -> None:
            ids.append(_sequence(answer))
            room.release()
            if len(ids) == len(prepared):
                all_there.set()

        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox, cb=confirmed)
        for payload, headers in prepared:
            await room.acquire()
            await self._client.publish(queue, payload, reply=inbox, headers=headers)
        await asyncio.wait_for(all_there.wait(), TIMEOUT_S)
        await subscription.unsubscribe()
        return ids

    async def send(self, queue: str, payload: bytes, headers: dict[str, str]) -> None:
        """Publish a message."""
        await self._stream.publish(queue, payload, headers=headers)

    async def drain(self, queue: str, check: Check) -> None:
        """Take what is pushed, and acknowledge each; the server confirms the last one."""
        all_there = asyncio.Event()

        async def pushed(message: Msg) -> None:
            check.note([message.data])
            if check.left:
                await message.ack()
            else:
                await message.ack_sync(timeout=TIMEOUT_S)
                all_there.set()

        subscription = await self._subscribe(queue, UNACKED_MAX, pushed)
        await all_there.wait()
        await subscription.unsubscribe()

    async def follow(self, queue: str, ahead: int) -> Pushed:
        """Yield messages as they are pushed."""
        messages: asyncio.Queue[Msg] = asyncio.Queue()
        await self._subscribe(queue, ahead, messages.put)
        while True:
            message = await messages.get()
            yield message.data, message.ack

    async def _subscribe(self, queue: str, ahead: int, pushed: Callable[[Msg], Awaitable[None]]) -> Any:
        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=ahead)
        return await self._stream.subscribe(queue, durable="workers", cb=pushed, manual_ack=True, config=config)


def _sequence(answer: Msg) -> int:
    """Return the number that the server gave a message, or fail with its error."""
    found = json.loads(answer.data or b"{}")
    if "error" in found or "seq" not in found:
        raise SystemExit(f"JetStream did not store a message: {found or answer.headers}")
    number: int = found["seq"]
    return number
