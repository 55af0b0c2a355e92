"""``format("fila")`` as a target, with real tasks that fail and a real broker that dies."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructType

from fila_cluster import Client
from fila_cluster.spark.writing import BatchWriter, StreamWriter, batch_writer, stream_writer
from tests.support.cluster.cluster import Cluster, eventually, running
from tests.support.external.spark import BATCH, ONCE, Gate, Stream, error_line, messages, payloads, write

pytestmark = pytest.mark.whole

ROW_BYTES = 2000
"""So that a few rows fill Spark's buffers, and reach the writer while their task still waits for others."""


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Spark hands rows on after 20 of them, not after 10,000."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(name, "20")
    yield
    spark.conf.unset(name)


ALL_COLUMNS = """
    concat('p', id) payload, map('number', cast(id as string), 'kind', 'row') headers, concat('tenant-', id % 2) fairness_key,
    cast(id + 1 as smallint) weight, array('a', concat('b', id)) throttle_keys, cast(-id as int) priority,
    cast(1.5 as decimal(3, 1)) cost, if(id = 3, 3600000, null) delay_ms, 86400000 ttl_ms, concat('mine-', id) dedup_id,
    'first' dedup_mode, if(id = 3, null, cast(id + 1 as int)) max_attempts,
    if(id = 2, '{other}', null) queue
"""


def test_every_column_arrives(spark: SparkSession, shared_cluster: Cluster, client: Client, queue: str):
    other = f"{queue}-other"
    client.create_queue(other)
    frame = spark.sql(f"select {ALL_COLUMNS.format(other=other)} from range(4)")
    write(frame, shared_cluster, queue)
    write(frame, shared_cluster, queue)  # has the same dedup ids

    here, there = messages(client, queue), messages(client, other)
    assert {message.payload for message in here} == {b"p0", b"p1", b"p3"}
    (two,) = there
    assert (two.payload, two.headers, two.fairness_key) == (b"p2", {"number": "2", "kind": "row"}, "tenant-0")
    assert (two.weight, list(two.throttle_keys), two.priority, two.cost) == (3, ["a", "b2"], -2, 1.5)
    assert {message.payload: message.max_attempts for message in [*here, two]} == {b"p0": 1, b"p1": 2, b"p2": 3, b"p3": None}
    (delayed,) = (message for message in here if message.state == "delayed")
    assert delayed.payload == b"p3"
    assert delayed.due_at is not None
    assert delayed.due_at - delayed.enqueued_at > timedelta(minutes=59)


def test_a_second_write_replaces_what_waits(spark: SparkSession, shared_cluster: Cluster, client: Client, queue: str):
    for version in (1, 2):
        write(
            spark.sql(f"select concat('v{version} of ', id) payload, id dedup_id, if(id = '0', 'last', null) dedup_mode "
                      "from (select cast(id as string) id from range(2))"),
            shared_cluster, queue,
        )  # fmt: skip
    assert payloads(client, queue) == {b"v2 of 0": 1, b"v1 of 1": 1}


def test_binary_payloads_columns_by_name_and_whole_rows(
    spark: SparkSession, shared_cluster: Cluster, client: Client, queue: str
):
    frame = spark.sql("select unhex('00ff80') body, 'acme' tenant from range(1)")
    write(frame, shared_cluster, queue, payload="body", fairness_key="tenant")
    write(
        spark.sql("select 'acme' tenant, 1.5 price, null nothing"), shared_cluster, queue, payload="*", fairness_key="tenant"
    )
    assert [(message.payload, message.fairness_key) for message in messages(client, queue)] == [
        (b"\x00\xff\x80", "acme"),
        (b'{"tenant":"acme","price":1.5,"nothing":null}', "acme"),
    ]


def test_equal_rows_are_all_stored_and_so_is_a_second_write_of_them(
    spark: SparkSession, shared_cluster: Cluster, client: Client, queue: str
):
    frame = spark.sql("select 'same' payload from range(0, 50, 1, 3)")
    write(frame, shared_cluster, queue)
    write(frame, shared_cluster, queue)
    assert payloads(client, queue) == {b"same": 100}
    write(frame, shared_cluster, queue, job="nightly")
    write(frame, shared_cluster, queue, job="nightly")
    assert payloads(client, queue) == {b"same": 150}


@pytest.mark.usefixtures("small_batches")
def test_tasks_that_fail_and_run_again_in_another_order_store_each_row_once(
    spark: SparkSession, shared_cluster: Cluster, client: Client, queue: str
):
    frame = spark.range(0, 1000, 1, 2).selectExpr(f"rpad(cast(id div 2 as string), {ROW_BYTES}, '.') payload")
    gate = Gate(shared_cluster.endpoint, queue, 300, attempts_that_fail=3)
    write(gate.before(frame), shared_cluster, queue)
    stored = payloads(client, queue)
    assert len(stored) == 500
    assert set(stored.values()) == {2}


@pytest.mark.usefixtures("small_batches")
def test_a_worker_that_is_killed_during_a_load(spark: SparkSession, tmp_path: Path):
    with running(tmp_path / "data", workers=2) as cluster, cluster.client() as client:
        client.create_queue("load")
        (shard,) = {info.shard for info in client.list_queues("load")}
        killed = tmp_path / "killed"

        def kill_in_the_middle() -> None:
            eventually(lambda: client.queue_stats("load").enqueued > 0, "the first rows")
            psutil.Process(cluster.worker_of(shard).pid).kill()
            killed.touch()

        frame = spark.range(0, 4000, 1, 2).selectExpr(f"rpad(cast(id as string), {ROW_BYTES}, '.') payload")
        with ThreadPoolExecutor() as other_thread:  # Spark knows its data sources only in the thread of the session
            killing = other_thread.submit(kill_in_the_middle)
            write(Gate(cluster.endpoint, "load", 1000, wait_for=killed).before(frame), cluster, "load")
            killing.result()
        stored = payloads(client, "load")
        assert len(stored) == 4000
        assert set(stored.values()) == {1}


def test_a_shard_that_is_down_is_the_tasks_to_wait_for(cluster: Cluster):
    with cluster.client() as client:
        client.create_queue("q")
    (worker,) = cluster.status().workers
    supervisor = psutil.Process(cluster.supervisor.pid)
    supervisor.suspend()  # lest it start another worker at once
    psutil.Process(worker.pid).kill()
    eventually(lambda: not cluster.all_up(), "the worker's end is noticed")
    options = {"endpoint": cluster.endpoint, "queue": "q", "timeout": "500ms"}
    schema = StructType().add("payload", StringType())
    assert isinstance(batch_writer(options, schema, overwrite=False), BatchWriter)
    assert isinstance(stream_writer(options, schema, overwrite=False), StreamWriter)
    supervisor.resume()
    eventually(cluster.all_up, "it is back")


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    stream = Stream(spark, tmp_path)
    stream.add(spark.sql(BATCH).select("payload"))
    return stream


def test_a_stream_that_is_replayed_stores_nothing_twice(
    spark: SparkSession, shared_cluster: Cluster, client: Client, queue: str, stream: Stream
):
    def run() -> None:
        stream.run(stream.rows.writeStream.format("fila").options(endpoint=shared_cluster.endpoint, queue=queue))

    run()
    assert payloads(client, queue) == ONCE
    stream.forget_last_commit()
    run()
    assert payloads(client, queue) == ONCE
    stream.add(spark.sql("select 'row 1' payload"))
    run()
    assert payloads(client, queue)[b"row 1"] == 3  # a new row, though it looks like an old one


def test_a_write_in_foreach_batch_that_is_replayed_stores_nothing_twice(
    shared_cluster: Cluster, client: Client, queue: str, stream: Stream
):
    def run() -> None:
        stream.run(stream.rows.writeStream.foreachBatch(lambda frame, _: write(frame, shared_cluster, queue)))

    run()
    assert payloads(client, queue) == ONCE
    stream.forget_last_commit()
    run()
    assert payloads(client, queue) == ONCE


# --- what is wrong ----------------------------------------------------------------------------------------------------

ROWS = "select cast(id as string) payload from range(4)"


@pytest.mark.parametrize(
    ("rows", "options", "told"),
    [
        ("select 'a' payload, 1 tenant", {}, "unknown column 'tenant': "),
        ("select 1 payload", {}, "column 'payload' is int, but a message's payload has to be binary or string"),
        ("select 'a' body", {}, "unknown column 'body': "),
        (ROWS, {"dedup_windov": "5m"}, "unknown option 'dedup_windov': "),
        (ROWS, {"dedup_window": "soon"}, "option dedup_window: 'soon' is not a duration"),
        (ROWS, {"server_key": "secret"}, "option server_key is not the 40 characters"),
        (ROWS, {"queue": ""}, "no queue: name one with option queue"),
        (ROWS, {"queue": "not-there"}, "no queue 'not-there': create it"),
        (ROWS, {"queue": "not-there.dlq"}, "option queue: 'not-there.dlq' is a dead letter queue"),
        (ROWS, {"endpoint": "tcp://127.0.0.1:1", "timeout": "200ms"}, "no broker answers at tcp://127.0.0.1:1"),
        (ROWS, {"endpoint": "nowhere"}, "endpoint 'nowhere': "),
    ],
)
def test_a_write_that_cannot_work_is_one_line_before_it_starts(
    spark: SparkSession, shared_cluster: Cluster, client: Client, queue: str, rows: str, options: dict[str, str], told: str
):
    assert error_line(lambda: write(spark.sql(rows), shared_cluster, queue, **options)).startswith(told)
    assert messages(client, queue) == []


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("select nullif(cast(id as string), '2') payload from range(0, 4, 1, 1)", "row 2 of its partition: payload is null"),
        (
            "select repeat('x', 17000000) payload",
            "row 0 of its partition: payload of 17000000 bytes: this broker accepts up to",
        ),
        ("select 'a' payload, 0 cost", "row 0 of its partition: cost="),
        ("select 'a' payload, 0 max_attempts", "row 0 of its partition: max_attempts=0"),
        ("select 'a' payload, 'last' dedup_mode", "row 0 of its partition: dedup_mode='last' needs a dedup_id"),
        ("select 'a' payload, 'not-there' queue", "row 0 of its partition: no queue 'not-there'"),
        ("select 'a' payload, map('k', cast(null as string)) headers", "row 0 of its partition: header 'k'"),
    ],
)
def test_a_row_that_cannot_be_stored_is_one_line_that_names_it(
    spark: SparkSession, shared_cluster: Cluster, queue: str, rows: str, told: str
):
    assert error_line(lambda: write(spark.sql(rows), shared_cluster, queue)).startswith(told)


def test_modes_that_replace(spark: SparkSession, shared_cluster: Cluster, queue: str, stream: Stream):
    options = {"endpoint": shared_cluster.endpoint, "queue": queue}
    overwriting = spark.sql(ROWS).write.format("fila").mode("overwrite").options(**options)
    assert error_line(overwriting.save).startswith(
        "mode overwrite: a queue's messages are not replaced by a write; use mode('a"
    )
    counts = stream.rows.groupBy("payload").count().select("payload")
    complete = counts.writeStream.format("fila").outputMode("complete").options(**options)
    assert error_line(lambda: stream.run(complete)).startswith("outputMode complete would enqueue the whole result again")


def test_a_stream_that_cannot_work_is_one_line(shared_cluster: Cluster, stream: Stream):
    writing = stream.rows.writeStream.format("fila").options(endpoint=shared_cluster.endpoint, queue="not-there")
    assert error_line(lambda: stream.run(writing)).startswith("no queue 'not-there': create it")
