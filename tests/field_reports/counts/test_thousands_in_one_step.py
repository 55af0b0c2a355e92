"""Thousands of messages in one step are no more than one step can take.

Source: Bogdanp/dramatiq issue 258
Right: 5,000 dead letters are redriven, received and acked with one call each, and nobody sits idle afterwards
"""

from fila_cluster import Message
from fila_cluster.testing import Fila

COUNT = 5_000


def test_many_at_once(fila: Fila) -> None:
    fila.create_queue("jobs", max_attempts=1)
    fila.enqueue_many("jobs", [Message(b"x", fairness_key=f"k{number % 700}") for number in range(COUNT)])
    fila.nack(fila.receive("jobs", COUNT), "no")
    assert fila.queue_stats("jobs.dlq").pending == COUNT
    assert fila.redrive("jobs.dlq") == COUNT
    deliveries = fila.receive("jobs", COUNT)
    assert len({each.id for each in deliveries}) == COUNT
    fila.ack(deliveries)
    fila.assert_empty("jobs")
    fila.enqueue("jobs", b"next")
    (delivery,) = fila.receive("jobs")
    delivery.ack()
