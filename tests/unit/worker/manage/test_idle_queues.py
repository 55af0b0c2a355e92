"""Queues that delete themselves when they were idle for long enough: never earlier, and not much later."""

from collections.abc import Callable

import pytest

from fila_proto_zmq.commands import (
    CreateQueue,
    GetQueueStats,
    Heartbeat,
    ListQueues,
    Pause,
    QueueOptions,
    Receive,
    UpdateQueue,
    Verb,
)
from fila_proto_zmq.errors import QueueNotFoundError
from fila_worker.core.keys import FIRST, LAST
from fila_worker.core.model.due_index import DueKind
from tests.support.shard.linked_shards import LinkedShards, name_on
from tests.support.shard.shard import ShardHarness

IDLE_MS = 10_000


@pytest.fixture
def idler() -> ShardHarness:
    harness = ShardHarness()
    harness.create("q", idle_expiry_ms=IDLE_MS)
    return harness


def there(shard: ShardHarness) -> bool:
    return "q" in shard.shard.queues


def gone_after(shard: ShardHarness, milliseconds: int) -> None:
    """It is there until then, and not a moment longer."""
    shard.pass_time(milliseconds - 1)
    assert there(shard), "too early"
    shard.pass_time(1)
    assert not there(shard), "too late"


def test_an_unused_queue_is_deleted_with_its_dead_letter_queue(idler: ShardHarness) -> None:
    gone_after(idler, IDLE_MS)
    assert idler.shard.queues == {}
    idler.restart()
    assert idler.shard.queues == {}
    with pytest.raises(QueueNotFoundError):
        idler.enqueue(b"x")


def test_other_queues_stay(idler: ShardHarness) -> None:
    idler.create("r")
    idler.pass_time(IDLE_MS)
    assert sorted(idler.shard.queues) == ["r", "r.dlq"]


CALLS: dict[str, Callable[[ShardHarness], object]] = {
    "enqueue and ack": lambda shard: (shard.enqueue(b"x"), shard.ack(shard.receive())),
    "stats": lambda shard: shard.ask(GetQueueStats()),
    "heartbeat": lambda shard: shard.ask(Heartbeat()),
    "pause": lambda shard: shard.ask(Pause(False)),
    "empty receive": lambda shard: shard.receive(),
    "dead letters": lambda shard: shard.receive(queue="q.dlq"),
    "redrive": lambda shard: shard.redrive(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_call_starts_it_over(idler: ShardHarness, call: str, restarted: bool) -> None:
    idler.pass_time(IDLE_MS - 1)
    CALLS[call](idler)
    if restarted:
        idler.restart()
    gone_after(idler, IDLE_MS)


def test_a_list_of_all_queues_is_no_call_to_one(idler: ShardHarness) -> None:
    idler.pass_time(IDLE_MS - 1)
    idler.ask(ListQueues(), queue="")
    gone_after(idler, 1)


@pytest.mark.parametrize("where", ["pending", "delayed", "dead"])
def test_a_queue_with_messages_stays(idler: ShardHarness, where: str) -> None:
    idler.enqueue(b"x", delay_ms=10 * IDLE_MS if where == "delayed" else 0)
    if where == "dead":
        idler.settle(Verb.FAIL, idler.receive())
    for _ in range(5):
        idler.pass_time(IDLE_MS)
        idler.restart()
    assert there(idler)


def test_a_queue_with_a_leased_message_stays_as_long_as_its_consumer_lives() -> None:
    shard = ShardHarness()
    shard.create("q", idle_expiry_ms=1_000, dead_letter="discard", max_attempts=1)
    shard.create("r")
    shard.enqueue(b"x")
    shard.receive()
    for _ in range(4):
        shard.pass_time(5_000)
        shard.heartbeat(queue="r")
    assert there(shard)
    shard.pass_time(15_000)  # the consumer is lost, and its message with it
    assert there(shard)
    gone_after(shard, 1_000)


def test_a_queue_whose_last_message_expired_was_in_use_until_then() -> None:
    shard = ShardHarness()
    shard.create("q", idle_expiry_ms=IDLE_MS, dead_letter="discard")
    shard.enqueue(b"x", ttl_ms=9_000)
    shard.pass_time(9_000)
    assert shard.shard.queues["q"].depth == 0
    gone_after(shard, IDLE_MS)


def test_so_was_one_whose_lease_expired() -> None:
    shard = ShardHarness()
    shard.create("q", idle_expiry_ms=IDLE_MS, dead_letter="discard", max_attempts=1, visibility_timeout_ms=8_000)
    shard.enqueue(b"x")
    shard.receive()
    shard.pass_time(8_000)
    assert shard.shard.queues["q"].depth == 0
    gone_after(shard, IDLE_MS)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_waiting_receive_is_a_consumer(idler: ShardHarness, restarted: bool) -> None:
    idler.create("r")
    idler.send(Receive(1, wait_ms=37_000))
    for _ in range(37):
        idler.pass_time(1_000)
        idler.heartbeat(queue="r")  # the client lives, but says nothing of q
    assert there(idler)
    if restarted:
        idler.restart()
    gone_after(idler, IDLE_MS)


def test_so_is_a_subscription_until_its_client_is_lost(idler: ShardHarness) -> None:
    idler.subscribe(5)
    idler.pass_time(14_999)
    assert there(idler)
    idler.pass_time(1)  # lost
    gone_after(idler, IDLE_MS)


def test_or_says_goodbye_by_way_of_another_queue(idler: ShardHarness) -> None:
    idler.create("r")
    idler.subscribe(5)
    idler.pass_time(7_000)
    idler.goodbye(queue="r")
    gone_after(idler, IDLE_MS)


@pytest.mark.parametrize("crashes_ms", [[500], [1, 1, 1], [9_999], [3_000, 3_000, 3_000]])
def test_restarts_make_it_a_second_longer_at_most(idler: ShardHarness, crashes_ms: list[int]) -> None:
    start_ms = idler.now_ms
    for each in crashes_ms:
        idler.pass_time(each)
        idler.restart()
    while there(idler):
        idler.pass_time(100)
    assert IDLE_MS <= idler.now_ms - start_ms <= IDLE_MS + 1_100


def test_a_call_just_before_a_crash_counts(idler: ShardHarness) -> None:
    idler.pass_time(5_000)
    idler.ask(GetQueueStats())
    idler.pass_time(900)
    idler.ask(GetQueueStats())  # too soon to be written again
    idler.restart()
    idler.pass_time(IDLE_MS - 1)
    assert there(idler)
    idler.pass_time(1_001)
    assert not there(idler)


# --- options ----------------------------------------------------------------------------------------------------------


def test_it_can_be_set_later_and_taken_back(shard: ShardHarness) -> None:
    shard.pass_time(5 * IDLE_MS)
    shard.ask(UpdateQueue(QueueOptions(idle_expiry_ms=IDLE_MS), ["idle_expiry_ms"]))
    shard.restart()
    shard.pass_time(IDLE_MS - 1)
    assert there(shard)
    shard.ask(UpdateQueue(QueueOptions(), ["idle_expiry_ms"]))
    shard.pass_time(5 * IDLE_MS)
    assert there(shard)


def test_set_again_it_starts_over_whatever_entries_are_left(shard: ShardHarness) -> None:
    for _ in range(3):
        shard.ask(UpdateQueue(QueueOptions(idle_expiry_ms=IDLE_MS), ["idle_expiry_ms"]))
        shard.pass_time(100)
        shard.ask(UpdateQueue(QueueOptions(), ["idle_expiry_ms"]))
        shard.pass_time(IDLE_MS - 300)
    shard.ask(UpdateQueue(QueueOptions(idle_expiry_ms=IDLE_MS), ["idle_expiry_ms"]))
    shard.restart()
    shard.pass_time(IDLE_MS - 1)
    assert there(shard)
    shard.pass_time(1_000)
    assert not there(shard)


def test_however_often_it_is_changed_one_look_is_scheduled(idler: ShardHarness) -> None:
    idler.enqueue(b"keeps it")
    for number in range(20):
        idler.pass_time(137)
        idler.ask(UpdateQueue(QueueOptions(idle_expiry_ms=IDLE_MS + number), ["idle_expiry_ms"]))
    idler.pass_time(3 * IDLE_MS)
    entries = [key for key, _ in idler.store.scan(FIRST, LAST, idler.store.families.schedule) if key[8] == DueKind.IDLE]
    assert len(entries) == 1


def test_a_queue_whose_dead_letters_are_under_way_waits_for_their_arrival() -> None:
    linked = LinkedShards(3, 5)
    target = name_on(5)
    shard = linked[3]
    linked[5].create(target)
    request = shard.send(CreateQueue(QueueOptions(idle_expiry_ms=IDLE_MS, dead_letter=target)), "q")
    linked.carry()
    assert request in shard.late
    shard.enqueue(b"x")
    shard.settle(Verb.FAIL, shard.receive())
    linked.stopped.add(5)
    linked.pass_time(3 * IDLE_MS)
    shard.restart()
    linked.pass_time(3 * IDLE_MS)
    assert there(shard)
    linked.stopped.clear()
    linked.pass_time(2 * IDLE_MS + 1_000)
    assert not there(shard)
    assert linked[5].counts(target) == (1, 0, 0)
