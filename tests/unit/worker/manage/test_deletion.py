"""Deleting queues: nothing of the old one is left, nor shows up in a new one of its name."""

import pytest

from fila_proto_zmq.commands import (
    CreateQueue,
    DeleteQueue,
    Done,
    Enqueue,
    ListQueues,
    QueueInfo,
    QueueList,
    QueueOptions,
    Receive,
    Verb,
)
from fila_proto_zmq.errors import DeadLetterQueueNotEmptyError, InvalidArgumentError, QueueNotFoundError
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.effects import ClientCall
from fila_worker.core.model.leases import FINISHED
from tests.support.shard.shard import ShardHarness


def delete(shard: ShardHarness, queue: str = "q", *, force: bool = False) -> None:
    assert shard.ask(DeleteQueue(force), queue) == Done()


def listed(shard: ShardHarness, prefix: str = "") -> list[QueueInfo]:
    reply = shard.ask(ListQueues(prefix), "")
    assert isinstance(reply, QueueList)
    return reply.queues


def on_disk(shard: ShardHarness) -> dict[str, int]:
    """Items by family, the ledger, the shard's identity and what is remembered of finished leases left out."""
    families = shard.store.families._asdict()
    items = {name: list(shard.store.scan(b"", b"\xff" * 32, family)) for name, family in families.items()}
    return {
        name: sum(1 for _, data in found if not data.startswith(FINISHED))
        for name, found in items.items()
        if name not in {"ledger", "state"}
    }


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
    with pytest.raises(DeadLetterQueueNotEmptyError, match=r"'q.dlq' holds 1 message") as caught:
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
    assert (len(core.lanes), core.buffers.used_bytes, len(core.leases), len(core.consumers), len(core.runnable)) == (0,) * 5


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


def test_a_receive_that_waits_is_answered_with_the_deletion(shard: ShardHarness) -> None:
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
        shard.shard.apply(ClientCall(b"c1", 1000 + number, "q", shard.now_ms), command)  # type: ignore[arg-type]
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


def test_only_its_own_lanes_are_emptied(shard: ShardHarness) -> None:
    shard.create("r")
    for number in range(12):
        for queue in ("q", "r", "r") if number % 3 else ("q", "q"):
            shard.enqueue(b"x", queue=queue, key=f"{queue}{number}", throttle_keys=[["t"]] if number % 2 else [])
            shard.enqueue(b"later", queue=queue, key=f"{queue}{number}", delay_ms=1_000)
    before = shard.counts("r")
    shard.ask(DeleteQueue())
    shard.restart()
    assert shard.counts("r") == before
    shard.pass_time(1_000)
    assert len(shard.receive(99, "r")) == sum(before)


def test_the_number_of_a_queue_is_never_used_again(shard: ShardHarness) -> None:
    numbers = set()
    for _ in range(3):
        numbers.add(shard.shard.queues["q"].id)
        shard.ask(DeleteQueue())
        shard.restart()
        shard.create("q")
    assert len(numbers | {shard.shard.queues["q"].id}) == 4
