"""Queue templates, messages with a number of attempts of their own, and replacements, through a real cluster."""

from typing import Any

import pytest

from fila_cluster import Client, Message
from fila_cluster.errors import InvalidArgumentError, LuaCompilationError, QueueNotFoundError
from tests.support.cluster.cluster import PATIENCE_S, Cluster


@pytest.fixture
def pattern(client: Client, queue: str):
    """A pattern of this test's own, and nothing is left of it."""
    yield f"{queue}-*"
    client.delete_template(f"{queue}-*")
    for info in client.list_queues(f"{queue}-"):
        if not info.is_dead_letter:
            client.delete_queue(info.name, force=True)


def test_once_put_every_shard_makes_queues(client: Client, shared_cluster: Cluster, queue: str, pattern: str):
    names = [f"{queue}-{number}" for number in range(6)]
    with Client(shared_cluster.endpoint) as other:
        with pytest.raises(QueueNotFoundError):
            other.enqueue(names[0], b"x")
        for cap in (3, 4):
            client.put_template(pattern, max_attempts=cap, idle_expiry=600)
            for name in names:
                other.enqueue_many(name, [Message(b"1"), Message(b"2")])
    assert {info.shard for info in client.list_queues(f"{queue}-")} == {0, 1}
    assert all(client.queue_stats(name).pending == 4 for name in names)
    assert client.list_templates(queue) == {pattern: {"max_attempts": 4, "idle_expiry": 600.0}}
    assert pattern not in str(client.list_config("fila"))


def test_options_come_back_as_they_were_put(client: Client, pattern: str):
    options: dict[str, Any] = {
        "on_enqueue": "function on_enqueue(msg) return {} end", "visibility_timeout": 1.5, "max_attempts": 2, "dead_letter": "discard",
        "delivery": "at_most_once", "max_in_flight_per_key": 1, "default_ttl": 60.0, "idle_expiry": 0.5, "lua_timeout": 0.02,
        "lua_memory_limit": 65536,
    }  # fmt: skip
    client.put_template(pattern, **options)
    assert client.get_template(pattern) == options
    with pytest.raises(LuaCompilationError, match="1"):
        client.put_template(pattern, on_failure="function on_failure(")
    with pytest.raises(TypeError, match="colour"):
        client.put_template(pattern, colour=1)  # type: ignore[call-arg]
    assert client.get_template(pattern) == options
    assert client.delete_template(pattern) is True
    assert client.delete_template(pattern) is False
    assert client.get_template(pattern) is None


def test_the_history_has_them_and_a_change_is_taken_back(client: Client, queue: str, pattern: str):
    client.put_template(pattern, max_attempts=1)
    client.put_template(pattern, max_attempts=2)
    [edit] = client.config_history(f"fila:template:{pattern}", limit=1)
    assert (edit.old, edit.new) == ('{"max_attempts":1}', '{"max_attempts":2}')
    client.undo_config(edit.version)
    assert client.get_template(pattern) == {"max_attempts": 1}
    assert [act.target for act in client.audit(10) if act.verb == "template.put"][:2] == [pattern, pattern]


def test_many_templates_come_in_pages(client: Client, queue: str, pattern: str):
    script = "function on_enqueue(msg) return {} end --" + "x" * 200_000
    patterns = [f"{queue}-{number}*" for number in range(5)]
    try:
        for each in patterns:
            client.put_template(each, on_enqueue=script)
        assert client.list_templates(f"{queue}-") == {each: {"on_enqueue": script} for each in patterns}
    finally:
        for each in patterns:
            client.delete_template(each)


def test_a_message_has_its_own_number_of_attempts(client: Client, queue: str):
    client.update_queue(queue, max_attempts=5)
    client.enqueue(queue, b"x", max_attempts=1)
    assert [view.max_attempts for view in client.browse(queue)] == [1]
    client.receive(queue)[0].nack("no")
    [letter] = client.receive(f"{queue}.dlq", wait=PATIENCE_S)
    assert (letter.reason, letter.attempts, letter.max_attempts) == ("max_attempts", 1, 1)
    letter.ack()


def test_the_last_of_several_is_delivered(client: Client, queue: str):
    with client.producer(queue) as producer:
        futures = [producer.send(b"%d" % number, dedup_id="a", dedup_mode="last") for number in range(50)]
    assert len({future.result() for future in futures}) == 1
    ids = client.enqueue_many(
        queue, [Message(b"x", dedup_id="b", dedup_mode="last"), Message(b"y", dedup_id="b", dedup_mode="last")]
    )
    assert ids[0] == ids[1]
    got = client.receive(queue, 9)
    assert [delivery.payload for delivery in got] == [b"49", b"y"]
    client.ack(got)
    with pytest.raises(InvalidArgumentError, match="dedup_id"):
        client.enqueue(queue, b"x", dedup_mode="last")
