"""A purge does not free dedup ids, and neither does an ack: what one may rely on is the window.

Source: nats-io/jetstream issue 340, nats-io/nats-server issue 5142
Right: within the window the second enqueue returns the first id and stores nothing; after it, it stores
"""

from fila_cluster.testing import Fila, broker


def outlived(fila: Fila, queue: str, first: str) -> None:
    assert fila.enqueue(queue, b"again", dedup_id="once") == first
    fila.assert_empty(queue)
    fila.clock.advance(60)
    assert fila.enqueue(queue, b"again", dedup_id="once") != first
    fila.assert_pending(queue, 1)


def test_the_window_outlives_the_message() -> None:
    with broker(dedup_window=60) as fila:
        for queue in ("purged", "acked", "cancelled"):
            fila.create_queue(queue)
        first = fila.enqueue("purged", b"x", dedup_id="once")
        fila.purge_queue("purged")
        outlived(fila, "purged", first)
        first = fila.enqueue("acked", b"x", dedup_id="once")
        (delivery,) = fila.receive("acked")
        delivery.ack()
        outlived(fila, "acked", first)
        first = fila.enqueue("cancelled", b"x", dedup_id="once")
        assert fila.cancel("cancelled", first)
        outlived(fila, "cancelled", first)
