"""Queues come and go, and tell how they are."""

import pytest

from fila_proto_zmq.commands import (
    CreateQueue,
    DeleteQueue,
    Done,
    Enqueue,
    GetClusterStatus,
    ListQueues,
    QueueInfo,
    QueueList,
    QueueOptions,
    Receive,
    Verb,
)
from fila_proto_zmq.errors import (
    DeadLetterQueueNotEmptyError,
    InvalidArgumentError,
    InvalidFrameError,
    QueueExistsError,
    QueueNotFoundError,
)
from fila_proto_zmq.limits import LEASE_MS_MAX
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.effects import Call
from tests.support.shard import ShardHarness


def delete(shard: ShardHarness, queue: str = "q", *, force: bool = False) -> None:
    assert shard.ask(DeleteQueue(force), queue) == Done()


def listed(shard: ShardHarness, prefix: str = "") -> list[QueueInfo]:
    reply = shard.ask(ListQueues(prefix), "")
    assert isinstance(reply, QueueList)
    return reply.queues


def on_disk(shard: ShardHarness) -> dict[str, int]:
    """Keys by family, the ledger and the shard's identity left out."""
    families = shard.store.families._asdict()
    sizes = {name: len(list(shard.store.scan(b"", b"\xff" * 32, family))) for name, family in families.items()}
    return {name: size for name, size in sizes.items() if name not in {"ledger", "state"}}


# --- creating ---------------------------------------------------------------------------------------------------------


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


# --- deleting ---------------------------------------------------------------------------------------------------------


def test_a_deleted_queue_is_gone_with_its_dead_letter_queue(shard: ShardHarness) -> None:
    delete(shard)
    assert listed(shard) == []
    for queue in ("q", "q.dlq"):
        with pytest.raises(QueueNotFoundError):
            shard.stats(queue)
    shard.restart()
    assert listed(shard) == []


def test_a_queue_with_messages_is_deleted_but_not_one_with_dead_letters(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    shard.settle(Verb.FAIL, shard.receive())
    with pytest.raises(DeadLetterQueueNotEmptyError, match="'q.dlq' holds 1 messages") as caught:
        delete(shard)
    assert caught.value.details == {"messages": 1}
    assert shard.counts() == (1, 0, 0)
    delete(shard, force=True)
    assert listed(shard) == []


def test_a_leased_dead_letter_is_one_too(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    shard.settle(Verb.FAIL, shard.receive())
    shard.receive(queue="q.dlq")
    with pytest.raises(DeadLetterQueueNotEmptyError):
        delete(shard)


def test_a_dead_letter_queue_goes_only_with_its_queue(shard: ShardHarness) -> None:
    with pytest.raises(InvalidArgumentError, match="delete 'q'"):
        delete(shard, "q.dlq", force=True)


def test_what_does_not_exist_cannot_be_deleted(shard: ShardHarness) -> None:
    with pytest.raises(QueueNotFoundError, match="'nowhere'"):
        delete(shard, "nowhere")


def full_queue(shard: ShardHarness) -> int:
    """Give ``q`` pending, leased, delayed and dead messages, a subscription and a waiting receive; returns its request."""
    for key in "abc":
        shard.enqueue(*[bytes(100)] * 5, key=key)
    shard.enqueue(b"", b"", delay_ms=5_000)
    shard.settle(Verb.FAIL, shard.receive(2))
    shard.receive(3)
    shard.subscribe(100)
    shard.subscribe(100, "q.dlq", number=2)
    shard.enqueue(b"more", delay_ms=1)
    return shard.send(Receive(1, 10_000), client=b"c2")


def test_nothing_of_a_deleted_queue_is_left_on_disk_or_in_memory(shard: ShardHarness) -> None:
    full_queue(shard)
    delete(shard, force=True)
    shard.goodbye()
    shard.pass_time(20_000)
    assert on_disk(shard) == dict.fromkeys(on_disk(shard), 0)
    core = shard.shard
    assert (len(core.lanes), core.buffered_bytes, len(core.leases), len(core.consumers), len(core.wanted)) == (0,) * 5


def test_nothing_of_a_deleted_queue_shows_up_in_a_new_one_of_its_name(shard: ShardHarness) -> None:
    full_queue(shard)
    delete(shard, force=True)
    shard.take_pushed()
    shard.create("q", max_attempts=2)
    shard.enqueue(b"new")
    assert shard.counts() == (1, 0, 0)
    assert shard.take_pushed() == []
    shard.pass_time(60_000)
    assert [each.payload for each in shard.receive(99)] == [b"new"]
    assert shard.counts("q.dlq") == (0, 0, 0)
    assert shard.stats().enqueued == 1


def test_nothing_of_a_deleted_queue_comes_back_with_a_restart(shard: ShardHarness) -> None:
    full_queue(shard)
    delete(shard, force=True)
    shard.create("q")
    shard.enqueue(b"new")
    shard.restart()
    assert (shard.counts(), shard.counts("q.dlq")) == ((1, 0, 0), (0, 0, 0))
    shard.pass_time(60_000)
    assert shard.counts() == (1, 0, 0)


def test_old_deliveries_cannot_be_settled_in_a_new_queue_of_the_name(shard: ShardHarness) -> None:
    shard.enqueue(b"old")
    got = shard.receive()
    delete(shard)
    with pytest.raises(QueueNotFoundError):
        shard.settle(Verb.ACK, got)
    shard.create("q")
    shard.enqueue(b"new")
    for verb in Verb:
        assert [fault.code for _, _, fault in shard.settle(verb, got).faults] == ["LEASE_EXPIRED"]
    assert shard.counts() == (1, 0, 0)


def test_a_receive_that_waits_is_told_of_the_deletion(shard: ShardHarness) -> None:
    waiting = shard.send(Receive(1, 10_000))
    delete(shard)
    assert isinstance(shard.late[waiting], QueueNotFoundError)


def test_subscribers_of_other_queues_are_left_alone(shard: ShardHarness) -> None:
    shard.create("other")
    shard.enqueue(b"x", b"y", queue="other")
    shard.subscribe(1)
    shard.subscribe(1, "other", number=2)
    delete(shard)
    got = shard.take_pushed(number=2)
    shard.ack(got, "other")
    assert [each.payload for each in shard.take_pushed(number=2)] == [b"y"]


@pytest.mark.parametrize("before", ["nothing", "messages"])
def test_a_queue_may_be_filled_and_deleted_in_one_turn(shard: ShardHarness, before: str) -> None:
    """Frames that wait together share a turn."""
    if before == "messages":
        shard.enqueue(b"old")
    apply(shard, Enqueue([seal_envelope(b"x")] * 3, ["a", "b", "default"]), DeleteQueue())
    shard.restart()
    assert on_disk(shard) == dict.fromkeys(on_disk(shard), 0)
    shard.create("q")
    assert shard.counts() == (0, 0, 0)


def test_a_queue_may_be_deleted_and_made_anew_in_one_turn(shard: ShardHarness) -> None:
    shard.enqueue(b"old")
    shard.receive()
    fill = Enqueue([seal_envelope(b"new")])
    apply(shard, fill, DeleteQueue(), CreateQueue(QueueOptions(max_attempts=3)), fill)
    shard.restart()
    assert [each.payload for each in shard.receive(9)] == [b"new"]
    assert shard.shard.queues["q"].options.max_attempts == 3


def apply(shard: ShardHarness, *commands: object) -> None:
    """Carry out commands in one turn."""
    for number, command in enumerate(commands):
        shard.shard.apply(Call(b"c1", 1000 + number, "q", shard.now_ms), command)  # type: ignore[arg-type]
    shard.turn()


def test_what_was_made_after_the_last_queue_was_deleted_is_something_else(shard: ShardHarness) -> None:
    """Queue numbers may be given again after a restart, and nothing may refer to the old ones."""
    shard.enqueue(b"old", delay_ms=1_000)
    shard.receive()
    delete(shard)
    shard.restart()
    shard.create("other")
    shard.pass_time(60_000)
    assert shard.counts("other") == (0, 0, 0)


# --- asking -----------------------------------------------------------------------------------------------------------


def test_queues_are_listed_by_name_and_prefix() -> None:
    shard = ShardHarness()
    for name in ("orders", "acme/orders", "order", "invoices"):
        shard.create(name)
    assert [queue.name for queue in listed(shard, "order")] == ["order", "order.dlq", "orders", "orders.dlq"]
    assert [queue.name for queue in listed(shard, "acme/")] == ["acme/orders", "acme/orders.dlq"]
    assert listed(shard, "nothing") == []


def test_a_listed_queue_tells_its_counts(shard: ShardHarness) -> None:
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


def test_stats_tell_the_age_of_the_oldest_message_that_is_next_in_its_line(shard: ShardHarness) -> None:
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


def test_stats_of_a_queue_that_does_not_exist_are_refused(shard: ShardHarness) -> None:
    with pytest.raises(QueueNotFoundError):
        shard.stats("nowhere")


def test_a_command_that_is_not_for_a_shard_is_refused(shard: ShardHarness) -> None:
    with pytest.raises(InvalidFrameError, match="GetClusterStatus"):
        shard.ask(GetClusterStatus())
