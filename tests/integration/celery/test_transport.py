"""kombu on a real cluster: what a channel does, without Celery."""

import os
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery.exceptions import ImproperlyConfigured
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.asynchronous import Hub

import fila_cluster.celery  # noqa: F401  # registers the transport
from fila_cluster import Client, Request
from fila_cluster.celery.exchanges import Binding, Exchanges, Names
from fila_cluster.client.forwarding import held_queues
from fila_cluster.errors import PermissionDeniedError, UnauthenticatedError
from fila_proto_zmq.commands import DescribeQueue
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually, running
from tests.support.cluster.guarded import guarded_cluster


def url(cluster: Cluster, namespace: str = "") -> str:
    return cluster.endpoint.replace("tcp://", "fila://") + f"/{namespace}"


@pytest.fixture
def connection(shared_cluster: Cluster) -> Iterator[Connection]:
    with Connection(url(shared_cluster)) as connection:
        yield connection


@pytest.fixture
def name() -> str:
    return f"kombu-{uuid4().hex}"


def take(connection: Connection, queues: list[Queue], count: int, *, settle: str = "ack", **options: Any) -> list[Any]:
    """The next messages of some queues, each settled by a verb of kombu's; fewer if no more come for a while."""
    taken: list[Any] = []

    def on_message(message: Any) -> None:
        taken.append(message)
        getattr(message, settle)()

    with connection.channel() as channel, Consumer(channel, queues, on_message=on_message, prefetch_count=10, **options):
        while len(taken) < count:
            connection.drain_events(timeout=PATIENCE_S)
    return taken


def publish(connection: Connection, body: object, queue: Queue | None = None, **options: Any) -> None:
    declare = [] if queue is None else [queue]
    routing_key = options.pop("routing_key", queue.name if queue is not None else "")
    with connection.channel() as channel:
        Producer(channel).publish(body, declare=declare, routing_key=routing_key, **options)


def nothing_comes(connection: Connection, queue: Queue) -> bool:
    with connection.channel() as channel:
        return channel.basic_get(queue.name) is None


def test_a_message_arrives_as_it_was_sent(connection: Connection, name: str) -> None:
    queue = Queue(name)
    headers = {"nested": {"a": [1, None, "é"]}, "when": datetime(2026, 1, 2, tzinfo=UTC), "bytes": b"\x00\xff"}
    publish(connection, {"x": 1}, queue, headers=headers, correlation_id="7", priority=3, compression="zlib")
    (message,) = take(connection, [queue], 1)
    assert message.payload == {"x": 1}
    assert message.headers == headers | {"compression": "application/x-gzip"}
    assert message.properties["correlation_id"] == "7"
    assert message.delivery_info["routing_key"] == name
    assert (message.delivery_info["redelivered"], message.delivery_info["priority"]) == (False, 3)


def test_bytes_arrive_unchanged(connection: Connection, name: str) -> None:
    body = bytes(range(256))
    publish(connection, body, Queue(name), content_type="application/data", content_encoding="binary")
    (message,) = take(connection, [Queue(name)], 1)
    assert message.body == body


def test_requeue_is_a_retry_reject_a_dead_letter(connection: Connection, client: Client, name: str) -> None:
    queue = Queue(name)
    publish(connection, "x", queue)
    (first,) = take(connection, [queue], 1, settle="requeue")
    (second,) = take(connection, [queue], 1, settle="reject")
    assert (first.delivery_info["redelivered"], second.delivery_info["redelivered"]) == (False, True)
    eventually(lambda: client.queue_stats(f"{name}.dlq").pending == 1, "the rejected message is a dead letter")
    (letter,) = client.browse(f"{name}.dlq")
    assert (letter.reason, letter.attempts) == ("failed", 2)


def test_max_attempts_ends_what_is_requeued_for_ever(shared_cluster: Cluster, client: Client, name: str) -> None:
    with Connection(url(shared_cluster), transport_options={"max_attempts": 3, "visibility_timeout": 60}) as connection:
        publish(connection, "x", Queue(name))
        assert len(take(connection, [Queue(name)], 3, settle="requeue")) == 3
    eventually(lambda: client.queue_stats(f"{name}.dlq").pending == 1, "the message is a dead letter")


def test_queues_with_partitions(shared_cluster: Cluster, client: Client, name: str) -> None:
    with Connection(url(shared_cluster), transport_options={"partitions": 4, "spread": "message"}) as connection:
        queue = Queue(name)
        for number in range(20):
            publish(connection, number, queue)
        with connection.channel() as channel:
            assert channel.queue_declare(name).message_count == 20
        assert sum(info.pending > 0 for info in held_queues(client, f"{name}@")) == 4
        assert sorted(message.payload for message in take(connection, [queue], 20)) == list(range(20))
        publish(connection, "again", queue)
        with connection.channel() as channel:
            message = channel.basic_get(name)
            channel.basic_reject(message.delivery_tag, requeue=False)
            eventually(lambda: client.queue_stats(f"{name}.dlq").pending == 1, "the message is a dead letter")
            client.purge_queue(f"{name}.dlq")
            channel.queue_delete(name)
    assert held_queues(client, name) == []


def test_a_queue_that_exists_keeps_its_number_of_partitions(shared_cluster: Cluster, client: Client, name: str) -> None:
    client.create_queue(name, partitions=2)
    for partitions in 4, 1:
        with Connection(url(shared_cluster), transport_options={"partitions": partitions}) as connection:
            publish(connection, partitions, Queue(name))
            assert client.request(Request(name, DescribeQueue())).options.partitions == 2
            assert [each.payload for each in take(connection, [Queue(name)], 1)] == [partitions]


def test_urgent_messages_come_first(connection: Connection, name: str) -> None:
    queue = Queue(name)
    for priority in (0, 9, 5):
        publish(connection, priority, queue, priority=priority)
    assert [message.payload for message in take(connection, [queue], 3)] == [9, 5, 0]


def test_an_eta_is_held_by_the_broker_and_not_by_the_worker(connection: Connection, client: Client, name: str) -> None:
    queue = Queue(name)
    due = datetime.now(UTC) + timedelta(hours=1)
    publish(connection, "later", queue, headers={"eta": due.isoformat()})
    assert nothing_comes(connection, queue)
    (view,) = client.browse(name, state="delayed")
    assert view.due_at is not None
    assert abs(view.due_at - due) < timedelta(seconds=1)
    publish(connection, "now", queue, headers={"eta": datetime.now(UTC).isoformat()})
    (message,) = take(connection, [queue], 1)
    assert message.payload == "now"
    assert message.headers.copy().get("eta") is None  # what a worker asks for
    assert dict(message.headers)["eta"]  # what the task sees


def test_what_has_expired_does_not_come(connection: Connection, client: Client, name: str) -> None:
    queue = Queue(name)
    publish(connection, "x", queue, expiration=0.001)
    eventually(lambda: client.queue_stats(f"{name}.dlq").pending == 1, "it has expired")
    assert nothing_comes(connection, queue)


def test_tenants_take_turns(connection: Connection, client: Client, name: str) -> None:
    queue = Queue(name)
    for _ in range(5):
        publish(connection, "busy", queue, headers={"fila-fairness-key": "busy"})
    publish(connection, "quiet", queue, headers={"fila-fairness-key": "quiet", "fila-weight": 2})
    assert "quiet" in [message.payload for message in take(connection, [queue], 2)]


def test_exchanges(connection: Connection, name: str) -> None:
    topic, fanout, direct = (Exchange(f"{name}-{kind}", kind) for kind in ("topic", "fanout", "direct"))
    all_events, sent, mail = (
        Queue(f"{name}-all", topic, "#"),
        Queue(f"{name}-sent", topic, "*.sent"),
        Queue(f"{name}-mail", direct, "mail"),
    )
    ears = [Queue(f"{name}-ear{number}", fanout) for number in range(2)]
    with connection.channel() as channel:
        for queue in (all_events, sent, mail, *ears):
            queue(channel).declare()
    publish(connection, "t1", exchange=topic, routing_key="task.sent")
    publish(connection, "t2", exchange=topic, routing_key="task.received")
    publish(connection, "f", exchange=fanout)
    publish(connection, "d", exchange=direct, routing_key="mail")
    publish(connection, "nowhere", exchange=direct, routing_key="male")
    assert [message.payload for message in take(connection, [all_events], 2)] == ["t1", "t2"]
    assert [message.payload for message in take(connection, [sent], 1)] == ["t1"]
    assert [message.payload for message in take(connection, [mail], 1)] == ["d"]
    assert [message.payload for ear in ears for message in take(connection, [ear], 1)] == ["f", "f"]
    assert all(nothing_comes(connection, queue) for queue in (all_events, sent, mail, *ears))


def test_another_process_sees_bindings_and_their_ends(
    shared_cluster: Cluster, connection: Connection, client: Client, name: str
) -> None:
    exchange = Exchange(name, "fanout")
    first, second = Queue(f"{name}-1", exchange), Queue(f"{name}-2", exchange)
    with Connection(url(shared_cluster)) as other, other.channel() as channel:
        first(channel).declare()
        publish(connection, "one", exchange=exchange)
        second(channel).declare()
        publish(connection, "two", exchange=exchange)
        first(channel).unbind_from(exchange)
        publish(connection, "three", exchange=exchange)
        second(channel).delete()
        publish(connection, "four", exchange=exchange)
        assert [message.payload for message in take(connection, [first], 2)] == ["one", "two"]
        assert nothing_comes(connection, first)
        # It was declared once more by the consumer; the other one's binding went with its queue.
        assert Exchanges(client, Names("")).all(name) == [Binding("fanout", first.name, "")]


def test_bindings_of_queues_that_are_gone_are_swept(shared_cluster: Cluster, client: Client, name: str) -> None:
    exchanges = Exchanges(client, Names(""))
    for number in range(3):
        exchanges.bind(name, Binding("fanout", f"{name}-gone{number}", ""), transient=False)
    client.create_queue(f"{name}-here")
    here = Binding("fanout", f"{name}-here", "")
    exchanges.bind(name, here, transient=True)
    exchanges.bind(name, here, transient=True)
    assert exchanges.all(name) == [here]


def test_a_short_lived_queue_goes_with_its_consumer(connection: Connection, client: Client, name: str) -> None:
    queue = Queue(f"{name}@host", Exchange(name, "fanout"), exclusive=True, auto_delete=True, durable=False)
    publish(connection, "x", queue, exchange=Exchange(name, "fanout"))
    stored = Names("").queue(queue.name)
    assert [each.name for each in client.list_queues(name)] == [stored]
    take(connection, [queue], 1, no_ack=True)
    assert client.list_queues(name) == []


def test_a_queue_that_has_gone_idle_is_made_again(connection: Connection, client: Client, name: str) -> None:
    queue = Queue(name)
    with connection.channel() as channel:
        producer = Producer(channel)
        producer.publish("one", declare=[queue], routing_key=name)
        client.delete_queue(name)
        producer.publish("two", declare=[queue], routing_key=name)
    assert [message.payload for message in take(connection, [queue], 1)] == ["two"]


def test_a_publish_to_a_queue_that_never_was_is_an_error(connection: Connection, name: str) -> None:
    with pytest.raises(connection.channel_errors, match=name):
        publish(connection, "x", routing_key=name)


def test_a_reply_that_nobody_waits_for_is_dropped(connection: Connection, client: Client, name: str) -> None:
    publish(connection, "x", routing_key=name, delivery_mode=1)
    assert client.list_queues(name) == []


def test_a_namespace_is_the_path_of_the_url(shared_cluster: Cluster, client: Client, name: str) -> None:
    with Connection(url(shared_cluster, "shop")) as connection:
        queue = Queue(name, Exchange(name), routing_key=name)
        publish(connection, "x", queue, exchange=queue.exchange)
        (message,) = take(connection, [queue], 1)
        assert message.payload == "x"
    names = {each.name for each in client.list_queues("shop/")}
    assert {f"shop/{name}", f"shop/kombu.exchange.{name}"} <= names


def test_a_channel_gives_back_what_it_has_not_settled(connection: Connection, name: str) -> None:
    queue = Queue(name)
    publish(connection, "x", queue)
    with connection.channel() as channel:
        assert channel.basic_get(name).payload == "x"
        assert channel.basic_get(name) is None
    (message,) = take(connection, [queue], 1)
    assert not message.delivery_info["redelivered"]  # it was given back, and has not failed


def test_a_consumer_holds_as_many_as_its_prefetch_count(connection: Connection, client: Client, name: str) -> None:
    queue = Queue(name)
    for number in range(10):
        publish(connection, number, queue)
    held: list[Any] = []
    with connection.channel() as channel, Consumer(channel, [queue], on_message=held.append, prefetch_count=2) as consumer:
        while len(held) < 2:
            connection.drain_events(timeout=PATIENCE_S)
        assert client.queue_stats(name).in_flight == 2
        consumer.qos(prefetch_count=5)
        while len(held) < 5:
            connection.drain_events(timeout=PATIENCE_S)
        assert client.queue_stats(name).in_flight == 5
        channel.basic_ack(held[2].delivery_tag, multiple=True)
        while len(held) < 8:
            connection.drain_events(timeout=PATIENCE_S)
        assert [message.payload for message in held] == list(range(8))


def test_nothing_in_time_is_a_timeout(connection: Connection, name: str) -> None:
    with connection.channel() as channel, Consumer(channel, [Queue(name)], on_message=print):
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0)
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.01)


def test_an_event_loop_is_woken_by_a_message_whichever_thread_takes_it_in(connection: Connection, name: str) -> None:
    queue, hub, taken = Queue(name), Hub(), []
    connection.connect()
    connection.transport.register_with_event_loop(connection.connection, hub)

    def on_message(message: Any) -> None:
        taken.append(message.payload)
        message.ack()

    with connection.channel() as channel, Consumer(channel, [queue], on_message=on_message, prefetch_count=3):
        # Calls of this thread on the same connection take in what comes meanwhile; the loop must hear of that, too.
        for number in range(20):
            publish(connection, number, queue)
        while len(taken) < 20:
            hub.run_once()
    assert sorted(taken) == list(range(20))
    hub.close()


def test_several_threads_share_a_producer_pool(connection: Connection, client: Client, name: str) -> None:
    publish(connection, "first", Queue(name))
    failures: list[BaseException] = []

    def send() -> None:
        try:
            for _ in range(25):
                publish(connection, "x", routing_key=name)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert client.queue_stats(name).pending == 101


def test_a_child_process_connects_anew(connection: Connection, client: Client, name: str) -> None:
    publish(connection, "parent", Queue(name))
    connection.default_channel  # noqa: B018  # open
    child = os.fork()
    if child == 0:
        try:
            connection.ensure_connection(max_retries=1)
            publish(connection, "child", routing_key=name)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    publish(connection, "parent again", routing_key=name)
    assert [message.payload for message in take(connection, [Queue(name)], 3)] == ["parent", "child", "parent again"]


def test_leases_outlast_the_broker(cluster: Cluster, name: str) -> None:
    with Connection(url(cluster)) as connection:
        queue = Queue(name)
        for number in range(3):
            publish(connection, number, queue)
        held: list[Any] = []
        with connection.channel() as channel, Consumer(channel, [queue], on_message=held.append, prefetch_count=2):
            while len(held) < 2:
                connection.drain_events(timeout=PATIENCE_S)
            cluster.kill_all()
            held[0].ack()  # it is sent again until it is confirmed
            with running(cluster.data_dir, listen=cluster.endpoint.removeprefix("tcp://")) as again:
                while len(held) < 3:
                    connection.drain_events(timeout=PATIENCE_S)
                assert [message.payload for message in held] == [0, 1, 2]
                for message in held[1:]:
                    message.ack()
                with again.client() as client:
                    eventually(lambda: client.queue_stats(name).depth == 0, "all are acked")


def test_a_consumer_whose_queue_is_deleted_has_its_connection_made_anew(
    connection: Connection, client: Client, name: str
) -> None:
    with connection.channel() as channel, Consumer(channel, [Queue(name)], on_message=print):
        client.delete_queue(name)
        with pytest.raises(connection.recoverable_connection_errors, match=f"ended the consumer of '{name}'"):
            connection.drain_events(timeout=PATIENCE_S)


def test_an_ack_after_the_end_of_its_connection_says_so(shared_cluster: Cluster, name: str) -> None:
    with Connection(url(shared_cluster)) as connection:
        publish(connection, "x", Queue(name))
        message = connection.default_channel.basic_get(name)
    with pytest.raises(connection.recoverable_connection_errors, match="this connection is closed"):
        message.ack()


def test_unknown_options_are_refused_by_name(shared_cluster: Cluster) -> None:
    with pytest.raises(ImproperlyConfigured, match="visibility_timout: fila:// takes api_key"):
        Connection(url(shared_cluster), transport_options={"visibility_timout": 3}).connect()


def test_eventlet_is_refused(shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fila_cluster.celery.transport.detect_environment", lambda: "eventlet")
    with pytest.raises(ImproperlyConfigured, match="use --pool prefork, threads, gevent or solo"):
        Connection(url(shared_cluster)).connect()


def test_headers_exchanges_are_refused(connection: Connection, name: str) -> None:
    with pytest.raises(ValueError, match="use one of direct, fanout, topic"):
        Exchange(name, "headers")(connection.default_channel).declare()


def test_a_key_with_rights_on_a_namespace_is_enough(tmp_path: Path, name: str) -> None:
    with guarded_cluster(tmp_path / "data") as guarded:
        options = {"server_key": guarded.server_key}
        address = url(guarded.cluster, "shop")
        key = guarded.key("workers", "admin:shop/*", "produce:shop/*", "consume:shop/*")
        mailbox = Queue(f"{name}@host", Exchange(name, "fanout"), exclusive=True, auto_delete=True)
        with Connection(address, transport_options={**options, "api_key": key}) as connection:
            publish(connection, "x", mailbox, exchange=mailbox.exchange)
            assert [message.payload for message in take(connection, [mailbox], 1)] == ["x"]
            connection.default_channel.queue_declare(name)
        # A producer needs no more than that, if a worker has declared the queue.
        queue = Queue(name, Exchange(name), routing_key=name)
        key = guarded.key("producer", "produce:shop/*")
        with Connection(address, transport_options={**options, "api_key": key}) as connection:
            publish(connection, "x", queue)
            with pytest.raises(PermissionDeniedError, match="admin:shop/"):
                publish(connection, "x", Queue(f"{name}-new"))
        with pytest.raises(UnauthenticatedError), Connection(address, transport_options=options) as connection:
            connection.connect()
