"""The limit as a property: whatever shards ask, hoard, lose and forget, together they never deliver more than it allows.

Shards talk to the bank over wires that take a millisecond or two and may lose frames. Time goes by in milliseconds. Each key has a
meter: it rises with every token spent and falls at the rate, and so shows by how much the worst window that ends now exceeds
``rate × t``: it must never show more than the burst.
"""

from collections import defaultdict
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fila_proto_zmq.commands import Grants, Tokens, TokenWant
from fila_proto_zmq.runtime_config import Limit
from fila_router.core.tokens.token_bank import TokenBank
from tests.unit.router.bank_desk import TOKEN, check, limit

REPEAT_MS = 500
"""Shards repeat a want that was not answered."""


class Meter:
    """How much more was spent than came in, at worst."""

    def __init__(self, bound: Limit, now_ms: int, most: int) -> None:
        self.rate = bound.rate_milli
        self.most = most
        self._level = 0
        self._since_ms = now_ms

    def spend(self, amount: int, now_ms: int) -> None:
        self._level = max(0, self._level - self.rate * (now_ms - self._since_ms)) + amount
        self._since_ms = now_ms
        assert self._level <= self.most, (
            f"{self._level / TOKEN} tokens more than the rate allows, at most {self.most / TOKEN}"
        )


class Habits(NamedTuple):
    """How shards and wires behave: probabilities for each occasion."""

    loss: float = 0.0
    hoard: float = 0.0
    """Keep what was granted for a while."""
    give_back: float = 0.0
    rest: float = 0.0
    """Want nothing for a while."""
    renew: float = 0.0
    """Start a new session, as after a restart; per ms."""
    vanish: float = 0.0
    """Be taken for lost, and return; per ms."""


class Taker:
    """A shard's account for one set of keys, with a cost that all its messages have."""

    def __init__(self, keys: tuple[str, ...], cost: int) -> None:
        self.keys = keys
        self.cost = cost
        self.granted = self.consumed = self.returned = 0
        self.spent = 0
        """Over all sessions."""
        self.idle_until_ms = 0
        self.news = True
        self.told_ms = 0

    @property
    def held(self) -> int:
        return self.granted - self.consumed - self.returned


class ShardModel:
    def __init__(self, index: int, takers: list[Taker]) -> None:
        self.index = index
        self.session = 1
        self.lost = False
        self.takers = takers


class Cluster:
    """A bank, its shards, and the wires between them."""

    def __init__(
        self, seed: int, limits: dict[str, Limit], sets: list[tuple[int, str, float]], habits: Habits, lag_ms: int
    ) -> None:
        """``sets``: which shard wants which keys (separated by blanks), at which cost in tokens."""
        self.random = Random(seed)
        self.habits = habits
        self.lag_ms = lag_ms
        self.now_ms = 0
        self.bank = TokenBank()
        self.costs = {
            key: max((round(cost * TOKEN) for _, keys, cost in sets if key in keys.split()), default=0) for key in limits
        }
        self.meters: dict[str, Meter] = {}
        for key, bound in limits.items():
            self.change(key, bound)
        takers = defaultdict(list)
        for shard, keys, cost in sets:
            takers[shard].append(Taker(tuple(keys.split()), round(cost * TOKEN)))
        self.shards = {index: ShardModel(index, mine) for index, mine in takers.items()}
        self._to_bank: list[tuple[int, Tokens]] = []
        self._to_shards: list[tuple[int, Grants]] = []
        self._totals: dict[tuple[int, int, tuple[str, ...]], int] = {}

    def change(self, key: str, bound: Limit) -> None:
        """A new limit. From here on the meter allows the burst, or one cost above it, or what was out at this moment."""
        self.bank.limit(key, bound, self.now_ms, full=True)
        most = max(bound.burst_micro, self.costs[key], self.bank.buckets[key].outstanding)
        self.meters[key] = Meter(bound, self.now_ms, most)

    def run(self, span_ms: int, *, checked: bool = True) -> None:
        for _ in range(span_ms):
            self.step()
            if checked:
                check(self.bank)

    def step(self) -> None:
        for shard in self.shards.values():
            self._live(shard)
        self._to_bank, arrived = _split(self._to_bank, self.now_ms)
        for tokens in arrived:
            self.bank.ask(tokens, 1, self.now_ms)
        for grants in self.bank.serve(self.now_ms):
            self._watch(grants)
            self._send(self._to_shards, grants)
        self._to_shards, given = _split(self._to_shards, self.now_ms)
        for grants in given:
            self._take(self.shards[grants.shard], grants)
        self.now_ms += 1

    def _send(self, wire: list, frame) -> None:
        if self.random.random() >= self.habits.loss:
            wire.append(
                (self.now_ms + self.random.randint(0, self.lag_ms) if self.habits.loss else self.now_ms + self.lag_ms, frame)
            )

    def _watch(self, grants: Grants) -> None:
        for grant in grants.grants:
            place = (grants.shard, grants.session, tuple(grant.keys))
            assert grant.granted >= self._totals.get(place, 0), "totals never go backward"
            self._totals[place] = grant.granted

    # --- what shards do -----------------------------------------------------------------------------------------------

    def _live(self, shard: ShardModel) -> None:
        if self.random.random() < self.habits.renew:
            shard.session += 1
            for taker in shard.takers:
                taker.granted = taker.consumed = taker.returned = 0
                taker.news = True
            if shard.lost or self.random.random() < 0.5:
                shard.lost = False
                self.bank.close(shard.index, self.now_ms)
        elif self.random.random() < self.habits.vanish and not shard.lost:
            shard.lost = True
            self.bank.suspend([shard.index], self.now_ms)
        if shard.lost:
            if self.random.random() < 0.01:
                shard.lost = False
                self.bank.resume([shard.index], self.now_ms)
            return
        for taker in shard.takers:
            self._spend(taker)
        self._speak(shard)

    def _spend(self, taker: Taker) -> None:
        if taker.idle_until_ms > self.now_ms:
            return
        if taker.idle_until_ms == self.now_ms:
            taker.news = True
        if taker.held and self.random.random() < self.habits.hoard:
            taker.idle_until_ms = self.now_ms + self.random.randint(1, 100)
            return
        count = taker.held // taker.cost
        taker.consumed += count * taker.cost
        taker.spent += count
        if count:
            taker.news = True
            for key in taker.keys:
                if key in self.meters:
                    self.meters[key].spend(count * taker.cost, self.now_ms)
        if taker.held and (count or self.random.random() < self.habits.give_back):
            taker.returned += taker.held
            taker.news = True
        if self.random.random() < self.habits.rest:
            taker.idle_until_ms = self.now_ms + self.random.randint(1, 200)
            taker.news = True

    def _speak(self, shard: ShardModel) -> None:
        wants = []
        for taker in shard.takers:
            if taker.news or self.now_ms - taker.told_ms >= REPEAT_MS:
                idle = taker.idle_until_ms > self.now_ms
                least, most = (0, 0) if idle else (taker.cost, 1000 * taker.cost)
                wants.append(TokenWant(list(taker.keys), least, most, taker.consumed, taker.returned))
                taker.news = False
                taker.told_ms = self.now_ms
        if wants:
            self._send(self._to_bank, Tokens(shard.index, shard.session, wants))

    def _take(self, shard: ShardModel, grants: Grants) -> None:
        if grants.session != shard.session:
            return
        for grant in grants.grants:
            for taker in shard.takers:
                if taker.keys == tuple(grant.keys):
                    taker.granted = max(taker.granted, grant.granted)
        if not shard.lost:
            for taker in shard.takers:
                self._spend(taker)
            self._speak(shard)

    def spent(self) -> dict[tuple[int, str], int]:
        """Messages delivered, by shard and keys."""
        return {(shard.index, " ".join(taker.keys)): taker.spent for shard in self.shards.values() for taker in shard.takers}


def _split(wire: list, now_ms: int) -> tuple[list, list]:
    """What is still under way, in order (nothing overtakes), and what has arrived."""
    arrived = 0
    while arrived < len(wire) and wire[arrived][0] <= now_ms:
        arrived += 1
    return wire[arrived:], [frame for _, frame in wire[:arrived]]


rates = st.sampled_from([0, 0.7, 5, 50, 200, 1000, 10_000])
bursts = st.sampled_from([0, 0.5, 1, 2, 5, 20, 300])
limits = st.builds(limit, rates, bursts)
key_sets = st.sampled_from(["a", "b", "c", "a b", "b c", "a b c", "a free"])
costs = st.sampled_from([0.25, 1, 1, 1, 3, 30])
chances = st.sampled_from([0.0, 0.0, 0.02, 0.2])
rare = st.sampled_from([0.0, 0.0, 0.002, 0.02])


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    sets = draw(st.lists(st.tuples(st.integers(0, 3), key_sets), min_size=1, max_size=8, unique=True))
    wants = [(shard, keys, draw(costs)) for shard, keys in sets]
    habits = Habits(draw(chances), draw(chances), draw(chances), draw(chances), draw(rare), draw(rare))
    bounds = {key: draw(limits) for key in "abc"}
    return Cluster(draw(st.integers(0, 2**32)), bounds, wants, habits, draw(st.integers(0, 3)))


@settings(deadline=None, max_examples=150)
@given(clusters())
def test_no_window_sees_more_than_burst_and_rate_allow(cluster: Cluster) -> None:
    if cluster.habits.vanish:  # who is taken for lost and is not may spend once what it held
        for meter in cluster.meters.values():
            meter.most *= 3
    cluster.run(600)


@settings(deadline=None, max_examples=60)
@given(clusters(), st.lists(st.tuples(st.sampled_from("abc"), limits), max_size=4))
def test_limits_may_change_meanwhile(cluster: Cluster, changes: list[tuple[str, Limit]]) -> None:
    cluster.habits = cluster.habits._replace(vanish=0.0)
    for key, bound in changes:
        cluster.run(100)
        cluster.change(key, bound)
    cluster.run(200)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32), rate=st.sampled_from([20, 200, 1000, 10_000]), spare=st.sampled_from([2, 5, 50]),
    lag_ms=st.integers(0, 1), shards=st.integers(1, 4),
)  # fmt: skip
def test_the_rate_is_reached_while_a_shard_waits(seed: int, rate: int, spare: int, lag_ms: int, shards: int) -> None:
    """With a burst of what comes in while a grant is out (which the step of this clock is part of), twice, and two tokens."""
    bound = limit(rate, spare + 2 * rate * (1 + 2 * lag_ms) / 1000)
    cluster = Cluster(seed, {"a": bound}, [(shard, "a", 1) for shard in range(shards)], Habits(), lag_ms)
    cluster.run(200, checked=False)
    before = cluster.spent()
    cluster.run(1000, checked=False)
    gains = [count - before[place] for place, count in cluster.spent().items()]
    assert sum(gains) >= 0.95 * rate
    assert min(gains) >= 0.4 * sum(gains) / shards, "nobody takes it all"


@pytest.mark.parametrize("lag_ms", [0, 1])
def test_a_burst_of_one_gives_up_the_time_that_a_report_takes(lag_ms: int) -> None:
    cluster = Cluster(1, {"a": limit(200, 1)}, [(0, "a", 1), (1, "a", 1)], Habits(), lag_ms)
    cluster.run(5000, checked=False)
    assert sum(cluster.spent().values()) == pytest.approx(5000 / (5 + max(1, 2 * lag_ms)), abs=2)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    bounds=st.tuples(*[st.builds(limit, st.sampled_from([50, 100, 1000]), st.sampled_from([0, 1, 4, 20]))] * 3),
    sets=st.lists(st.tuples(st.integers(0, 3), key_sets, st.sampled_from([0.5, 1, 1, 10])), min_size=1, max_size=10,
                  unique_by=lambda entry: entry[:2]),
)  # fmt: skip
def test_no_account_starves(seed: int, bounds: tuple[Limit, ...], sets: list[tuple[int, str, float]]) -> None:
    """Everybody is served again before the time is up in which everybody could be, one after the other, four times."""
    cluster = Cluster(seed, dict(zip("abc", bounds, strict=True)), sets, Habits(), 1)
    slowest = min(bound.rate_milli for bound in bounds) / 1000
    round_ms = round(sum(cost for *_, cost in sets) / slowest * 1000) + 10 * len(sets)
    for _ in range(2):
        before = cluster.spent()
        cluster.run(4 * round_ms, checked=False)
        after = cluster.spent()
        assert [place for place in after if after[place] == before[place]] == []
