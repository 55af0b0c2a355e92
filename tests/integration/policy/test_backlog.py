"""Looking at a backlog, and working on it, through a real cluster."""

import time
from itertools import pairwise

import pytest

from fila_cluster import Client, Message
from fila_cluster.errors import InvalidArgumentError, MessageNotFoundError, QueueNotFoundError
from tests.support.cluster.cluster import Cluster, eventually, running


@pytest.fixture
def backlog(client: Client, queue: str) -> list[str]:
    """Ids of three messages of a and two of b, in line order."""
    keys = "aaabb"
    return client.enqueue_many(queue, [Message(str(n).encode(), fairness_key=key) for n, key in enumerate(keys)])


# --- browsing ---------------------------------------------------------------------------------------------------------


def test_browsing_shows_what_is_there_and_leases_nothing(client: Client, queue: str, backlog: list[str]):
    views = client.browse(queue)
    assert [view.id for view in views] == backlog
    assert [(view.fairness_key, view.text(), view.state) for view in views[2:4]] == [
        ("a", "2", "pending"),
        ("b", "3", "pending"),
    ]
    assert client.queue_stats(queue).pending == 5


def test_every_state_is_shown_with_what_belongs_to_it(client: Client, queue: str):
    leased_id, _ = client.enqueue(queue, b"leased"), client.enqueue(queue, b"pending")
    client.enqueue(queue, b"delayed", {"h": "v"}, delay=3600, throttle_keys=["t"], cost=2)
    (held,) = client.receive(queue)
    by_state = {view.state: view for view in client.browse(queue)}
    leased, delayed = by_state["leased"], by_state["delayed"]
    assert (leased.id, leased.leased_at, leased.lease_expires_at) == (leased_id, held.leased_at, held.lease_expires_at)
    assert leased.consumer
    assert (delayed.headers, delayed.throttle_keys, delayed.cost) == ({"h": "v"}, ["t"], 2)
    assert delayed.due_at is not None
    assert abs((delayed.due_at - delayed.enqueued_at).total_seconds() - 3600) < 5
    for state in ("pending", "leased", "delayed"):
        assert [view.payload for view in client.browse(queue, state=state)] == [state.encode()]
    held.ack()


def test_pages_join_without_a_gap(client: Client, queue: str):
    ids = client.enqueue_many(queue, [Message(b"x", fairness_key=f"k{n // 1000}") for n in range(2500)])
    assert [view.id for view in client.browse(queue, limit=10_000)] == ids
    seen: list[str] = []
    while page := client.browse(queue, limit=700, after=seen[-1] if seen else None):
        seen += [view.id for view in page]
    assert seen == ids
    assert [view.id for view in client.browse(queue, limit=5, fairness_key="k1")] == ids[1000:1005]


def test_browsing_what_is_not_there(client: Client, queue: str):
    assert client.browse(queue) == []
    with pytest.raises(QueueNotFoundError):
        client.browse("no-such-queue")


# --- cancelling -------------------------------------------------------------------------------------------------------


def test_cancelling_takes_what_waits_and_leaves_what_is_leased(client: Client, queue: str, backlog: list[str]):
    (held,) = client.receive(queue)
    assert client.cancel(queue, held.id) is False
    assert client.cancel(queue, backlog[1]) is True
    delayed = client.enqueue(queue, b"x", delay=3600)
    assert client.cancel(queue, delayed) is True
    with pytest.raises(MessageNotFoundError):
        client.cancel(queue, delayed)
    held.ack()
    with pytest.raises(MessageNotFoundError):
        client.cancel(queue, held.id)
    with pytest.raises(InvalidArgumentError):
        client.cancel(queue, "no-id")
    assert backlog[1] not in {view.id for view in client.browse(queue)}
    assert client.queue_stats(queue).depth == 3


# --- purging ----------------------------------------------------------------------------------------------------------


def test_purging_leaves_what_is_leased(client: Client, queue: str, backlog: list[str]):
    client.enqueue(queue, b"x", delay=3600)
    held = client.receive(queue, 1)
    assert client.purge_queue(queue, fairness_key="b") == 2
    assert client.purge_queue(queue) == 3
    stats = client.queue_stats(queue)
    assert (stats.pending, stats.delayed, stats.in_flight) == (0, 0, 1)
    client.nack(held)
    assert client.queue_stats(queue).pending == 1


def test_purging_many_keys(client: Client, queue: str):
    client.enqueue_many(queue, [Message(b"x", fairness_key=f"k{number}") for number in range(3000)])
    assert client.purge_queue(queue) == 3000
    assert client.browse(queue) == []


# --- pausing ----------------------------------------------------------------------------------------------------------


def test_a_paused_queue_takes_and_gives_nothing(client: Client, queue: str, backlog: list[str]):
    client.pause(queue)
    client.enqueue(queue, b"x")
    assert client.receive(queue, 10) == []
    assert client.queue_stats(queue).paused
    client.resume(queue)
    got = client.receive(queue, 10, wait=60)
    assert len(got) == 6
    client.ack(got)


def test_a_paused_key_holds_up_no_other_key(client: Client, queue: str, backlog: list[str]):
    client.pause(queue, fairness_key="a")
    got = client.receive(queue, 10)
    assert [delivery.fairness_key for delivery in got] == ["b", "b"]
    assert {key.fairness_key: key.paused for key in client.queue_stats(queue).keys}["a"]
    client.resume(queue, fairness_key="a")
    got += client.receive(queue, 10, wait=60)
    assert len(got) == 5
    client.ack(got)


def test_a_consumer_gets_what_a_resumed_queue_has(client: Client, queue: str, backlog: list[str]):
    client.pause(queue)
    with client.consume(queue) as consumer:
        client.resume(queue)
        for _ in backlog:
            next(consumer).ack()
    assert client.queue_stats(queue).depth == 0


def test_a_pause_survives_a_restart(tmp_path):
    with running(tmp_path / "data") as cluster, cluster.client() as client:
        client.create_queue("q")
        client.enqueue("q", b"x")
        client.pause("q")
        cluster.kill_all()
    with running(tmp_path / "data") as cluster, cluster.client() as client:
        _check_paused(cluster, client)


def _check_paused(cluster: Cluster, client: Client) -> None:
    assert client.receive("q") == []
    client.resume("q")
    (got,) = client.receive("q", wait=60)
    got.ack()


# --- lists and redrive ------------------------------------------------------------------------------------------------


def test_active_queues_are_those_with_messages(client: Client, queue: str):
    for name in ("idle", "pending", "delayed", "leased"):
        client.create_queue(f"{queue}-{name}")
    client.enqueue(f"{queue}-pending", b"x")
    client.enqueue(f"{queue}-delayed", b"x", delay=3600)
    client.enqueue(f"{queue}-leased", b"x")
    (held,) = client.receive(f"{queue}-leased")
    active = [info.name for info in client.active_queues(f"{queue}-")]
    assert active == [f"{queue}-delayed", f"{queue}-leased", f"{queue}-pending"]
    held.ack()


def test_one_key_s_dead_letters_go_back_through_the_hook(client: Client, queue: str):
    client.update_queue(queue, on_enqueue="function on_enqueue(msg) return { priority = 5 } end")
    client.enqueue_many(queue, [Message(b"x", fairness_key=key) for key in "aab"])
    for delivery in client.receive(queue, 3):
        delivery.fail("no good")
    eventually(lambda: client.queue_stats(f"{queue}.dlq").pending == 3, "three dead letters")
    assert client.redrive(f"{queue}.dlq", fairness_key="a") == 2
    got = client.receive(queue, 10)
    assert [(delivery.fairness_key, delivery.priority, delivery.attempts) for delivery in got] == [("a", 5, 0)] * 2
    client.ack(got)


def test_the_backlog_of_a_key_is_set_aside(client: Client, queue: str, backlog: list[str]):
    for number in range(4):  # on several shards
        client.create_queue(f"{queue}-aside{number}")
    late = client.enqueue(queue, b"late", fairness_key="a", delay=3600)
    for before, after in pairwise([queue, *(f"{queue}-aside{number}" for number in range(4))]):
        began_s = time.monotonic()
        assert client.move(before, after, fairness_key="a", rate=20) == 4
        assert time.monotonic() - began_s >= 2 / 20, "a rate is kept"
    assert {view.id for view in client.browse(f"{queue}-aside3")} == {*backlog[:3], late}
    got = client.receive(f"{queue}-aside3", 10)
    assert [delivery.id for delivery in got] == backlog[:3]
    client.ack(got)
    assert [view.id for view in client.browse(queue)] == backlog[3:]
    with pytest.raises(QueueNotFoundError, match="missing"):
        client.move(queue, f"{queue}-missing")
    assert client.queue_stats(queue).pending == 2
