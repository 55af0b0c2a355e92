"""A name that has an address of each family works, though the broker listens on one of them only.

Source: nats-io/nats-pure.rb issue 3, nats-io/nats.c pull request 36
Right: ``localhost`` reaches a broker on 127.0.0.1, and a broker on ::1 is reached by its address
"""

from pathlib import Path

from fila_cluster import Client
from tests.support.cluster.cluster import PATIENCE_S, Cluster, running
from tests.support.machine import IPV6, require


def test_localhost_reaches_a_broker_on_one_family(shared_cluster: Cluster) -> None:
    port = shared_cluster.endpoint.rpartition(":")[2]
    with Client(f"tcp://localhost:{port}", timeout=PATIENCE_S) as client:
        assert client.cluster_status().shards == 2


def test_an_address_of_ipv6(tmp_path: Path) -> None:
    require(IPV6)
    with running(tmp_path / "data", listen="[::1]:0") as cluster, cluster.client() as client:
        assert cluster.endpoint.startswith("tcp://[::1]:")
        client.create_queue("q")
        client.enqueue("q", b"x")
        (delivery,) = client.receive("q")
        delivery.ack()
