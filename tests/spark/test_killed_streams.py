"""A stream whose driver and executors are killed -9 again and again: every message once, the broker's records in balance."""

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
from tests.spark.stream_job import ROWS_PER_BATCH
from tests.support.cluster.cluster import PATIENCE_S, environment, eventually, running
from tests.support.machine import JAVA, require

pytestmark = pytest.mark.whole

KILLED = ("pyspark.worker", "CoarseGrainedExecutorBackend")
"""What runs the tasks: the Python processes, and the executor's JVM. After them everything is killed."""
STEP = ROWS_PER_BATCH
HEADROOM = 2 * ROWS_PER_BATCH
"""What the job may do between two looks at it."""
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
    psutil.wait_procs(family, timeout=PATIENCE_S)


def descendants(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_executors(process: "subprocess.Popen[bytes]", program: str) -> None:
    """Kill -9 those that run such a program."""
    for each in descendants(process):
        try:
            if any(argument.endswith(program) for argument in each.cmdline()):
                kill(each.pid)
        except psutil.NoSuchProcess:
            continue


def await_progress(client: Client, process: "subprocess.Popen[bytes]", count: int) -> None:
    """Wait until so many more messages are acknowledged, or until the program has ended."""
    goal = client.queue_stats("q").acked + count
    eventually(lambda: client.queue_stats("q").acked >= goal or process.poll() is not None, f"{goal} acked", patience_s=300)


def check_every_message_was_written_once(directory: Path, sent: set[str]) -> None:
    batches = sorted(directory.glob("batch-*"))
    written = Counter(identity for batch in batches for identity in ds.dataset(batch).to_table()["id"].to_pylist())
    assert sent - set(written) == set()
    assert set(written) - sent == set()
    assert [identity for identity, times in written.items() if times > 1] == []


def fill_up(client: Client, wanted: int) -> set[str]:
    """Let the queue have so many messages at least; the ids of those that were sent for it."""
    missing = max(0, wanted - client.queue_stats("q").depth)
    return set(
        client.enqueue_many("q", [Message(b"%d" % number, fairness_key=f"k{number % 5}") for number in range(missing)])
    )


def kill_in_the_middle(client: Client, process: "subprocess.Popen[bytes]", chance: random.Random) -> bool:
    """Kill executors at random moments and leave the program at another; False if it had done everything before."""
    for program in KILLED:
        await_progress(client, process, chance.randint(1, STEP))
        kill_executors(process, program)
    await_progress(client, process, chance.randint(1, STEP))
    return process.poll() != 0


@pytest.mark.timeout(900)
def test_a_stream_that_is_killed_again_and_again_writes_every_message_once(tmp_path: Path) -> None:
    require(JAVA)
    chance = random.Random(4)
    with running(tmp_path / "data", "--no-dashboard", workers=2) as cluster, cluster.client() as client:
        client.create_queue("q")
        sent: set[str] = set()
        was_killed = False
        while not was_killed:
            sent |= fill_up(client, (len(KILLED) + 1) * (STEP + HEADROOM))
            with job(cluster.endpoint, tmp_path, WITH_EXECUTORS) as process:
                was_killed = kill_in_the_middle(client, process, chance)
                assert process.poll() in {None, 0}, (tmp_path / "log").read_text()[-3000:]
        for _ in range(3):  # to the end; a last kill may have left something reserved for a batch that comes first
            with job(cluster.endpoint, tmp_path, LOCAL) as process:
                assert process.wait(300) == 0, (tmp_path / "log").read_text()[-3000:]
            if client.queue_stats("q").depth == 0:
                break
        stats = client.queue_stats("q")
        assert (stats.depth, stats.enqueued, stats.acked) == (0, len(sent), len(sent))
        assert client.queue_stats("q.dlq").depth == 0
        check_every_message_was_written_once(tmp_path, sent)
