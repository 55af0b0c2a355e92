"""The dashboards of deploy/grafana: each query of each panel has numbers, in a Prometheus server that scrapes a busy cluster."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from fila_cluster import Client, Message
from fila_cluster.errors import FilaError
from tests.support.cluster.cluster import Cluster, eventually, running
from tests.support.cluster.http import address, ask
from tests.support.external.grafana import panels_without_data
from tests.support.external.prometheus import Prometheus, scraping
from tests.support.machine import PROMETHEUS, require

pytestmark = pytest.mark.whole

HOOK = "function on_enqueue(msg) if msg.payload_size > 5 then error('large') end return {} end"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require(PROMETHEUS)
    data_dir, env = tmp_path_factory.mktemp("seen") / "data", {"FILA_LIMITS__MAX_QUEUE_MESSAGES": "2000"}
    with running(data_dir, "--dashboard", "127.0.0.1:0", "--shards", 2, workers=2, env=env) as cluster:
        with cluster.client() as client:
            client.create_queue("orders", partitions=2, max_in_flight=500, visibility_timeout=600, on_enqueue=HOOK)
            client.set_throttle("api", rate=20, burst=20, concurrency=3)
            client.enqueue_many("orders", [message("acme", 1) for _ in range(2)])
            held = client.receive("orders", 2)  # places that are in use are shown, and others may not be
            assert len(held) == 2
            yield cluster


@pytest.fixture(scope="module")
def prometheus(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with scraping(tmp_path_factory.mktemp("prometheus"), address(cluster).removeprefix("http://")) as server:
        yield server


def message(key: str, number: int, payload: bytes = b"x") -> Message:
    return Message(payload, fairness_key=key, throttle_keys=["api"] if number % 2 else [])


def work(client: Client, url: str) -> None:
    """Something of everything that a panel shows."""
    with suppress(FilaError):  # the queue is full: that is shown, too
        client.enqueue_many("orders", [message(("acme", "umbrella")[number % 2], number) for number in range(300)])
    with suppress(FilaError):
        client.enqueue("orders", b"too large for the hook")
    for number, delivery in enumerate(client.receive("orders", 40)):
        delivery.fail("boom") if number == 7 else delivery.ack()
    ask(url, "/queues/orders/messages", {"payload": "x"})


@pytest.mark.parametrize("name", ["overview", "queue", "tenant"])
def test_each_panel_has_numbers(cluster: Cluster, prometheus: Prometheus, name: str) -> None:
    url = address(cluster)
    instance, missing = url.removeprefix("http://"), [""]

    def all_have_numbers() -> bool:
        work(client, url)
        missing[:] = panels_without_data(prometheus, name, instance=instance, queue="orders", tenant="acme", throttle="api")
        return not missing

    with cluster.client() as client:
        eventually(all_have_numbers, lambda: f"these have none: {missing}")


def test_the_queries_of_autoscalers_have_a_number(cluster: Cluster, prometheus: Prometheus) -> None:
    recipes = Path(__file__).parents[3] / "deploy" / "autoscaling"
    (trigger,) = yaml.safe_load((recipes / "keda-prometheus.yml").read_text())["spec"]["triggers"]
    (rule,) = yaml.safe_load((recipes / "prometheus-adapter.yml").read_text())["rules"]["external"]
    queries = [trigger["metadata"]["query"], rule["metricsQuery"].replace("<<.LabelMatchers>>", 'queue="orders"')]

    def both_have_one() -> bool:
        work(client, address(cluster))
        return all([number > 0 for number in prometheus.query(each).values()] == [True] for each in queries)

    with cluster.client() as client:
        eventually(both_have_one, "a number of consumers")
