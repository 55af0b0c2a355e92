"""A purge of some of a queue's messages leaves the counts of the others.

Source: nats-io/nats-server issue 2607
Right: the purged key has none, the other keys have all of theirs, in the counts and in fact
"""

from fila_cluster import Message
from fila_cluster.testing import Fila


def test_the_other_keys_keep_theirs(fila: Fila) -> None:
    fila.create_queue("topics")
    for key in ("a", "b"):
        fila.enqueue_many("topics", [Message(key.encode(), fairness_key=key, priority=number % 3) for number in range(5)])
        fila.enqueue("topics", key.encode(), fairness_key=key, delay=10)
    assert fila.purge_queue("topics", fairness_key="a") == 6
    stats = fila.queue_stats("topics")
    assert [(each.fairness_key, each.pending, each.delayed) for each in stats.keys if each.pending or each.delayed] == [
        ("b", 5, 1)
    ]
    fila.clock.advance(10)
    deliveries = fila.receive("topics", 20)
    assert [each.payload for each in deliveries] == [b"b"] * 6
    fila.ack(deliveries)
    fila.assert_empty("topics")
