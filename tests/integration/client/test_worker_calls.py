"""What libraries of task workers use: a take with a time limit, acks that are not waited for, messages that are given back."""

import gc
import os
from typing import Any

import pytest

from fila_cluster.client.lazy import LazyClient
from fila_cluster.client.polled import ACK, PolledClient
from fila_cluster.errors import AlreadySettledError, BatchError, InvalidArgumentError, QueueNotFoundError
from tests.integration.client.conftest import Connect
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually


def depth(client: Any, queue: str) -> int:
    return int(client.queue_stats(queue).depth)


def test_a_take_returns_what_comes_and_nothing_when_nothing_does(client: Any, queue: str) -> None:
    with client.consume(queue) as deliveries:
        assert deliveries.take() is None
        assert deliveries.take(0.01) is None
        client.enqueue(queue, b"1")
        delivery = deliveries.take(PATIENCE_S)
        assert delivery.payload == b"1"
        delivery.ack()
    assert deliveries.take(PATIENCE_S) is None


def test_a_take_raises_what_ended_the_subscription(client: Any, queue: str) -> None:
    with client.consume(queue + "-missing") as deliveries, pytest.raises(QueueNotFoundError):
        deliveries.take(PATIENCE_S)


def test_a_take_refuses_a_bad_timeout_by_its_name(client: Any, queue: str) -> None:
    with client.consume(queue) as deliveries, pytest.raises(InvalidArgumentError, match="timeout=-1"):
        deliveries.take(-1)


def test_what_is_acked_soon_is_gone(client: Any, queue: str) -> None:
    for payload in (b"1", b"2", b"3"):
        client.enqueue(queue, payload)
    first, *others = client.receive(queue, 3)
    client.ack_soon([first])
    client.ack_soon(others)
    with pytest.raises(AlreadySettledError):
        client.ack_soon([first])
    eventually(lambda: depth(client, queue) == 0, "all are acked")


def test_a_client_that_is_closed_at_once_has_acked(connect: Connect, client: Any, queue: str) -> None:
    client.enqueue(queue, b"1")
    with connect() as leaving:
        leaving.ack_soon(leaving.receive(queue))
    assert depth(client, queue) == 0


def test_what_is_given_back_keeps_its_place_and_counts_no_attempt(client: Any, queue: str) -> None:
    ids = [client.enqueue(queue, b"%d" % number) for number in range(4)]
    first, second = client.receive(queue, 2)
    client.give_back([second, first])
    again = client.receive(queue, 4)
    assert [(each.id, each.attempts) for each in again] == [(each, 0) for each in ids]
    client.ack(again)
    with pytest.raises(BatchError):
        client.give_back([first])


def test_a_feed_gives_deliveries_which_are_settled_soon_and_not_kept(shared_cluster: Cluster, queue: str) -> None:
    with PolledClient(shared_cluster.endpoint, timeout=PATIENCE_S) as polled:
        feed = polled.feed(queue, 1)
        assert feed.take() is None
        polled.enqueue(queue, b"1")
        polled.wait(PATIENCE_S)
        delivery = feed.take()
        assert delivery is not None
        assert delivery.payload == b"1"
        gc.disable()  # a cycle would keep it
        try:
            polled.settle_soon(delivery, ACK)
            polled.push()
            eventually(lambda: depth(polled, queue) == 0, "it is acked")
            assert [each for each in gc.get_referrers(delivery) if isinstance(each, tuple)] == []  # as the settling has it
        finally:
            gc.enable()
        feed.close()
        assert feed.take() is None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_lazy_client_is_another_one_in_the_child_of_a_fork(shared_cluster: Cluster, queue: str) -> None:
    lazy = LazyClient(endpoint=shared_cluster.endpoint, timeout=PATIENCE_S)
    lazy.get().enqueue(queue, b"parent")
    child = os.fork()
    if not child:
        code = 1
        try:
            lazy.get().enqueue(queue, b"child")
            lazy.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    deliveries = lazy.get().receive(queue, 2)
    assert [each.payload for each in deliveries] == [b"parent", b"child"]
    lazy.get().ack(deliveries)
    lazy.close()
    gc.collect()
