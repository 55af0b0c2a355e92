"""The load for Locust, run as a user runs it, in a process of its own: importing Locust changes the standard library."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from fila_cluster import Client
from tests.support.cluster.cluster import PATIENCE_S, Cluster, environment, eventually, running

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster") / "data") as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.client() as client:
        yield client


@contextmanager
def load(cluster: Cluster, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """Five users of Locust, until :func:`figures_of` ends them."""
    headless = ["--headless", "--users", "5", "--spawn-rate", "5", "--json", "--host", cluster.endpoint]
    with subprocess.Popen(
        [sys.executable, "-m", "locust", "-f", str(ROOT / "benchmarks" / "locustfile.py"), *headless, *options],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        try:
            yield run
        finally:
            if run.poll() is None:
                run.kill()


def figures_of(run: "subprocess.Popen[str]") -> dict[str, dict[str, Any]]:
    """End Locust as a service manager would. Return its figures by name."""
    run.terminate()
    output, log = run.communicate(timeout=PATIENCE_S)
    assert output, log
    return {figures["name"]: figures for figures in json.loads(output)}


def await_work(client: Client, prefix: str) -> None:
    """Wait until messages of a queue were delivered and acknowledged."""

    def is_done() -> bool:
        queues = [queue.name for queue in client.list_queues(prefix) if not queue.is_dead_letter]
        stats = [client.queue_stats(queue) for queue in queues]
        return any(each.acked > 100 for each in stats)

    eventually(is_done, "acknowledged messages")


def test_users_enqueue_receive_and_acknowledge_in_a_queue_of_their_own(cluster: Cluster, client: Client):
    with load(cluster) as run:
        await_work(client, "locust.")
        figures = figures_of(run)
    assert run.returncode == 0
    assert (
        {"enqueue", "receive", "delivery", "ack"} <= figures.keys() <= {"enqueue", "enqueue 50", "receive", "delivery", "ack"}
    )
    assert {each["method"] for each in figures.values()} == {"fila"}
    assert figures["delivery"]["num_requests"] > 100
    assert {each["num_failures"] for each in figures.values()} == {0}
    assert client.list_queues() == []


def test_a_payload_that_is_not_as_it_was_sent_is_a_failure(cluster: Cluster, client: Client):
    queue = f"chosen-{uuid4().hex}"
    client.create_queue(queue)
    client.enqueue(queue, b"another text", {"line": "3"})
    client.enqueue(queue, b"without a number")
    with load(cluster, "--queue", queue, "--payloads", "no such file") as run:
        await_work(client, queue)
        figures = figures_of(run)
    assert run.returncode == 1
    assert {name: each["num_failures"] for name, each in figures.items() if each["num_failures"]} == {"delivery": 2}
    client.delete_queue(queue)
