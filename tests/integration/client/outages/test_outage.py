"""``fila-cluster consume`` when the broker, or its reader, is away for a while."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cluster.cluster import PATIENCE_S, Cluster, command, environment, eventually, running


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path / "data") as cluster:
        yield cluster


@contextmanager
def consuming(endpoint: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        command("--endpoint", endpoint, "consume", *arguments),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with started as consumer:
        try:
            yield consumer
        finally:
            consumer.kill()


def test_it_goes_on_when_the_broker_is_back(cluster: Cluster):
    with cluster.client() as client:
        client.create_queue("orders")
    with consuming(cluster.endpoint, "orders") as consumer:
        assert consumer.stdout
        assert consumer.stderr
        for _ in range(2):
            with cluster.client() as client:
                client.enqueue("orders", b"before")
                assert json.loads(consumer.stdout.readline())["payload"] == "before"
                eventually(lambda client=client: client.queue_stats("orders").depth == 0, "the message is acked")
            for child in cluster.children():
                child.kill()
            eventually(cluster.all_up, "router and worker are back")
        with cluster.client() as client:
            client.enqueue("orders", b"after")
        assert json.loads(consumer.stdout.readline())["payload"] == "after"
        consumer.send_signal(signal.SIGTERM)
        assert consumer.wait(PATIENCE_S) == 0
        assert all(line.endswith("; trying again\n") for line in consumer.stderr)  # said only if the outage takes long


def test_it_does_not_wait_for_a_broker_that_never_was_there(tmp_path: Path):
    with consuming(f"ipc://{tmp_path}/nobody", "orders") as consumer:
        assert consumer.stderr
        (line,) = consumer.stderr.readlines()
        assert line.startswith(f"Error: no broker answers at ipc://{tmp_path}/nobody")
        assert consumer.wait(PATIENCE_S) == 1


@pytest.mark.whole
def test_with_a_limit_of_its_own_it_fails_at_once(cluster: Cluster):
    with cluster.client() as client:
        client.create_queue("orders")
    with cluster.client() as client, consuming(cluster.endpoint, "orders", "--wait", "1h") as consumer:
        assert consumer.stderr
        eventually(lambda: client.queue_stats("orders").consumers == 1, "it waits at the broker")
        cluster.kill_all()
        (line,) = consumer.stderr.readlines()
        assert line.startswith("Error: ")
        assert consumer.wait(PATIENCE_S) == 1


def test_what_was_read_too_late_comes_again(cluster: Cluster):
    with cluster.client() as client:
        client.create_queue("orders", visibility_timeout=1.0)
        client.enqueue("orders", bytes(1 << 20))  # more than a pipe holds
        with consuming(cluster.endpoint, "orders") as consumer:
            assert consumer.stdout
            eventually(lambda: client.queue_stats("orders").expired == 1, "the lease ends while nobody reads")
            first, second = (json.loads(consumer.stdout.readline()) for _ in range(2))
            assert first["id"] == second["id"]
            assert (first["attempts"], second["attempts"]) == (0, 1)


def test_a_queue_that_is_not_there_is_not_waited_for(cluster: Cluster):
    with consuming(cluster.endpoint, "orders") as consumer:
        assert consumer.stderr
        (line,) = consumer.stderr.readlines()
        assert line.startswith("Error: no queue 'orders'")
        assert consumer.wait(PATIENCE_S) == 1
