"""A message that expires does not wait for a longer-lived one before it, nor for a consumer.

Source: rabbitmq/rabbitmq-server issue 2007, rabbitmq/rabbitmq-server issue 10718
Right: each is dead-lettered within 5 s of its own time, in a queue that nobody consumes
"""

from fila_cluster.testing import Fila


def test_each_at_its_own_time(fila: Fila) -> None:
    fila.create_queue("work")
    for minutes in (3, 60, 30):
        fila.enqueue("work", b"%d" % minutes, ttl=minutes * 60)
    passed_s = 0
    for minutes, expected in ((3, {b"3"}), (30, {b"3", b"30"}), (60, {b"3", b"30", b"60"})):
        fila.clock.advance(minutes * 60 + 5 - passed_s)
        passed_s = minutes * 60 + 5
        assert {view.payload for view in fila.browse("work.dlq")} == expected
