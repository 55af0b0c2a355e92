"""Views over the wire: opened by one client, read by others, while everything goes on."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fila_cluster import Client, Message
from fila_cluster.client.calls.reservations import KeyRange, ShardViews
from fila_cluster.client.forwarding import CommandsAhead
from fila_cluster.errors import InvalidArgumentError, QueueNotFoundError
from fila_proto_zmq.record import payload_of
from tests.support.cluster.cluster import Cluster


@pytest.fixture
def client(shared_cluster: Cluster) -> Iterator[Client]:
    """A blocking client: readers of views have no other."""
    with shared_cluster.client() as client:
        yield client


@pytest.fixture
def view(queue: str) -> str:
    """Return the name of a view that no other test opens."""
    return f"view-of-{queue}"


def payloads(client: Client, name: str, *stretches: KeyRange) -> list[bytes]:
    views = ShardViews(CommandsAhead(client))
    return [
        payload_of(message.record)
        for stretch in stretches
        for page in views.pages(name, stretch)
        for message in page
    ]  # fmt: skip


def test_others_read_what_one_opened_however_the_queue_goes_on(
    shared_cluster: Cluster, client: Client, queue: str, view: str
) -> None:
    expected = [b"%04d" % number for number in range(5000)]
    client.enqueue_many(queue, [Message(payload, fairness_key=f"k{payload[-1]}") for payload in expected])
    (opened,) = ShardViews(CommandsAhead(client)).open(view, [queue, "nowhere"], 1000, 60.0)
    assert (opened.name, opened.messages, len(opened.bounds)) == (queue, 5000, 4)
    client.ack(client.receive(queue, 700))
    client.purge_queue(queue)
    client.delete_queue(queue)

    stretches = [
        KeyRange(queue, first, end) for first, end in zip(["", *opened.bounds], [*opened.bounds, None], strict=True)
    ]  # fmt: skip
    with shared_cluster.client() as another, ThreadPoolExecutor(5) as readers:
        found = list(readers.map(lambda stretch: payloads(another, view, stretch), stretches))
    assert [len(part) for part in found] == [1000] * 5
    assert sorted(payload for part in found for payload in part) == expected


def test_filters_are_the_brokers_work(client: Client, queue: str, view: str) -> None:
    client.enqueue_many(queue, [Message(b"%d" % number, fairness_key=f"k{number % 3}") for number in range(30)])
    held = client.receive(queue, 5)
    ShardViews(CommandsAhead(client)).open(view, [queue], 1000, 60.0)
    pages = list(ShardViews(CommandsAhead(client)).pages(view, KeyRange(queue), fairness_keys=["k1"], states=["leased"]))
    assert {payload_of(message.record) for page in pages for message in page} == {
        delivery.payload for delivery in held if delivery.fairness_key == "k1"
    }
    client.ack(held)


def test_what_is_not_there_is_a_typed_error(client: Client, queue: str, view: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no view 'never-opened' is open"):
        payloads(client, "never-opened", KeyRange(queue))
    ShardViews(CommandsAhead(client)).open(view, [queue], 1000, 60.0)
    with pytest.raises(QueueNotFoundError, match=f"is not in view '{view}'"):
        payloads(client, view, KeyRange(f"{queue}.dlq"))
