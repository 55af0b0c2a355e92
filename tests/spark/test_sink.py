"""``foreachPartition(enqueue_partition(…))``: with rows by hand, in tasks, in tasks that fail, in micro-batches."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession

from fila_cluster import Client
from fila_cluster.client.forwarding import held_queues
from fila_cluster.errors import InvalidArgumentError, OverloadedError, QueueNotFoundError
from fila_cluster.spark import enqueue_partition
from fila_cluster.spark.columns import Columns
from fila_cluster.spark.feed import PartitionIntake
from fila_cluster.spark.writing import _OfRows
from tests.support.cluster.cluster import Cluster, running
from tests.support.external.spark import BATCH, ONCE, Stream, error_line, messages, payloads

# --- without Spark: it is a callable that takes rows ------------------------------------------------------------------


def test_payloads_of_all_kinds_and_columns_by_name(shared_cluster: Cluster, client: Client, queue: str):
    sink = enqueue_partition(
        endpoint=shared_cluster.endpoint, queue=queue, payload="body", headers="h", fairness_key="tenant", weight="w",
        throttle_keys="t", priority="p", cost="c", delay_ms="d", ttl_ms="l", max_attempts="m",
    )  # fmt: skip
    given = {
        "h": {"k": "v"}, "tenant": "acme", "w": 2, "t": ["x"], "p": 5, "c": 2.5, "d": 0, "l": 60_000, "m": 4, "other": object(),
    }  # fmt: skip
    sink([given | {"body": b"bytes"}, given | {"body": bytearray(b"more bytes")}, Row(**given | {"body": "text"})])
    stored = messages(client, queue)
    assert {message.payload for message in stored} == {b"bytes", b"more bytes", b"text"}
    for message in stored:
        assert (message.headers, message.fairness_key, message.weight) == ({"k": "v"}, "acme", 2)
        assert (list(message.throttle_keys), message.priority, message.cost) == (["x"], 5, 2.5)
        assert message.max_attempts == 4


def test_nothing_is_nothing(shared_cluster: Cluster, client: Client, queue: str):
    enqueue_partition(endpoint=shared_cluster.endpoint, queue=queue)(iter(()))
    assert messages(client, queue) == []


def test_the_same_sink_stores_the_same_rows_once_and_another_one_stores_them_again(
    shared_cluster: Cluster, client: Client, queue: str
):
    def sink(**options: str) -> Callable[[Iterable[object]], None]:
        return enqueue_partition(endpoint=shared_cluster.endpoint, queue=queue, dedup_window="1h", **options)

    rows = [{"payload": b"a"}, {"payload": b"b"}, {"payload": b"a"}]
    first = sink()
    first(rows[:2])
    first(reversed(rows))
    assert payloads(client, queue) == {b"a": 2, b"b": 1}
    sink()(rows)
    assert payloads(client, queue) == {b"a": 4, b"b": 2}
    sink(job="nightly")(rows)
    sink(job="nightly")(rows)
    assert payloads(client, queue) == {b"a": 6, b"b": 3}


def test_a_queue_with_partitions(shared_cluster: Cluster, client: Client, queue: str):
    whole = f"{queue}-whole"
    client.create_queue(whole, partitions=4)
    sink = enqueue_partition(endpoint=shared_cluster.endpoint, queue=whole, fairness_key="key")
    for _ in range(2):
        sink([{"payload": b"%d" % number, "key": f"k{number % 7}"} for number in range(1000)])
    assert client.queue_stats(whole).pending == 1000
    assert sum(info.pending > 0 for info in held_queues(client, f"{whole}@")) > 1


def test_a_dedup_id_of_its_own(shared_cluster: Cluster, client: Client, queue: str):
    for _ in range(2):
        sink = enqueue_partition(endpoint=shared_cluster.endpoint, queue=queue, dedup_id="id")
        sink([{"payload": b"a", "id": "mine"}, {"payload": b"b", "id": None}])
    assert payloads(client, queue) == {b"a": 1, b"b": 2}


def test_the_last_row_of_a_dedup_id_counts(shared_cluster: Cluster, client: Client, queue: str):
    sink = enqueue_partition(endpoint=shared_cluster.endpoint, queue=queue, dedup_id="id", dedup_mode="mode")
    sink([{"payload": b"first", "id": "a", "mode": "last"}, {"payload": b"second", "id": "a", "mode": "last"}])
    sink([{"payload": b"third", "id": "a", "mode": None}])
    assert payloads(client, queue) == {b"second": 1}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"queue": ""}, "queue=''"),
        ({"queue": "no good"}, "bad queue name"),
        ({"payload": ""}, "payload='': pass a str"),
        ({"fairness_key": 3}, "fairness_key=3: pass a str"),
        ({"dedup_window": "soon"}, "option dedup_window: 'soon' is not a duration"),
        ({"retry_for": True}, "retry_for=True: pass a duration"),
        ({"server_key": "secret"}, "option server_key is not the 40 characters"),
    ],
)
def test_arguments_that_cannot_work(options, told):
    with pytest.raises(InvalidArgumentError, match=told):
        enqueue_partition(**{"queue": "q"} | options)


def test_targets_that_are_not_there(shared_cluster: Cluster, client: Client, queue: str):
    rows = [{"payload": b"a"}]
    with pytest.raises(QueueNotFoundError, match="no queue 'not-there'"):
        enqueue_partition(endpoint=shared_cluster.endpoint, queue="not-there")(rows)
    with pytest.raises(InvalidArgumentError, match=r"dead letter queue"):
        enqueue_partition(endpoint=shared_cluster.endpoint, queue=f"{queue}.dlq")(rows)


def test_limits_are_waited_for_and_end_the_task_when_no_room_is_made(tmp_path: Path):
    limits = tmp_path / "fila.toml"
    limits.write_text("[limits]\nmax_queue_messages = 10\n")
    with running(tmp_path / "data", "--config", limits) as cluster, cluster.client() as client:
        client.create_queue("small")
        rows = [{"payload": str(number)} for number in range(15)]
        sink = enqueue_partition(endpoint=cluster.endpoint, queue="small", retry_for="200ms")
        with pytest.raises(OverloadedError, match=r"no row was accepted for 0.2 s \(option retry_for\)"):
            sink(rows)
        assert len(payloads(client, "small")) == 10
        client.purge_queue("small")
        sink(rows)
        assert payloads(client, "small") == {str(number).encode(): 1 for number in range(10, 15)}


def test_the_writer_for_a_pyspark_that_has_only_rows(shared_cluster: Cluster, client: Client, queue: str):
    intake = PartitionIntake.of({"endpoint": shared_cluster.endpoint, "queue": queue})
    writer = _OfRows(intake, Columns.named({"payload": "payload"}))
    assert writer.write(iter([Row(payload="a"), Row(payload=b"b")])).rows == 2
    assert payloads(client, queue) == {b"a": 1, b"b": 1}


# --- in tasks ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    """A hundred rows in two partitions, each payload twice."""
    return spark.sql(BATCH)


def test_dataframes_and_rdds(shared_cluster: Cluster, client: Client, queue: str, frame: DataFrame):
    def sink() -> Callable[[Iterable[object]], None]:
        return enqueue_partition(endpoint=shared_cluster.endpoint, queue=queue, fairness_key="tenant")

    frame.foreachPartition(sink())
    assert payloads(client, queue) == ONCE
    frame.rdd.foreachPartition(sink())
    frame.rdd.map(lambda row: row.asDict()).foreachPartition(sink())
    assert payloads(client, queue) == ONCE + ONCE + ONCE
    assert {message.fairness_key for message in messages(client, queue)} == {"t0", "t1", "t2"}


@pytest.mark.whole
def test_whole_rows(shared_cluster: Cluster, client: Client, queue: str, spark: SparkSession):
    sink = enqueue_partition(endpoint=shared_cluster.endpoint, queue=queue, payload="*", fairness_key="a")
    spark.sql("select 'x' a, struct(1 c) b").foreachPartition(sink)
    assert [(message.payload, message.fairness_key) for message in messages(client, queue)] == [
        (b'{"a":"x","b":{"c":1}}', "x")
    ]


class Flaky:
    """A sink whose tasks fail three times, after some rows, and see them in another order each time."""

    def __init__(self, sink: Callable[[Iterable[object]], None]) -> None:
        self._sink = sink

    def __call__(self, rows: Iterable[object]) -> None:
        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        shuffled = list(rows)
        Random(attempt).shuffle(shuffled)
        if attempt < 3:
            self._sink(shuffled[: 10 + attempt])
            raise RuntimeError("this attempt fails")
        self._sink(shuffled)


@pytest.mark.whole
def test_a_sink_whose_tasks_fail_and_see_their_rows_in_another_order(
    shared_cluster: Cluster, client: Client, queue: str, frame: DataFrame
):
    frame.foreachPartition(Flaky(enqueue_partition(endpoint=shared_cluster.endpoint, queue=queue, fairness_key="tenant")))
    assert payloads(client, queue) == ONCE


@pytest.mark.whole
def test_errors_in_tasks_are_one_line(shared_cluster: Cluster, queue: str, frame: DataFrame):
    def line(**options: str) -> str:
        sink = enqueue_partition(**{"endpoint": shared_cluster.endpoint, "queue": queue} | options)
        return error_line(lambda: frame.coalesce(1).foreachPartition(sink))

    assert line(payload="body") == "a row has no column 'body', it has payload, tenant"
    assert line(queue="not-there").startswith("no queue 'not-there': create it")


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path, frame: DataFrame) -> Stream:
    stream = Stream(spark, tmp_path)
    stream.add(frame.select("payload"))
    return stream


@pytest.mark.whole
@pytest.mark.parametrize("made", ["for each write", "once for all batches"])
def test_a_micro_batch_that_is_replayed_stores_nothing_twice(
    shared_cluster: Cluster, client: Client, queue: str, stream: Stream, spark: SparkSession, made: str
):
    def sink() -> Callable[[Iterable[object]], None]:
        return enqueue_partition(endpoint=shared_cluster.endpoint, queue=queue)

    def run() -> None:
        once = sink()
        each = sink if made == "for each write" else lambda: once
        stream.run(stream.rows.writeStream.foreachBatch(lambda batch, _: batch.foreachPartition(each())))

    run()
    assert payloads(client, queue) == ONCE
    stream.forget_last_commit()
    run()
    assert payloads(client, queue) == ONCE
    stream.add(spark.sql("select 'row 1' payload"))
    run()
    assert payloads(client, queue)[b"row 1"] == 3


@pytest.mark.whole
def test_two_writes_of_one_micro_batch_are_both_stored_and_replayed_as_such(
    shared_cluster: Cluster, client: Client, queue: str, stream: Stream
):
    def twice(batch: DataFrame, _: int) -> None:
        for _ in range(2):
            batch.foreachPartition(enqueue_partition(endpoint=shared_cluster.endpoint, queue=queue))

    stream.run(stream.rows.writeStream.foreachBatch(twice))
    assert payloads(client, queue) == ONCE + ONCE
    stream.forget_last_commit()
    stream.run(stream.rows.writeStream.foreachBatch(twice))
    assert payloads(client, queue) == Counter(ONCE + ONCE)
