"""A consumer whose queue is deleted and made again does not wait for ever.

Source: mosquito/aio-pika issue 334, mosquito/aio-pika issue 379
Right: it goes on with the new queue, or, if it asked in between, it ends with QueueNotFoundError; no message is delivered twice
"""

from fila_cluster import Client
from fila_cluster.errors import QueueNotFoundError
from tests.support.cluster.cluster import Cluster


def test_it_goes_on_or_ends(client: Client, queue: str, shared_cluster: Cluster) -> None:
    with shared_cluster.client() as other, other.consume(queue) as consumer:
        client.enqueue(queue, b"first")
        next(consumer).ack()
        client.delete_queue(queue)
        client.create_queue(queue)
        client.enqueue(queue, b"second")
        try:
            delivery = next(consumer)
        except QueueNotFoundError:
            (delivery,) = other.receive(queue, wait=60)
        assert (delivery.payload, delivery.attempts) == (b"second", 0)
        delivery.ack()
        assert client.queue_stats(queue).delivered == 1
