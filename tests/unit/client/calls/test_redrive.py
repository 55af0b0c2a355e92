"""Redriving picked dead letters: in steps, as far as the broker gets with each."""

import asyncio

import pytest

from fila_cluster import AsyncClient
from fila_cluster.client.calls.backlog import IDS_MAX, redrive_selected
from fila_cluster.errors import InvalidArgumentError, NotADeadLetterQueueError
from fila_proto_zmq.commands import Redrive, Redriven
from fila_proto_zmq.ids import format_id, high_half, low_half, parse_id
from tests.unit.client.peer import BORN_MS, answering, broker


def ids(count: int) -> list[str]:
    return [format_id(high_half(BORN_MS, 3), low_half(number)) for number in range(1, count + 1)]


def redrive(answer, message_ids, dlq="q.dlq"):
    """How many went, and the commands that the broker saw."""

    async def run(endpoint):
        async with AsyncClient(endpoint) as client:
            return await redrive_selected(client, dlq, message_ids)

    with broker(answering(Redrive=answer)) as peer:
        result = asyncio.run(run(peer.endpoint))
        return result, [(sent.key, sent.command) for sent in peer.seen[1:]]


def done_with(most):
    """A broker that gets so far with each command, and finds every other one."""

    def answer(sent):
        looked_at = min(most, len(sent.command.ids))
        return Redriven((looked_at + 1) // 2, 7, looked_at)

    return answer


def test_a_few_go_in_one_command():
    three = ids(3)
    went, seen = redrive(done_with(1000), three)
    assert went == 2
    assert seen == [("q.dlq", Redrive(0, None, [parse_id(each) for each in three]))]


def test_many_go_in_steps():
    _, seen = redrive(done_with(1000), ids(2 * IDS_MAX + 5))
    assert [len(command.ids) for _, command in seen] == [IDS_MAX, IDS_MAX, 5]


def test_the_broker_gets_the_rest_until_it_is_done_with_all():
    went, seen = redrive(done_with(2), ids(5))
    assert went == 1 + 1 + 1
    assert [len(command.ids) for _, command in seen] == [5, 3, 1]
    assert seen[1][1].ids[0] == parse_id(ids(5)[2])


def test_a_broker_that_gets_nowhere_is_not_asked_for_ever():
    went, seen = redrive(Redriven(0, 1), ids(3))
    assert (went, len(seen)) == (0, 3)


def test_an_id_that_is_named_twice_is_sent_once():
    _, seen = redrive(done_with(9), [*ids(2), *ids(2)])
    assert [len(command.ids) for _, command in seen] == [2]


def test_nothing_picked_is_nothing_asked():
    assert redrive(done_with(9), []) == (0, [])


def test_refusals_are_raised():
    with pytest.raises(NotADeadLetterQueueError):
        redrive(NotADeadLetterQueueError("no"), ids(1))
    for dlq, picked in (("q.dlq", ["no id"]), ("q.dlq", [7]), ("", ids(1))):
        with pytest.raises(InvalidArgumentError):
            redrive(done_with(9), picked, dlq)
