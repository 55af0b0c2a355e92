"""Queues: how they are made, and what they tell of themselves."""

import re

import pytest

from fila_proto_zmq.commands import (
    GetClusterStatus,
    ListQueues,
    QueueInfo,
    QueueList,
    QueueOptions,
    Verb,
)
from fila_proto_zmq.errors import (
    InvalidArgumentError,
    InvalidFrameError,
    QueueExistsError,
    QueueNotFoundError,
)
from fila_proto_zmq.limits import LEASE_MS_MAX
from fila_worker.core.metrics.meter import report
from fila_worker.core.settings import ShardSettings
from tests.support.shard.shard import ShardHarness


def listed(shard: ShardHarness, prefix: str = "") -> list[QueueInfo]:
    reply = shard.ask(ListQueues(prefix), "")
    assert isinstance(reply, QueueList)
    return reply.queues


# --- creating ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("nope", "create it with `queue create nope` or create_queue()"),
        ("nope.dlq", "it comes with 'nope', unless that discards"),
    ],
)
def test_a_queue_that_is_not_there_is_an_error_with_the_command_that_makes_it(name: str, remedy: str) -> None:
    with pytest.raises(QueueNotFoundError, match=f"no queue '{name}': {re.escape(remedy)}"):
        ShardHarness().stats(name)


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "acme/invoices", "q" * 200, "n" * 99 + "/" + "q" * 100, ".", "a.dlq.b"])
def test_a_queue_comes_with_its_dead_letter_queue(name: str) -> None:
    shard = ShardHarness()
    shard.create(name)
    assert [(queue.name, queue.is_dead_letter, queue.shard) for queue in listed(shard)] == [
        (name, False, 3),
        (name + ".dlq", True, 3),
    ]
    shard.enqueue(b"x", queue=name)
    shard.settle(Verb.FAIL, shard.receive(queue=name), name)
    assert shard.counts(name + ".dlq") == (1, 0, 0)


@pytest.mark.parametrize("name", ["", "q" * 201, "a b", "a/b/c", "/a", "a/", "größe", "orders.dlq", "a\n"])
def test_a_bad_name_is_refused_and_nothing_made(name: str) -> None:
    shard = ShardHarness()
    with pytest.raises(InvalidArgumentError):
        shard.create(name)
    assert listed(shard) == []


def test_a_name_is_given_once(shard: ShardHarness) -> None:
    with pytest.raises(QueueExistsError, match="'q'"):
        shard.create("q", max_attempts=3)
    assert shard.shard.queues["q"].options == QueueOptions()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"visibility_timeout_ms": 0}, "visibility timeout of 0 ms"),
        ({"visibility_timeout_ms": -1}, "visibility timeout of -1 ms"),
        ({"visibility_timeout_ms": LEASE_MS_MAX + 1}, "43200001 ms"),
        ({"max_attempts": 0}, "max_attempts of 0"),
        ({"max_attempts": -1}, "max_attempts of -1"),
    ],
)
def test_bad_options_are_refused_and_nothing_made(options: dict[str, int], text: str) -> None:
    shard = ShardHarness()
    with pytest.raises(InvalidArgumentError, match=text):
        shard.create(**options)
    assert listed(shard) == []


def test_queues_and_options_survive_a_restart() -> None:
    shard = ShardHarness()
    shard.create("a", visibility_timeout_ms=4_000, max_attempts=1)
    shard.create("b")
    shard.restart()
    assert [queue.name for queue in listed(shard)] == ["a", "a.dlq", "b", "b.dlq"]
    shard.enqueue(b"x", queue="a")
    assert shard.receive(queue="a")[0].expires_ms == shard.now_ms + 4_000
    shard.pass_time(4_000)
    assert shard.counts("a.dlq") == (1, 0, 0)
    assert shard.redrive(queue="a.dlq").count == 1


# --- asking -----------------------------------------------------------------------------------------------------------


def test_queues_are_listed_by_name_and_prefix() -> None:
    shard = ShardHarness()
    for name in ("orders", "acme/orders", "order", "invoices"):
        shard.create(name)
    assert [queue.name for queue in listed(shard, "order")] == ["order", "order.dlq", "orders", "orders.dlq"]
    assert [queue.name for queue in listed(shard, "acme/")] == ["acme/orders", "acme/orders.dlq"]
    assert listed(shard, "nothing") == []


def test_a_listed_queue_has_its_counts(shard: ShardHarness) -> None:
    shard.enqueue(*[b""] * 5)
    shard.enqueue(b"", delay_ms=1_000)
    shard.settle(Verb.FAIL, shard.receive())
    shard.receive(2)
    shard.subscribe(1, client=b"c2", queue="q.dlq")
    assert listed(shard) == [
        QueueInfo("q", 2, 2, 1, 0, False, False, 3),
        QueueInfo("q.dlq", 0, 1, 0, 1, False, True, 3),
    ]


def test_stats_count_everything_that_happened(shard: ShardHarness) -> None:
    shard.enqueue(*[b""] * 6)
    shard.ack(shard.receive(2))
    shard.nack(shard.receive(1))
    shard.settle(Verb.FAIL, shard.receive(1))
    shard.receive(1)
    shard.heartbeat()
    shard.pass_time(14_000)
    shard.heartbeat()
    shard.pass_time(14_000)
    shard.heartbeat()
    shard.pass_time(2_000)
    stats = shard.stats()
    assert (stats.enqueued, stats.delivered, stats.acked, stats.expired, stats.dead_lettered) == (6, 5, 2, 1, 1)
    assert (stats.nacked, stats.quantum, stats.info.pending) == (2, 1000, 3)


def test_stats_have_the_age_of_the_oldest_message_that_is_next_in_its_line(shard: ShardHarness) -> None:
    assert shard.stats().oldest_pending_ms == 0
    shard.enqueue(b"", key="a")
    shard.pass_time(3_000)
    shard.enqueue(b"", key="b")
    shard.pass_time(2_000)
    assert shard.stats().oldest_pending_ms == 5_000
    shard.ack(shard.receive(1))
    assert shard.stats().oldest_pending_ms == 2_000


def test_stats_find_the_oldest_message_on_disk_too(shard: ShardHarness) -> None:
    shard.enqueue(b"", b"")
    shard.pass_time(3_000)
    shard.restart()
    assert shard.stats().oldest_pending_ms == 3_000
    assert len(shard.receive(9)) == 2


def test_an_old_message_of_a_less_urgent_priority_is_the_oldest(shard: ShardHarness) -> None:
    shard.enqueue(b"", priority=9)
    shard.pass_time(1_000)
    shard.enqueue(b"", priority=2**31 - 1)
    shard.pass_time(1_000)
    shard.enqueue(b"", b"", b"", priority=-3)
    shard.pass_time(1_000)
    assert shard.stats().oldest_pending_ms == 3_000
    shard.ack(shard.receive(3))
    assert shard.stats().oldest_pending_ms == 3_000
    (nine,) = shard.receive(1)
    assert shard.stats().oldest_pending_ms == 2_000
    shard.nack([nine])  # comes back out of order
    assert shard.stats().oldest_pending_ms == 3_000
    shard.restart()
    assert shard.stats().oldest_pending_ms == 3_000


def test_the_oldest_message_is_found_among_priorities_on_disk() -> None:
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=0))
    shard.create()
    shard.enqueue(b"", priority=9)
    shard.pass_time(1_000)
    shard.enqueue(*[b""] * 20, priority=[1, 2, 3, 4] * 5)
    shard.pass_time(1_000)
    assert shard.stats().oldest_pending_ms == 2_000
    shard.ack(shard.receive(20))
    assert shard.stats().oldest_pending_ms == 2_000
    assert report(shard.shard, shard.now_ms).queues[0].oldest_pending_ms == 2_000


def test_stats_of_a_queue_that_does_not_exist_are_refused(shard: ShardHarness) -> None:
    with pytest.raises(QueueNotFoundError):
        shard.stats("nowhere")


def test_a_command_that_is_not_for_a_shard_is_refused(shard: ShardHarness) -> None:
    with pytest.raises(InvalidFrameError, match="GetClusterStatus"):
        shard.ask(GetClusterStatus())
