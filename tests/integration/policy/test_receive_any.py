"""Receiving from several queues at once, through a real cluster: on both workers, nothing lost, nothing leased unseen."""

import threading

import pytest

from fila_cluster import Client
from fila_cluster.errors import QueueNotFoundError
from tests.support.cluster.cluster import Cluster, eventually


@pytest.fixture
def queues(client: Client, queue: str) -> list[str]:
    """Three queues on each of the two shards: where a name goes is up to its hash."""
    by_shard: dict[int, list[str]] = {0: [], 1: []}
    for number in range(100):
        name = f"{queue}-{number}"
        client.create_queue(name)
        (info,) = (each for each in client.list_queues(name) if each.name == name)
        by_shard[info.shard].append(name)
        if min(map(len, by_shard.values())) >= 3:
            break
    return sorted(by_shard[0][:3] + by_shard[1][:3])


def test_what_is_ready_now_comes_from_all_of_them(client: Client, queues: list[str]):
    for queue in queues[:3]:
        for number in range(3):
            client.enqueue(queue, str(number).encode())
    got = client.receive_any(dict.fromkeys(queues, 2), wait=60)
    assert [(delivery.queue, delivery.text()) for delivery in got] == [(queue, text) for queue in queues[:3] for text in "01"]
    client.ack(got)
    assert all(client.queue_stats(queue).depth == 1 for queue in queues[:3])


def test_nothing_is_nothing(client: Client, queues: list[str]):
    assert client.receive_any(dict.fromkeys(queues, 1)) == []
    assert client.receive_any(dict.fromkeys(queues, 1), wait=0.1) == []


def test_what_comes_first_ends_the_waiting_and_nothing_is_lost(client: Client, shared_cluster: Cluster, queues: list[str]):
    """A producer fills all queues meanwhile: whatever is leased is handed over."""
    total = 600

    def produce():
        with shared_cluster.client() as producer:
            for number in range(total):
                producer.enqueue(queues[number % len(queues)], b"x")

    thread = threading.Thread(target=produce)
    thread.start()
    seen = []
    while len(seen) < total:
        got = client.receive_any(dict.fromkeys(queues, 5), wait=60)
        assert got
        client.ack(got)
        seen += [delivery.id for delivery in got]
    thread.join()
    assert len(set(seen)) == total
    assert sum(client.queue_stats(queue).depth for queue in queues) == 0


def test_a_wait_that_is_over_leaves_no_receive_behind(client: Client, shared_cluster: Cluster, queues: list[str]):
    client.enqueue(queues[0], b"x")
    client.ack(client.receive_any(dict.fromkeys(queues, 1), wait=60))
    client.receive_any(dict.fromkeys(queues, 1), wait=0.1)
    with shared_cluster.client() as other:
        for queue in queues:
            other.enqueue(queue, b"y")
            (got,) = other.receive(queue)
            got.ack()


def test_a_missing_queue_is_an_error_and_the_others_messages_stay(client: Client, queues: list[str]):
    client.enqueue(queues[0], b"x")
    with pytest.raises(QueueNotFoundError):
        client.receive_any({queues[0]: 1, "no-such-queue": 1}, wait=60)
    eventually(lambda: client.queue_stats(queues[0]).pending == 1, "it is given back")
    (got,) = client.receive(queues[0])
    assert got.attempts == 0
    got.ack()


def test_one_queue_is_as_with_receive(client: Client, queue: str):
    ids = [client.enqueue(queue, b"x") for _ in range(3)]
    got = client.receive_any({queue: 2}, wait=60)
    assert [delivery.id for delivery in got] == ids[:2]
    client.ack(got)
