"""Dead letters in a queue of another shard: they are found there, and find their way back."""

from copy import deepcopy
from functools import partial

import pytest

from fila_proto_zmq.commands import Browse, Cancel, Cancelled, DeleteQueue, Redriven, Verb
from fila_proto_zmq.ids import parse_id
from fila_proto_zmq.record import payload_of
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.linked_shards import SOURCE, TARGET, Carrier, dead_letters_elsewhere, fail, letters
from tests.support.shard.shard import Got, ShardHarness


@pytest.fixture
def carrier() -> Carrier:
    return dead_letters_elsewhere()


@pytest.mark.parametrize("restarted", [False, True])
def test_letters_are_redriven_to_where_they_came_from(carrier: Carrier, restarted: bool) -> None:
    ids = fail(carrier, b"0", b"1", key="acme", priority=-7, lease_ms=9_000)
    carrier[3].enqueue(b"later", queue=SOURCE, key="acme", priority=-7)
    carrier[5].enqueue(b"own", queue=TARGET)
    carrier.carry()
    if restarted:
        carrier[5].restart()
    assert carrier[5].redrive(queue=TARGET) == Redriven(2, 1)
    carrier.carry()
    got: list[Got] = carrier[3].receive(9, SOURCE)
    assert [each.payload for each in got] == [b"later", b"0", b"1"], "they are the last in line, in their order"
    got = got[1:]
    assert [each.id for each in got] == ids
    assert {(each.key, each.attempts, each.error, each.record.extension.source_queue) for each in got} == {
        ("acme", 0, "", None)
    }
    assert got[0].expires_ms == carrier[3].now_ms + 9_000
    assert letters(carrier[5]) == [b"own"]


def test_a_letter_goes_to_and_fro_as_often_as_one_likes(carrier: Carrier) -> None:
    (message_id,) = fail(carrier, b"x")
    for _ in range(4):
        carrier.carry()
        assert carrier[5].redrive(queue=TARGET) == Redriven(1, 0)
        carrier.carry()
        (got,) = carrier[3].receive(9, SOURCE)
        assert (got.id, got.attempts) == (message_id, 0)
        carrier[3].settle(Verb.FAIL, [got], SOURCE)


def test_redriven_letters_of_a_queue_that_is_gone_come_back(carrier: Carrier) -> None:
    (message_id,) = fail(carrier, b"x", priority=4)
    carrier.carry()
    carrier[3].ask(DeleteQueue(), SOURCE)
    carrier[5].redrive(queue=TARGET)
    carrier.carry()
    carrier[5].restart()
    (got,) = carrier[5].receive(9, TARGET)
    assert (got.id, got.record.extension.source_queue, got.record.extension.reason) == (message_id, SOURCE, "failed")


def test_a_shard_that_only_takes_needs_no_way_of_its_own(carrier: Carrier) -> None:
    fail(carrier, b"x")
    carrier.carry()
    assert carrier[5].shard.outbox.ways == {}


@pytest.mark.parametrize("restarted", [False, True])
def test_letters_of_another_shard_are_found_by_their_ids(carrier: Carrier, restarted: bool) -> None:
    first, second, third = fail(carrier, b"0", b"1", b"2", priority=6)
    carrier.carry()
    if restarted:
        carrier[5].restart()
    browsed = carrier[5].ask(Browse(9, after=parse_id(first)), TARGET)
    assert [payload_of(view.record) for view in browsed.messages] == [b"1", b"2"]  # type: ignore[attr-defined]
    assert carrier[5].ask(Cancel(*parse_id(second)), TARGET) == Cancelled(True)
    carrier[5].settle(Verb.FAIL, carrier[5].receive(1, TARGET), TARGET)
    carrier[5].settle(Verb.RETRY, carrier[5].receive(1, TARGET), TARGET, after_ms=9_000)
    if restarted:
        carrier[5].restart()
    assert carrier[5].ask(Cancel(*parse_id(first)), TARGET + ".dlq") == Cancelled(True)
    assert carrier[5].ask(Cancel(*parse_id(third)), TARGET) == Cancelled(True)
    assert carrier[5].counts(TARGET) == carrier[5].counts(TARGET + ".dlq") == (0, 0, 0)


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


def test_a_message_comes_back_to_a_shard_that_still_has_it(carrier: Carrier) -> None:
    carrier[3].enqueue(b"0", b"1", queue=SOURCE, key="k")
    earlier = deepcopy(carrier[3].store)
    carrier[3].settle(Verb.FAIL, carrier[3].receive(2, SOURCE), SOURCE)
    carrier.carry()
    put_back(carrier[3], earlier)
    assert carrier[5].redrive(queue=TARGET) == Redriven(2, 0)
    carrier.carry()
    assert carrier[3].counts(SOURCE) == (4, 0, 0)
    carrier[3].restart()
    assert consumed(carrier[3]) == [b"0", b"1", b"0", b"1"]


@pytest.mark.parametrize("enqueued_first", [False, True])
def test_a_message_comes_back_whose_number_another_message_has_or_gets(carrier: Carrier, enqueued_first: bool) -> None:
    earlier = deepcopy(carrier[3].store)
    fail(carrier, b"old", key="k")
    carrier.carry()
    put_back(carrier[3], earlier)
    enqueue = partial(carrier[3].enqueue, b"new", queue=SOURCE, key="k")
    if enqueued_first:
        enqueue()
    carrier[5].redrive(queue=TARGET)
    carrier.carry()
    if not enqueued_first:
        enqueue()
    carrier[3].restart()
    assert sorted(consumed(carrier[3])) == [b"new", b"old"]


def test_copies_of_a_message_become_dead_letters_and_come_back_together(carrier: Carrier) -> None:
    """The same message failed before and after its shard was put back, so that one frame has it twice."""
    carrier[3].enqueue(b"x", queue=SOURCE, key="k")
    earlier = deepcopy(carrier[3].store)
    for _ in range(2):
        carrier[3].settle(Verb.FAIL, carrier[3].receive(1, SOURCE), SOURCE)
        carrier.carry()
        put_back(carrier[3], deepcopy(earlier))
    assert carrier[5].redrive(queue=TARGET) == Redriven(2, 0)
    carrier.carry()
    for _ in range(3):  # by the queue's own dead letters, and by a lease that comes back
        got = carrier[3].receive(9, SOURCE)
        carrier[3].settle(Verb.RETRY, got, SOURCE)
        carrier[3].restart()
    assert consumed(carrier[3]) == [b"x"] * 3


def test_a_message_that_came_back_is_found_by_its_id(carrier: Carrier) -> None:
    (message_id,) = fail(carrier, b"x", key="k")
    carrier.carry()
    carrier[5].redrive(queue=TARGET)
    carrier.carry()
    carrier[3].restart()
    assert carrier[3].ask(Cancel(*parse_id(message_id)), SOURCE) == Cancelled(True)
    assert carrier[3].counts(SOURCE) == (0, 0, 0)
