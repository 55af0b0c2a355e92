"""What a dashboard asks of a real cluster: what a queue is, and that picked dead letters go back."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from fila_cluster import AsyncClient, Client, Message
from fila_cluster.client.calls.backlog import redrive_selected
from fila_cluster.client.calls.queues import describe_queue
from fila_cluster.errors import QueueNotFoundError
from fila_proto_zmq.commands import QueueOptions
from fila_proto_zmq.names import shard_of
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually, running

Main = Callable[[AsyncClient], Awaitable[None]]

SCRIPT = "function on_enqueue(msg) return { fairness_key = msg.headers.tenant } end"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("data"), "--shards", 2, workers=2) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.client() as client:
        yield client


def run(cluster: Cluster, main: Main) -> None:
    async def with_client() -> None:
        async with AsyncClient(cluster.endpoint, timeout=PATIENCE_S) as client:
            await main(client)

    asyncio.run(with_client())


def test_a_queue_is_described(cluster: Cluster, client: Client):
    client.create_queue("orders", on_enqueue=SCRIPT, max_attempts=3, visibility_timeout=40)
    for number in range(5):
        client.enqueue("orders", b"x", {"tenant": str(number)})

    async def main(observer: AsyncClient) -> None:
        async with observer.consume("orders", prefetch=2) as deliveries:
            delivery = await anext(deliveries)
            told = await describe_queue(observer, "orders")
            await delivery.ack()
        assert told.options == QueueOptions(40_000, 3, SCRIPT, None, "dlq", "at_least_once", partitions=1, spread="key")
        assert (told.info.pending, told.info.in_flight, told.info.shard) == (3, 2, shard_of("orders", 2))
        (consumer,) = told.consumers
        assert (consumer.kind, consumer.prefetch, consumer.credit, consumer.in_flight) == ("push", 2, 0, 2)
        assert told.created_ms <= consumer.heard_ms < consumer.expires_ms <= consumer.heard_ms + 40_000
        assert told.hooks is not None
        assert (told.hooks.failed, told.hooks.open_until_ms) == (0, 0)
        assert (await describe_queue(observer, "orders.dlq")).redrivable
        with pytest.raises(QueueNotFoundError):
            await describe_queue(observer, "nowhere")

    run(cluster, main)


def test_picked_dead_letters_go_back_to_a_queue_of_another_shard(cluster: Cluster, client: Client):
    letters = next(name for name in map("letters{}".format, range(100)) if shard_of(name, 2) != shard_of("far", 2))
    client.create_queue(letters)
    client.create_queue("far", dead_letter=letters)
    ids = [client.enqueue("far", b"%d" % number) for number in range(6)]
    for delivery in client.receive("far", 6):
        delivery.fail("boom")
    eventually(lambda: client.queue_stats(letters).pending == 6, "all dead letters have arrived")

    async def main(observer: AsyncClient) -> None:
        picked = [ids[4], ids[1], "00000000-0000-7000-8000-000000000000"]
        assert await redrive_selected(observer, letters, picked) == 2

    run(cluster, main)
    eventually(lambda: client.queue_stats("far").pending == 2, "the picked ones are back")
    assert {view.id for view in client.browse("far")} == {ids[1], ids[4]}
    assert {view.id for view in client.browse(letters)} == {ids[0], ids[2], ids[3], ids[5]}


def test_more_than_a_command_names_of_many_keys(cluster: Cluster, client: Client):
    client.create_queue("many")
    messages = [Message(b"x", fairness_key=f"k{number % 300}") for number in range(2400)]
    ids = client.enqueue_many("many", messages)
    while deliveries := client.receive("many", 500):
        for delivery in deliveries:
            delivery.fail("boom")

    async def main(observer: AsyncClient) -> None:
        assert await redrive_selected(observer, "many.dlq", ids[::2]) == 1200

    run(cluster, main)
    assert client.queue_stats("many").pending == 1200
    assert {view.id for view in client.browse("many.dlq", limit=3000)} == set(ids[1::2])
