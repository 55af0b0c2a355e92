"""A consumer of a thousand queues gets the one message that is in one of them.

Source: celery/kombu issue 681 (a blocking pop over many lists)
Right: one call waits for all of them, gets the message wherever it is, and leaves nothing behind when it is over
"""

from fila_cluster.testing import Fila

COUNT = 1_000


def test_it_finds_the_one(fila: Fila) -> None:
    names = [f"tenant-{number}" for number in range(COUNT)]
    for name in names:
        fila.create_queue(name, dead_letter="discard")
    for chosen in (names[0], names[COUNT // 2], names[-1]):
        assert fila.receive_any(dict.fromkeys(names, 1), wait=0.5) == []
        fila.enqueue(chosen, b"here")
        (delivery,) = fila.receive_any(dict.fromkeys(names, 1))
        assert delivery.queue == chosen
        delivery.ack()
    assert sum(info.depth + info.consumers for info in fila.list_queues("tenant-")) == 0
