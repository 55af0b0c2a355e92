"""A sender that repeats a message for ever has one stored in each window, not none and not two.

Source: nats-io/nats-server issue 7302
Right: the window counts from the message that was stored; a repetition does not move it
"""

from fila_cluster.testing import broker


def test_one_in_each_window() -> None:
    with broker(dedup_window=120) as fila:
        fila.create_queue("alerts")
        ids = []
        for _ in range(12):
            ids.append(fila.enqueue("alerts", b"on fire", dedup_id="alarm"))
            fila.clock.advance(60)
        assert len(set(ids)) == len(fila.browse("alerts")) == 6
