"""The observer and ``top`` go on when the router that they were linked to dies."""

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fila_cluster.ops.observer.settings import ObserverSettings
from tests.support.cluster.cluster import Cluster, command, eventually
from tests.support.cluster.forwarder import Forwarder
from tests.support.external.tmux import terminal
from tests.support.hosts.hosts import Part
from tests.support.machine import TMUX, require


@pytest.fixture
def ways(cluster: Cluster) -> Iterator[list[Forwarder]]:
    with Forwarder(cluster.endpoint) as one, Forwarder(cluster.endpoint) as two:
        yield [one, two]


def listed(ways: list[Forwarder]) -> str:
    return ",".join(each.endpoint for each in ways)


@pytest.mark.parametrize("router", ["killed", "frozen"])
def test_the_observer_s_numbers_go_on(cluster: Cluster, ways: list[Forwarder], tmp_path: Path, router: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = ObserverSettings(
        endpoint=listed(ways),
        host="127.0.0.1", port=port, otlp_endpoint=None, service_name="fila", metrics_interval_ms=10_000,
    )  # fmt: skip
    observer = Part("fila_cluster.ops.observer", settings, tmp_path / "observer")
    observer.start()

    def shown() -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return -1
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith("fila_messages_enqueued_total{"))

    try:
        with cluster.client() as client:
            client.create_queue("orders")
            client.enqueue("orders", b"x")
            eventually(lambda: shown() == 1, "an enqueue is seen")
            used = next(each for each in ways if each.connections)
            if router == "killed":
                used.kill()
            else:
                used.freeze()
            client.enqueue("orders", b"x")
        eventually(lambda: shown() == 2, "another enqueue is seen")
        assert observer.alive
    finally:
        observer.kill()


def test_top_goes_on(cluster: Cluster, ways: list[Forwarder]) -> None:
    require(TMUX)
    with cluster.client() as client, terminal(command("--endpoint", listed(ways), "top", "--interval", "200ms")) as screen:
        client.create_queue("orders")
        eventually(lambda: "orders" in screen.screen(), "a queue is shown")
        next(each for each in ways if each.connections).kill()
        client.create_queue("later")
        eventually(lambda: "later" in screen.screen(), "a queue made later is shown")
        screen.press("q")
        eventually(lambda: "exit code 0" in screen.screen(), "it ends")
