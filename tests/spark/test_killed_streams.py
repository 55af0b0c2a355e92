"""A stream whose driver and executors are killed -9 again and again: every message once, the broker's books in balance."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyarrow.dataset as ds
import pytest

from fila_cluster import Client, Message
from tests.support.cluster import environment, eventually, running
from tests.support.machine import JAVA, require

EXECUTORS_KILLED = (1, 2, 1, 2)
"""Round by round; after that, everything is killed. Ten kills in all."""
MESSAGES = 4_000
STEP = MESSAGES // 12
ROOT = Path(__file__).parents[2]
LOCAL = "local[2,4]"
WITH_EXECUTORS = "local-cluster[1,2,1024]"
"""A master, a worker and an executor, each a JVM of its own."""


@contextmanager
def job(endpoint: str, directory: Path, master: str) -> "Iterator[subprocess.Popen[bytes]]":
    """The program, in a process group of its own; all of it is dead afterwards."""
    arguments = [sys.executable, "-m", "tests.spark.stream_job", endpoint, "q", str(directory), master]
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            arguments, cwd=ROOT, env=environment(PYTHONPATH=str(ROOT)), stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        kill_all_of(process)


def kill_all_of(process: "subprocess.Popen[bytes]") -> None:
    """Kill -9 the driver and all that it has started, at once."""
    family = descendants(process)
    process.kill()
    for each in family:
        kill(each.pid)
    process.wait()
    psutil.wait_procs(family, timeout=20)


def descendants(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_executors(process: "subprocess.Popen[bytes]", master: str) -> None:
    """Kill -9 what runs the tasks: the executor's JVM, or without one the Python processes that tasks run in."""
    word = "CoarseGrainedExecutorBackend" if master == WITH_EXECUTORS else "pyspark.worker"
    for each in descendants(process):
        try:
            if any(argument.endswith(word) for argument in each.cmdline()):
                kill(each.pid)
        except psutil.NoSuchProcess:
            continue


def await_progress(client: Client, process: "subprocess.Popen[bytes]", count: int) -> None:
    """Wait until so many more messages are acknowledged, or until the program has ended."""
    goal = client.queue_stats("q").acked + count
    eventually(lambda: client.queue_stats("q").acked >= goal or process.poll() is not None, f"{goal} acked", patience_s=120)


def check_every_message_was_written_once(directory: Path, sent: set[str]) -> None:
    batches = sorted(directory.glob("batch-*"))
    written = Counter(identity for batch in batches for identity in ds.dataset(batch).to_table()["id"].to_pylist())
    assert sent - set(written) == set()
    assert set(written) - sent == set()
    assert [identity for identity, times in written.items() if times > 1] == []


@pytest.mark.timeout(600)
def test_a_stream_that_is_killed_ten_times_writes_every_message_once(tmp_path: Path) -> None:
    require(JAVA)
    chance = random.Random(4)
    with running(tmp_path / "data", "--no-dashboard", workers=2) as cluster, cluster.client() as client:
        client.create_queue("q")
        sent = set(client.enqueue_many("q", [Message(b"%d" % i, fairness_key=f"k{i % 5}") for i in range(MESSAGES)]))
        for number, times in enumerate(EXECUTORS_KILLED):
            master = WITH_EXECUTORS if number == 2 else LOCAL
            with job(cluster.endpoint, tmp_path, master) as process:
                for _ in range(times):
                    await_progress(client, process, chance.randint(1, STEP))
                    kill_executors(process, master)
                await_progress(client, process, chance.randint(1, STEP))
                assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
        for _ in range(3):  # to the end; a last kill may have left something reserved for a batch that comes first
            with job(cluster.endpoint, tmp_path, LOCAL) as process:
                assert process.wait(120) == 0, (tmp_path / "log").read_text()[-3000:]
            if client.queue_stats("q").depth == 0:
                break
        stats = client.queue_stats("q")
        assert (stats.depth, stats.enqueued, stats.acked) == (0, MESSAGES, MESSAGES)
        assert client.queue_stats("q.dlq").depth == 0
        check_every_message_was_written_once(tmp_path, sent)
