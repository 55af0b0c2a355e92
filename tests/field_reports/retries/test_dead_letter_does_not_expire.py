"""A dead letter does not expire by the time to live of its former life.

Source: rabbitmq/rabbitmq-server issue 18
Right: an expired message stays among the dead letters; redriven, it is deliverable, and its former end is past
"""

from fila_cluster.testing import Fila


def test_it_stays_and_comes_back(fila: Fila) -> None:
    fila.create_queue("collected")
    fila.create_queue("work", dead_letter="collected")
    fila.create_queue("plain")
    for queue in ("work", "plain"):
        fila.enqueue(queue, b"x", ttl=5)
    fila.clock.advance(20)
    fila.assert_dead("work", 1)
    fila.assert_dead("plain", 1)
    fila.clock.advance(7 * 86_400)
    assert fila.redrive("collected") == fila.redrive("plain.dlq") == 1
    fila.clock.advance(60)
    for queue in ("work", "plain"):
        (delivery,) = fila.receive(queue)
        assert delivery.attempts == 0
        delivery.ack()
