"""``read.format("fila")``: what is in queues, without touching it."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, In

from fila_cluster import Client, Message
from fila_cluster.client.calls.reservations import KeyRange, ShardViews
from fila_cluster.client.forwarding import CommandsAhead, held_queues
from fila_cluster.errors import InvalidArgumentError, QueueNotFoundError
from fila_cluster.spark import browsing
from fila_cluster.spark.browsing import BrowseReader, FilteringReader, ViewPart
from fila_cluster.spark.schema import ARROW_SCHEMA, READ_SCHEMA
from fila_cluster.spark.streaming import ReservationReader
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually, running
from tests.support.external.spark import error_line

pytestmark = pytest.mark.whole


def read(spark: SparkSession, cluster: Cluster, queue: str, **options: str) -> DataFrame:
    return spark.read.format("fila").options(**{"endpoint": cluster.endpoint, "queue": queue} | options).load()


def reader(cluster: Cluster, queue: str) -> BrowseReader:
    """What Spark makes of it, without Spark."""
    return BrowseReader({"endpoint": cluster.endpoint, "queue": queue}, READ_SCHEMA)


def filtering_reader(cluster: Cluster, queue: str) -> FilteringReader:
    """The one that takes over filters."""
    return FilteringReader({"endpoint": cluster.endpoint, "queue": queue}, READ_SCHEMA)


def parts_of(reader: BrowseReader) -> list[ViewPart]:
    parts = reader.partitions()
    assert all(isinstance(part, ViewPart) for part in parts)
    return parts  # type: ignore[return-value]


def rows_of(reader: BrowseReader, parts: list[ViewPart]) -> list[dict[str, Any]]:
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


# --- columns ----------------------------------------------------------------------------------------------------------


def test_a_row_says_all_of_its_message(spark: SparkSession, shared_cluster: Cluster, client: Client, queue: str) -> None:
    before = datetime.now(UTC)
    identity = client.enqueue(
        queue,
        b"\x00\xff",
        {"a": "1", "b": "2"},
        fairness_key="acme",
        weight=3,
        throttle_keys=["t2", "t1"],
        priority=-2,
        cost=1.5,
    )
    delayed = client.enqueue(queue, b"later", delay=3600)
    plain, late = read(spark, shared_cluster, queue).orderBy("payload").collect()
    moment = plain.enqueued_at.astimezone(UTC)
    assert before - timedelta(seconds=1) < moment < datetime.now(UTC) + timedelta(seconds=1)
    assert plain.asDict() == {
        "id": identity, "queue": queue, "state": "pending", "fairness_key": "acme", "weight": 3, "throttle_keys": ["t1", "t2"],
        "priority": -2, "cost": 1.5, "attempts": 0, "headers": {"a": "1", "b": "2"}, "payload": b"\x00\xff", "error": "",
        "reason": None, "source_queue": None, "enqueued_at": plain.enqueued_at, "due_at": None,
    }  # fmt: skip
    assert (late.id, late.state, late.headers, late.throttle_keys) == (delayed, "delayed", {}, [])
    assert late.due_at - late.enqueued_at == timedelta(hours=1)


def test_the_columns_and_their_types(spark: SparkSession, shared_cluster: Cluster, queue: str) -> None:
    assert read(spark, shared_cluster, queue).schema.simpleString() == (
        "struct<id:string,queue:string,state:string,fairness_key:string,weight:int,throttle_keys:array<string>,priority:int,"
        "cost:double,attempts:int,headers:map<string,string>,payload:binary,error:string,reason:string,source_queue:string,"
        "enqueued_at:timestamp,due_at:timestamp>"
    )
    assert read(spark, shared_cluster, queue).collect() == []


def test_a_queue_with_partitions_is_one(shared_cluster: Cluster, client: Client, queue: str) -> None:
    whole = f"{queue}-whole"
    client.create_queue(whole, partitions=4)
    client.enqueue_many(whole, [Message(b"%d" % number, fairness_key=f"k{number % 7}") for number in range(300)])
    there = reader(shared_cluster, f"{queue}*")
    rows = rows_of(there, parts_of(there))
    assert {row["queue"] for row in rows} == {whole}
    assert sorted(int(row["payload"]) for row in rows) == list(range(300))
    by_key = FilteringReader({"endpoint": shared_cluster.endpoint, "queue": whole}, READ_SCHEMA)
    assert list(by_key.pushFilters([EqualTo(("fairness_key",), "k3"), EqualTo(("queue",), whole)])) == []
    assert len(rows_of(by_key, parts_of(by_key))) == len(range(3, 300, 7))


def test_a_stream_of_a_queue_with_partitions(shared_cluster: Cluster, client: Client, queue: str) -> None:
    whole = f"{queue}-whole"
    client.create_queue(whole, partitions=4)
    client.enqueue_many(whole, [Message(b"%d" % number, fairness_key=f"k{number % 7}") for number in range(300)])
    stream = ReservationReader({"endpoint": shared_cluster.endpoint, "queue": whole}, READ_SCHEMA)
    try:
        start = stream.initialOffset()
        end = stream.latestOffset(start)
        assert set(end["queues"]) == {info.name for info in held_queues(client, f"{whole}@") if info.in_flight}
        parts = stream.partitions(start, end)
        rows = [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()]
        assert {row["queue"] for row in rows} == {whole}
        assert sorted(int(row["payload"]) for row in rows) == list(range(300))
        stream.commit(end)
    finally:
        stream.stop()
    assert client.queue_stats(whole).depth == 0


def test_states_dead_letters_and_patterns_and_nothing_is_touched(
    spark: SparkSession, shared_cluster: Cluster, client: Client, queue: str
) -> None:
    client.create_queue(f"{queue}-b")
    client.enqueue_many(queue, [Message(b"%d" % number, fairness_key=f"k{number % 3}") for number in range(30)])
    client.enqueue_many(f"{queue}-b", [Message(b"b", delay=3600), Message(b"c")])
    for delivery in client.receive(queue, 4):
        delivery.fail("boom")
    held = client.receive(queue, 5)
    before = client.list_queues(queue)

    rows = (
        read(spark, shared_cluster, f"{queue}*")
        .groupBy("queue", "state", "reason", "source_queue", "error")
        .count()
        .collect()
    )
    assert {tuple(row) for row in rows} == {
        (queue, "pending", None, None, "", 21),
        (queue, "leased", None, None, "", 5),
        (f"{queue}.dlq", "pending", "failed", queue, "boom", 4),
        (f"{queue}-b", "pending", None, None, "", 1),
        (f"{queue}-b", "delayed", None, None, "", 1),
    }
    assert {row.queue for row in read(spark, shared_cluster, f"{queue}.dlq, {queue}-?").collect()} == {
        f"{queue}.dlq",
        f"{queue}-b",
    }
    assert client.list_queues(queue) == before
    client.ack(held)


# --- filters ----------------------------------------------------------------------------------------------------------


def filters_left(frame: DataFrame) -> str:
    """What Spark still has to filter, as its plan says."""
    plan: str = frame._jdf.queryExecution().executedPlan().toString()
    return "\n".join(line for line in plan.splitlines() if "Filter" in line and "RuntimeFilters" not in line)


@pytest.fixture
def filled(client: Client, queue: str) -> Iterator[str]:
    """A hundred messages of five keys, ten of them leased."""
    client.enqueue_many(queue, [Message(b"%d" % n, fairness_key=f"k{n % 5}", priority=n % 2) for n in range(100)])
    held = client.receive(queue, 10)
    yield queue
    client.ack(held)


CHOSEN = "queue = '{queue}' and fairness_key in ('k1', 'k2') and state = 'pending'"


def test_filters_are_pushed_down_and_the_others_are_kept(spark: SparkSession, shared_cluster: Cluster, filled: str) -> None:
    def frame() -> DataFrame:
        return read(spark, shared_cluster, f"{filled}*", pushdown="true")

    expected = [row for row in frame().collect() if row.fairness_key in {"k1", "k2"} and row.state == "pending"]
    assert 30 < len(expected) < 40
    pushed = frame().where(CHOSEN.format(queue=filled))
    assert filters_left(pushed) == ""
    assert sorted(row.id for row in pushed.collect()) == sorted(row.id for row in expected)
    partly = frame().where(CHOSEN.format(queue=filled)).where("priority = 0")
    assert "priority" in filters_left(partly)
    assert "fairness_key" not in filters_left(partly)
    assert partly.count() == sum(row.priority == 0 for row in expected)
    assert frame().where("queue = 'another' and state <=> null").count() == 0


@pytest.mark.parametrize("pushdown", [{}, {"pushdown": "false"}])
def test_one_data_frame_may_serve_many_queries(
    spark: SparkSession, shared_cluster: Cluster, filled: str, pushdown: dict[str, str]
) -> None:
    frame = read(spark, shared_cluster, f"{filled}*", **pushdown)
    assert frame.where("state = 'leased'").count() == 10
    assert frame.count() == 100
    assert frame.where("state = 'gone' or fairness_key like '%3'").count() == 20
    both = frame.where("fairness_key = 'k1'").union(frame.where("fairness_key = 'k2'"))
    assert {tuple(row) for row in both.groupBy("fairness_key").count().collect()} == {("k1", 20), ("k2", 20)}


def test_options_filter_at_the_broker(spark: SparkSession, shared_cluster: Cluster, filled: str) -> None:
    frame = read(spark, shared_cluster, filled, fairness_key="k1", state="pending")
    assert frame.count() == 18
    assert frame.where("priority = 0").count() + frame.where("priority = 1").count() == 18


def test_what_is_pushed_is_not_read_at_all(shared_cluster: Cluster, client: Client, queue: str) -> None:
    client.create_queue(f"{queue}-b")
    client.enqueue_many(queue, [Message(b"", fairness_key=f"k{number:02}") for number in range(40)])
    client.enqueue_many(f"{queue}-b", [Message(b"") for _ in range(5)])
    with patch.object(browsing, "TASK_MESSAGES", 10):
        everything = reader(shared_cluster, f"{queue}*")
        parts = parts_of(everything)
        assert len(parts) >= 5
        assert len(rows_of(everything, parts)) == 45

        by_queue = filtering_reader(shared_cluster, f"{queue}*")
        assert list(by_queue.pushFilters([EqualTo(("queue",), f"{queue}-b")])) == []
        assert [[stretch.queue for stretch in part.stretches] for part in parts_of(by_queue)] == [[f"{queue}-b"]]

        by_key = filtering_reader(shared_cluster, queue)
        assert list(by_key.pushFilters([In(("fairness_key",), ("k03", "k39"))])) == []
        parts = parts_of(by_key)
        assert len(parts) == 2
        assert [row["fairness_key"] for row in rows_of(by_key, parts)] == ["k03", "k39"]

        by_state = filtering_reader(shared_cluster, queue)
        assert list(by_state.pushFilters([EqualTo(("state",), "leased")])) == []
        assert rows_of(by_state, parts_of(by_state)) == []


def test_tasks_cover_all_shards_in_turns(shared_cluster: Cluster, client: Client, queue: str) -> None:
    names = [f"{queue}-{number}" for number in range(12)]
    for name in names:
        client.create_queue(name)
        client.enqueue_many(name, [Message(name.encode(), fairness_key=f"k{number}") for number in range(4)])
    with patch.object(browsing, "TASK_MESSAGES", 8):
        each = reader(shared_cluster, f"{queue}-*")
        parts = parts_of(each)
    rows = rows_of(each, parts)
    assert Counter(row["payload"].decode() for row in rows) == dict.fromkeys(names, 4)
    views = [part.view for part in parts]
    assert len(set(views)) == 2
    assert len(set(views[:2])) == 2, "one of each shard in turn"


def test_batches_are_as_spark_wants_them(shared_cluster: Cluster, client: Client, queue: str) -> None:
    client.enqueue_many(queue, [Message(bytes(2000), {"n": str(number)}) for number in range(1500)])
    each = reader(shared_cluster, queue)
    batches = [batch for part in parts_of(each) for batch in each.read(part)]
    assert {batch.schema for batch in batches} == {ARROW_SCHEMA}
    assert len(batches) > 2, "about a mebibyte each"
    assert len({row["id"] for batch in batches for row in batch.to_pylist()}) == 1500


# --- consistency ------------------------------------------------------------------------------------------------------


@pytest.fixture
def traffic(shared_cluster: Cluster, queue: str) -> Iterator[Event]:
    """A producer and a consumer that never rest. Each message that is acked is enqueued again first, so none is ever missing."""
    stop, busy = Event(), Event()

    def turn_over() -> None:
        with shared_cluster.client() as client:
            while not stop.is_set():
                deliveries = client.receive(queue, 50, wait=0.5)
                client.enqueue_many(queue, [Message(each.payload, fairness_key=each.fairness_key) for each in deliveries])
                client.ack(deliveries)
                busy.set()

    thread = Thread(target=turn_over)
    thread.start()
    yield busy
    stop.set()
    thread.join()


def test_what_is_read_is_one_moment_whatever_happens(
    spark: SparkSession, shared_cluster: Cluster, client: Client, queue: str, traffic: Event
) -> None:
    client.enqueue_many(queue, [Message(b"%d" % number, fairness_key=f"k{number % 20}") for number in range(3000)])
    assert traffic.wait(PATIENCE_S)
    for _ in range(3):
        payloads = Counter(int(row.payload) for row in read(spark, shared_cluster, queue).select("payload").collect())
        assert payloads.keys() == set(range(3000)), "a message that was enqueued again before it was acked"
        assert sum(payloads.values()) <= 3050, "at most one batch is there twice"


def test_a_task_that_runs_again_reads_the_same(shared_cluster: Cluster, client: Client, queue: str, traffic: Event) -> None:
    client.enqueue_many(queue, [Message(b"%d" % number, fairness_key=f"k{number % 20}") for number in range(2000)])
    assert traffic.wait(PATIENCE_S)
    each = reader(shared_cluster, queue)
    parts = parts_of(each)
    first = rows_of(each, parts)
    enqueued = client.queue_stats(queue).enqueued
    eventually(lambda: client.queue_stats(queue).enqueued > enqueued + 500, "traffic meanwhile")
    assert rows_of(each, parts) == first
    client.purge_queue(queue)
    assert rows_of(each, parts) == first


# --- bad input --------------------------------------------------------------------------------------------------------


def test_errors_at_planning_are_one_clear_line(spark: SparkSession, shared_cluster: Cluster, queue: str) -> None:
    assert error_line(read(spark, shared_cluster, "nowhere").collect) == (
        "no queue 'nowhere': create it with `fila-cluster queue create nowhere` or create_queue()"
    )
    nobody = read(spark, shared_cluster, queue, endpoint="tcp://127.0.0.1:9", timeout="1s")
    assert "tcp://127.0.0.1:9" in error_line(nobody.collect)
    assert "option queue" in error_line(read(spark, shared_cluster, "").collect)
    assert read(spark, shared_cluster, "nothing-like-it*").collect() == []


def test_a_queue_that_is_named_must_exist_even_if_a_filter_excludes_it(shared_cluster: Cluster, queue: str) -> None:
    each = filtering_reader(shared_cluster, f"{queue}, nowhere")
    list(each.pushFilters([EqualTo(("queue",), queue)]))
    with pytest.raises(QueueNotFoundError, match="'nowhere'"):
        each.partitions()


def test_a_view_that_is_gone_says_what_to_do(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running(tmp_path_factory.mktemp("restarted")) as cluster, cluster.client() as client:
        client.create_queue("q")
        client.enqueue("q", b"0")
        each = reader(cluster, "q")
        (part,) = parts_of(each)
        (worker,) = cluster.status().workers
        pid = worker.pid
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: cluster.all_up() and cluster.status().workers[0].pid != pid, "another worker")
        with pytest.raises(InvalidArgumentError, match="load the DataFrame again"):
            rows_of(each, [part])
        with pytest.raises(InvalidArgumentError, match="load the DataFrame again"):
            list(ShardViews(CommandsAhead(client)).pages(part.view, KeyRange("q")))
        again = reader(cluster, "q")
        assert [row["payload"] for row in rows_of(again, parts_of(again))] == [b"0"]
