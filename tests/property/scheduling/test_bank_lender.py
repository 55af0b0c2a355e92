"""At most one router holds the token bank, whatever happens to leaders, routers, clocks and the frames between them.

The leaders are those of :mod:`tests.support.hosts.log_hosts`, on a log with everything going wrong that may. A router is a model of one: it
holds the bank until the end of the last lease that it took, by its own clock.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fila_proto_zmq.commands import BankLease, Pulsed
from fila_worker.replication.bank_lender import LEASE_MS, BankLender, RouterView
from tests.support.hosts.log_hosts import Process, World

pytestmark = pytest.mark.whole

SEEDS = st.integers(0, 2**32)
PULSE_MS = 250
LIVES_MS = 2000
SHARD = 0


class HeldTwiceError(AssertionError):
    """Two routers held the bank at the same moment."""


class Router:
    """``from_receipt``: a mistake, its leases begin when they come."""

    def __init__(self, lenders: "Lenders", number: int, *, from_receipt: bool) -> None:
        self.lenders, self.number = lenders, number
        random = lenders.world.random
        self.rate, self.shift = random.randint(980, 1020), random.randint(1, 10**9)
        self.from_receipt = from_receipt
        self.epoch = self.until = 0
        self.away_until = 0

    def local(self) -> int:
        return self.shift + self.lenders.world.now_ms * self.rate // 1000

    @property
    def bank(self) -> int:
        """The epoch under which it holds the bank."""
        return self.epoch if self.local() < self.until else 0

    def hear(self, lease: BankLease) -> None:
        until = (self.local() if self.from_receipt else lease.at_ms) + lease.for_ms
        if lease.epoch < self.epoch or until <= self.local():
            return
        if lease.epoch > self.epoch:
            self.lenders.begins(self, lease.epoch)
        if not self.bank and any(other.bank for other in self.lenders.routers if other is not self):
            raise HeldTwiceError(f"by {[(other.number, other.bank) for other in self.lenders.routers]} and {self.number}")
        self.until = max(until, self.until if lease.epoch == self.epoch else 0)
        self.epoch = lease.epoch


class Wire:
    """The link of one process to one router: in order, late, and with losses."""

    def __init__(self, process: Process, router: Router) -> None:
        self.process, self.router, self.world = process, router, router.lenders.world
        self.pulsed, self.heard_ms = Pulsed(), -LIVES_MS
        self.cut_until = self.slow_until = 0
        self._last_ms = [0, 0]

    def view(self) -> RouterView:
        return RouterView(self.world.now_ms - self.heard_ms < LIVES_MS, self.pulsed.at_ms, self.pulsed.bank)

    def _arrives_in(self, way: int) -> int | None:
        world = self.world
        if world.now_ms < max(self.cut_until, self.router.away_until):
            return None
        delay = world.delay() + (world.random.randint(0, 3000) if world.now_ms < self.slow_until else 0)
        self._last_ms[way] = max(self._last_ms[way], world.now_ms + delay)
        return self._last_ms[way] - world.now_ms

    def pulse(self, lease: BankLease | None) -> None:
        delay = self._arrives_in(0)
        if delay is not None:
            self.world.after(delay, lambda: self.answer(lease))

    def answer(self, lease: BankLease | None) -> None:
        if lease is not None:
            self.router.hear(lease)
        pulsed, delay = Pulsed(self.router.local(), self.router.bank), self._arrives_in(1)
        if delay is not None:
            self.world.after(delay, lambda: self.heard(pulsed))

    def heard(self, pulsed: Pulsed) -> None:
        self.process.later(0, lambda: self.note(pulsed))

    def note(self, pulsed: Pulsed) -> None:
        self.pulsed, self.heard_ms = pulsed, self.world.now_ms


class Lenders:
    """A cluster of which each process pulses to all routers."""

    def __init__(self, seed: int, routers: int, *, from_receipt: bool = False) -> None:
        self.world = World(seed, hosts=3, shards=1)
        self.routers = [Router(self, number, from_receipt=from_receipt) for number in range(routers)]
        self.epochs: list[int] = []
        self.wires: dict[Process, list[Wire]] = {}
        self.lenders: dict[Process, BankLender] = {}
        self.troubled = False
        self.world.start()
        self.world.after(0, self.look_for_processes)

    def begins(self, router: Router, epoch: int) -> None:
        assert not self.epochs or epoch > self.epochs[-1], "each holder has a higher epoch than those before"
        self.epochs.append(epoch)

    def look_for_processes(self) -> None:
        for place, host in enumerate(self.world.machines):
            process = host.process
            if process is not None and process not in self.wires:
                own_first = self.routers[place % len(self.routers) :] + self.routers[: place % len(self.routers)]
                self.wires[process] = [Wire(process, router) for router in own_first]
                self.lenders[process] = BankLender(self.world.limits.silence_ms)
                self.pulse(process)
        self.world.after(100, self.look_for_processes)

    def pulse(self, process: Process) -> None:
        wires, replica = self.wires[process], process.replicas.get(SHARD)
        proof = None if replica is None else replica.leadership.proof(process.local())
        lent = self.lenders[process].lend(proof, [wire.view() for wire in wires], process.local())
        late = (
            self.world.random.randint(0, 6000) if self.troubled and self.world.random.random() < 0.05 else 0
        )  # a pause before it sends
        for place, wire in enumerate(wires):
            lease = lent[1] if lent is not None and lent[0] == place else None
            self.world.after(late, lambda wire=wire, lease=lease: wire.pulse(lease))  # type: ignore[misc]
        process.later(PULSE_MS, lambda: self.pulse(process))

    def upset(self) -> None:
        """Let something happen to routers and links now and then, besides what happens to hosts and logs."""
        if not self.troubled:
            return
        random, now_ms = self.world.random, self.world.now_ms
        until_ms = now_ms + random.choice((500, 3000, 10_000))
        wire = random.choice([wire for wires in self.wires.values() for wire in wires] or [None])
        match random.randrange(3):
            case 0:
                random.choice(self.routers).away_until = until_ms
            case 1 if wire is not None:
                wire.cut_until = until_ms
            case 2 if wire is not None:
                wire.slow_until = until_ms
            case _:
                pass
        self.world.after(random.choice((50, 500, 2000)), self.upset)

    def trouble(self, for_ms: int) -> None:
        self.troubled = True
        self.upset()
        self.world.trouble(self.world.now_ms + for_ms)
        self.troubled = False
        self.world.heal()

    def holder(self) -> int | None:
        return next((router.number for router in self.routers if router.bank), None)

    def until_held(self, within_ms: int) -> int:
        """Let time pass until a router holds the bank; return how long it took."""
        began_ms = self.world.now_ms
        while self.holder() is None:
            assert self.world.now_ms - began_ms < within_ms, "nobody lends it"
            self.world.run_until(self.world.now_ms + 50)
        return self.world.now_ms - began_ms


@given(SEEDS, st.integers(2, 3))
@settings(max_examples=60)
def test_no_two_routers_hold_the_bank_and_after_all_faults_one_does(seed: int, routers: int) -> None:
    lenders = Lenders(seed, routers)
    lenders.world.run_until(lenders.world.random.randint(0, 15_000))
    lenders.trouble(60_000)
    lenders.world.run_until(lenders.world.now_ms + 25_000)
    lenders.until_held(8000)


@given(SEEDS)
@settings(max_examples=10)
def test_without_faults_it_stays_where_it_is(seed: int) -> None:
    lenders = Lenders(seed, 2)
    lenders.world.run_until(60_000)
    holder, epochs = lenders.holder(), len(lenders.epochs)
    for _ in range(400):
        lenders.world.run_until(lenders.world.now_ms + 50)
        assert lenders.holder() == holder
    assert (holder is not None, len(lenders.epochs)) == (True, epochs)


@given(SEEDS)
@settings(max_examples=10)
def test_it_moves_when_its_router_is_lost_and_stays_when_that_is_back(seed: int) -> None:
    lenders = Lenders(seed, 2)
    lenders.world.run_until(60_000)
    lost = lenders.holder()
    assert lost is not None
    lenders.routers[lost].away_until = lenders.world.now_ms + 20_000
    lenders.world.run_until(lenders.world.now_ms + 2 * LEASE_MS + 1000)
    assert lenders.holder() == 1 - lost
    lenders.world.run_until(lenders.world.now_ms + 40_000)
    assert lenders.holder() == 1 - lost


@given(SEEDS)
@settings(max_examples=10)
def test_the_host_that_takes_over_from_a_killed_one_lends_it_at_once(seed: int) -> None:
    lenders = Lenders(seed, 2)
    lenders.world.run_until(60_000)
    lenders.world.leader(SHARD).kill(60_000)
    while not lenders.world.serving(SHARD):
        lenders.world.run_until(lenders.world.now_ms + 50)
    lenders.until_held(2000)


@given(SEEDS)
@settings(max_examples=10)
def test_the_host_that_takes_over_from_one_that_leaves_lends_it_when_the_last_lease_has_ended(seed: int) -> None:
    lenders = Lenders(seed, 2)
    lenders.world.run_until(60_000)
    lenders.world.leader(SHARD).terminate()
    began_ms, away_ms = lenders.world.now_ms, 0
    while lenders.world.now_ms < began_ms + 10_000:
        lenders.world.run_until(lenders.world.now_ms + 50)
        away_ms += 50 if lenders.holder() is None else 0
    assert away_ms < 2000


def holds_twice(seed: int) -> bool:
    lenders = Lenders(seed, 3, from_receipt=True)
    lenders.world.run_until(10_000)
    try:
        lenders.trouble(60_000)
    except AssertionError:  # a router that took a late lease may also be found by its epoch
        return True
    return False


def test_leases_that_began_when_they_come_would_be_found() -> None:
    """Else this harness would find nothing."""
    assert any(holds_twice(seed) for seed in range(60))
