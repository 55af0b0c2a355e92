"""``fila-cluster spark load|drain|report``: what runs under the commands, in one session. ``test_command_line.py`` starts the commands."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path

import psutil
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from fila_cluster import Client, Message, QueueStats
from fila_cluster.spark.pipelines.drain import Drained, DrainJob, drain
from fila_cluster.spark.pipelines.load import Loaded, LoadJob, Mapped, load, source_of
from fila_cluster.spark.pipelines.session import PipelineError
from fila_cluster.spark.report.measures import NOT_ASKED, gather
from fila_cluster.spark.report.page import page
from tests.support.cluster.cluster import Cluster, eventually, running
from tests.support.external.spark import fail_some, messages, payloads

pytestmark = pytest.mark.whole

ROWS = [
    {"id": number, "tenant": f"t{number % 3}", "urgency": number % 2, "tags": ["a", f"b{number}"]} for number in range(60)
]


class Pipelines:
    """The commands' insides, on the shared cluster."""

    def __init__(self, spark: SparkSession, client: Client, queue: str, folder: Path) -> None:
        self.spark = spark
        self.client = client
        self.queue = queue
        self.folder = folder

    def load(self, path: object, mapped: Mapped | None = None, *, format_name: str | None = None, **options) -> Loaded:
        source = source_of(str(path), format_name)
        return load(self.spark, LoadJob(source, self.queue, mapped or Mapped(), **options), self.client)

    def drain(self, to: str = "out", *, queue: str | None = None, **options) -> Drained:
        return drain(self.spark, DrainJob(queue or self.queue, str(self.folder / to), **options), self.client)

    def fill(self, count: int, **options) -> list[bytes]:
        sent = [b"m%d" % number for number in range(count)]
        self.client.enqueue_many(
            self.queue, [Message(payload, fairness_key=f"t{len(payload)}", **options) for payload in sent]
        )
        return sent


@pytest.fixture
def pipelines(spark: SparkSession, client: Client, queue: str, tmp_path: Path) -> Pipelines:
    return Pipelines(spark, client, queue, tmp_path)


def write_rows(spark: SparkSession, folder: Path, format_name: str) -> Path:
    """A file or directory of :data:`ROWS`."""
    if format_name == "parquet":
        spark.createDataFrame(ROWS, "id int, tenant string, urgency int, tags array<string>").write.parquet(
            str(folder / "rows")
        )
        return folder / "rows"
    lines = {
        "json": [json.dumps(row) for row in ROWS],
        "csv": ["id,tenant,urgency,tags", *(f'{row["id"]},{row["tenant"]},{row["urgency"]},"{",".join(row["tags"])}"' for row in ROWS)],
        "text": [f"{row['tenant']} wants {row['id']}" for row in ROWS],
    }  # fmt: skip
    file = folder / f"rows.{'txt' if format_name == 'text' else format_name}"
    file.write_text("\n".join(lines[format_name]) + "\n")
    return file


# --- load -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_name", ["parquet", "json", "csv"])
def test_rows_of_files_become_messages(pipelines: Pipelines, format_name: str):
    path = write_rows(pipelines.spark, pipelines.folder, format_name)
    options = {"priority": "urgency", "throttle_keys": "tags"}
    assert pipelines.load(path, Mapped(tenant="tenant", options=options)).rows == len(ROWS)
    found = {json.loads(message.payload)["id"]: message for message in messages(pipelines.client, pipelines.queue)}
    assert sorted(map(int, found)) == list(range(len(ROWS)))
    seven = next(message for number, message in found.items() if int(number) == 7)
    assert (seven.fairness_key, seven.priority, list(seven.throttle_keys)) == ("t1", 1, ["a", "b7"])
    assert set(json.loads(seven.payload)) == {"id", "tenant", "urgency", "tags"}


def test_lines_of_text_become_messages(pipelines: Pipelines):
    path = write_rows(pipelines.spark, pipelines.folder, "text")
    pipelines.load(path, Mapped(tenant_pattern=r"^(t[01]) "))
    found = {message.payload: message.fairness_key for message in messages(pipelines.client, pipelines.queue)}
    assert len(found) == len(ROWS)
    assert (found[b"t1 wants 1"], found[b"t2 wants 2"]) == ("t1", "default")


def test_a_payload_column_is_the_payload(pipelines: Pipelines):
    rows = pipelines.folder / "rows.json"
    rows.write_text('{"payload": "p", "who": {"name": "acme"}, "meta": {"kind": "x", "n": 1}}\n')
    mapped = Mapped(tenant="who.name", options={"headers": "meta"})
    with pytest.raises(PipelineError, match=r"--payload: there is no column 'body'; the files have meta, payload, who"):
        pipelines.load(rows, Mapped(payload="body"))
    pipelines.load(rows, mapped)
    pipelines.load(rows, Mapped(payload="meta"))
    first, second = messages(pipelines.client, pipelines.queue)
    if first.fairness_key == "default":
        first, second = second, first
    assert (first.payload, first.fairness_key, first.headers) == (b"p", "acme", {"kind": "x", "n": "1"})
    assert json.loads(second.payload) == {"kind": "x", "n": 1}


def test_a_named_job_loads_each_row_once(pipelines: Pipelines):
    """However its files are cut: here into other tasks each time, with equal lines among them."""
    lines = [f"line {number % 40}" for number in range(60)]
    (pipelines.folder / "rows.txt").write_text("\n".join(lines))
    (pipelines.folder / "cut").mkdir()
    for start in range(0, 60, 20):
        (pipelines.folder / "cut" / f"{start}.txt").write_text("\n".join(lines[start : start + 20]))
    for path in ("rows.txt", "cut", "rows.txt"):
        assert pipelines.load(pipelines.folder / path, job="nightly").rows == 60
    once = Counter(line.encode() for line in lines)
    assert payloads(pipelines.client, pipelines.queue) == once
    pipelines.load(pipelines.folder / "cut")
    assert payloads(pipelines.client, pipelines.queue) == once + once


@pytest.mark.parametrize(
    ("line", "mapped", "said"),
    [
        ('{"payload": null, "a": 1}', Mapped(), "null"),
        ('{"a": "many"}', Mapped(options={"priority": "a"}), "The value 'many' of the type"),
        ('{"a": 1}', Mapped(options={"weight": "b"}), "--option weight: there is no column 'b'; the files have a"),
    ],
)
def test_bad_rows_are_one_clear_line(pipelines: Pipelines, line: str, mapped: Mapped, said: str):
    (pipelines.folder / "rows.json").write_text(line)
    with pytest.raises(PipelineError) as refused:
        pipelines.load(pipelines.folder / "rows.json", mapped)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


# --- drain ------------------------------------------------------------------------------------------------------------


def rows_of(pipelines: Pipelines, to: str, format_name: str) -> list:
    options = {"header": "true"} if format_name == "csv" else {}
    return pipelines.spark.read.format(format_name).options(**options).load(str(pipelines.folder / to)).collect()


def is_empty(client: Client, queue: str) -> bool:
    return client.queue_stats(queue).depth == 0


@pytest.mark.parametrize("format_name", ["parquet", "json", "csv", "text"])
def test_a_queue_becomes_files(pipelines: Pipelines, format_name: str):
    sent = {payload.decode() for payload in pipelines.fill(30, headers={"a": "1"})}
    assert pipelines.drain(format=format_name).rows == 30
    rows = rows_of(pipelines, "out", format_name)
    column = "value" if format_name == "text" else "payload"
    found = [row[column].decode() if format_name == "parquet" else row[column] for row in rows]
    assert (len(found), set(found)) == (30, sent)
    assert is_empty(pipelines.client, pipelines.queue)
    if format_name != "text":
        assert {row["fairness_key"] for row in rows} == {"t2", "t3"}


def test_bytes_that_are_no_text_are_base64_where_a_format_has_only_text(pipelines: Pipelines):
    pipelines.client.enqueue(pipelines.queue, b"\xff\x00")
    pipelines.client.enqueue(pipelines.queue, "ü".encode())
    pipelines.drain(format="json")
    rows = pipelines.spark.read.json(str(pipelines.folder / "out")).select("payload", "payload_base64").collect()
    assert sorted(map(tuple, rows), key=str) == [("ü", None), (None, "/wA=")]


def test_a_drain_goes_on_where_the_last_one_ended(pipelines: Pipelines):
    sent = pipelines.fill(50)
    first = pipelines.drain(limit=20, rows_per_batch=8)
    assert (first.rows, pipelines.client.queue_stats(pipelines.queue).pending) == (20, 30)
    assert first.batches >= 3
    second = pipelines.drain()
    assert second.rows == 30
    assert pipelines.drain().rows == 0
    assert Counter(bytes(row.payload) for row in rows_of(pipelines, "out", "parquet")) == Counter(sent)
    assert is_empty(pipelines.client, pipelines.queue)


def test_several_queues_partitioned(pipelines: Pipelines):
    pipelines.fill(5)
    pipelines.client.create_queue(f"{pipelines.queue}-2")
    pipelines.client.enqueue(f"{pipelines.queue}-2", b"other")
    assert pipelines.drain(queue=f"{pipelines.queue}*", partition_by=("queue", "fairness_key")).rows == 6
    folders = {str(file.parent.relative_to(pipelines.folder)) for file in pipelines.folder.rglob("part-*.parquet")}
    assert folders == {f"out/queue={pipelines.queue}/fairness_key=t2", f"out/queue={pipelines.queue}-2/fairness_key=default"}


def test_files_cannot_be_partitioned_by_what_is_no_plain_column(pipelines: Pipelines):
    with pytest.raises(PipelineError, match="--partition-by headers: files can be partitioned by id, queue, state"):
        pipelines.drain(partition_by=("headers",))


# --- report -----------------------------------------------------------------------------------------------------------


def test_a_report_counts_what_happened(pipelines: Pipelines):
    fail_some(pipelines.client, pipelines.queue)
    before = datetime.now(UTC).replace(microsecond=0)
    report = gather(pipelines.spark, f"{pipelines.queue}.dlq", pipelines.client)
    assert (report.queue, report.dead_letter_queue) == (pipelines.queue, f"{pipelines.queue}.dlq")
    assert report.made_at >= before
    failures = report.failures
    assert (failures.total, failures.tenants) == (12, 3)
    assert [(count.name, count.count) for count in failures.by_reason] == [("failed", 12)]
    assert [(count.name, count.count) for count in failures.by_error] == [("took # ms", 8), ("(none given)", 4)]
    assert {count.name: count.parts for count in failures.by_tenant} == {
        "t0": {"took # ms": 4},
        "t1": {"took # ms": 4},
        "t2": {"(none given)": 4},
    }
    assert sum(count.count for count in failures.by_time) == 12
    assert before - timedelta(minutes=10) <= datetime.fromisoformat(failures.by_time[0].name) <= report.made_at
    assert [(dwell.fairness_key, dwell.messages) for dwell in failures.dwell[:1]] == [(None, 12)]
    assert {dwell.fairness_key: dwell.messages for dwell in failures.dwell[1:]} == {"t0": 4, "t1": 4, "t2": 4}
    assert 0 <= failures.dwell[0].p50_s <= failures.dwell[0].max_s < 600
    together, tenant = report.waiting
    assert (together.fairness_key, together.messages, tenant.fairness_key, tenant.messages) == (None, 4, "t1", 4)
    assert 0 <= tenant.p50_s <= tenant.p99_s <= tenant.max_s < 600
    shares = {share.fairness_key: (share.weight, share.delivered, share.share) for share in report.shares}
    assert shares["busy"] == (3, 3, 0.2)
    assert sum(share.entitled for share in report.shares) == pytest.approx(1)
    assert (report.history, report.no_history, report.shares_span) == (None, NOT_ASKED, "since_start")
    text = page(report)
    assert "secret" not in text
    assert "12 dead letters" in text
    assert "Not in here: " in text


def test_a_report_of_a_queue_in_which_nothing_happened(pipelines: Pipelines):
    report = gather(pipelines.spark, pipelines.queue, pipelines.client)
    assert (report.failures.total, report.waiting, report.shares) == (0, [], [])
    assert "Nothing waits." in page(report)


# --- a worker that dies -----------------------------------------------------------------------------------------------


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path / "data", workers=2) as cluster:
        yield cluster


@contextmanager
def killing_the_worker_in_the_middle(
    cluster: Cluster, client: Client, moved: Callable[[QueueStats], int], total: int
) -> Iterator[None]:
    """Kill -9 the worker of ``q`` as soon as something of ``total`` messages has moved, while the block goes on."""

    def kill() -> int:
        eventually(lambda: moved(client.queue_stats("q")) > 0, "the first messages move")
        stats = client.queue_stats("q")
        psutil.Process(cluster.worker_of(stats.shard).pid).kill()
        return moved(stats)

    with ThreadPoolExecutor() as beside:
        killing = beside.submit(kill)
        yield
        assert killing.result() < total, "all was over before anybody could kill"


def test_a_load_survives_its_worker(spark: SparkSession, mortal: Cluster, tmp_path: Path):
    lines = [b"line %d" % number for number in range(40_000)]
    (tmp_path / "rows.txt").write_bytes(b"\n".join(lines))
    with mortal.client() as client:
        client.create_queue("q")
        plan = LoadJob(source_of(str(tmp_path / "rows.txt")), "q", partitions=24)
        with killing_the_worker_in_the_middle(mortal, client, attrgetter("enqueued"), len(lines)):
            assert load(spark, plan, client).rows == len(lines)
        assert drain(spark, DrainJob("q", str(tmp_path / "out")), client).rows == len(lines)
    found = ds.dataset(tmp_path / "out", format="parquet").to_table(columns=["payload"])["payload"].to_pylist()
    assert Counter(found) == Counter(lines)


def test_a_drain_survives_its_worker(spark: SparkSession, mortal: Cluster, tmp_path: Path):
    sent = [b"m%d" % number for number in range(3000)]
    with mortal.client() as client:
        client.create_queue("q")
        client.enqueue_many("q", map(Message, sent))
        with killing_the_worker_in_the_middle(mortal, client, attrgetter("acked"), len(sent)):
            assert drain(spark, DrainJob("q", str(tmp_path / "out"), rows_per_batch=300), client).rows == len(sent)
        assert is_empty(client, "q")
    found = ds.dataset(tmp_path / "out", format="parquet").to_table(columns=["payload"])["payload"].to_pylist()
    assert Counter(found) == Counter(sent)
