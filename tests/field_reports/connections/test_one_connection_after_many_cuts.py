"""A client that has connected again does not keep its former connection, at its side or at the broker's.

Source: nats-io/nats.py2 pull request 35, celery/kombu issue 681
Right: after ten cuts the broker lists it once, and no descriptor is left
"""

from fila_cluster import Client
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually
from tests.support.cluster.forwarder import Forwarder
from tests.support.descriptors import all_closed_again


def test_the_broker_lists_it_once(shared_cluster: Cluster, client: Client) -> None:
    before = {each.client for each in client.connections()}
    with Forwarder(shared_cluster.endpoint) as balancer, all_closed_again():
        with Client(balancer.endpoint, timeout=PATIENCE_S, direct=False) as behind:
            for _ in range(10):
                behind.list_queues("none")
                balancer.cut()
            behind.list_queues("none")
            eventually(lambda: len({each.client for each in client.connections()} - before) == 1, "one is left")
        eventually(lambda: {each.client for each in client.connections()} <= before, "it has left")
