"""What a stream's driver does with batches, on a real cluster, without Spark."""

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime

import psutil
import pytest

from fila_cluster import Client, Message
from fila_cluster.client import Request
from fila_cluster.client.calls.reservations import Reservations, WantedPart
from fila_cluster.client.forwarding import CommandsAhead, held_queues
from fila_cluster.client.protocol.encoding import seal_message, seal_rows
from fila_cluster.client.protocol.producing import ids_of
from fila_cluster.errors import InvalidArgumentError, LeaseExpiredError, QueueNotFoundError, RequestTimeoutError
from fila_cluster.spark.data_source import acknowledge
from fila_cluster.spark.options import BrokerAccess
from fila_cluster.spark.planner import Offset, Planner
from fila_cluster.spark.pushdown import Selection
from fila_proto_zmq.ids import format_id
from fila_proto_zmq.record import record_id
from tests.support.cluster.cluster import Cluster, eventually, running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster"), "--no-dashboard", workers=2) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.client() as client:
        yield client
        for info in client.list_queues():
            if not info.is_dead_letter:
                client.delete_queue(info.name, force=True)


def planner(cluster: Cluster, queue: str, timeout_s: float = 60.0) -> "closing[Planner]":
    return closing(Planner(BrokerAccess(cluster.endpoint), Selection.of(queue), timeout_s))


def fill(client: Client, queue: str, count: int) -> list[str]:
    client.create_queue(queue)
    return client.enqueue_many(queue, [Message(b"%d" % i) for i in range(count)])


def fetched(client: Client, batch: Offset) -> list[str]:
    """Ids of a batch's messages, queue by queue."""
    reservations = Reservations(CommandsAhead(client))
    held = reservations.renew(batch.reservation, batch.queues, 60.0)
    leases = [
        lease
        for queue, parts in held.items()
        for lease in reservations.fetch(batch.reservation, queue, [part for part, _ in parts])
    ]
    return [format_id(*record_id(record)) for lease in leases for record in lease.records]


def test_a_batch_is_what_is_ready_and_no_more_than_wanted(cluster: Cluster, client: Client) -> None:
    ids = fill(client, "q", 1200)
    with planner(cluster, "q") as driver:
        first = driver.plan(Offset(), 700, patient=False)
        assert first is not None
        assert first.queues == {"q": 700}
        assert fetched(client, first) == ids[:700] == fetched(client, first)
        driver.complete(first)
        second = driver.plan(first, 10_000, patient=False)
        assert second is not None
        assert fetched(client, second) == ids[700:]
        driver.complete(second)
        assert driver.plan(second, 10_000, patient=False) is None
    stats = client.queue_stats("q")
    assert (stats.depth, stats.acked) == (0, 1200)


def test_a_driver_that_died_before_it_reported_its_batch_finds_it_again(cluster: Cluster, client: Client) -> None:
    fill(client, "q", 30)
    with planner(cluster, "q") as driver:
        begin = driver.plan(Offset(), 10, patient=False)
        assert begin is not None
        forgotten = driver.plan(begin, 10, patient=False)
        assert forgotten is not None
    with planner(cluster, "q") as successor:
        found = successor.plan(begin, 15, patient=False)
        assert found is not None
        assert found.reservation == forgotten.reservation
        assert fetched(client, found)[:10] == fetched(client, forgotten)[:10]
        assert found.queues == {"q": 15}


def test_a_replayed_batch_is_the_same(cluster: Cluster, client: Client) -> None:
    fill(client, "q", 30)
    with planner(cluster, "q") as driver:
        batch = driver.plan(Offset(), 20, patient=False)
        assert batch is not None
        before = fetched(client, batch)
    with planner(cluster, "q") as successor:
        assert successor.hold(batch) == {"q": [(0, 20)]}
        assert fetched(client, batch) == before


def test_queues_share_a_batch(cluster: Cluster, client: Client) -> None:
    for queue in ("orders-a", "orders-b", "orders-c"):
        fill(client, queue, 300 if queue != "orders-c" else 20)
    fill(client, "mail", 10)
    with planner(cluster, "orders-*") as driver:
        batch = driver.plan(Offset(), 200, patient=False)
        assert batch is not None
        assert batch.queues == {"orders-a": 90, "orders-b": 90, "orders-c": 20}
        driver.complete(batch)
        assert driver.pending() == 420
        assert driver.lag()["pending"] == 420


def test_the_listener_acknowledges_from_another_process(cluster: Cluster, client: Client) -> None:
    fill(client, "q", 10)
    with planner(cluster, "q") as driver:
        batch = driver.plan(Offset(), 10, patient=False)
        assert batch is not None
        acknowledge(batch)
        acknowledge(batch)
    assert client.queue_stats("q").acked == 10


def test_a_listener_without_a_broker_only_says_so(caplog: pytest.LogCaptureFixture) -> None:
    batch = Offset("s", 1, "tcp://127.0.0.1:1", {"q": 1})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fila_cluster.spark.data_source.TIMEOUT_S", 0.2)
        acknowledge(batch)
    assert "batch spark/s/1 is complete and could not be acknowledged yet" in caplog.text


def lease_ends(client: Client) -> datetime:
    """When the first of the leases of ``q`` ends."""
    return min(view.lease_expires_at for view in client.browse("q", state="leased") if view.lease_expires_at is not None)


def test_what_is_kept_is_renewed_and_what_is_not_is_given_back(cluster: Cluster, client: Client) -> None:
    fill(client, "q", 20)
    with planner(cluster, "q", 6.0) as driver:
        kept = driver.plan(Offset(), 10, patient=False)
        assert kept is not None
        ends_at = lease_ends(client)
        abandoned = Offset("other", 1, cluster.endpoint, {"q": 10})
        Reservations(CommandsAhead(client)).reserve(abandoned.reservation, [WantedPart("q", 0, 10)], 1.0)
        eventually(lambda: client.queue_stats("q").expired == 10, "the abandoned one to expire")
        eventually(lambda: lease_ends(client) > ends_at, "the kept one to be renewed")
        assert fetched(client, abandoned) == []
        assert len(fetched(client, kept)) == 10
        driver.complete(kept)
    deliveries = client.receive("q", 20)
    assert [delivery.attempts for delivery in deliveries] == [0] * 10
    client.ack(deliveries)


def test_a_batch_that_is_gone_says_so(cluster: Cluster, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    fill(client, "q", 5)
    gone = Offset("s", 7, cluster.endpoint, {"q": 5})
    with planner(cluster, "q") as driver:
        assert driver.hold(gone) == {}
    assert "5 messages of batch spark/s/7 are not reserved any more" in caplog.text
    with pytest.raises(LeaseExpiredError, match="reservation 'spark/s/7' of queue 'q' holds no part 0"):
        list(Reservations(CommandsAhead(client)).fetch(gone.reservation, "q", [0]))


def test_a_queue_that_is_deleted_meanwhile_takes_its_part_along(cluster: Cluster, client: Client) -> None:
    fill(client, "q-1", 5)
    fill(client, "q-2", 5)
    with planner(cluster, "q-*") as driver:
        batch = driver.plan(Offset(), 10, patient=False)
        assert batch is not None
        client.delete_queue("q-1", force=True)
        assert driver.hold(batch) == {"q-2": [(0, 5)]}
        driver.complete(batch)


def test_a_queue_that_does_not_exist(cluster: Cluster) -> None:
    with pytest.raises(QueueNotFoundError, match="no queue 'nowhere': create it with"):
        planner(cluster, "nowhere,mail*")


def test_a_queue_that_delivers_at_most_once_is_refused(cluster: Cluster, client: Client) -> None:
    client.create_queue("once", delivery="at_most_once")
    with planner(cluster, "once") as driver:
        with pytest.raises(InvalidArgumentError, match="queue 'once' delivers at most once"):
            driver.plan(Offset(), 10, patient=False)


def test_nobody_there() -> None:
    with pytest.raises(RequestTimeoutError, match=r"tcp://127\.0\.0\.1:1"):
        Planner(BrokerAccess("tcp://127.0.0.1:1", timeout_s=0.2), Selection.of("q"), 60.0)


def test_patience_is_rewarded(cluster: Cluster, client: Client) -> None:
    client.create_queue("q")
    with planner(cluster, "q") as driver:
        assert driver.plan(Offset(), 10, patient=True) is None
        client.enqueue("q", b"late")
        batch = driver.plan(Offset(), 10, patient=True)
        assert batch is not None
        assert batch.queues == {"q": 1}
        driver.complete(batch)


def test_a_batch_outlives_a_worker(cluster: Cluster, client: Client) -> None:
    ids = fill(client, "q", 50)
    with planner(cluster, "q") as driver:
        batch = driver.plan(Offset(), 50, patient=False)
        assert batch is not None
        shard = next(info.shard for info in client.list_queues("q") if info.name == "q")
        psutil.Process(cluster.worker_of(shard).pid).kill()
        assert fetched(client, batch) == ids
        driver.complete(batch)
    assert client.queue_stats("q").depth == 0


def test_a_queue_with_partitions_is_read_part_by_part(cluster: Cluster, client: Client) -> None:
    client.create_queue("big", partitions=4, max_attempts=1)
    ids = client.enqueue_many("big", [Message(b"%d" % number, fairness_key=f"k{number}") for number in range(40)])
    with planner(cluster, "big") as driver:
        assert driver.pending() == 40
        batch = driver.plan(Offset(), 1000, patient=True)
        assert batch is not None
        assert set(batch.queues) == {f"big@{number}" for number in range(4)}
        assert sorted(fetched(client, batch)) == sorted(ids)
        assert driver.lag()["in_flight"] == 40
        driver.complete(batch)
    assert client.queue_stats("big").depth == 0
    with pytest.raises(InvalidArgumentError):
        Selection.of("big@1")


def test_frames_for_a_queue_with_partitions_go_to_the_partitions_of_their_keys(client: Client) -> None:
    client.create_queue("big", partitions=4)
    commands = CommandsAhead(client)
    rows = [
        seal_message(Message(b"%d" % number, fairness_key=f"k{number % 10}", dedup_id=f"{number}")) for number in range(60)
    ]
    calls = [commands.start(Request("big", seal_rows(rows[start : start + 20]))) for start in (0, 20, 40)]
    ids = [each for call in calls for each in ids_of(commands.outcome(call), 20)]
    again = ids_of(commands.outcome(commands.start(Request("big", seal_rows(rows)))), 60)
    assert again == ids
    assert len(set(ids)) == 60
    held = {info.name: info.pending for info in held_queues(client, "big@")}
    assert sum(held.values()) == 60
    assert sum(map(bool, held.values())) > 1
    assert client.queue_stats("big").pending == 60
    got = {key: [m.payload for m in client.browse("big", fairness_key=key)] for key in ("k3", "k7")}
    assert got == {f"k{key}": [b"%d" % number for number in range(key, 60, 10)] for key in (3, 7)}
