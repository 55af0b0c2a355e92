"""What a user relies on, seen through real processes: fairness, leases, dead letters."""

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from fila_cluster import Client, Delivery, Message
from fila_cluster.errors import (
    BatchError,
    DeadLetterQueueNotEmptyError,
    LeaseExpiredError,
    NotADeadLetterQueueError,
    QueueExistsError,
)
from tests.support.cluster.cluster import PATIENCE_S, SOON_S, Cluster, eventually, running
from tests.support.programs import hold_and_die, waiting

A_TICK = timedelta(milliseconds=2)
"""The broker's times are whole milliseconds, and its clock is read beside ours."""

ROUNDS_LATE = 20
"""Rounds of load that may go by between a lease's end and the next delivery. Usually none do; who waits for a pause in the load never comes."""


def test_a_noisy_tenant_does_not_delay_a_quiet_one(client: Client, queue: str) -> None:
    client.enqueue_many(queue, [Message(b"", fairness_key="noisy")] * 5000)
    client.ack(client.receive(queue, 1000))
    client.enqueue(queue, b"", fairness_key="quiet")
    order = [delivery.fairness_key for delivery in take(client, queue, 10)]
    assert "quiet" in order[:2]


def test_weights_share_deliveries(client: Client, queue: str) -> None:
    for weight in (1, 2, 3):
        client.enqueue_many(queue, [Message(b"", fairness_key=str(weight), weight=weight)] * 300)
    served = Counter(delivery.fairness_key for delivery in take(client, queue, 300))
    assert served == {"1": 50, "2": 100, "3": 150}


def test_a_late_ack_is_refused_and_the_new_holder_unaffected(client: Client, shared_cluster: Cluster, queue: str) -> None:
    client.update_queue(queue, visibility_timeout=0.3)
    client.enqueue(queue, b"x")
    (late,) = client.receive(queue)
    client.update_queue(queue, visibility_timeout=600)  # for the next lease
    with shared_cluster.client() as other:
        (again,) = other.receive(queue, wait=PATIENCE_S)
        assert (again.id, again.attempts, again.error) == (late.id, 1, "lease expired")
        with pytest.raises(LeaseExpiredError, match="ended"):
            late.ack()
        again.extend(30)
        again.ack()
    assert client.queue_stats(queue).depth == 0


def test_steady_load_on_another_queue_does_not_delay_an_expiry(cluster: Cluster) -> None:
    stop = threading.Event()
    rounds: list[datetime] = []

    def load() -> None:
        with cluster.client() as loader:
            loader.create_queue("loaded")
            batch = [Message(bytes(512))] * 500
            while not stop.is_set():
                loader.enqueue_many("loaded", batch)
                loader.ack(loader.receive("loaded", 500))
                rounds.append(datetime.now(UTC))

    loading = threading.Thread(target=load)
    loading.start()
    with cluster.client() as client:
        client.create_queue("timed", visibility_timeout=1.0)
        client.enqueue("timed", b"x")
        (first,) = client.receive("timed")
        client.update_queue("timed", visibility_timeout=600)  # for the next lease
        (again,) = client.receive("timed", wait=PATIENCE_S)
        received_at = datetime.now(UTC)
        again.ack()
        with pytest.raises(LeaseExpiredError):
            first.ack()
    stop.set()
    loading.join()
    assert any(round_at < first.lease_expires_at for round_at in rounds), "there was load before it"
    assert sum(first.lease_expires_at < round_at < received_at for round_at in rounds) <= ROUNDS_LATE


def test_max_attempts_leads_to_the_dead_letter_queue_and_back(client: Client) -> None:
    client.create_queue("capped", max_attempts=2)
    identity = client.enqueue("capped", b"poison", {"h": "v"}, fairness_key="t")
    for _ in range(2):
        client.receive("capped", wait=5)[0].nack("it broke", metadata=b"half done")
    (dead,) = client.receive("capped.dlq")
    assert (dead.id, dead.payload, dead.headers, dead.fairness_key) == (identity, b"poison", {"h": "v"}, "t")
    assert (dead.reason, dead.source_queue, dead.error, dead.attempts) == ("max_attempts", "capped", "it broke", 2)
    assert dead.metadata == b"half done"
    assert dead.dead_lettered_at is not None
    dead.nack()
    with pytest.raises(DeadLetterQueueNotEmptyError):
        client.delete_queue("capped")
    with pytest.raises(NotADeadLetterQueueError):
        client.redrive("capped")
    assert client.redrive("capped.dlq") == 1
    (back,) = client.receive("capped")
    assert (back.id, back.attempts, back.reason) == (identity, 0, None)
    back.ack()
    client.delete_queue("capped")


def test_a_retry_keeps_its_delay_and_its_place_in_line(client: Client, queue: str) -> None:
    client.enqueue_many(queue, [Message(b"first"), Message(b"second"), Message(b"third")])
    (first,) = client.receive(queue)
    retried_at = datetime.now(UTC)
    first.retry(after=0.3, error="later")
    eventually(lambda: client.queue_stats(queue).delayed == 0, "the retry comes due")
    again = take(client, queue, 3)
    assert [delivery.payload for delivery in again] == [b"first", b"second", b"third"]
    assert again[0].leased_at - retried_at >= timedelta(seconds=0.3) - A_TICK


def test_priorities_order_a_key(client: Client, queue: str) -> None:
    for priority in (5, -3, 0, -3):
        client.enqueue(queue, b"%d" % priority, priority=priority)
    assert [delivery.priority for delivery in take(client, queue, 4)] == [-3, -3, 0, 5]


def test_a_delayed_message_comes_when_it_is_due(client: Client, queue: str) -> None:
    client.enqueue(queue, b"another", delay=600)
    due = datetime.now(UTC) + timedelta(seconds=0.4)
    client.enqueue(queue, b"x", deliver_at=due)
    (delivery,) = client.receive(queue, wait=PATIENCE_S)
    assert delivery.payload == b"x"
    assert delivery.leased_at >= due - A_TICK
    delivery.ack()


def test_what_a_vanished_client_held_comes_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A client whose heartbeats stop, here because its process is gone, loses its leases as failed attempts."""
    data_dir = tmp_path_factory.mktemp("lost")
    with running(data_dir, "--config", write(data_dir, "[scheduler]\nconsumer_timeout_ms = 2000\n")) as cluster:
        with cluster.client() as client:
            client.create_queue("held")
            client.enqueue("held", b"x")
            hold_and_die(cluster.endpoint, "held")
            eventually(lambda: client.queue_stats("held").pending == 1, "its end is noticed")
            (again,) = client.receive("held")
            assert (again.attempts, again.error) == (1, "consumer lost")
            again.ack()


@pytest.mark.parametrize("how", ["receive", "consume"])
def test_who_is_killed_while_it_waits_is_given_nothing_more(
    client: Client, shared_cluster: Cluster, queue: str, how: str
) -> None:
    """The end of its connection to the worker shows that it is gone."""
    with waiting(shared_cluster.endpoint, queue, how):
        eventually(lambda: client.queue_stats(queue).consumers == 1, "it waits")
    client.enqueue(queue, b"x")
    (delivery,) = client.receive(queue, wait=SOON_S)
    assert delivery.attempts == 0
    delivery.ack()


@pytest.mark.parametrize("how", ["receive", "consume"])
def test_who_is_killed_behind_a_router_is_given_little_more(
    client: Client, shared_cluster: Cluster, queue: str, how: str
) -> None:
    """The router sees that it is gone when it has something for it. Its prefetch would allow 100."""
    with waiting(shared_cluster.endpoint, queue, how, direct=False):
        eventually(lambda: client.queue_stats(queue).consumers == 1, "it waits")
    client.enqueue(queue, b"sent to nobody")
    eventually(lambda: client.queue_stats(queue).in_flight == 1, "it is sent")
    sent = []

    def stays() -> bool:
        sent.append(client.enqueue(queue, b"x"))
        return client.queue_stats(queue).pending > 0

    eventually(stays, "the router has seen it")
    assert client.queue_stats(queue).in_flight < 50
    (delivery,) = client.receive(queue, wait=SOON_S)
    assert delivery.id == sent[-1]
    delivery.ack()


def test_closing_a_client_gives_everything_back_uncounted(client: Client, shared_cluster: Cluster, queue: str) -> None:
    client.enqueue_many(queue, [Message(b"x")] * 3)
    with shared_cluster.client() as leaving:
        held = leaving.receive(queue, 2)
        assert len(held) == 2
    again = take(client, queue, 3)
    assert [delivery.attempts for delivery in again] == [0, 0, 0]


def test_a_queue_exists_once(client: Client, queue: str) -> None:
    with pytest.raises(QueueExistsError, match="exists"):
        client.create_queue(queue)


def test_two_consumers_share_a_queue(client: Client, shared_cluster: Cluster, queue: str) -> None:
    with shared_cluster.client() as other:
        with client.consume(queue, prefetch=50) as one, other.consume(queue, prefetch=50) as two:
            client.enqueue_many(queue, [Message(b"%d" % number) for number in range(60)])
            first, second = next(iter(one)), next(iter(two))
            first.ack()
            second.ack()
    eventually(lambda: client.queue_stats(queue).pending == 58, "what was prefetched is back")


def test_one_bad_message_spoils_nothing(client: Client, queue: str) -> None:
    messages = [Message(b"good"), Message("text"), Message(b"good"), Message(b"x", priority=2**40)]  # type: ignore[arg-type]
    with pytest.raises(BatchError) as caught:
        client.enqueue_many(queue, messages)
    codes = [getattr(result, "code", "ok") for result in caught.value.results]
    assert codes == ["ok", "INVALID_ARGUMENT", "ok", "INVALID_ARGUMENT"]
    assert client.queue_stats(queue).pending == 2


def write(directory: object, text: str) -> str:
    path = f"{directory}/fila.toml"
    with open(path, "w") as file:
        file.write(text)
    return path


def take(client: Client, queue: str, count: int) -> list[Delivery]:
    """Receive and ack ``count`` messages."""
    deliveries = client.receive(queue, count, wait=PATIENCE_S)
    assert len(deliveries) == count
    client.ack(deliveries)
    return deliveries
