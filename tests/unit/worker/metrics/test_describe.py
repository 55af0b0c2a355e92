"""What a queue says of itself: its options, its consumers, its hooks."""

import pytest

from fila_proto_zmq.commands import (
    ConsumerView,
    CreateQueue,
    DescribeQueue,
    Pause,
    QueueDescription,
    QueueOptions,
    Receive,
    Reserve,
    Subscribe,
    Unsubscribe,
    UpdateQueue,
)
from fila_proto_zmq.errors import QueueNotFoundError
from fila_proto_zmq.ids import client_name
from fila_worker.core.metrics import describe as describing
from fila_worker.core.settings import ShardSettings
from tests.support.shard.linked_shards import name_on
from tests.support.shard.shard import ADMIN, ShardHarness

A, B, C = b"\1a", b"\2b", b"\3c"
FAILING = "function on_enqueue(msg) error('boom') end"


def describe(shard: ShardHarness, queue: str = "q") -> QueueDescription:
    reply = shard.ask(DescribeQueue(), queue, ADMIN)
    assert isinstance(reply, QueueDescription)
    return reply


def consumer(shard: ShardHarness, client: bytes, queue: str = "q") -> ConsumerView:
    (view,) = [each for each in describe(shard, queue).consumers if each.consumer == client_name(client)]
    return view


# --- options ----------------------------------------------------------------------------------------------------------


def test_the_options_are_those_of_now_with_the_scripts_in_full(shard: ShardHarness):
    script = "function on_enqueue(msg) return {} end -- " + "é" * 10_000
    options = QueueOptions(30_000, 5, script, None, "discard", None, 3, 60_000, None, 20, 2**20)
    shard.ask(CreateQueue(options), "orders")
    assert describe(shard, "orders").options == options
    shard.ask(UpdateQueue(QueueOptions(max_attempts=9), ["max_attempts", "on_enqueue"]), "orders")
    options.max_attempts, options.on_enqueue = 9, None
    assert describe(shard, "orders").options == options
    shard.restart()
    assert describe(shard, "orders").options == options


def test_it_has_the_counts_of_the_statistics(shard: ShardHarness):
    shard.enqueue(b"x" * 100, b"y")
    shard.receive()
    shard.ask(Pause(), "q")
    told = describe(shard)
    assert told.info == shard.stats().info
    assert (told.info.pending, told.info.in_flight, told.info.paused) == (1, 1, True)
    assert told.size_bytes == shard.shard.queues["q"].size_bytes > 100


def test_it_knows_when_it_was_created_over_a_restart_too(shard: ShardHarness):
    shard.pass_time(500)
    shard.create("later")
    for _ in range(2):
        assert [describe(shard, name).created_ms for name in ("q", "q.dlq", "later")] == [1_000_000, 1_000_000, 1_000_500]
        shard.pass_time(1000)
        shard.restart()


def test_whether_it_can_be_redriven():
    shard, letters = ShardHarness(), name_on(3, "letters")
    shard.create(letters)
    assert not describe(shard, letters).redrivable
    shard.create("q", dead_letter=letters)
    shard.create("r")
    assert [describe(shard, name).redrivable for name in ("q", letters, "r", "r.dlq")] == [False, True, False, True]


def test_a_queue_that_is_not_there_is_not_described(shard: ShardHarness):
    with pytest.raises(QueueNotFoundError):
        describe(shard, "nowhere")


# --- consumers --------------------------------------------------------------------------------------------------------


def test_a_queue_without_consumers_lists_none(shard: ShardHarness):
    told = describe(shard)
    assert (told.consumers, told.consumers_left_out, told.hooks) == ([], 0, None)


def test_a_subscription_has_a_prefetch_and_credit(shard: ShardHarness):
    shard.enqueue(*[b"x"] * 3)
    shard.subscribe(10, client=A)
    shard.pass_time(700)
    now_ms = shard.now_ms
    assert consumer(shard, A) == ConsumerView(client_name(A), "push", 10, 7, 3, now_ms - 700, now_ms - 700 + 30_000)
    shard.ack(shard.take_pushed(A)[:2])
    assert (consumer(shard, A).credit, consumer(shard, A).in_flight) == (9, 1)
    shard.heartbeat(A)
    assert consumer(shard, A).heard_ms == now_ms


def test_subscriptions_of_one_client_are_one_row(shard: ShardHarness):
    shard.create("other")
    shard.ask(Subscribe(1, 10), "q", A)
    shard.ask(Subscribe(2, 5), "q", A)
    shard.ask(Subscribe(3, 100), "other", A)
    assert (consumer(shard, A).prefetch, consumer(shard, A).credit) == (15, 15)
    assert describe(shard).info.consumers == len(describe(shard).consumers) == 1
    shard.ask(Unsubscribe(1), "q", A)
    assert consumer(shard, A).prefetch == 5
    assert consumer(shard, A, "other").prefetch == 100


def test_a_lower_prefetch_leaves_no_debt(shard: ShardHarness):
    shard.enqueue(*[b"x"] * 8)
    shard.subscribe(8, client=A)
    shard.subscribe(3, client=A)
    assert (consumer(shard, A).prefetch, consumer(shard, A).credit, consumer(shard, A).in_flight) == (3, 0, 8)


def test_who_receives_is_seen_while_it_waits_and_while_it_holds(shard: ShardHarness):
    shard.send(Receive(20, 5000), "q", B)
    assert consumer(shard, B) == ConsumerView(client_name(B), "receive", 20, 20, 0, shard.now_ms, 0)
    shard.enqueue(b"x", b"y", lease_ms=4000)
    assert consumer(shard, B) == ConsumerView(client_name(B), "receive", 0, 0, 2, shard.now_ms, shard.now_ms + 4000)
    shard.pass_time(4000)
    assert describe(shard).consumers == []


def test_a_reservation_is_a_holder_by_its_name(shard: ShardHarness):
    shard.enqueue(*[b"x"] * 5)
    shard.ask(Reserve("stream/7", 0, 2, 60_000), "q", A)
    shard.pass_time(10)
    shard.ask(Reserve("stream/7", 1, 3, 60_000), "q", B)
    (view,) = describe(shard).consumers
    assert view == ConsumerView("stream/7", "reservation", 0, 0, 5, shard.now_ms, shard.now_ms + 59_990)
    shard.restart()
    assert describe(shard).consumers == [view]


def test_what_is_held_of_other_queues_is_not_counted(shard: ShardHarness):
    shard.create("other")
    shard.enqueue(b"x", queue="other")
    shard.enqueue(b"y")
    for queue in ("other", "q"):
        shard.receive(1, queue, A)
    assert [consumer(shard, A, queue).in_flight for queue in ("q", "other")] == [1, 1]


def test_those_who_hold_the_most_come_first_and_the_others_are_counted(shard: ShardHarness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(describing, "CONSUMERS_SHOWN_MAX", 2)
    shard.enqueue(*[b"x"] * 6)
    for client, count in ((A, 1), (B, 3), (C, 2)):
        shard.receive(count, client=client)
    shard.subscribe(1, client=b"\4d")
    told = describe(shard)
    assert [(each.consumer, each.in_flight) for each in told.consumers] == [(client_name(B), 3), (client_name(C), 2)]
    assert told.consumers_left_out == 2


# --- hooks ------------------------------------------------------------------------------------------------------------


def test_hooks_report_their_failures_and_the_breaker():
    settings = ShardSettings(lua_breaker_threshold=3, lua_breaker_cooldown_ms=10_000)
    shard = ShardHarness(settings=settings)
    shard.ask(CreateQueue(QueueOptions(on_enqueue=FAILING)), "q")
    told = describe(shard).hooks
    assert told is not None
    assert (told.runs, told.failed, told.failures_in_row, told.threshold, told.open_until_ms) == (0, 0, 0, 3, 0)
    shard.enqueue(b"x", b"y")
    told = describe(shard).hooks
    assert told is not None
    assert (told.runs, told.failed, told.failures_in_row, told.bypassed, told.open_until_ms) == (2, 2, 2, 0, 0)
    assert "boom" in told.last_failure
    shard.enqueue(b"z", b"w")
    told = describe(shard).hooks
    assert told is not None
    assert (told.failed, told.bypassed, told.open_until_ms) == (3, 1, shard.now_ms + 10_000)
    shard.pass_time(10_000)
    told = describe(shard).hooks
    assert told is not None
    assert told.open_until_ms == 0
