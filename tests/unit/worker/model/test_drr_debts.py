"""What a delivery costs: shares are shares of cost, debts are paid off with turns, and no key waits for those that owe."""

from collections import Counter
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fila_proto_zmq.commands import Enqueue, Pause, PurgeQueue, Settle, Verb
from fila_proto_zmq.limits import COST_MILLI_MAX
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.model.drr import Debtors
from tests.support.shard.shard import Got, ShardHarness, fences

EMPTY = seal_envelope(b"")


def enqueue(shard: ShardHarness, key: str, count: int, cost: float = 1, weight: int = 0) -> None:
    shard.ask(Enqueue([EMPTY] * count, key, weight, cost_milli=round(1000 * cost)))


def serve(shard: ShardHarness, count: int) -> list[Got]:
    got = shard.receive(count)
    shard.ack(got)
    return got


def keys_served(shard: ShardHarness, count: int) -> str:
    return "".join(each.key for each in serve(shard, count))


def cost_of(got: Got) -> float:
    return got.record.extension.cost_milli / 1000


# --- shares -----------------------------------------------------------------------------------------------------------


def test_a_message_that_costs_twice_as_much_is_delivered_half_as_often(shard: ShardHarness) -> None:
    enqueue(shard, "a", 50, cost=2)
    enqueue(shard, "b", 50)
    assert keys_served(shard, 60).count("a") in {20, 21}


def test_a_cost_below_one_lets_more_through(shard: ShardHarness) -> None:
    enqueue(shard, "a", 100, cost=0.25)
    enqueue(shard, "b", 50)
    assert keys_served(shard, 10) == "aaaabaaaab"


def test_a_turn_is_of_weight_units_of_cost(shard: ShardHarness) -> None:
    enqueue(shard, "a", 50, cost=1.5, weight=3)
    enqueue(shard, "b", 50)
    assert keys_served(shard, 6) == "aabaab"


def test_what_a_message_costs_beyond_its_turn_is_owed(shard: ShardHarness) -> None:
    enqueue(shard, "a", 10, cost=3)
    enqueue(shard, "b", 20)
    assert keys_served(shard, 14) == "abbabbbabbbabb"


@settings(deadline=None, max_examples=20)
@example(keys=[(1, [0.5, 4]), (1, [0.5, 4]), (3, [0.5, 4]), (3, [1.7, 4])])
@given(
    keys=st.lists(
        st.tuples(st.integers(1, 3), st.lists(st.sampled_from([0.5, 1, 1.7, 4, 9]), min_size=1, max_size=4)),
        min_size=2, max_size=4,
    )
)  # fmt: skip
def test_every_window_is_shared_by_weight_in_units_of_cost(keys: list[tuple[int, list[float]]]) -> None:
    """Each key has a weight and messages whose costs repeat.

    After each turn a key owes up to the cost of the dearest message. So at worst a window begins where all others owe that and
    one key owes nothing, and ends after one more turn of this key, which owes it then.
    """
    shard = ShardHarness(checked=False)
    shard.create()
    total, window = sum(weight for weight, _ in keys), 20 * sum(weight for weight, _ in keys)
    for name, (weight, costs) in enumerate(keys):
        columns = [round(1000 * costs[index % len(costs)]) for index in range(900)]
        shard.ask(Enqueue([EMPTY] * len(columns), str(name), weight, cost_milli=columns))
    order: list[tuple[str, float]] = []
    while sum(cost for _, cost in order) < 2.5 * window:
        order += [(each.key, cost_of(each)) for each in serve(shard, 100)]
    assert min(key.pending for key in shard.stats().keys) > 0, "all keys are backlogged"
    dearest = max(cost for _, costs in keys for cost in costs)
    for start in range(0, len(order), 17):
        spent: Counter[str] = Counter()
        for name, cost in order[start:]:
            spent[name] += cost  # type: ignore[assignment]
            if sum(spent.values()) >= window:
                break
        else:
            break
        for name, (weight, _) in enumerate(keys):
            share = weight / total
            entitled = sum(spent.values()) * share
            edges = (weight + dearest) * (1 - share) + (len(keys) - 1) * dearest * share
            assert abs(spent[str(name)] - entitled) <= max(0.05 * entitled, edges) + 1e-6, (name, spent)


# --- debts ------------------------------------------------------------------------------------------------------------


def test_who_owes_waits_for_no_longer_than_the_debt_lasts(shard: ShardHarness) -> None:
    enqueue(shard, "a", 1, cost=10)
    enqueue(shard, "a", 1)
    enqueue(shard, "b", 30)
    assert keys_served(shard, 15) == "abbbbbbbbbabbbb"


def test_a_key_that_leaves_in_debt_and_returns_at_once_still_owes(shard: ShardHarness) -> None:
    enqueue(shard, "a", 1, cost=10)
    enqueue(shard, "b", 30)
    assert keys_served(shard, 3) == "abb"
    enqueue(shard, "a", 5)
    assert keys_served(shard, 12).index("a") in {6, 7, 8}


def test_a_debt_is_forgiven_by_the_rounds_that_pass_meanwhile(shard: ShardHarness) -> None:
    enqueue(shard, "a", 1, cost=10)
    enqueue(shard, "b", 60)
    assert keys_served(shard, 25)[0] == "a"
    enqueue(shard, "a", 5)
    assert keys_served(shard, 3) == "aba"


def test_a_debt_is_forgiven_when_no_other_key_is_there(shard: ShardHarness) -> None:
    enqueue(shard, "a", 1, cost=10_000)
    assert keys_served(shard, 1) == "a"
    enqueue(shard, "a", 5)
    enqueue(shard, "b", 5)
    assert keys_served(shard, 4) == "abab"


def test_a_key_alone_is_served_however_much_it_owes(shard: ShardHarness) -> None:
    shard.ask(Enqueue([EMPTY] * 5, "a", cost_milli=COST_MILLI_MAX))
    assert keys_served(shard, 5) == "aaaaa"


def test_keys_that_all_owe_take_turns_by_their_debts(shard: ShardHarness) -> None:
    for key, cost in (("a", 1000), ("b", 500), ("c", 250)):
        enqueue(shard, key, 20, cost=cost)
    assert Counter(keys_served(shard, 28)) == {"a": 4, "b": 8, "c": 16}


def test_a_key_that_comes_and_goes_leaves_those_who_owe_their_rounds(shard: ShardHarness) -> None:
    """A key that is served again and again, alone in the ring, must not stop the others from paying."""
    enqueue(shard, "debtor", 2, cost=20)
    assert keys_served(shard, 1) == "debtor"
    served: list[str] = []
    for _ in range(60):
        enqueue(shard, "x", 1)
        served += [each.key for each in serve(shard, 1)]
    assert served.index("debtor") in range(15, 25)


def test_a_key_that_owes_is_served_again_however_many_new_keys_come(shard: ShardHarness) -> None:
    """While no key is busy, each turn of a new one counts as a round."""
    shard.limit(fresh_turns_max=3, busy_wait_turns_max=10)
    enqueue(shard, "debtor", 2, cost=20)
    assert keys_served(shard, 1) == "debtor"
    enqueue(shard, "first", 1)
    served = []
    for number in range(60):
        enqueue(shard, f"new-{number}", 1)
        served += [each.key for each in serve(shard, 1)]
    assert served.index("debtor") in range(15, 40)


def test_many_keys_that_have_paid_in_the_same_round_come_back_one_a_turn() -> None:
    shard = ShardHarness(checked=False)
    shard.create()
    names = [str(number) for number in range(1000)]
    shard.ask(Enqueue([EMPTY] * 9000, names * 9, cost_milli=[2000] * 9000))
    order = [each.key for each in serve(shard, 500) + serve(shard, 500)]
    with patch.object(Debtors, "pop", autospec=True, side_effect=Debtors.pop) as popped:
        for count in range(20):
            order += keys_served(shard, 1).split()
            assert popped.call_count <= 2 * (count + 1)
    order += [each.key for _ in range(6) for each in serve(shard, 500)]
    counts = Counter(order).values()
    assert len(counts) == 1000
    assert max(counts) - min(counts) <= 2


def test_a_debt_is_paid_once_by_a_key_that_leaves_and_comes_back_many_times(shard: ShardHarness) -> None:
    enqueue(shard, "a", 2, cost=10)
    enqueue(shard, "b", 60)
    assert keys_served(shard, 2) == "ab"
    for paused in [True, False] * 20:
        shard.ask(Pause(paused, "a"))
    assert keys_served(shard, 12).count("a") == 1
    debtors = shard.shard.queues["q"].ring.debtors
    assert len(list(debtors)) <= 1


def test_a_lower_weight_is_heeded_by_a_key_that_owes(shard: ShardHarness) -> None:
    enqueue(shard, "a", 1, cost=100, weight=10)
    enqueue(shard, "a", 50)
    enqueue(shard, "b", 300)
    assert keys_served(shard, 20)[0] == "a"
    enqueue(shard, "a", 1, weight=1)
    served = keys_served(shard, 150)
    assert "babababab" in served, "once it has paid"


def test_a_debtor_may_be_paused_and_purged_without_a_trace(shard: ShardHarness) -> None:
    enqueue(shard, "a", 3, cost=50)
    enqueue(shard, "b", 100)
    keys_served(shard, 10)
    ring = shard.shard.queues["q"].ring
    shard.ask(Pause(True, "a"))
    assert [key.name for key in ring.active_keys()] == ["b"]
    shard.ask(Pause(False, "a"))
    assert [key.name for key in ring.active_keys()] == ["b", "a"]
    assert keys_served(shard, 30) == "b" * 30
    shard.ask(PurgeQueue("a"))
    assert [key.name for key in ring.active_keys()] == ["b"]


@pytest.mark.parametrize("cost", [10, 1000, 100_000])
def test_thousands_of_keys_in_debt_do_not_make_a_turn_long(cost: int) -> None:
    """However much they owe and however differently: a delivery takes a few steps, not one for each key."""
    shard = ShardHarness(checked=False)
    shard.create()
    names = [str(number) for number in range(3000)]
    costs = [1000 + 1000 * (number * 7919 % cost) for number in range(3000)]
    shard.ask(Enqueue([EMPTY] * 6000, names * 2, cost_milli=costs * 2))
    for _ in range(6):
        serve(shard, 500)
    with (
        patch.object(Debtors, "append", autospec=True, side_effect=Debtors.append) as appended,
        patch.object(Debtors, "pop", autospec=True, side_effect=Debtors.pop) as popped,
    ):
        delivered = sum(len(serve(shard, 500)) for _ in range(4))
    assert delivered == 2000
    assert appended.call_count + popped.call_count <= 4 * delivered


# --- actual costs -----------------------------------------------------------------------------------------------------


def serve_at(shard: ShardHarness, count: int, costs: dict[str, float]) -> str:
    """Deliver and ack messages one by one, each at the actual cost of its key."""
    served = ""
    for _ in range(count):
        (got,) = shard.receive()
        actual = [(got.lease, got.index, round(1000 * costs[got.key]))] if got.key in costs else []
        shard.ask(Settle(Verb.ACK, fences([got]), costs=actual))
        served += got.key
    return served


def test_shares_are_shares_of_actual_costs(shard: ShardHarness) -> None:
    enqueue(shard, "a", 200)
    enqueue(shard, "b", 200, cost=4)
    enqueue(shard, "c", 200)
    served = Counter(serve_at(shard, 220, {"a": 4, "b": 1}))
    assert 80 <= served["b"] <= 102
    assert abs(served["b"] - served["c"]) <= 20
    assert abs(served["c"] / 4 - served["a"]) <= 3


def test_what_is_given_back_is_worth_one_turn_at_most(shard: ShardHarness) -> None:
    enqueue(shard, "a", 50, cost=10)
    got = shard.receive(20)
    enqueue(shard, "b", 50)
    shard.ask(Settle(Verb.ACK, fences(got), costs=[(each.lease, each.index, 0) for each in got]))
    assert "aaa" not in keys_served(shard, 10)


def test_a_key_that_was_alone_pays_what_its_last_messages_cost_more(shard: ShardHarness) -> None:
    enqueue(shard, "a", 50)
    (got,) = shard.receive()
    enqueue(shard, "b", 50)
    shard.ask(Settle(Verb.ACK, fences([got]), costs=[(got.lease, got.index, 9_000)]))
    assert keys_served(shard, 8).count("a") <= 1


def test_a_key_without_messages_keeps_the_debt_of_a_late_ack(shard: ShardHarness) -> None:
    enqueue(shard, "a", 1)
    enqueue(shard, "b", 50)
    got = shard.receive(2)
    late = [each for each in got if each.key == "a"]
    shard.ask(Settle(Verb.ACK, fences(late), costs=[(each.lease, each.index, 5_000) for each in late]))
    enqueue(shard, "a", 10)
    assert keys_served(shard, 5).count("a") <= 1


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12_000), st.booleans()), min_size=1, max_size=60))
def test_any_costs_leave_each_key_in_one_list(steps: list[tuple[str, int, bool]]) -> None:
    shard = ShardHarness()
    shard.create("q")
    held: list[Got] = []
    for key, cost_milli, settles in steps:
        if settles and held:
            got = held.pop()
            shard.ask(Settle(Verb.ACK, fences([got]), costs=[(got.lease, got.index, cost_milli)]))
        else:
            enqueue(shard, key, 1 + cost_milli % 3, cost=1 + cost_milli % 4)
            held += shard.receive(1 + cost_milli % 2)
        ring = shard.shard.queues["q"].ring
        listed = [*ring.fresh, *ring.again, *ring.busy, *ring.debtors]
        assert len(set(listed)) == len(listed) == sum(key.line is not None for key in shard.shard.queues["q"].keys.values())
        assert {*listed, *([ring.current] if ring.current else [])} == set(ring.active_keys())
        assert all(key.active for key in listed)
    shard.ack(held)
    for _ in range(300):
        if not (got_more := shard.receive(10)):
            break
        shard.ack(got_more)
    assert shard.counts() == (0, 0, 0), "each message has its turn"
