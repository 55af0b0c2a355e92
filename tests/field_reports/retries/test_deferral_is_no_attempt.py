"""A message that is deferred again and again has all its attempts left.

Source: riverqueue/river issue 961, riverqueue/river pull request 389
Right: deferrals count nothing; two failures of three allowed deliveries leave one
"""

from fila_cluster.testing import Fila


def test_deferrals_use_nothing_up(fila: Fila) -> None:
    fila.create_queue("jobs", max_attempts=3)
    fila.enqueue("jobs", b"x")
    for failed in range(2):
        for _ in range(10):
            (delivery,) = fila.receive("jobs")
            assert delivery.attempts == failed
            delivery.defer(5)
            assert fila.receive("jobs") == []
            fila.clock.advance(5)
        (delivery,) = fila.receive("jobs")
        delivery.nack()
    (delivery,) = fila.receive("jobs")
    assert delivery.attempts == 2
    delivery.ack()
    fila.assert_dead("jobs", 0)
