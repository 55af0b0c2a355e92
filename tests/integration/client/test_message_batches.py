"""``batch`` of both clients against a real cluster."""

from typing import Any

import pytest

from fila_cluster import Client, Message
from fila_cluster.errors import BatchError, InvalidArgumentError, QueueNotFoundError
from tests.support.cluster.cluster import PATIENCE_S


@pytest.fixture
def done(client: Client, queue: str) -> str:
    """The name of a queue for callbacks."""
    client.create_queue(f"{queue}-done")
    return f"{queue}-done"


def counts(callback: Any) -> list[int]:
    return [int(callback.headers[f"fila-batch-{name}"]) for name in ("total", "acked", "dead", "removed")]


def settle(client: Client, queue: str, failing: int = 0) -> None:
    for number, delivery in enumerate(client.receive(queue, 100, wait=PATIENCE_S)):
        if number < failing:
            delivery.fail()
        else:
            delivery.ack()


def test_the_callback_comes_with_the_counts(client: Client, queue: str, done: str) -> None:
    queues = [f"{queue}-{number}" for number in range(4)]  # on all shards
    for name in queues:
        client.create_queue(name)
    with client.batch(Message(b"done", {"job": "7"}, priority=-3), done, name="import") as batch:
        for number, name in enumerate(queues):
            batch.enqueue_many(name, [Message(b"%d" % each, fairness_key=f"k{each % 2}") for each in range(number)])
            assert isinstance(batch.enqueue(name, b"one", {"h": "v"}, fairness_key="acme", priority=2), str)
        settle(client, queues[0])
    assert (batch.name, batch.id.rpartition("#")[0]) == ("import", done)
    for name in queues[1:]:
        assert client.receive(done) == []
        settle(client, name, failing=1)
    (callback,) = client.receive(done, wait=PATIENCE_S)
    assert (callback.payload, callback.priority, callback.headers["job"]) == (b"done", -3, "7")
    assert (callback.headers["fila-batch"], callback.headers["fila-batch-name"]) == (batch.id, "import")
    assert counts(callback) == [10, 7, 3, 0]
    callback.ack()
    batch.seal()  # again: it does no harm
    assert client.receive(done) == []


def test_a_batch_that_fails_is_abandoned(client: Client, queue: str, done: str) -> None:
    def fail() -> None:
        with client.batch(Message(b"never"), done) as batch:
            batch.enqueue(queue, b"stays")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    settle(client, queue)
    assert client.receive(done, wait=0.3) == []


def test_what_is_removed_is_done(client: Client, queue: str, done: str) -> None:
    with client.batch(Message(b"done"), done) as batch:
        cancelled = batch.enqueue(queue, b"a", delay=60.0)
        batch.enqueue_many(queue, [Message(b"b", dedup_id="x"), Message(b"b again", dedup_id="x")])
    assert client.cancel(queue, cancelled)
    assert client.purge_queue(queue) == 1
    (callback,) = client.receive(done, wait=PATIENCE_S)
    assert counts(callback) == [2, 0, 0, 2]
    callback.ack()


def test_bad_arguments_are_refused_at_once(client: Client, queue: str, done: str) -> None:
    for callback, options, text in (
        (b"no message", {}, "pass a Message"),
        (Message(b"", dedup_id="x"), {}, "dedup_id='x'"),
        (Message(b"", priority="high"), {}, "priority"),
        (Message(b""), {"name": 7}, "name=7"),
        (Message(b""), {"name": "\ud800"}, "cannot be encoded"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            client.batch(callback, done, **options)
    with pytest.raises(InvalidArgumentError, match="queue name"):
        client.batch(Message(b""), "no good name")
    batch = client.batch(Message(b""), done)
    with pytest.raises(InvalidArgumentError, match="not open"):
        batch.enqueue(queue, b"too early")


def test_errors_of_single_messages_are_their_own(client: Client, queue: str, done: str) -> None:
    with pytest.raises(QueueNotFoundError), client.batch(Message(b""), f"{queue}-missing"):
        pass
    with client.batch(Message(b"done"), done) as batch:
        with pytest.raises(QueueNotFoundError):
            batch.enqueue(f"{queue}-missing", b"lost")
        with pytest.raises(InvalidArgumentError, match="delay"):
            batch.enqueue(queue, b"bad", delay=-1)
        with pytest.raises(BatchError, match="1 of 2"):
            batch.enqueue_many(queue, [Message(b"good"), Message("bad")])  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            batch.enqueue(queue, b"x", colour="red")  # type: ignore[call-arg]
    with pytest.raises(InvalidArgumentError, match="sealed"):
        batch.enqueue(queue, b"too late")
    settle(client, queue)
    (callback,) = client.receive(done, wait=PATIENCE_S)
    assert counts(callback) == [1, 1, 0, 0]
    callback.ack()
