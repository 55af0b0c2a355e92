"""The limit as a property while the token bank moves between routers: wherever it is, shards never deliver more than it allows.

Two routers have clocks that differ, and may stop for a while. The workers that lead shard 0, one after the other, lend the bank by the rules:
to another router only when the last loan has certainly ended. Frames are late or lost. A shard asks the router that said last that
it has the latest bank, and begins a new session when that changes, or when that router has not answered for a while.
"""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from fila_proto_zmq.commands import BankLease, Grants, Tokens
from fila_proto_zmq.runtime_config import Limit
from fila_router.core.tokens.token_bank import TokenBank
from fila_router.core.tokens.token_grants import Holding
from tests.property.scheduling.test_token_bank import Cluster, Habits, ShardModel, _split
from tests.unit.router.bank_desk import TOKEN, check, config_of, limit

PULSE_MS = 7
"""How often workers pulse, and so hear who has the bank."""
LOAN_MS = 60
"""The longest loan."""
VOID_MS = 40
"""How long a shard uses its tokens after a pulse that their router has answered."""


class RouterModel:
    def __init__(self, ahead_ms: int, limits: dict[str, Limit]) -> None:
        self.ahead_ms = ahead_ms
        self.bank = TokenBank()
        self.bank.adopt(config_of(limits), ahead_ms)
        self.holding = Holding(self.bank, several=True, void_ms=VOID_MS)
        self.stopped_until_ms = 0
        self.inbox: list = []
        """What workers say to it: tokens and loans, in order."""
        self.outbox: list = []
        """What it says to workers."""


class MovingBank(Cluster):
    """``late_ms``: how late a frame may be, at most."""

    def __init__(
        self, seed: int, limits: dict[str, Limit], sets: list[tuple[int, str, float]], habits: Habits, late_ms: int,
        ahead_ms: tuple[int, int], restless: float,
    ) -> None:  # fmt: skip
        super().__init__(seed, limits, sets, habits, 0)
        self.late_ms = late_ms
        self.restless = restless
        """The chance that the bank is to move, whenever it is lent."""
        self.moving = False
        self.routers = [RouterModel(ahead, limits) for ahead in ahead_ms]
        self.answers: list[int | None] = [None, None]
        """What the lender heard last from each router: its time."""
        self.holder = 0
        self.epoch = 1
        self.lent_until_ms = 0
        """When all loans have ended, by the lenders' clock."""
        self.moves = 0
        self.banks: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        """The bank that each router has, as a shard heard it."""
        self.router_of: dict[tuple[int, int], int] = dict.fromkeys(((index, 1) for index in self.shards), 0)
        """The router that a shard's session talks to."""
        self.pulsed_ms = dict.fromkeys(self.shards, 0)
        """When a shard sent the last pulse that the router of its session has answered."""
        self.deaf_until_ms: dict[tuple[int, int], int] = defaultdict(int)
        """Until when a shard hears nothing from a router."""
        self.grants = 0

    def step(self) -> None:
        if self.now_ms % PULSE_MS == 0:
            self._pulse()
        for shard in self.shards.values():
            if self.now_ms - self.pulsed_ms[shard.index] >= VOID_MS and any(taker.held for taker in shard.takers):
                self._renew(shard, self.router_of[shard.index, shard.session])
            self._live(shard)
        for tokens in self._to_bank:
            router = self.routers[self.router_of[tokens[1].shard, tokens[1].session]]
            self._late(router.inbox, tokens[1])
        self._to_bank.clear()
        for index, router in enumerate(self.routers):
            if self.random.random() < 0.002:
                router.stopped_until_ms = self.now_ms + self.random.randint(1, 3 * LOAN_MS)
            if router.stopped_until_ms <= self.now_ms:
                self._run_router(router)
            router.outbox, arrived = _split(router.outbox, self.now_ms)
            for frame in arrived:
                self._hear(index, frame)
        self.now_ms += 1

    def _late(self, wire: list, frame) -> None:
        if self.random.random() >= self.habits.loss:
            wire.append((self.now_ms + self.random.randint(0, self.late_ms), frame))

    def _run_router(self, router: RouterModel) -> None:
        now_ms, bank = self.now_ms + router.ahead_ms, router.bank
        router.inbox, arrived = _split(router.inbox, self.now_ms)
        for frame in arrived:
            if isinstance(frame, Tokens):
                if router.holding.epoch(now_ms):
                    bank.ask(frame, 1, now_ms)
                continue
            lease, sent_ms = frame
            if lease is not None:
                router.holding.lend(lease, now_ms)
            router.holding.pulse_answered(now_ms)
            self._late(router.outbox, (now_ms, router.holding.epoch(now_ms), sent_ms))
        if router.holding.epoch(now_ms):
            for grants in bank.serve(now_ms):
                self.grants += 1
                self._late(router.outbox, grants)
        check(bank)

    def _hear(self, index: int, frame: Grants | tuple[int, int, int]) -> None:
        if isinstance(frame, Grants):
            self._take(self.shards[frame.shard], frame)
            return
        self.answers[index], epoch, sent_ms = frame
        for shard in self.shards.values():
            if self.random.random() < 0.01:  # the connection breaks for a while
                self.deaf_until_ms[shard.index, index] = self.now_ms + self.random.randint(1, 3 * VOID_MS)
            if self.random.random() < 0.7 and self.deaf_until_ms[shard.index, index] <= self.now_ms:
                self._follow(shard, index, epoch, sent_ms)

    def _follow(self, shard: ShardModel, index: int, epoch: int, sent_ms: int) -> None:
        banks = self.banks[shard.index]
        before = max(banks)
        banks[index] = epoch
        if max(banks) not in {before, 0}:
            self._renew(shard, banks.index(max(banks)))
        if epoch and index == self.router_of[shard.index, shard.session]:
            self.pulsed_ms[shard.index] = sent_ms

    def _renew(self, shard: ShardModel, router: int) -> None:
        shard.session += 1
        self.router_of[shard.index, shard.session] = router
        for taker in shard.takers:
            taker.granted = taker.consumed = taker.returned = 0
            taker.news = True

    def _live(self, shard: ShardModel) -> None:
        session = shard.session
        super()._live(shard)
        self.router_of.setdefault((shard.index, shard.session), self.router_of[shard.index, session])

    # --- lending ------------------------------------------------------------------------------------------------------

    def _pulse(self) -> None:
        """Lend the bank to its holder for some more time, or, once that time is up everywhere, to the other router."""
        self.moving = self.moving or self.random.random() < self.restless
        if self.moving and self.now_ms >= self.lent_until_ms:
            self.moving = False
            self.epoch += self.random.randint(1, 3)
            self.holder = self.random.randint(0, 1)
            self.moves += 1
        for index, router in enumerate(self.routers):
            lease, at_ms = None, self.answers[index]
            if index == self.holder and at_ms is not None and not self.moving:
                for_ms = self.random.randint(1, LOAN_MS)
                self.lent_until_ms = max(self.lent_until_ms, self.now_ms + for_ms)
                lease = BankLease(self.epoch, at_ms, for_ms)
            self._late(router.inbox, (lease, self.now_ms))


key_sets = st.sampled_from(["a", "b", "a b", "a free"])
chances = st.sampled_from([0.0, 0.0, 0.02, 0.2])
limits = st.builds(limit, st.sampled_from([0, 5, 50, 200, 1000, 1000]), st.sampled_from([1, 2, 5, 20, 300]))


@st.composite
def moving_banks(draw: st.DrawFn) -> MovingBank:
    """A cost is never above the burst, because what a bucket owes is forgotten with its bank."""
    sets = draw(st.lists(st.tuples(st.integers(0, 3), key_sets), min_size=1, max_size=6, unique=True))
    wants = [(shard, keys, draw(st.sampled_from([0.25, 1, 1]))) for shard, keys in sets]
    habits = Habits(draw(chances), draw(chances), draw(chances), draw(chances), draw(st.sampled_from([0.0, 0.002])))
    bounds = {key: draw(limits) for key in "ab"}
    ahead_ms = draw(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)))
    restless = draw(st.sampled_from([0.02, 0.1, 0.3]))
    return MovingBank(
        draw(st.integers(0, 2**32)), bounds, wants, habits, draw(st.sampled_from([0, 3, 15])), ahead_ms, restless
    )


@settings(deadline=None, max_examples=80)
@given(moving_banks())
def test_no_window_sees_more_than_one_bank_allows(cluster: MovingBank) -> None:
    cluster.run(800, checked=False)


def test_the_bank_moves_and_grants_in_these_tests() -> None:
    cluster = MovingBank(1, {"a": limit(200, 20)}, [(0, "a", 1), (1, "a", 1)], Habits(), 3, (0, 500), 0.05)
    cluster.run(5000, checked=False)
    assert cluster.moves > 10
    assert cluster.grants > 100
    assert sum(cluster.spent().values()) * TOKEN > 5 * 20 * TOKEN, "more than the first burst"
