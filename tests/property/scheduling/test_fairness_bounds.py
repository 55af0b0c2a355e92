"""Fairness by its bounds, as properties of a whole shard on a virtual clock. They know what was enqueued and what was delivered, and nothing of
the ring.

* Keys that are backlogged share any window of deliveries by weight, whatever other keys do.
* A key that becomes active is served before any busy key has its second turn, and where few keys come at a time after the rest of one turn.
* A key that is backlogged is served again within a number of deliveries that depends on the limits and on how many keys are backlogged.
* What a key was given beyond its turn it pays with its next turns, also if it leaves and comes back.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fila_proto_zmq.commands import Enqueue, Pause, PurgeQueue
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.settings import DEFAULTS, Limits, ShardSettings
from tests.support.shard.shard import ADMIN, Got, ShardHarness
from tests.support.shard.tight_shard import CHILLY

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


@pytest.mark.whole
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
def test_a_key_that_empties_and_refills_in_step_starves_no_other_key(busy: list[int], rounds: int, limits: Limits) -> None:
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


# --- whatever comes and goes ------------------------------------------------------------------------------------------

FEW = Limits(fresh_turns_max=3, busy_wait_turns_max=10)
"""New keys are limited soon, so that a test sees it."""
DEEP = 1000
"""More than a test delivers."""
ACKED_AT_ONCE = 7
POOL = 3
"""Keys that come and go by one name."""


@dataclass
class Traffic:
    """Messages in, deliveries out, one at a time, and what is pending of each key."""

    limits: Limits = FEW
    pending: Counter[str] = field(default_factory=Counter)
    order: list[str] = field(default_factory=list)
    active_since: dict[str, int] = field(default_factory=dict)
    """By key, how much had been delivered when it became active."""
    fresh: int = 0
    unacked: list[Got] = field(default_factory=list)
    crowds: list[int] = field(default_factory=list)
    """By delivery, how many keys had something pending."""

    def __post_init__(self) -> None:
        self.harness = ShardHarness(checked=False, settings=ShardSettings(limits=self.limits))
        self.harness.create()

    def enqueue(self, key: str, count: int = 1, weight: int = 1, cost: float = 1) -> None:
        self.harness.ask(Enqueue([EMPTY] * count, key, weight, cost_milli=round(1000 * cost)))
        if not self.pending[key]:
            self.active_since[key] = len(self.order)
        self.pending[key] += count

    def new(self, count: int = 1) -> None:
        """A key comes that never was here."""
        self.fresh += 1
        self.enqueue(f"new-{self.fresh}", count)

    def refill(self, key: str, count: int = 1, cost: float = 1) -> None:
        """A key comes back once it is empty."""
        if not self.pending[key]:
            self.enqueue(key, count, cost=cost)

    def pause(self, key: str, *, paused: bool) -> None:
        self.harness.ask(Pause(paused, key), client=ADMIN)

    def purge(self, key: str) -> None:
        self.harness.ask(PurgeQueue(key), client=ADMIN)
        self.pending[key] = 0

    def deliver(self, count: int = 1) -> None:
        for _ in range(count):
            if got := self.harness.receive(1):
                self.crowds.append(len(+self.pending))
                self.pending[got[0].key] -= 1
                self.order.append(got[0].key)
                self.unacked += got
            if len(self.unacked) >= ACKED_AT_ONCE:
                self.harness.ack(self.unacked)
                self.unacked.clear()

    def do(self, step: str, number: int) -> None:
        """Do one of STEPS with one of the keys that it may concern."""
        key = f"pool-{number % POOL}"
        match step:
            case "new":
                self.new()
            case "new backlog":
                self.refill(key, count=3)
            case "back":
                self.refill(key)
            case "dear":
                self.refill(key, cost=4)
            case "pause":
                self.pause(f"rival-{number % 2}", paused=True)
            case "resume":
                self.pause(f"rival-{number % 2}", paused=False)
            case "purge":
                self.purge(key)
        self.deliver(number // POOL)


STEPS = ("new", "new", "new backlog", "back", "dear", "pause", "resume", "purge")
PROGRAMS = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3 * POOL - 1)), min_size=1, max_size=8)
"""Steps that are repeated: what each does, with which key, and how much is delivered after it."""


def run(traffic: Traffic, program: list[tuple[str, int]], deliveries: int) -> None:
    """Repeat a program until so much is delivered."""
    traffic.deliver()
    while len(traffic.order) < deliveries:
        for step, number in program:
            traffic.do(step, number)
        traffic.deliver()


def waits(order: list[str], key: str) -> Iterator[tuple[int, int]]:
    """Where a key waited, up to which place, and for how many deliveries."""
    before = -1
    for place in (*(place for place, each in enumerate(order) if each == key), len(order)):
        yield place - 1, place - before - 1
        before = place


@settings(deadline=None, max_examples=30)
@example(program=[("new", 3)], cost=1, victims=0)
@given(program=PROGRAMS, cost=st.sampled_from([1, 1, 6]), victims=st.integers(0, 2))
def test_a_key_with_a_backlog_is_served_again_and_again_whatever_comes_and_goes(
    program: list[tuple[str, int]], cost: int, victims: int
) -> None:
    traffic = Traffic()
    for number in range(victims):
        traffic.enqueue(f"rival-{number}", DEEP)
    traffic.enqueue("victim", cost=cost)
    traffic.enqueue("victim", DEEP)
    run(traffic, program, 400)
    backlogged = victims + 1 + POOL
    turns = FEW.busy_wait_turns_max + (FEW.fresh_turns_max + 1) * (backlogged + 1)
    for place, waited in waits(traffic.order, "victim"):
        assert waited <= turns * cost + traffic.crowds[place], (place, traffic.order[place - waited : place + 2])


@settings(deadline=None, max_examples=30)
@given(program=PROGRAMS, weights=st.tuples(st.integers(1, 4), st.integers(1, 4)))
def test_two_keys_with_a_backlog_share_by_weight_whatever_comes_and_goes(
    program: list[tuple[str, int]], weights: tuple[int, int]
) -> None:
    traffic = Traffic()
    for key, weight in zip("ab", weights, strict=True):
        traffic.enqueue(key, DEEP, weight)
    traffic.deliver(sum(weights))
    run(traffic, program, 300)
    ahead = [
        0.0,
        *accumulate(1 / weights[0] if key == "a" else -1 / weights[1] if key == "b" else 0 for key in traffic.order),
    ]
    assert max(ahead) - min(ahead) <= 2 + 1e-9


@settings(deadline=None, max_examples=30)
@given(program=PROGRAMS, busy=st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_a_new_key_is_served_before_the_second_turn_of_any_busy_key(program: list[tuple[str, int]], busy: list[int]) -> None:
    traffic = Traffic()
    for number, weight in enumerate(busy):
        traffic.enqueue(f"busy-{number}", DEEP, weight)
    run(traffic, [step for step in program if step[0] != "dear"], 100)
    for _ in range(40):
        for step, number in program:
            if step != "dear":
                traffic.do(step, number)
        traffic.deliver()
        since = traffic.active_since
        waiting = [
            key for key, count in traffic.pending.items() if count and key.startswith("new-") and key not in traffic.order
        ]
        for key in waiting:
            turns = Counter(traffic.order[since[key] :])
            for number, weight in enumerate(busy):
                assert turns[f"busy-{number}"] <= 2 * weight, (key, traffic.order[since[key] :])


@settings(deadline=None, max_examples=30)
@given(busy=st.lists(st.integers(1, 3), min_size=1, max_size=3), weight=st.integers(1, 3), dear=st.integers(2, 8))
def test_a_key_pays_what_it_owes_whether_it_stays_or_leaves_and_comes_back(busy: list[int], weight: int, dear: int) -> None:
    cost = dear * weight
    traffic = Traffic(DEFAULTS)
    for number, each in enumerate(busy):
        traffic.enqueue(f"busy-{number}", DEEP, each)
    traffic.enqueue("stays", 1000, weight, cost)
    for _ in range(400):
        if not traffic.pending["leaves"]:
            traffic.enqueue("leaves", 1, weight, cost)
        traffic.deliver()
    counts = Counter(traffic.order)
    turns = [counts[f"busy-{number}"] / each for number, each in enumerate(busy)]
    for key in ("stays", "leaves"):
        assert min(turns) - dear - 2 <= counts[key] * dear <= max(turns) + dear + 2, (key, counts)


@settings(deadline=None, max_examples=20)
@given(busy=st.integers(2, 6), stops=st.lists(st.booleans(), min_size=1, max_size=5))
def test_a_key_that_is_stopped_and_let_go_on_has_no_more_than_its_share(busy: int, stops: list[bool]) -> None:
    """A pause stands for all that may hold up a key with a backlog: tokens, a cap, a message that is before all others."""
    traffic = Traffic(DEFAULTS)
    for number in range(busy):
        traffic.enqueue(f"busy-{number}", DEEP)
    traffic.enqueue("stopped", DEEP)
    traffic.deliver(busy + 1)
    for place in range(100):
        if stops[place % len(stops)]:
            traffic.pause("stopped", paused=True)
            traffic.pause("stopped", paused=False)
        traffic.deliver()
    counts = Counter(traffic.order)
    assert counts["stopped"] <= max(counts[f"busy-{number}"] for number in range(busy)) + 1
