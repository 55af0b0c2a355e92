"""The delays of a paused queue go on, so all that came due meanwhile is delivered after the resume, in order.

Source: taskforcesh/bullmq issue 427
Right: a delay ends at its time whether the queue is paused or not; the order is that of priority and enqueue
"""

from fila_cluster.testing import Fila


def test_what_came_due_meanwhile_comes_at_once(fila: Fila) -> None:
    fila.create_queue("jobs")
    for delay in (30, 10, 20, 90):
        fila.enqueue("jobs", str(delay).encode(), delay=delay)
    fila.pause("jobs")
    fila.clock.advance(60)
    fila.assert_pending("jobs", 3)
    fila.resume("jobs")
    deliveries = fila.receive("jobs", 10)
    assert [each.payload for each in deliveries] == [b"30", b"10", b"20"]
    fila.ack(deliveries)
    fila.assert_delayed("jobs", 1)
