"""A load balancer that cuts idle connections, with or without a word, loses no message.

Source: pika/pika issue 1046, mosquito/aio-pika issue 231
Right: the next call succeeds by itself, a waiting consumer goes on, and there is one connection afterwards
"""

from fila_cluster import Client
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually
from tests.support.cluster.forwarder import Forwarder


def test_it_goes_on_after_each_cut(shared_cluster: Cluster, client: Client, queue: str) -> None:
    with (
        Forwarder(shared_cluster.endpoint) as balancer,
        Client(balancer.endpoint, timeout=PATIENCE_S, direct=False) as behind,
    ):
        with behind.consume(queue) as consumer:
            for number in range(3):
                accepted = balancer.accepted
                behind.enqueue(queue, b"%d" % number)
                delivery = next(consumer)
                assert (delivery.payload, delivery.attempts) == (b"%d" % number, 0)
                balancer.cut()
                delivery.ack()
                eventually(lambda accepted=accepted: balancer.accepted > accepted, "it connects again")  # type: ignore[misc]
        eventually(lambda: balancer.connections == 1, "the old connections are closed")
    stats = client.queue_stats(queue)
    assert (stats.depth, stats.acked, stats.nacked, stats.expired) == (0, 3, 0, 0)
