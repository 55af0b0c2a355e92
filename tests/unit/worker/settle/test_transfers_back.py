"""Dead letters in a queue of another shard: they are found there, and find their way back."""

import pytest

from fila_proto_zmq.commands import Browse, Cancel, Cancelled, DeleteQueue, Redriven, Verb
from fila_proto_zmq.ids import parse_id
from fila_proto_zmq.record import payload_of
from tests.support.carrier import SOURCE, TARGET, Carrier, dead_letters_elsewhere, fail, letters
from tests.support.shard import Got


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
    assert [each.payload for each in got] == [b"0", b"1", b"later"], "they keep their places"
    assert [each.id for each in got[:2]] == ids
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
