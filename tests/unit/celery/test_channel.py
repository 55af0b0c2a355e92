"""What a channel keeps, and leaves behind, on a broker in memory."""

from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Queue

from fila_cluster.celery import channel as channels
from fila_cluster.errors import ShardUnavailableError
from fila_cluster.testing import Fila


def test_what_a_channel_remembers_of_queues_is_bounded(fila: Fila, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "DECLARED_MAX", 10)
    exchange = Exchange("orders")
    with Connection("fila://") as connection, connection.channel() as channel:
        for number in range(35):
            queue = Queue(f"q{number}", exchange, routing_key=f"q{number}", auto_delete=number % 2 == 0)
            queue(channel).declare()
            queue(channel).unbind_from(exchange, f"q{number}")
        remembered = (channel._declared, channel._transient, channel._bound)
        assert all(len(each) <= 10 for each in remembered)


def test_a_channel_that_cannot_delete_its_queue_gives_back_and_is_gone(fila: Fila, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> None:
        raise ShardUnavailableError("its worker is away")

    held: list[Any] = []
    with Connection("fila://") as connection:
        channel = connection.channel()
        Consumer(channel, [Queue("mail", auto_delete=True)], on_message=held.append).consume()
        fila.enqueue("mail", b"x")
        connection.drain_events(timeout=1)
        assert len(held) == 1
        with monkeypatch.context() as patch:
            patch.setattr(connection.connection.fila, "queue_stats", away)
            with pytest.raises(ShardUnavailableError):
                channel.close()
        fila.assert_pending("mail", 1)
        assert connection.connection.channels == ()
