"""The contract's fairness paragraph as properties of a whole shard on a virtual clock."""

from collections import Counter
from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from fila_proto_zmq.commands import Enqueue
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.settings import DEFAULTS, Limits, ShardSettings
from tests.support.shard import ShardHarness
from tests.support.tight_shard import CHILLY

WEIGHTS = st.lists(st.integers(1, 10), min_size=2, max_size=8)
LIMITS = st.sampled_from([DEFAULTS, CHILLY])
EMPTY = seal_envelope(b"")


def enqueue(harness: ShardHarness, key: int, count: int, weight: int) -> None:
    harness.ask(Enqueue([EMPTY] * count, str(key), weight))


def deliver(harness: ShardHarness, count: int) -> list[int]:
    """Receive and ack ``count`` messages; returns their keys in order."""
    order: list[int] = []
    while len(order) < count:
        got = harness.receive(min(500, count - len(order)))
        assert got, "a key is backlogged and nothing is delivered"
        harness.ack(got)
        order.extend(int(each.key) for each in got)
    return order


def unfair_windows(order: list[int], weights: list[int], length: int) -> list[tuple[int, int, int, float]]:
    """``(start, key, count, entitled)`` of the windows of ``length`` that break the promise."""
    total = sum(weights)
    found = []
    for key, weight in enumerate(weights):
        entitled = length * weight / total
        allowed = max(0.05 * entitled, weight)
        sums = [0, *accumulate(1 if each == key else 0 for each in order)]
        for start in range(len(order) - length + 1):
            count = sums[start + length] - sums[start]
            if abs(count - entitled) > allowed:
                found.append((start, key, count, entitled))
    return found


@settings(deadline=None, max_examples=60)
@given(weights=WEIGHTS, data=st.data(), limits=LIMITS)
def test_every_window_is_shared_by_weight_while_all_keys_are_backlogged(
    weights: list[int], data: st.DataObject, limits: Limits
) -> None:
    harness = ShardHarness(checked=False, settings=ShardSettings(limits=limits))
    harness.create()
    total = sum(weights)
    deliveries = 60 * total
    for key, weight in data.draw(st.permutations(list(enumerate(weights)))):
        enqueue(harness, key, 60 * weight + 2 * weight, weight)
    order: list[int] = []
    while len(order) < deliveries:
        order += deliver(harness, min(data.draw(st.integers(1, 10 * total)), deliveries - len(order)))
        key = data.draw(st.integers(0, len(weights) - 1))
        enqueue(harness, key, data.draw(st.integers(1, 50)), weights[key])
    for length in (20 * total, 33 * total, deliveries):
        assert unfair_windows(order, weights, length) == []


@settings(deadline=None, max_examples=60)
@given(
    busy=st.lists(st.integers(1, 10), min_size=1, max_size=8),
    quiet=st.lists(st.tuples(st.integers(1, 10), st.integers(1, 12)), min_size=1, max_size=5),
    warm_up=st.integers(1, 150),
    repeats=st.integers(1, 4),
    limits=LIMITS,
)
def test_a_newly_active_key_waits_for_a_turn_at_most(
    busy: list[int], quiet: list[tuple[int, int]], warm_up: int, repeats: int, limits: Limits
) -> None:
    """``quiet``: keys that become active at the same time, each with a weight and a number of messages; some busy ones perhaps had
    no turn yet."""
    harness = ShardHarness(checked=False, settings=ShardSettings(limits=limits))
    harness.create()
    for key, weight in enumerate(busy):
        enqueue(harness, key, 1500, weight)
    deliver(harness, warm_up)
    for _ in range(repeats):
        for key, (weight, count) in enumerate(quiet):
            enqueue(harness, 100 + key, count, weight)
        order = deliver(harness, max(busy) + sum(weight for weight, _ in quiet))
        for key, (weight, _) in enumerate(quiet):
            others = sum(other for index, (other, _) in enumerate(quiet) if index != key)
            assert order.index(100 + key) <= max(busy) + others, (weight, order[:50])
        while any(harness.shard.queues["q"].keys[str(100 + key)].active for key in range(len(quiet))):
            deliver(harness, 1)


@settings(deadline=None, max_examples=30)
@given(busy=st.lists(st.integers(1, 5), min_size=1, max_size=5), rounds=st.integers(50, 200), limits=LIMITS)
def test_a_key_that_empties_and_refills_in_step_starves_nobody(busy: list[int], rounds: int, limits: Limits) -> None:
    harness = ShardHarness(checked=False, settings=ShardSettings(limits=limits))
    harness.create()
    for key, weight in enumerate(busy):
        enqueue(harness, key, rounds, weight)
    served: Counter[int] = Counter()
    for _ in range(rounds):
        if served[100] == served[-1]:
            enqueue(harness, 100, 1, 1)
            served[-1] += 1
        served.update(deliver(harness, 1))
    assert sum(served[key] for key in range(len(busy))) >= rounds // 2 - max(busy)


def test_a_window_inside_one_round_is_shared_too() -> None:
    """Not only a whole round of Σ weights × quantum = 6,000 deliveries."""
    harness = ShardHarness(checked=False)
    harness.create()
    for key, weight in enumerate((1, 2, 3)):
        enqueue(harness, key, 500, weight)
    assert Counter(deliver(harness, 120)) == {0: 20, 1: 40, 2: 60}
