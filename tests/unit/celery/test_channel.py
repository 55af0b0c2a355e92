"""What a channel keeps, and leaves behind, on a broker in memory."""

from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Consumer, Exchange, Queue

from fila_cluster.celery import channel as channels
from fila_cluster.celery import exchanges
from fila_cluster.celery.exchanges import Exchanges, Names
from fila_cluster.errors import FilaError, ShardUnavailableError
from fila_cluster.testing import Fila

CONSUMER_LOST_S = 15


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


def test_the_mailbox_of_a_worker_that_was_killed_goes(fila: Fila, app: Celery) -> None:
    connection = Connection("fila://")
    app.control.mailbox.Node("worker@host", channel=connection.channel()).listen()
    mailbox = Names("").queue("worker@host.celery.pidbox")
    app.control.broadcast("enable_events")
    connection.connection.fila._io.disown(FilaError("killed"))
    assert fila.queue_stats(mailbox).depth == 1
    fila.clock.advance(app.conf.control_queue_ttl + app.conf.control_queue_expires + CONSUMER_LOST_S)
    assert fila.list_queues(mailbox) == []
    app.control.broadcast("enable_events")
    assert Exchanges(fila, Names("")).all("celery.pidbox") == []


def test_a_producer_learns_of_a_second_queue_of_a_direct_exchange(fila: Fila, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = Exchange("orders", "direct")
    first, second = (Queue(name, orders, routing_key="new") for name in ("first", "second"))
    with Connection("fila://") as producer, Connection("fila://") as consumer:
        first(producer.default_channel).declare()
        producer.Producer().publish("one", exchange=orders, routing_key="new")
        second(consumer.default_channel).declare()
        monkeypatch.setattr(exchanges, "FRESH_S", 0)
        producer.Producer().publish("two", exchange=orders, routing_key="new")
    fila.assert_pending("first", 2)
    fila.assert_pending("second", 1)


def test_a_consumer_of_a_connection_that_was_lost_ends_quietly(fila: Fila) -> None:
    connection = Connection("fila://")
    consumer = Consumer(connection.channel(), [Queue("mail"), Queue("bell", auto_delete=True)])
    consumer.consume()
    connection.collect()  # what a worker does before it connects again
    consumer.cancel()


def test_arguments_of_queues_that_do_nothing_here_are_named(fila: Fila, caplog: pytest.LogCaptureFixture) -> None:
    followed = Queue("kept", expires=60, message_ttl=5, max_priority=9, queue_arguments={"x-queue-type": "quorum"})
    ignored = Queue("other", max_length=5, queue_arguments={"x-dead-letter-exchange": "letters", "x-max-age": "1h"})
    with Connection("fila://") as connection:
        followed(connection).declare()
        assert caplog.messages == []
        ignored(connection).declare()
    assert [message.split(": ", 1) for message in caplog.messages] == [
        ["the argument x-dead-letter-exchange of queues is ignored", "dead letters go to <queue>.dlq"],
        ["the argument x-max-age of queues is ignored", "fila:// has nothing like it"],
        ["the argument x-max-length of queues is ignored", "the broker's [limits] bound all queues"],
    ]


def test_a_template_has_no_say_in_exchanges(fila: Fila) -> None:
    fila.put_template("shop/*", default_ttl=60, idle_expiry=30)
    queue = Queue("video", Exchange("media", "topic"), routing_key="video.#")
    with Connection("fila:///shop") as connection:
        queue(connection).declare()
        fila.clock.advance(120)
        connection.Producer().publish("x", exchange=queue.exchange, routing_key="video.new")
    fila.assert_pending("shop/video", 1)
    fila.assert_pending("shop/kombu.exchange.media", 1)


def test_plain_text_is_published_as_celery_amqp_passes_it(fila: Fila) -> None:
    with Connection("fila://") as connection, connection.channel() as channel:
        Queue("mail")(channel).declare()
        channel.basic_publish("a text", "", "mail")
        message = channel.basic_get("mail", no_ack=True)
        assert message is not None
        assert message.body in ("a text", b"a text")
