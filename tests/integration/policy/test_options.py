"""What a queue's options promise, through a real cluster."""

import pytest

from fila_cluster import Client, Message
from fila_cluster.errors import (
    AlreadySettledError,
    InvalidArgumentError,
    LuaCompilationError,
    QueueNotFoundError,
)
from tests.support.cluster.cluster import Cluster, eventually, running

BY_TENANT = """
function on_enqueue(msg)
  return { fairness_key = msg.headers.tenant, weight = tonumber(msg.headers.weight), priority = 0 }
end
"""

PATIENT = """
function on_failure(msg)
  if msg.error == "poison" then return { action = "dlq" } end
  return { action = "retry", delay_ms = msg.error == "a hiccup" and 100 or 3600000 }
end
"""


def fresh(client: Client, name: str, **options) -> str:
    client.create_queue(name, **options)
    return name


# --- hooks ------------------------------------------------------------------------------------------------------------


def test_on_enqueue_decides_how_a_message_is_scheduled(client: Client):
    queue = fresh(client, "options/on-enqueue", on_enqueue=BY_TENANT)
    client.enqueue(queue, b"a", {"tenant": "acme", "weight": "3"}, fairness_key="ignored", priority=7)
    client.enqueue(queue, b"b", {}, fairness_key="kept")
    got = client.receive(queue, 2)
    assert {(delivery.payload, delivery.fairness_key, delivery.weight, delivery.priority) for delivery in got} == {
        (b"a", "acme", 3, 0),
        (b"b", "kept", 1, 0),
    }
    client.ack(got)


def test_on_failure_decides_what_a_nack_means(client: Client):
    queue = fresh(client, "options/on-failure", on_failure=PATIENT)
    client.enqueue_many(queue, [Message(b"x"), Message(b"y")])
    hiccup, other = client.receive(queue, 2)
    other.nack("out of order")
    assert client.queue_stats(queue).delayed == 1
    hiccup.nack("a hiccup")
    (again,) = client.receive(queue, 2, wait=60)
    assert (again.payload, again.attempts) == (b"x", 1)
    again.nack("poison")
    (dead,) = client.receive(f"{queue}.dlq", wait=60)
    assert (dead.reason, dead.error, dead.attempts) == ("hook", "poison", 2)
    dead.ack()


def test_a_script_that_does_not_compile_leaves_no_queue_behind(client: Client):
    with pytest.raises(LuaCompilationError, match="2"):
        client.create_queue("options/broken", on_enqueue="function on_enqueue(msg)\n  return {{ end")
    with pytest.raises(QueueNotFoundError):
        client.queue_stats("options/broken")


def test_a_script_that_runs_for_ever_fails_no_enqueue(client: Client):
    queue = fresh(client, "options/loop", on_enqueue="function on_enqueue(msg) while true do end end", lua_timeout=0.005)
    ids = client.enqueue_many(queue, [Message(b"x", fairness_key="kept")] * 5)
    got = client.receive(queue, 5)
    assert [delivery.id for delivery in got] == ids
    assert {delivery.fairness_key for delivery in got} == {"kept"}
    client.ack(got)


# --- kinds of delivery ------------------------------------------------------------------------------------------------


def test_at_most_once_is_gone_when_it_is_received(client: Client):
    queue = fresh(client, "options/at-most-once", delivery="at_most_once")
    client.enqueue_many(queue, [Message(b"x")] * 3)
    got = client.receive(queue, 2)
    assert client.queue_stats(queue).depth == 1
    got[0].ack()
    with pytest.raises(AlreadySettledError):
        got[1].nack()
    client.ack(got)


def test_at_most_once_is_acked_when_a_consumer_takes_it_and_the_rest_goes_back(client: Client):
    queue = fresh(client, "options/at-most-once-push", delivery="at_most_once")
    client.enqueue_many(queue, [Message(str(number).encode()) for number in range(10)])
    with client.consume(queue) as consumer:
        taken = [next(consumer).text() for _ in range(4)]
    eventually(lambda: client.queue_stats(queue).in_flight == 0, "everything is settled or back")
    rest = client.receive(queue, 10)
    assert taken + [delivery.text() for delivery in rest] == [str(number) for number in range(10)]
    assert client.queue_stats(queue).depth == 0


def test_one_in_flight_per_key_keeps_its_order_and_no_other_key_waits(client: Client):
    queue = fresh(client, "options/ordered", max_in_flight_per_key=1)
    client.enqueue_many(queue, [Message(f"{key}{number}".encode(), fairness_key=key) for number in range(3) for key in "ab"])
    first = {delivery.fairness_key: delivery for delivery in client.receive(queue, 10)}
    assert {key: delivery.text() for key, delivery in first.items()} == {"a": "a0", "b": "b0"}
    first["a"].retry(3600)
    first["b"].ack()
    for text in ("b1", "b2"):
        (next_one,) = client.receive(queue, 10)
        assert next_one.text() == text
        next_one.ack()
    assert client.receive(queue, 10) == []


def test_one_in_flight_per_key_goes_on_with_what_is_retried(client: Client):
    queue = fresh(client, "options/ordered-retry", max_in_flight_per_key=1)
    client.enqueue_many(queue, [Message(text.encode(), fairness_key="a") for text in ("a0", "a1")])
    (first,) = client.receive(queue, 10)
    first.retry(0.1)
    (back,) = client.receive(queue, 10, wait=60)
    assert (back.text(), back.attempts) == ("a0", 1)
    back.ack()
    (last,) = client.receive(queue, 10, wait=60)
    assert last.text() == "a1"
    last.ack()


# --- where dead letters go --------------------------------------------------------------------------------------------


def test_dead_letters_may_be_discarded(client: Client):
    queue = fresh(client, "options/discard", dead_letter="discard")
    client.enqueue(queue, b"x")
    client.receive(queue)[0].fail("no good")
    assert client.queue_stats(queue).depth == 0
    with pytest.raises(QueueNotFoundError):
        client.queue_stats(f"{queue}.dlq")


def test_dead_letters_may_go_to_a_named_queue_on_any_shard_and_come_back(client: Client):
    graveyard = fresh(client, "options/graveyard")
    sources = [fresh(client, f"options/source-{number}", dead_letter=graveyard) for number in range(8)]
    assert {client.queue_stats(queue).shard for queue in sources} == {0, 1}
    ids = {client.enqueue(queue, queue.encode()): queue for queue in sources}
    for queue in sources:
        client.receive(queue)[0].fail("no good")
    eventually(lambda: client.queue_stats(graveyard).pending == 8, "all of them have arrived")
    assert {view.id: view.source_queue for view in client.browse(graveyard)} == ids
    assert client.redrive(graveyard) == 8
    for queue in sources:
        (back,) = client.receive(queue, wait=60)
        assert (ids[back.id], back.attempts) == (queue, 0)
        back.ack()


def test_a_named_dead_letter_queue_must_exist(client: Client):
    with pytest.raises(InvalidArgumentError, match="nowhere"):
        client.create_queue("options/lost", dead_letter="options/nowhere")
    assert client.list_queues("options/lost") == []


# --- time -------------------------------------------------------------------------------------------------------------


def test_what_waits_too_long_is_dead_lettered(client: Client):
    queue = fresh(client, "options/ttl", default_ttl=0.2)
    client.enqueue(queue, b"short")
    client.enqueue(queue, b"long", ttl=3600)
    (dead,) = client.receive(f"{queue}.dlq", wait=60)
    assert (dead.payload, dead.reason, dead.source_queue) == (b"short", "expired", queue)
    dead.ack()
    (left,) = client.receive(queue, 10)
    assert left.payload == b"long"
    left.ack()


def test_an_idle_queue_is_deleted(client: Client):
    fresh(client, "options/idle", idle_expiry=0.2)
    eventually(lambda: client.list_queues("options/idle") == [], "it is gone, and its dead letter queue too")


# --- updating ---------------------------------------------------------------------------------------------------------


def test_an_update_changes_what_happens_next_and_the_rest_stays(client: Client):
    queue = fresh(client, "options/update", visibility_timeout=7, max_attempts=1)
    client.update_queue(queue, max_attempts=None, dead_letter="discard")
    client.enqueue(queue, b"x")
    (first,) = client.receive(queue)
    assert (first.lease_expires_at - first.leased_at).total_seconds() == 7
    first.nack()
    (again,) = client.receive(queue)
    assert again.attempts == 1
    again.fail()
    assert client.queue_stats(queue).depth == 0
    assert client.list_queues(f"{queue}.dlq") == [] or client.queue_stats(f"{queue}.dlq").depth == 0


def test_a_hook_may_be_replaced_and_removed(client: Client):
    queue = fresh(client, "options/update-hook", on_enqueue=BY_TENANT)
    client.update_queue(queue, on_enqueue='function on_enqueue(msg) return { fairness_key = "fixed" } end')
    client.enqueue(queue, b"x", {"tenant": "acme"})
    client.update_queue(queue, on_enqueue=None)
    client.enqueue(queue, b"y", {"tenant": "acme"})
    got = client.receive(queue, 2)
    assert {delivery.payload: delivery.fairness_key for delivery in got} == {b"x": "fixed", b"y": "default"}
    client.ack(got)
    with pytest.raises(LuaCompilationError):
        client.update_queue(queue, on_enqueue="function (")
    with pytest.raises(QueueNotFoundError):
        client.update_queue("options/nowhere", max_attempts=1)


def test_options_survive_a_restart(tmp_path):
    options = {"on_enqueue": BY_TENANT, "max_in_flight_per_key": 1, "delivery": "at_least_once", "visibility_timeout": 9}
    with running(tmp_path / "data") as cluster, cluster.client() as client:
        client.create_queue("q", **options)
        client.pause("q", fairness_key="acme")
        cluster.kill_all()
    with running(tmp_path / "data") as cluster, cluster.client() as client:
        _check_options(cluster, client)


def _check_options(cluster: Cluster, client: Client) -> None:
    client.enqueue_many("q", [Message(b"x", {"tenant": tenant}) for tenant in ("acme", "other", "other")])
    (got,) = client.receive("q", 10)
    assert (got.fairness_key, (got.lease_expires_at - got.leased_at).total_seconds()) == ("other", 9)
    client.resume("q", fairness_key="acme")
    (resumed,) = client.receive("q", 10)
    assert resumed.fairness_key == "acme"
    client.ack([got, resumed])
