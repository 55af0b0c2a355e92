"""Costs: what one delivery takes from its fairness key's share, to a thousandth; debts are paid over turns, or forgiven."""

from collections import Counter

import pytest

from fila_proto_zmq.commands import Enqueue, Verb
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import COST_MILLI_MAX
from fila_proto_zmq.record import seal_envelope
from tests.support.shard import ShardHarness


def backlog(shard: ShardHarness, key: str, cost_milli: int, count: int = 100, weight: int = 0) -> None:
    shard.enqueue(*[b""] * count, key=key, cost_milli=cost_milli, weight=weight)


def served(shard: ShardHarness, count: int) -> str:
    """The keys of the next deliveries."""
    keys = ""
    while len(keys) < count and (got := shard.receive(count - len(keys))):
        keys += "".join(each.key for each in got)
    return keys


def costs(shard: ShardHarness, queue: str = "q") -> list[int]:
    return [each.record.extension.cost_milli for each in shard.receive(99, queue)]


# --- turns ------------------------------------------------------------------------------------------------------------


def test_a_delivery_costs_one_unless_it_says_otherwise(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    assert costs(shard) == [1000]


def test_a_turn_is_weight_units_of_cost_not_of_messages(shard: ShardHarness) -> None:
    backlog(shard, "a", 500)
    backlog(shard, "b", 1000)
    assert served(shard, 9) == "aabaabaab"


def test_costs_are_counted_to_a_thousandth(shard: ShardHarness) -> None:
    backlog(shard, "a", 1, count=3000)
    backlog(shard, "b", 1000)
    assert served(shard, 1001) == "a" * 1000 + "b"


def test_what_is_left_of_a_turn_pays_for_a_delivery_that_costs_more(shard: ShardHarness) -> None:
    backlog(shard, "a", 600)
    backlog(shard, "b", 1000)
    assert served(shard, 8) == "aabaabab", "0.2 owed, 0.4 owed, then 0.6 left: enough for one"


def test_each_message_has_its_own(shard: ShardHarness) -> None:
    shard.enqueue(*[b""] * 4, key="a", cost_milli=[2000, 500, 500, 1000])
    backlog(shard, "b", 1000)
    assert served(shard, 7) == "abbbaab", "twice its turn, then two halves of one"


# --- debts ------------------------------------------------------------------------------------------------------------


def test_a_debt_is_paid_with_the_next_turns(shard: ShardHarness) -> None:
    backlog(shard, "a", 4000)
    backlog(shard, "b", 1000)
    assert served(shard, 2) == "ab"
    assert served(shard, 15) == "bbbba" * 3


def test_a_heavier_key_pays_with_heavier_turns(shard: ShardHarness) -> None:
    backlog(shard, "a", 4000, weight=2)
    backlog(shard, "b", 1000)
    assert served(shard, 2) == "ab"
    assert served(shard, 9) == "bba" * 3


def test_nobody_waits_for_a_debtor_that_is_alone(shard: ShardHarness) -> None:
    backlog(shard, "a", COST_MILLI_MAX)
    assert served(shard, 5) == "aaaaa"


def test_a_debtor_that_leaves_and_comes_back_at_once_still_owes(shard: ShardHarness) -> None:
    backlog(shard, "b", 1000)
    backlog(shard, "a", 4000, count=1)
    assert served(shard, 2) == "ba"
    backlog(shard, "a", 1000)
    assert served(shard, 5).index("a") == 3


def test_a_debt_is_forgiven_after_the_turns_that_the_key_was_away(shard: ShardHarness) -> None:
    backlog(shard, "b", 1000)
    backlog(shard, "a", 4000, count=1)
    assert served(shard, 6) == "babbbb"
    backlog(shard, "a", 1000)
    assert served(shard, 1) == "a"


def test_a_debt_is_forgiven_where_nobody_else_was_kept_waiting(shard: ShardHarness) -> None:
    backlog(shard, "a", COST_MILLI_MAX, count=1)
    assert served(shard, 1) == "a"
    backlog(shard, "a", 1000)
    backlog(shard, "b", 1000)
    assert served(shard, 20).count("a") >= 9


# --- shares -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("costs_milli", [(1000, 1000), (250, 1000), (3000, 1000), (1500, 700)])
@pytest.mark.parametrize("weights", [(1, 1), (3, 1), (2, 5)])
def test_keys_share_by_cost_in_proportion_to_weight(costs_milli: tuple[int, int], weights: tuple[int, int]) -> None:
    shard = ShardHarness(checked=False)
    shard.create()
    for key, cost_milli, weight in zip("ab", costs_milli, weights, strict=True):
        backlog(shard, key, cost_milli, 4000, weight)
    counts = Counter(served(shard, 1000))
    shares = [counts[key] * cost_milli / weight for key, cost_milli, weight in zip("ab", costs_milli, weights, strict=True)]
    assert abs(shares[0] - shares[1]) <= 0.02 * max(shares) + 2 * max(costs_milli)


def test_a_deficit_is_in_units_of_cost(shard: ShardHarness) -> None:
    backlog(shard, "a", 2500)
    shard.receive()
    assert [key.deficit for key in shard.stats().keys] == [997.5]


# --- where they go ----------------------------------------------------------------------------------------------------


def test_a_cost_goes_with_its_message(shard: ShardHarness) -> None:
    backlog(shard, "a", 250, count=1)
    shard.restart()
    shard.nack(shard.receive())
    shard.settle(Verb.FAIL, shard.receive())
    (letter,) = shard.receive(queue="q.dlq")
    assert letter.record.extension.cost_milli == 250
    shard.settle(Verb.RELEASE, [letter], "q.dlq")
    shard.redrive()
    assert costs(shard) == [250]


@pytest.mark.parametrize("cost_milli", [0, -1, COST_MILLI_MAX + 1])
def test_a_cost_that_can_not_be_is_refused_and_the_others_are_in(shard: ShardHarness, cost_milli: int) -> None:
    reply = shard.ask(Enqueue([seal_envelope(b"")] * 3, cost_milli=[1, cost_milli, COST_MILLI_MAX]))
    ((index, fault),) = reply.faults
    assert (index, fault.code, "cost" in fault.text) == (1, InvalidArgumentError.code, True)
    assert costs(shard) == [1, COST_MILLI_MAX]
