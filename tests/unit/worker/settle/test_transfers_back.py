"""Dead letters in a queue of another shard: they are found there, and find their way back."""

from copy import deepcopy
from functools import partial

import pytest

from fila_proto_zmq.commands import Browse, Cancel, Cancelled, DeleteQueue, Redriven, Verb
from fila_proto_zmq.ids import parse_id
from fila_proto_zmq.record import payload_of
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.linked_shards import SOURCE, TARGET, LinkedShards, dead_letters_elsewhere, fail, letters
from tests.support.shard.shard import Got, ShardHarness


@pytest.fixture
def linked() -> LinkedShards:
    return dead_letters_elsewhere()


@pytest.mark.parametrize("restarted", [False, True])
def test_letters_are_redriven_to_where_they_came_from(linked: LinkedShards, restarted: bool) -> None:
    ids = fail(linked, b"0", b"1", key="acme", priority=-7, lease_ms=9_000)
    linked[3].enqueue(b"later", queue=SOURCE, key="acme", priority=-7)
    linked[5].enqueue(b"own", queue=TARGET)
    linked.carry()
    if restarted:
        linked[5].restart()
    assert linked[5].redrive(queue=TARGET) == Redriven(2, 1)
    linked.carry()
    got: list[Got] = linked[3].receive(9, SOURCE)
    assert [each.payload for each in got] == [b"later", b"0", b"1"], "they are the last in line, in their order"
    got = got[1:]
    assert [each.id for each in got] == ids
    assert {(each.key, each.attempts, each.error, each.record.extension.source_queue) for each in got} == {
        ("acme", 0, "", None)
    }
    assert got[0].expires_ms == linked[3].now_ms + 9_000
    assert letters(linked[5]) == [b"own"]


def test_a_letter_goes_to_and_fro_as_often_as_one_likes(linked: LinkedShards) -> None:
    (message_id,) = fail(linked, b"x")
    for _ in range(4):
        linked.carry()
        assert linked[5].redrive(queue=TARGET) == Redriven(1, 0)
        linked.carry()
        (got,) = linked[3].receive(9, SOURCE)
        assert (got.id, got.attempts) == (message_id, 0)
        linked[3].settle(Verb.FAIL, [got], SOURCE)


def test_redriven_letters_of_a_queue_that_is_gone_come_back(linked: LinkedShards) -> None:
    (message_id,) = fail(linked, b"x", priority=4)
    linked.carry()
    linked[3].ask(DeleteQueue(), SOURCE)
    linked[5].redrive(queue=TARGET)
    linked.carry()
    linked[5].restart()
    (got,) = linked[5].receive(9, TARGET)
    assert (got.id, got.record.extension.source_queue, got.record.extension.reason) == (message_id, SOURCE, "failed")


def test_a_shard_that_only_takes_needs_no_way_of_its_own(linked: LinkedShards) -> None:
    fail(linked, b"x")
    linked.carry()
    assert linked[5].shard.outbox.ways == {}


@pytest.mark.parametrize("restarted", [False, True])
def test_letters_of_another_shard_are_found_by_their_ids(linked: LinkedShards, restarted: bool) -> None:
    first, second, third = fail(linked, b"0", b"1", b"2", priority=6)
    linked.carry()
    if restarted:
        linked[5].restart()
    browsed = linked[5].ask(Browse(9, after=parse_id(first)), TARGET)
    assert [payload_of(view.record) for view in browsed.messages] == [b"1", b"2"]  # type: ignore[attr-defined]
    assert linked[5].ask(Cancel(*parse_id(second)), TARGET) == Cancelled(True)
    linked[5].settle(Verb.FAIL, linked[5].receive(1, TARGET), TARGET)
    linked[5].settle(Verb.RETRY, linked[5].receive(1, TARGET), TARGET, after_ms=9_000)
    if restarted:
        linked[5].restart()
    assert linked[5].ask(Cancel(*parse_id(first)), TARGET + ".dlq") == Cancelled(True)
    assert linked[5].ask(Cancel(*parse_id(third)), TARGET) == Cancelled(True)
    assert linked[5].counts(TARGET) == linked[5].counts(TARGET + ".dlq") == (0, 0, 0)


# --- a shard that was put back to an earlier state --------------------------------------------------------------------


def put_back(shard: ShardHarness, store: MemoryStore) -> None:
    """Open a shard with an earlier copy of its store."""
    shard.store = store
    shard.restart()


def consumed(shard: ShardHarness, queue: str = SOURCE) -> list[bytes]:
    """Ack all messages of a queue, lease by lease, in a shard whose counts are checked after each turn."""
    payloads: list[bytes] = []
    while got := shard.receive(1, queue):
        payloads += [each.payload for each in got]
        shard.settle(Verb.ACK, got, queue)
    assert shard.counts(queue) == (0, 0, 0)
    return payloads


def test_a_message_comes_back_to_a_shard_that_still_has_it(linked: LinkedShards) -> None:
    linked[3].enqueue(b"0", b"1", queue=SOURCE, key="k")
    earlier = deepcopy(linked[3].store)
    linked[3].settle(Verb.FAIL, linked[3].receive(2, SOURCE), SOURCE)
    linked.carry()
    put_back(linked[3], earlier)
    assert linked[5].redrive(queue=TARGET) == Redriven(2, 0)
    linked.carry()
    assert linked[3].counts(SOURCE) == (4, 0, 0)
    linked[3].restart()
    assert consumed(linked[3]) == [b"0", b"1", b"0", b"1"]


@pytest.mark.parametrize("enqueued_first", [False, True])
def test_a_message_comes_back_whose_number_another_message_has_or_gets(linked: LinkedShards, enqueued_first: bool) -> None:
    earlier = deepcopy(linked[3].store)
    fail(linked, b"old", key="k")
    linked.carry()
    put_back(linked[3], earlier)
    enqueue = partial(linked[3].enqueue, b"new", queue=SOURCE, key="k")
    if enqueued_first:
        enqueue()
    linked[5].redrive(queue=TARGET)
    linked.carry()
    if not enqueued_first:
        enqueue()
    linked[3].restart()
    assert sorted(consumed(linked[3])) == [b"new", b"old"]


def test_copies_of_a_message_become_dead_letters_and_come_back_together(linked: LinkedShards) -> None:
    """The same message failed before and after its shard was put back, so that one frame has it twice."""
    linked[3].enqueue(b"x", queue=SOURCE, key="k")
    earlier = deepcopy(linked[3].store)
    for _ in range(2):
        linked[3].settle(Verb.FAIL, linked[3].receive(1, SOURCE), SOURCE)
        linked.carry()
        put_back(linked[3], deepcopy(earlier))
    assert linked[5].redrive(queue=TARGET) == Redriven(2, 0)
    linked.carry()
    for _ in range(3):  # by the queue's own dead letters, and by a lease that comes back
        got = linked[3].receive(9, SOURCE)
        linked[3].settle(Verb.RETRY, got, SOURCE)
        linked[3].restart()
    assert consumed(linked[3]) == [b"x"] * 3


def test_a_message_that_came_back_is_found_by_its_id(linked: LinkedShards) -> None:
    (message_id,) = fail(linked, b"x", key="k")
    linked.carry()
    linked[5].redrive(queue=TARGET)
    linked.carry()
    linked[3].restart()
    assert linked[3].ask(Cancel(*parse_id(message_id)), SOURCE) == Cancelled(True)
    assert linked[3].counts(SOURCE) == (0, 0, 0)
