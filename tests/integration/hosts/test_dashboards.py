"""The dashboard of deploy/grafana for several hosts: each query of each panel has numbers."""

from pathlib import Path

from tests.support.cluster.cluster import eventually
from tests.support.external.grafana import panels_without_data
from tests.support.external.prometheus import scraping
from tests.support.hosts.nodes import cluster_of_nodes
from tests.support.machine import PROMETHEUS, require


def test_each_panel_about_hosts_has_numbers(tmp_path: Path) -> None:
    require(PROMETHEUS)
    settings = {"dashboard": {"enabled": True, "listen_addr": "127.0.0.1:0"}}
    with cluster_of_nodes(tmp_path, hosts=2, brokers=1, shards=2, workers=1, settings=settings) as nodes:
        eventually(lambda: nodes["a"].events("observer.serving"), "its dashboard is there")
        instance = str(nodes["a"].events("observer.serving")[0]["listen"])
        missing = [""]
        with nodes.client() as client, scraping(tmp_path, instance) as prometheus:
            client.create_queue("orders")

            def all_have_numbers() -> bool:
                client.enqueue("orders", b"x")
                missing[:] = panels_without_data(prometheus, "hosts", instance=instance)
                return not missing

            eventually(all_have_numbers, lambda: f"these have none: {missing}")
