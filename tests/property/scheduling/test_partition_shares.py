"""Shares of partitions among consumers that know nothing of each other, as properties of a queue on a virtual clock.

They know what each partition has, what was asked of it, and what it gave, and nothing of the tags.

* Partitions that are backlogged share the deliveries of all consumers together by weight, whatever their speeds and prefetches.
* A partition that has messages again is served within a few turns, and not more than the others for the time when it had none.
* No partition that is ready starves.
* Nobody is asked for more than there is room.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import ceil, inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fila_cluster.client.protocol.partitions.shares import LOOK_AGAIN_S, Shares

WEIGHTS = st.lists(st.integers(1, 10), min_size=2, max_size=8)
SEEDS = st.integers(0, 1 << 30)
ENDLESS = 1 << 40


@dataclass
class Partitions:
    """What the broker has. ``order``: the partitions of all deliveries, in their order."""

    weights: list[int]
    backlogs: list[int]
    order: list[int] = field(default_factory=list)

    def give(self, partition: int, asked: int, most: int = ENDLESS) -> int:
        """Deliver, at most so many in one answer."""
        given_now = min(asked, self.backlogs[partition], most)
        self.backlogs[partition] -= given_now
        self.order += [partition] * given_now
        return given_now

    def weight(self, partition: int) -> int:
        """What an answer says: the weights of the keys that have more."""
        return self.weights[partition] if self.backlogs[partition] else 0


@dataclass
class Consumer:
    """One that holds up to ``prefetch`` messages, asks as soon as a quarter of them is settled, and learns late."""

    shares: Shares
    prefetch: int
    speed: float
    held: int = 0
    asked: int = 0

    @property
    def room(self) -> int:
        return self.prefetch - self.held - self.asked


class Simulation:
    """Consumers and partitions. Answers come after a random time, so they may come in any order."""

    def __init__(self, partitions: Partitions, consumers: list[Consumer], random: Random, most: int = ENDLESS) -> None:
        self.partitions = partitions
        self.consumers = consumers
        self.random = random
        self.most = most
        self.now = 0.0
        self._events: list[tuple[float, int, Iterator[float]]] = []
        self._numbers = count()
        for consumer in consumers:
            for partition in range(len(partitions.weights)):
                consumer.shares.note(partition, partitions.weight(partition))
            self.begin(self._consume(consumer))

    def begin(self, steps: Iterator[float], after: float = 0.0) -> None:
        heappush(self._events, (self.now + after, next(self._numbers), steps))

    def run(self, deliveries: int, until: float = inf) -> None:
        """Go on until there are so many deliveries, or until a time."""
        while self._events and len(self.partitions.order) < deliveries and self.now < until:
            self.now, _, steps = heappop(self._events)
            pause = next(steps, None)
            if pause is not None:
                self.begin(steps, pause)

    def _consume(self, consumer: Consumer) -> Iterator[float]:
        while True:
            self._ask(consumer)
            if consumer.held:
                consumer.held -= 1
            yield self.random.expovariate(consumer.speed)

    def _ask(self, consumer: Consumer) -> None:
        room = consumer.room
        if room < max(1, consumer.prefetch // 4):
            return
        dealt = consumer.shares.deal(room)
        assert sum(dealt.values()) <= room
        for partition, number in dealt.items():
            consumer.asked += number
            self.begin(self._answer(consumer, partition, number, consumer.shares.weight(partition)), self._delay())
        assert consumer.room >= 0

    def _answer(self, consumer: Consumer, partition: int, number: int, weight: int) -> Iterator[float]:
        got, left = self.partitions.give(partition, number, self.most), self.partitions.weight(partition)
        yield self._delay()
        consumer.asked -= number
        consumer.held += got
        consumer.shares.take_back(partition, number - got, weight)
        consumer.shares.note(partition, left)
        if not left:
            self.begin(self._watch(consumer, partition))
        self._ask(consumer)

    def _watch(self, consumer: Consumer, partition: int) -> Iterator[float]:
        while not (weight := self.partitions.weight(partition)):
            yield 0.01
        yield self._delay()
        consumer.shares.note(partition, weight)
        self._ask(consumer)

    def _delay(self) -> float:
        return self.random.uniform(0.0, 0.01)


def unfair(order: list[int], weights: list[int], slack: float) -> list[tuple[int, int, float]]:
    """``(partition, count, entitled)`` of those whose count is off by more than 5 % and by more than ``slack``."""
    counts, total = Counter(order), sum(weights)
    entitled = [len(order) * weight / total for weight in weights]
    return [
        (partition, counts[partition], entitled[partition])
        for partition in range(len(weights))
        if abs(counts[partition] - entitled[partition]) > max(0.05 * entitled[partition], slack)
    ]


def simulation(
    weights: list[int], prefetches: list[int], random: Random, *, most: int = ENDLESS, backlogs: list[int] | None = None
) -> Simulation:
    partitions = Partitions(weights, backlogs or [ENDLESS] * len(weights))
    consumers = [Consumer(Shares(len(weights), random), each, random.choice((1.0, 10.0, 300.0))) for each in prefetches]
    return Simulation(partitions, consumers, random, most)


@settings(deadline=None, max_examples=30)
@given(
    weights=WEIGHTS,
    prefetches=st.lists(st.integers(1, 100), min_size=1, max_size=50),
    seed=SEEDS,
    most=st.sampled_from([1, 7, ENDLESS]),
)
def test_backlogged_partitions_share_by_weight_whatever_the_consumers_are(
    weights: list[int], prefetches: list[int], seed: int, most: int
) -> None:
    simulated = simulation(weights, prefetches, Random(seed), most=most)
    begin = 2 * sum(prefetches)  # where the first answers of all are in
    length = 20 * sum(weights) + 10 * len(prefetches)
    simulated.run(begin + 2 * length)
    # What is under way at either end of a window is no longer, or not yet, in it.
    slack = len(prefetches) * max(2.0, *(ceil(each / 4) / len(weights) for each in prefetches)) + max(weights)
    for start in (begin, begin + length // 3, begin + length):
        window = simulated.partitions.order[start : start + length]
        assert unfair(window, weights, slack) == []


@settings(deadline=None, max_examples=30)
@given(weights=WEIGHTS, consumers=st.integers(1, 50), seed=SEEDS)
def test_one_message_at_a_time_is_shared_within_one_for_each_consumer_and_partition(
    weights: list[int], consumers: int, seed: int
) -> None:
    simulated = simulation(weights, [1] * consumers, Random(seed))
    length = 20 * sum(weights) + 10 * consumers
    simulated.run(2 * consumers + length)
    assert unfair(simulated.partitions.order[2 * consumers :], weights, consumers + max(weights)) == []


@settings(deadline=None, max_examples=30)
@given(consumers=st.integers(10, 50), dealt=st.integers(1, 300), seed=SEEDS)
def test_consumers_that_begin_together_do_not_serve_a_light_partition_at_the_same_time(
    consumers: int, dealt: int, seed: int
) -> None:
    """Else each has one message of it in the same round: all together have too many, and then none for long."""
    weights, random, given_now = [1, 50, 50], Random(seed), 0
    for _ in range(consumers):
        shares = Shares(len(weights), random)
        for partition, weight in enumerate(weights):
            shares.note(partition, weight)
        given_now += shares.deal(dealt).get(0, 0)
    # Each has a part of a message too many or too few, which is even between -1 and 1: the deviation of the sum is √(n / 6) at most.
    assert abs(given_now - consumers * dealt / sum(weights)) <= 5 * (consumers / 6) ** 0.5


@settings(deadline=None, max_examples=30)
@given(dealt=st.integers(1, 300), seed=SEEDS)
def test_a_light_partition_that_had_nothing_at_the_beginning_is_next_when_it_has(dealt: int, seed: int) -> None:
    shares = Shares(3, Random(seed))
    for partition, weight in enumerate((0, 50, 50)):
        shares.note(partition, weight)
    shares.deal(dealt)
    shares.note(0, 1)
    assert 0 in shares.deal(3)


@settings(deadline=None, max_examples=30)
@given(
    weights=WEIGHTS,
    prefetches=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    seed=SEEDS,
    refill=st.integers(50, 400),
)
def test_a_partition_that_is_ready_again_is_served_soon_and_has_saved_nothing_up(
    weights: list[int], prefetches: list[int], seed: int, refill: int
) -> None:
    backlogs = [3] + [ENDLESS] * (len(weights) - 1)
    simulated = simulation(weights, prefetches, Random(seed), backlogs=backlogs)
    order, total = simulated.partitions.order, sum(weights)
    simulated.run(30 * total + 4 * sum(prefetches))
    assert order.count(0) == 3
    simulated.partitions.backlogs[0] = refill
    before = len(order)
    simulated.run(ENDLESS, simulated.now + 0.03)  # all consumers know
    simulated.run(len(order) + 2 * sum(prefetches) + 4 * total)
    since = order[before:]
    assert 0 in since, "it is not served"
    # Each consumer begins with it, as if it had never been away.
    slack = sum(1 + ceil(each / 2) for each in prefetches) + weights[0]
    assert since.count(0) <= 1.05 * len(since) * weights[0] / total + slack


@settings(deadline=None, max_examples=30)
@given(
    weights=WEIGHTS,
    data=st.data(),
    prefetch=st.integers(1, 100),
)
def test_no_ready_partition_starves_while_the_others_come_and_go(
    weights: list[int], data: st.DataObject, prefetch: int
) -> None:
    """One consumer, partition 0 always ready: between its turns the others give no more than two turns of each, and what they were
    asked for before and did not give."""
    shares = Shares(len(weights), Random(data.draw(st.integers(0, 100))))
    shares.note(0, weights[0])
    waited = 0
    for _ in range(100):
        partition = data.draw(st.integers(1, len(weights) - 1))
        shares.note(partition, data.draw(st.sampled_from([0, weights[partition]])))
        before = {each: shares.weight(each) for each in shares.ready}
        dealt = shares.deal(prefetch)
        assert set(dealt) <= shares.ready
        assert sum(dealt.values()) == prefetch
        waited = 0 if 0 in dealt else waited
        for each, number in dealt.items():
            got = number if each == 0 else data.draw(st.sampled_from([0, number // 2, number]))
            shares.take_back(each, number - got, before[each])
            waited += got if 0 not in dealt else 0
        assert waited <= 2 * sum(weights) + 2 * len(weights) + prefetch


@given(
    count=st.integers(0, 2000),
    notes=st.lists(st.tuples(st.integers(0, 7), st.integers(-1, 10)), max_size=30),
    backs=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 100), st.integers(1, 10)), max_size=30),
)
def test_exactly_what_is_asked_is_dealt_if_any_is_ready_and_to_those_only(
    count: int, notes: list[tuple[int, int]], backs: list[tuple[int, int, int]]
) -> None:
    shares = Shares(8, Random(1))
    ready: set[int] = set()
    for partition, weight in notes:
        shares.note(partition, weight)
        (ready.add if weight > 0 else ready.discard)(partition)
    for back in backs:
        shares.take_back(*back)
    dealt = shares.deal(count)
    assert shares.ready == ready
    assert set(dealt) <= ready
    assert sum(dealt.values()) == (count if ready else 0)
    assert all(number > 0 for number in dealt.values())


@settings(deadline=None, max_examples=30)
@given(weights=WEIGHTS, changes=st.lists(st.integers(1, 100), min_size=1, max_size=10), asked=st.integers(1, 500))
def test_what_was_not_given_is_taken_back_at_the_weight_at_which_it_was_asked(
    weights: list[int], changes: list[int], asked: int
) -> None:
    """Else a partition whose weight changes meanwhile would wait for long, or get too much."""
    shares = Shares(len(weights), Random(1))
    for partition, weight in enumerate(weights):
        shares.note(partition, weight)
    for weight in changes:
        dealt = shares.deal(asked)
        for partition, number in dealt.items():
            before = shares.weight(partition)
            shares.note(partition, weight)
            shares.take_back(partition, number, before)
            shares.note(partition, weights[partition])
    total = 200 * sum(weights)
    assert (
        unfair([each for each, number in shares.deal(total).items() for _ in range(number)], weights, 2 * max(weights)) == []
    )


@settings(deadline=None, max_examples=30)
@given(weights=WEIGHTS, wanted=st.integers(1, 3), seed=SEEDS)
def test_small_receives_are_shared_by_weight_too(weights: list[int], wanted: int, seed: int) -> None:
    shares, now = Shares(len(weights), Random(seed)), 0.0
    partitions = Partitions(weights, [ENDLESS] * len(weights))
    everyone = set(range(len(weights)))
    for _ in range(2 * len(weights)):  # each is found
        partition, share = shares.first(everyone, wanted, now)
        shares.take_back(partition, share, shares.weight(partition))
        shares.note(partition, partitions.weight(partition))
        now += LOOK_AGAIN_S / 100
    for _ in range(100 * sum(weights)):
        partition, share = shares.first(everyone, wanted, now)
        assert 1 <= share <= wanted
        partitions.give(partition, share)
        shares.note(partition, partitions.weight(partition))
        now += LOOK_AGAIN_S / 100
    assert unfair(partitions.order, weights, wanted * max(weights)) == []


@pytest.mark.parametrize("busy", [1, 5])
def test_a_receive_looks_at_what_had_nothing_now_and_then(busy: int) -> None:
    shares = Shares(6, Random(1))
    everyone = set(range(6))
    found = dict.fromkeys(everyone, -inf)
    for turn in range(1000):
        now = turn * LOOK_AGAIN_S / 10
        partition, share = shares.first(everyone, 10, now)
        found[partition] = now
        shares.take_back(partition, 0 if partition < busy else share, shares.weight(partition))
        shares.note(partition, 1 if partition < busy else 0)
        if turn > 100:
            assert now - min(found.values()) <= 2 * LOOK_AGAIN_S
