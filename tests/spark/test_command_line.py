"""``fila-cluster spark load|drain|report``, each once as a process."""

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pyarrow.dataset as ds
import pytest

from fila_cluster import Client
from tests.support.cluster.cluster import PATIENCE_S, Cluster, command, environment, eventually, running
from tests.support.external.spark import fail_some
from tests.support.external.spark_java import quick_java

pytestmark = pytest.mark.whole

LOG = Path(__file__).parents[1] / "data" / "apache_access.log"


@pytest.fixture
def start(shared_cluster: Cluster, start_on) -> Callable[..., subprocess.Popen]:
    """Start a command on the shared cluster."""
    return partial(start_on, shared_cluster)


@pytest.fixture
def start_on() -> Iterator[Callable[..., subprocess.Popen]]:
    """Start a command; whatever a test leaves of it, JVM and Python workers too, is killed."""
    started = []

    def start(cluster: Cluster, *arguments: object) -> subprocess.Popen:
        line = command("--endpoint", cluster.endpoint, "--json", "spark", *arguments)
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(
            subprocess.Popen(line, env=environment(JDK_JAVA_OPTIONS=quick_java()), text=True, start_new_session=True, **pipes)
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            kill_group(process)


def outcome(process: subprocess.Popen) -> dict:
    """The one JSON line of a command that works, and says nothing else."""
    out, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")
    (line,) = out.splitlines()
    return json.loads(line)


def kill_group(process: subprocess.Popen) -> None:
    """Driver, JVM and Python workers."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)


@pytest.mark.timeout(900)
def test_the_access_log_in_and_out(start, client: Client, queue: str, tmp_path: Path):
    """Text → queue → Parquet, with the drain killed in between; every line once."""
    lines = LOG.read_bytes().splitlines()
    loaded = outcome(start("load", LOG, "--queue", queue, "--tenant-pattern", r"^(\S+)"))
    assert loaded["rows"] == len(lines)
    assert loaded.keys() == {"rows", "seconds", "rows_per_second", "queue"}

    out = tmp_path / "out"
    arguments = ("drain", queue, "--to", out, "--rows-per-batch", 2000)
    first = start(*arguments)
    eventually(lambda: len([*(out / "_checkpoint" / "commits").glob("[0-9]*")]) >= 1, "a batch", 240.0)
    kill_group(first)
    drained = outcome(start(*arguments))
    assert 0 < drained["rows"] < len(lines)
    assert drained["pending"] == 0

    table = ds.dataset(out, format="parquet").to_table(columns=["payload", "fairness_key"]).to_pydict()
    assert Counter(table["payload"]) == Counter(lines)
    assert Counter(table["fairness_key"]) == Counter(line.split()[0].decode() for line in lines)
    assert client.queue_stats(queue).depth == 0


@pytest.mark.timeout(600)
def test_the_report_as_a_command(tmp_path: Path, start_on):
    """Started while a queue is in use, with the last half hour and the last minute's shares."""
    with running(tmp_path / "data", "--dashboard", "127.0.0.1:0") as cluster, cluster.client() as client:
        dashboard = cluster.ready_line.split("dashboard ")[1].split(" ")[0]
        client.create_queue("orders")
        eventually(lambda: ticks_of(dashboard, "orders") > 0, "the dashboard knows the queue")
        fail_some(client, "orders")
        seen = ticks_of(dashboard, "orders")
        eventually(lambda: ticks_of(dashboard, "orders") > seen + 1, "the dashboard knows what happened")
        address = dashboard.removeprefix("http://")  # as `up --dashboard` takes it, too
        report = outcome(start_on(cluster, "report", "orders", "--to", tmp_path / "r.html", "--dashboard", address))
    assert (report["failures"]["total"], report["no_history"]) == (12, None)
    series = report["history"]["series"]
    assert {len(numbers) for numbers in series.values()} == {len(report["history"]["times"])}
    assert (series["pending"][-1], report["totals"]["pending"]) == (4, 4)
    assert max(number or 0 for number in series["dead_lettered"]) > 0
    assert report["shares_span"] == "last_minute"
    shares = {share["fairness_key"]: (share["delivered"], share["share"]) for share in report["shares"]}
    assert shares == {"t0": (4, 4 / 15), "t1": (4, 4 / 15), "t2": (4, 4 / 15), "busy": (3, 3 / 15)}
    text = (tmp_path / "r.html").read_text()
    assert "12 dead letters" in text
    told, _, _ = text.partition("<h2>Failures")
    assert told.count("<svg") == 2
    assert all(title in told for title in ("Messages a second", "Messages held"))


def ticks_of(dashboard: str, queue: str) -> int:
    """How often a dashboard has seen a queue."""
    try:
        with urlopen(f"{dashboard}/history?queue={queue}", timeout=PATIENCE_S) as answer:
            return sum(number is not None for number in json.loads(answer.read())["series"]["pending"])
    except HTTPError as unknown:
        unknown.close()
        return 0
