"""The testing kit and the embedded broker beside a real cluster."""

import subprocess
import sys
from pathlib import Path

import pytest

from fila_cluster.embedded import Broker
from tests.support.cluster.cluster import Cluster, environment, running
from tests.support.kit import PLUGIN

ROOT = Path(__file__).parents[3]
SUITE = ROOT / "examples/testing"


def outcome_of(*options: str) -> str:
    """What pytest says at last of the shop's suite."""
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", SUITE, "-p", "no:cacheprovider", *PLUGIN]
    done = subprocess.run(
        [*map(str, command), *options, str(SUITE)],
        env=environment(PYTEST_ADDOPTS=""),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def test_a_suite_in_memory() -> None:
    assert outcome_of().startswith("50 passed in ")


@pytest.mark.whole
def test_the_same_suite_on_a_cluster(cluster: Cluster) -> None:
    assert outcome_of("--fila-endpoint", cluster.endpoint).startswith("50 passed in ")
    with cluster.client() as client:
        assert client.list_queues() == []


def test_a_cluster_goes_on_with_the_directory_of_an_embedded_broker_and_back(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, broker.client() as client:
        client.create_queue("q")
        client.enqueue("q", b"one")
    with running(tmp_path / "data", "--shards", 1) as cluster, cluster.client() as client:
        (delivery,) = client.receive("q")
        assert delivery.payload == b"one"
        delivery.retry(error="not here")
        client.enqueue("q", b"two")
        cluster.stop()
    with Broker(tmp_path / "data") as broker, broker.client() as client:
        assert [(each.payload, each.error) for each in client.browse("q")] == [(b"one", "not here"), (b"two", "")]
