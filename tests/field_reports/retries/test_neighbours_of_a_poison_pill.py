"""What a consumer had prefetched beside a message that made it fail is not blamed for that.

Source: rabbitmq/rabbitmq-website pull request 2207
Right: a consumer that ends with an exception gives back uncounted what it had not handed over
"""

from fila_cluster import Client, Delivery, Message
from tests.support.cluster.cluster import Cluster


def work(delivery: Delivery) -> None:
    if delivery.payload == b"poison":
        delivery.nack("failed")
        raise ValueError("poison")
    delivery.ack()


def test_only_the_poison_is_counted(client: Client, queue: str, shared_cluster: Cluster) -> None:
    client.update_queue(queue, max_attempts=3)
    client.enqueue_many(queue, [Message(b"poison"), *[Message(b"good")] * 9])
    for _ in range(3):
        with shared_cluster.client() as worker:
            try:
                with worker.consume(queue, prefetch=10) as consumer:
                    for delivery in consumer:
                        work(delivery)
            except ValueError:
                pass
    assert [(view.payload, view.attempts) for view in client.browse(f"{queue}.dlq")] == [(b"poison", 3)]
    assert [(view.payload, view.attempts) for view in client.browse(queue)] == [(b"good", 0)] * 9
