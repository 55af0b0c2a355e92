"""What a question answers after each way to settle: of the message, its key and its queue."""

import pytest

from fila_proto_zmq.commands import Verb
from fila_proto_zmq.errors import MessageNotFoundError
from tests.support.shard.explained import why
from tests.support.shard.shard import ShardHarness

STATES = {
    Verb.ACK: None,
    Verb.NACK: "pending",
    Verb.RETRY: "delayed",
    Verb.FAIL: None,
    Verb.RELEASE: "pending",
    Verb.DEFER: "delayed",
}
"""The state that a message of the queue has afterwards; None: it is gone."""
OPTIONS = {Verb.RETRY: {"after_ms": 60_000}, Verb.DEFER: {"after_ms": 60_000}}


def settled(shard: ShardHarness, verb: Verb, got: int, count: int) -> list[str]:
    ids = shard.enqueue(*[b"m"] * count, key="acme")
    taken = shard.receive(count)
    shard.settle(verb, taken[:got], **OPTIONS.get(verb, {}))
    return ids


def test_each_way_to_settle_is_tried() -> None:
    assert set(STATES) == set(Verb)


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("restarted", [False, True])
def test_after_the_only_message_is_settled(shard: ShardHarness, verb: Verb, restarted: bool) -> None:
    (message,) = settled(shard, verb, 1, 1)
    if restarted:
        shard.restart()
    expected = STATES[verb] or "empty"
    assert [why(shard, key="acme").state, why(shard).state] == [expected, expected]
    if STATES[verb]:
        assert why(shard, message).state == expected
    elif verb is Verb.FAIL:
        assert why(shard, message).state == "dead_lettered" or why(shard, message, queue="q.dlq").state == "pending"
    else:
        with pytest.raises(MessageNotFoundError):
            why(shard, message)


@pytest.mark.parametrize("verb", Verb)
def test_after_one_of_two_is_settled(shard: ShardHarness, verb: Verb) -> None:
    _, other = settled(shard, verb, 1, 2)
    expected = STATES[verb] or "leased"
    assert [why(shard, key="acme").state, why(shard).state] == [expected, expected]
    told = why(shard, other)
    assert told.state == "leased"
    if expected == "leased":
        (reason,) = why(shard, key="acme").reasons
        assert (reason.details["messages"], reason.details["consumers"]) == (1, 1)


@pytest.mark.parametrize("verb", Verb)
def test_after_leases_end_unsettled(shard: ShardHarness, verb: Verb) -> None:
    settled(shard, verb, 1, 2)
    shard.pass_time(40_000)
    assert [why(shard, key="acme").state, why(shard).state] == ["pending", "pending"]
