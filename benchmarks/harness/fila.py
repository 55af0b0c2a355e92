"""The system under measurement: a cluster of this checkout, and its client library. Client options and bulk ways are made
here only."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.cluster import OneCluster
from benchmarks.harness.messages import Check, Load
from benchmarks.harness.systems import Pushed
from fila_cluster import AsyncClient, Client, Delivery, Message
from fila_proto_zmq.version import VERSION

TIMEOUT_S = 60.0
ACK_BATCH = 500
ACKS_IN_FLIGHT = 4
PREFETCH = 4000
WAYS = ("direct", "router")
WAYS_OR_BOTH = (*WAYS, "both")
"""For benchmarks that show both ways beside each other."""
CLIENTS = {
    "Fila": "asyncio on uvloop",
    "FilaProducer": "asyncio on uvloop, producer()",
    "FilaBlocking": "blocking",
    "Guarded": "asyncio on uvloop",
}


def client_options() -> dict[str, Any]:
    """Return the options of each client. The way is in the environment (:meth:`Fila.environment`)."""
    return {"timeout": TIMEOUT_S}


def blocking_client(address: str) -> Client:
    """Open a blocking client."""
    return Client(address, **client_options())


def asyncio_client(address: str) -> AsyncClient:
    """Open an asyncio client."""
    return AsyncClient(address, **client_options())


def messages(load: Load) -> list[Message]:
    """Return the messages of a load."""
    pairs = zip(load.payloads(), load.key_names(), strict=True)
    return [Message(payload, load.headers, fairness_key=key) for payload, key in pairs]


async def send_all(client: AsyncClient, queue: str, sent: Sequence[Message]) -> list[str]:
    """Enqueue messages in the fastest safe way. Return their ids."""
    return await client.enqueue_many(queue, sent)


async def produce_all(client: AsyncClient, queue: str, sent: Sequence[Message]) -> list[str]:
    """Enqueue messages one after the other through a producer, which puts them into batches. Return their ids."""
    async with client.producer(queue) as producer:
        futures = [
            await producer.send(message.payload, message.headers, fairness_key=message.fairness_key) for message in sent
        ]
    return [future.result() for future in futures]


async def drain(client: AsyncClient, queue: str, check: Check) -> None:
    """Receive and ack messages in the fastest safe way, until the check has all of its load."""
    async with client.consume_batches(queue) as batches:
        while check.left > 0:
            batch = await anext(batches)
            check.note([delivery.payload for delivery in batch])
            await batch.ack()


def one_queue_on_each(address: str, shards: int, prefix: str = "shard") -> list[str]:
    """Make a queue on each shard, and return their names in the order of the shards."""
    found: dict[int, str] = {}
    with blocking_client(address) as client:
        for number in range(64 * shards):
            name = f"{prefix}-{number}"
            client.create_queue(name)
            shard = next(info.shard for info in client.list_queues(name) if info.name == name)
            if shard in found:
                client.delete_queue(name)
            found.setdefault(shard, name)
            if len(found) == shards:
                return [found[shard] for shard in range(shards)]
    raise SystemExit(f"no queue for each of {shards} shards")


async def receive_in_turn(client: AsyncClient, queue: str, check: Check) -> None:
    """Receive and ack messages until the check has what it expects, and not one more: nothing is prefetched."""
    acks: deque[asyncio.Task[None]] = deque()
    while check.left > 0:
        deliveries = await client.receive(queue, min(ACK_BATCH, check.left), wait=5)
        check.note([delivery.payload for delivery in deliveries])
        acks.append(asyncio.create_task(client.ack(deliveries)))
        if len(acks) == ACKS_IN_FLIGHT:
            await acks.popleft()
    await asyncio.gather(*acks)


class FilaConnection:
    """An asyncio client as workloads see it."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def create(self, queue: str) -> None:
        """Make a queue."""
        await self.client.create_queue(queue)

    def prepare(self, load: Load) -> list[Message]:
        """Return the messages of a load."""
        return messages(load)

    async def send_all(self, queue: str, prepared: list[Message]) -> Sequence[object]:
        """Enqueue messages in bulk."""
        return await send_all(self.client, queue, prepared)

    async def send(self, queue: str, payload: bytes, headers: dict[str, str]) -> None:
        """Enqueue one message."""
        await self.client.enqueue(queue, payload, headers)

    async def drain(self, queue: str, check: Check) -> None:
        """Receive and ack in bulk."""
        await drain(self.client, queue, check)

    async def follow(self, queue: str, ahead: int) -> Pushed:
        """Yield messages as they are pushed."""
        async with self.client.consume(queue, prefetch=ahead) as deliveries:
            async for delivery in deliveries:
                yield delivery.payload, delivery.ack


class BlockingConnection:
    """A blocking client as workloads see it. It blocks its process, which has nothing else to do."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def create(self, queue: str) -> None:
        """Make a queue."""
        self.client.create_queue(queue)

    def prepare(self, load: Load) -> list[Message]:
        """Return the messages of a load."""
        return messages(load)

    async def send_all(self, queue: str, prepared: list[Message]) -> Sequence[object]:
        """Enqueue messages in bulk."""
        return self.client.enqueue_many(queue, prepared)

    async def send(self, queue: str, payload: bytes, headers: dict[str, str]) -> None:
        """Enqueue one message."""
        self.client.enqueue(queue, payload, headers)

    async def drain(self, queue: str, check: Check) -> None:
        """Receive and ack in bulk."""
        with self.client.consume_batches(queue) as batches:
            while check.left > 0:
                batch = next(batches)
                check.note([delivery.payload for delivery in batch])
                batch.ack()

    async def follow(self, queue: str, ahead: int) -> Pushed:
        """Yield messages as they are pushed."""
        with self.client.consume(queue, prefetch=ahead) as deliveries:
            for delivery in deliveries:
                yield delivery.payload, partial(_acked, delivery)
                await asyncio.sleep(0)  # the ack has its turn before the next message blocks the loop


async def _acked(delivery: Delivery) -> None:
    delivery.ack()


@dataclass(frozen=True)
class Fila:
    """A cluster of ``fila-cluster up``. ``options``: more flags of ``up``; ``label``: instead of the usual name."""

    durability: str = "os"
    workers: int = 1
    way: str = "direct"
    options: tuple[str, ...] = ()
    label: str = "fila-cluster"

    @property
    def name(self) -> str:
        """As tables show it."""
        return self.label

    def facts(self) -> dict[str, str]:
        """Return what is measured."""
        return {
            "version": VERSION,
            "durability": f'"{self.durability}"',
            "client": f"{CLIENTS[type(self).__name__]}, way {self.way}",
        }

    @contextmanager
    def serve(self, directory: Path) -> Iterator[OneCluster]:
        """Start a cluster."""
        flags = ("--durability", self.durability, *self.options)
        with OneCluster(directory, *flags, workers=self.workers, facts=self.facts()) as cluster:
            yield cluster

    def environment(self) -> Mapping[str, str]:
        """Return what makes clients go through the router or straight to workers."""
        return {"FILA_DIRECT": "1" if self.way == "direct" else "0"}

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator[Any]:
        """Open a client."""
        async with asyncio_client(address) as client:
            await client.cluster_status()  # the connection stands before a clock starts
            yield FilaConnection(client)


class ProducerConnection(FilaConnection):
    """An asyncio client that enqueues in bulk through a producer."""

    async def send_all(self, queue: str, prepared: list[Message]) -> Sequence[object]:
        """Enqueue messages one after the other."""
        return await produce_all(self.client, queue, prepared)


@dataclass(frozen=True)
class FilaProducer(Fila):
    """The same cluster, with an application that has one message at a time and sends it through ``producer()``."""

    label: str = "fila-cluster, producer()"

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator[Any]:
        """Open a client."""
        async with asyncio_client(address) as client:
            await client.cluster_status()
            yield ProducerConnection(client)


@dataclass(frozen=True)
class FilaBlocking(Fila):
    """The same cluster, with the blocking client."""

    label: str = "fila-cluster, blocking client"

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator[Any]:
        """Open a client."""
        with blocking_client(address) as client:
            client.cluster_status()
            yield BlockingConnection(client)


def by_ways(way: str, *systems: Fila) -> list[Fila]:
    """Return the systems with one way, or with both, where the names say the way."""
    if way != "both":
        return [replace(system, way=way) for system in systems]
    return [replace(system, way=each, label=f"{system.label}, {each}") for system in systems for each in WAYS]
