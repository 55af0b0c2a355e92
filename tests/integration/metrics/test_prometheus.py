"""Prometheus as it is: its tools accept what is written for it, and a server that scrapes a cluster knows what was sent."""

from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from fila_cluster import Message
from tests.support.cluster.cluster import Cluster, eventually, running
from tests.support.external.prometheus import Prometheus, complaints_about, promtool, scraping
from tests.support.machine import PROMETHEUS, require

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[3]

OLD_NAME = "fila_lua_execution_duration_us"
"""The name was given: it is the one that is not as Prometheus would have it."""


@pytest.fixture(autouse=True)
def _needs_prometheus() -> None:
    require(PROMETHEUS)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path / "data", "--dashboard", "127.0.0.1:0", "--shards", 2, workers=2) as cluster:
        yield cluster


def address_of(cluster: Cluster) -> str:
    return cluster.ready_line.split(" ")[4]


def work(cluster: Cluster, queue: str) -> None:
    """Something of everything: 300 sent, 200 acked, 40 dead-lettered."""
    with cluster.client() as client:
        client.create_queue(queue, on_enqueue="function on_enqueue(msg) return {} end")
        client.enqueue_many(queue, [Message(b"x", fairness_key=f"tenant-{number % 3}") for number in range(300)])
        deliveries = []
        while len(deliveries) < 240:
            deliveries += client.receive(queue, 240 - len(deliveries), wait=60)
        client.ack(deliveries[:200])
        for delivery in deliveries[200:]:
            delivery.fail("boom")


def test_the_configuration_and_the_alerts_are_in_order():
    for file in ("prometheus.yml", "compose.prometheus.yml"):
        assert "SUCCESS" in promtool("check", "config", ROOT / "deploy" / file)
    assert "SUCCESS" in promtool("check", "rules", ROOT / "deploy" / "alerts.yml")


def test_each_alert_fires_when_it_should_and_not_before():
    assert "SUCCESS" in promtool("test", "rules", ROOT / "tests" / "data" / "alerts_test.yml")


def test_the_page_is_as_prometheus_wants_it(cluster: Cluster):
    work(cluster, "orders")

    def page() -> str:
        with urlopen(f"{address_of(cluster)}/metrics") as answer:
            return answer.read().decode()

    eventually(lambda: 'fila_messages_settle_seconds_count{queue="orders"}' in page(), "the acks are told")
    told = page()
    assert complaints_about(told) == [f"{OLD_NAME} metric names should not contain abbreviated units"]
    assert complaints_about(told.replace(OLD_NAME, "fila_lua_execution_duration_seconds")) == []


def test_a_server_knows_what_was_sent_and_says_when_something_is_wrong(cluster: Cluster, tmp_path: Path):
    target = address_of(cluster).removeprefix("http://")
    with scraping(tmp_path, target) as prometheus:
        eventually(lambda: prometheus.query("fila_up") == {(): 1}, "the cluster is known")
        work(cluster, "orders")
        eventually(lambda: knows_the_work(prometheus), "all numbers are known")
        eventually(lambda: prometheus.query("fila_shard_up") == {("0",): 1, ("1",): 1}, "both shards are up")
        delivered = {(f"tenant-{index}", "orders"): pytest.approx(80, rel=0.06) for index in range(3)}
        eventually(lambda: prometheus.query('fila_key_delivered_total{queue="orders"}') == delivered, "fair shares")
        with cluster.client() as client:
            client.receive("orders")[0].fail("boom")
        eventually(lambda: "FilaDeadLettersGrow" in prometheus.firing(), "one more dead letter is an alert")
        eventually(lambda: "FilaAway" not in prometheus.firing(), "nothing else is")
        psutil.Process(cluster.router_pid()).suspend()
        try:
            eventually(lambda: prometheus.query("fila_up") == {(): 0}, "the cluster is away")
            eventually(lambda: "FilaAway" in prometheus.firing(), "the alert is raised")
            assert prometheus.query("fila_queue_pending") == {}
        finally:
            psutil.Process(cluster.router_pid()).resume()


def knows_the_work(prometheus: Prometheus) -> bool:
    wanted = {
        "fila_messages_enqueued_total": 300,
        "fila_messages_delivered_total": 240,
        "fila_messages_acked_total": 200,
        "fila_messages_dead_lettered_total": 40,
        "fila_queue_pending": 60,
        "fila_messages_settle_seconds_count": 200,
        "sum by (queue) (fila_messages_dwell_seconds_bucket{le='+Inf'})": 240,
        "fila_lua_errors_total": 0,
    }
    return all(prometheus.query(name).get(("orders",)) == number for name, number in wanted.items())
