"""A real cluster, observed as monitors do: over HTTP and by an OpenTelemetry collector."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from fila_cluster import Client, Delivery, Message, QueueStats
from fila_proto_zmq.names import shard_of
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually, running
from tests.support.external.collector import Collector

PAGE_BYTES_MAX = 64 * 1024
"""What few queues may fill, whatever their keys."""


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@contextmanager
def observed(data_dir: Path, *flags: object, workers: int = 1) -> Iterator[Cluster]:
    with running(data_dir, "--dashboard", "127.0.0.1:0", *flags, workers=workers) as cluster:
        yield cluster


def get(cluster: Cluster, path: str) -> tuple[int, str]:
    address = cluster.ready_line.split(" ")[4]
    try:
        with urlopen(f"{address}/{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scrape(cluster: Cluster) -> dict[tuple[str, ...], float]:
    """Samples by name and label values, in the order of the labels' names."""
    status, page = get(cluster, "metrics")
    assert status == 200
    assert len(page) < PAGE_BYTES_MAX
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def scrape_once(
    cluster: Cluster, condition: Callable[[dict[tuple[str, ...], float]], bool], what: str
) -> dict[tuple[str, ...], float]:
    """The first samples for which ``condition`` holds. A busy machine may leave out a sample, and then there are no numbers for a moment."""
    told: dict[tuple[str, ...], float] = {}

    def holds() -> bool:
        told.clear()
        told.update(scrape(cluster))
        return condition(told)

    eventually(holds, what)
    return told


def readiness(cluster: Cluster) -> tuple[int, list[int | None]]:
    status, body = get(cluster, "readyz")
    return status, [reason["shard"] for reason in json.loads(body)["reasons"]]


@contextmanager
def nobody_restarts(cluster: Cluster) -> Iterator[None]:
    supervisor = psutil.Process(cluster.supervisor.pid)
    supervisor.suspend()
    try:
        yield
    finally:
        supervisor.resume()


def name_on(shard: int) -> str:
    """A queue name that lives on one of two shards."""
    return next(name for name in map("q{}".format, range(100)) if shard_of(name, 2) == shard)


# --- numbers ----------------------------------------------------------------------------------------------------------


def use(client: Client, queue: str) -> list[Delivery]:
    """Something of everything that is counted; what is still leased."""
    client.create_queue(queue, max_attempts=1, visibility_timeout=600)
    client.enqueue_many(queue, [Message(b"x", fairness_key=f"tenant-{index % 3}") for index in range(30)])
    client.enqueue(queue, b"x", delay=600)
    deliveries = client.receive(queue, 12)
    client.ack(deliveries[:6])
    client.nack(deliveries[6:8], "no")
    return deliveries[8:]


def as_told(told: dict[tuple[str, ...], float], stats: QueueStats) -> bool:
    counters = ("enqueued", "delivered", "acked", "nacked", "expired", "dead_lettered")
    gauges = ("pending", "in_flight", "delayed", "depth", "consumers", "paused")
    keys = {("fila_key_delivered_total", key.fairness_key, stats.name): float(key.delivered) for key in stats.keys}
    wanted = {(f"fila_messages_{name}_total", stats.name): float(getattr(stats, name)) for name in counters}
    wanted |= {(f"fila_queue_{name}", stats.name): float(getattr(stats, name)) for name in gauges}
    return (wanted | keys).items() <= told.items()


def test_the_numbers_are_those_of_the_queues_statistics(data_dir: Path):
    with observed(data_dir, "--shards", 2, workers=2) as cluster, cluster.client() as client:
        leased = [delivery for shard in range(2) for delivery in use(client, name_on(shard))]
        both = [client.queue_stats(name_on(shard)) for shard in range(2)]
        assert {(stats.enqueued, stats.delivered, stats.dead_lettered) for stats in both} == {(31, 12, 2)}
        told = scrape_once(cluster, lambda told: all(as_told(told, stats) for stats in both), "the numbers agree")
        assert told["fila_up",] == 1
        assert {told["fila_worker_up", f"worker-{index}"] for index in range(2)} == {1}
        assert {told["fila_shard_up", f"{index}"] for index in range(2)} == {1}
        dwell = told["fila_messages_dwell_seconds_count", name_on(0)]
        assert dwell == 12
        assert told["fila_storage_commit_duration_seconds_count", "0"] > 0
        assert told["fila_worker_turn_duration_seconds_sum", "worker-0"] > 0
        assert told["fila_messages_settle_seconds_count", name_on(0)] == 6
        # Most calls go straight to workers: the router's frames are those of the observer, which asks once a second.
        worked = {("fila_router_cpu_seconds_total",): 0, ("fila_router_frames_total", "from_clients"): 10}
        told = scrape_once(
            cluster, lambda told: all(told.get(name, 0) > least for name, least in worked.items()), "the router has worked"
        )
        resident = psutil.Process(cluster.router_pid()).memory_info().rss
        assert told["fila_router_rss_bytes",] == pytest.approx(resident, rel=0.2)
        client.ack(leased)


def test_a_hundred_thousand_keys_do_not_swell_the_page(data_dir: Path):
    with observed(data_dir) as cluster, cluster.client(timeout=60) as client:
        client.create_queue("orders")
        client.enqueue_many("orders", [Message(b"", fairness_key=f"tenant-{index}") for index in range(100_000)])
        eventually(lambda: scrape(cluster).get(("fila_scheduler_known_keys", "orders")) == 100_000, "all keys are known")
        client.ack(client.receive("orders", 1000))
        acked = "fila_messages_acked_total", "orders"
        told = scrape_once(cluster, lambda told: told.get(acked) == 1000, "the acks are counted")
        shown = {labels: count for labels, count in told.items() if labels[0] == "fila_key_delivered_total"}
        assert len(shown) == 11
        assert shown["fila_key_delivered_total", "(other)", "orders"] > 0
        assert sum(shown.values()) <= 1000


# --- when something is down -------------------------------------------------------------------------------------------


def test_a_worker_that_is_down_is_reported_with_its_shard_and_without_numbers(data_dir: Path):
    with observed(data_dir, "--shards", 2, workers=2) as cluster, cluster.client() as client:
        for shard in range(2):
            client.create_queue(name_on(shard))
        eventually(lambda: readiness(cluster) == (200, []), "it is ready")
        depths = [("fila_queue_depth", name_on(shard)) for shard in range(2)]
        eventually(lambda: depths[1] in scrape(cluster), "the queue is told")
        with nobody_restarts(cluster):
            os.kill(cluster.worker_of(1).pid, signal.SIGKILL)
            eventually(lambda: readiness(cluster) == (503, [1]), "it is not ready")
            told = scrape_once(cluster, lambda told: depths[0] in told and depths[1] not in told, "only its queue vanishes")
            assert (told["fila_worker_up", "worker-0"], told["fila_worker_up", "worker-1"]) == (1, 0)
            assert (told["fila_shard_up", "0"], told["fila_shard_up", "1"]) == (1, 0)
        eventually(lambda: readiness(cluster) == (200, []), "it is ready again")
        eventually(lambda: depths[1] in scrape(cluster), "the queue is told again")


@pytest.mark.whole
def test_a_router_that_is_away_leaves_no_old_number(data_dir: Path):
    with observed(data_dir) as cluster:
        eventually(lambda: scrape(cluster)["fila_up",] == 1, "the router answers")
        with nobody_restarts(cluster):
            os.kill(cluster.router_pid(), signal.SIGKILL)
            eventually(lambda: scrape(cluster) == {("fila_up",): 0}, "nothing is told")
            assert readiness(cluster) == (503, [None])
            assert get(cluster, "healthz") == (200, "ok\n")
        eventually(lambda: readiness(cluster) == (200, []), "it is ready again")


# --- OpenTelemetry ----------------------------------------------------------------------------------------------------


class MetricsCollector(Collector):
    """Takes metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.exports: list[ExportMetricsServiceRequest] = []

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/metrics":
            self.exports.append(ExportMetricsServiceRequest.FromString(body))

    def enqueued(self, queue: str) -> float | None:
        """The counter of a queue in the last export."""
        for resource in self.exports[-1].resource_metrics if self.exports else ():
            for metric in resource.scope_metrics[0].metrics:
                for point in metric.sum.data_points if metric.name == "fila.messages.enqueued" else ():
                    if point.attributes[0].value.string_value == queue:
                        return point.as_double
        return None


def complaints(cluster: Cluster) -> list[dict[str, Any]]:
    """What its observer warned of; other processes may have found the machine slow."""
    return [event for event in cluster.events() if event["process"] == "observer"]


def test_a_collector_gets_the_numbers_without_a_dashboard_too(data_dir: Path, tmp_path: Path):
    with MetricsCollector() as collector:
        endpoint = collector.endpoint
        (tmp_path / "fila.toml").write_text(
            f'[telemetry]\notlp_endpoint = "{endpoint}"\nservice_name = "shop"\nmetrics_interval_ms = 200\n'
        )
        with running(data_dir, cwd=tmp_path) as cluster, cluster.client() as client:
            client.create_queue("orders")
            client.enqueue_many("orders", [Message(b"")] * 7)
            eventually(lambda: collector.enqueued("orders") == 7, "the collector has the number")
            attributes = collector.exports[-1].resource_metrics[0].resource.attributes
            assert {each.key: each.value.string_value for each in attributes}["service.name"] == "shop"
            assert cluster.stop() == 0
            assert complaints(cluster) == []


@pytest.mark.whole
def test_a_collector_that_is_away_is_worth_one_line(data_dir: Path, tmp_path: Path):
    with MetricsCollector() as collector:
        gone = collector.endpoint
    (tmp_path / "fila.toml").write_text(f'[telemetry]\notlp_endpoint = "{gone}"\nmetrics_interval_ms = 100\n')
    with running(data_dir, cwd=tmp_path) as cluster:
        eventually(lambda: bool(cluster.events("export.failing")), "it is said")
        assert cluster.stop() == 0
        (event,) = complaints(cluster)
        assert (event["event"], event["otlp_endpoint"]) == ("export.failing", gone)
