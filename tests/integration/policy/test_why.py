"""Why does it wait? Situations in a real cluster: the first reason names each, with the right numbers."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Event, Thread

import pytest

from fila_cluster import AsyncClient, Client, Explanation, Message
from fila_cluster.errors import MessageNotFoundError
from tests.support.cluster.cluster import PATIENCE_S, Cluster, command, environment, eventually

FAILING = "function on_enqueue(msg) error('no tenant') end"


def first(explanation: Explanation, code: str) -> dict[str, object]:
    """The numbers of the first reason, which is this one."""
    assert explanation.reasons[0].code == code, str(explanation)
    return explanation.reasons[0].details


def soon(moment: datetime | None, seconds: float, within: float) -> bool:
    """Whether it is about so many seconds from now."""
    return moment is not None and abs((moment - datetime.now(UTC)).total_seconds() - seconds) < within


@contextmanager
def reader(cluster: Cluster, queue: str) -> Iterator[None]:
    """Somebody takes what he can get from a queue, and acks it."""
    stop = Event()

    def read() -> None:
        with cluster.client() as client:
            while not stop.is_set():
                client.ack(client.receive(queue, 100, wait=0.2))

    thread = Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_delayed(client: Client, queue: str) -> None:
    message = client.enqueue(queue, b"x", delay=600)
    told = client.why(queue, message_id=message)
    assert 540_000 < int(str(first(told, "delayed")["remaining_ms"])) <= 600_000
    assert (told.state, told.position) == ("delayed", None)
    assert soon(told.reasons[0].until, 600, 60)


def test_starved_of_consumers(client: Client, queue: str) -> None:
    message = client.enqueue(queue, b"x", fairness_key="acme")
    for told in (client.why(queue, message_id=message), client.why(queue, fairness_key="acme"), client.why(queue)):
        assert first(told, "no_consumers")["consumers"] == 0
        assert (told.state, told.estimated_delivery_at) == ("pending", None)
    assert client.why(queue, message_id=message).position == 0


def test_paused(client: Client, queue: str) -> None:
    message = client.enqueue(queue, b"x", fairness_key="acme")
    client.pause(queue, fairness_key="acme")
    assert first(client.why(queue, message_id=message), "key_paused")["fairness_key"] == "acme"
    client.pause(queue)
    assert first(client.why(queue, message_id=message), "queue_paused")["queue"] == queue


def test_leased(client: Client, queue: str) -> None:
    message = client.enqueue(queue, b"x")
    (held,) = client.receive(queue)
    told = client.why(queue, message_id=message)
    (view,) = client.browse(queue)
    details = first(told, "leased")
    assert details["consumer"] == view.consumer
    assert details["leased_ms"] == round(held.leased_at.timestamp() * 1000)
    assert (told.state, told.reasons[0].until) == ("leased", held.lease_expires_at)
    held.ack()


def test_ordered_behind_a_stuck_message(client: Client, queue: str) -> None:
    client.update_queue(queue, max_in_flight_per_key=1)
    stuck, _, message = client.enqueue_many(queue, [Message(b"x", fairness_key="acme") for _ in range(3)])
    (held,) = client.receive(queue, 10)
    told = client.why(queue, message_id=message)
    details = first(told, "ordered_behind")
    assert (details["message_id"], details["waits_for"], told.position) == (stuck, "lease", 1)
    assert told.reasons[0].until == held.lease_expires_at
    held.retry(600, "not now")
    details = first(client.why(queue, message_id=message), "ordered_behind")
    assert (details["message_id"], details["waits_for"], details["error"]) == (stuck, "retry", "not now")


def test_throttled(shared_cluster: Cluster, client: Client, queue: str) -> None:
    client.set_config(f"throttle.{queue}", "0.1,3")
    messages = client.enqueue_many(queue, [Message(b"x", throttle_keys=[queue]) for _ in range(20)])
    with reader(shared_cluster, queue):
        eventually(lambda: client.queue_stats(queue).pending <= 17, "the burst is delivered")
        eventually(lambda: client.why(queue).reasons[0].code == "throttled", "the bucket is empty")
        told = client.why(queue, message_id=messages[-1])
    details = first(told, "throttled")
    assert (details["throttle_key"], details["rate"], details["burst"], details["cost"]) == (queue, 0.1, 3.0, 1.0)
    assert float(str(details["tokens"])) < 1
    assert told.reasons[0].until is not None
    assert told.reasons[0].until <= datetime.now(UTC) + timedelta(seconds=11)
    assert told.position is not None
    assert 10 <= told.position <= 16
    assert soon(told.estimated_delivery_at, (told.position + 1) / 0.1, 20)


def test_parked_by_a_deferral(client: Client, queue: str) -> None:
    message, other = client.enqueue_many(queue, [Message(b"x", throttle_keys=[f"{queue}-provider"]) for _ in range(2)])
    client.receive(queue)[0].defer(600)
    assert first(client.why(queue, message_id=message), "deferred")["attempts"] == 0
    told = client.why(queue, message_id=other)
    assert first(told, "parked")["throttle_key"] == f"{queue}-provider"
    assert soon(told.reasons[0].until, 600, 60)


def test_too_old_and_gone(client: Client, queue: str) -> None:
    message = client.enqueue(queue, b"x", ttl=0.05)
    eventually(lambda: client.queue_stats(queue + ".dlq").pending == 1, "it is swept")
    told = client.why(queue, message_id=message)
    assert first(told, "expired")["dead_letter_queue"] == queue + ".dlq"
    assert told.state == "dead_lettered"
    client.update_queue(queue, dead_letter="discard")
    gone = client.enqueue(queue, b"x", ttl=0.05)
    eventually(lambda: client.queue_stats(queue).pending == 0, "it is swept")
    with pytest.raises(MessageNotFoundError, match="discards its dead letters"):
        client.why(queue, message_id=gone)


def test_dead_lettered_into_a_queue_of_another_shard(client: Client, queue: str) -> None:
    here = next(info.shard for info in client.list_queues(queue) if info.name == queue)
    morgue = next(name for number in range(64) if _shard(client, name := f"{queue}-morgue-{number}") != here)
    client.update_queue(queue, dead_letter=morgue)
    message = client.enqueue(queue, b"x")
    client.receive(queue)[0].fail("no such account")
    eventually(lambda: client.queue_stats(morgue).pending == 1, "it has arrived")
    details = first(client.why(queue, message_id=message), "dead_lettered")
    assert (details["error"], details["source_queue"], details["dead_letter_queue"]) == ("no such account", queue, morgue)
    with pytest.raises(MessageNotFoundError, match="ask there"):
        client.why(queue, message_id=message[:-1] + ("0" if message[-1] != "0" else "1"))


def _shard(client: Client, name: str) -> int:
    client.create_queue(name)
    return next(info.shard for info in client.list_queues(name) if info.name == name)


def test_an_open_breaker(client: Client, queue: str) -> None:
    client.update_queue(queue, on_enqueue=FAILING)
    client.enqueue_many(queue, [Message(b"x")] * 3)
    client.purge_queue(queue)
    told = client.why(queue)
    details = first(told, "breaker_open")
    assert details["threshold"] == 3
    assert "no tenant" in str(details["last_failure"])
    assert soon(told.reasons[0].until, 10, 6)


def test_a_shard_that_is_down(cluster: Cluster) -> None:
    """Stopped, not killed: else it might be back before anybody asks."""
    with cluster.client() as client:
        client.create_queue("q")
        message = client.enqueue("q", b"x")
        worker = cluster.worker_of(0)
        os.kill(worker.pid, signal.SIGSTOP)
        try:
            told = client.why("q", message_id=message)
            again = client.why("q")
        finally:
            os.kill(worker.pid, signal.SIGCONT)
        assert first(told, "shard_down") == {"queue": "q", "shard": 0, "worker": worker.name, "worker_state": "down"}
        assert (told.state, again.state) == ("unknown", "unknown")
        eventually(lambda: client.why("q").state == "pending", "it is back")


def test_a_worker_that_was_killed_and_is_back(cluster: Cluster) -> None:
    """Asked all the while it says one or the other, and never fails."""
    with cluster.client() as client:
        client.create_queue("q")
        message = client.enqueue("q", b"x")
        os.kill(cluster.worker_of(0).pid, signal.SIGKILL)
        eventually(lambda: client.why("q", message_id=message).state == "pending", "it is back")
        assert first(client.why("q", message_id=message), "no_consumers")


def test_without_blocking(shared_cluster: Cluster, client: Client, queue: str) -> None:
    client.enqueue(queue, b"x")

    async def ask() -> Explanation:
        async with AsyncClient(shared_cluster.endpoint) as asking:
            return await asking.why(queue)

    first(asyncio.run(ask()), "no_consumers")


def test_the_command(shared_cluster: Cluster, client: Client, queue: str) -> None:
    message = client.enqueue(queue, b"x", delay=600)
    arguments = ("--endpoint", shared_cluster.endpoint, "--json", "why", queue, "--id", message)
    ended = subprocess.run(
        command(*arguments), env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    told = json.loads(ended.stdout)
    assert (told["state"], told["reasons"][0]["code"]) == ("delayed", "delayed")
