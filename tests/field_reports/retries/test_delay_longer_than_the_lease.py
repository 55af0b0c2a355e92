"""A message with a delay that is longer than the visibility timeout is delivered once.

Source: celery/celery issue 2599, celery/celery issue 3270, iron-io/iron_celery issue 5
Right: one delivery, when it is due, however often consumers ask before
"""

from fila_cluster.testing import Fila


def test_it_comes_once(fila: Fila) -> None:
    fila.create_queue("tasks", visibility_timeout=5)
    fila.enqueue("tasks", b"x", delay=3600)
    for _ in range(60):
        assert fila.receive("tasks", 5) == []
        fila.clock.advance(60)
    (delivery,) = fila.receive("tasks", 5)
    assert delivery.attempts == 0
    delivery.ack()
    fila.assert_delivered("tasks", 1)
