"""The clock of all processes: it follows the wall clock forward, and never goes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_process.clock import AHEAD_NS, PERIOD_NS, SLOWER, ProcessClock, SteadyClock, Timekeeper

S = 1_000_000_000
MS = 1_000_000


class Machine:
    """Two clocks, one of which is set, and what a timekeeper makes of them."""

    def __init__(self) -> None:
        self.wall_ns, self.steady_ns = 1_700_000_000 * S, 5 * S
        self.keeper = Timekeeper(self.wall_ns, self.steady_ns)

    def run(self, seconds: float, *, late_ms: int = 0) -> int:
        """Let time pass, and look every 100 ms; ``late_ms``: that long before the steady clock the wall clock was read."""
        for _ in range(round(10 * seconds)):
            self.wall_ns += 100 * MS
            self.steady_ns += 100 * MS
            self.said_ns = self.keeper.read(self.wall_ns - late_ms * MS, self.steady_ns)
        return self.said_ns

    @property
    def ahead_ns(self) -> int:
        return self.keeper.read(self.wall_ns, self.steady_ns) - self.wall_ns


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_it_is_the_wall_clock_s_time(machine: Machine) -> None:
    machine.run(100)
    assert machine.ahead_ns == 0


def test_a_step_forward_is_followed_at_once(machine: Machine) -> None:
    """A correction by NTP, or a sleep that the steady clock did not count."""
    machine.run(10)
    machine.wall_ns += 3600 * S
    machine.run(0.1)
    assert machine.ahead_ns == 0


def test_after_a_step_back_it_runs_slower_until_both_agree(machine: Machine) -> None:
    machine.run(10)
    before = machine.said_ns
    machine.wall_ns -= 2 * S
    machine.run(10)
    passed = machine.said_ns - before
    assert 9.4 * S <= passed <= 9.7 * S, "a twentieth is lost, but for the first period"
    machine.run(2 * SLOWER)
    assert machine.ahead_ns == 0
    machine.run(10)
    assert machine.ahead_ns == 0, "and no more than that"


def test_looks_that_are_interrupted_do_not_set_it_back(machine: Machine) -> None:
    machine.run(10)
    for _ in range(20):
        machine.run(0.5, late_ms=60)
        machine.run(0.1)
    assert machine.ahead_ns == 0


def test_differences_of_milliseconds_are_no_steps(machine: Machine) -> None:
    machine.run(10)
    machine.wall_ns -= AHEAD_NS
    machine.run(60)
    assert machine.ahead_ns == AHEAD_NS


@given(st.lists(st.tuples(st.integers(0, 3 * PERIOD_NS), st.integers(-100 * S, 100 * S)), max_size=60))
def test_it_never_goes_back_whatever_is_done_to_the_wall_clock(steps: list[tuple[int, int]]) -> None:
    machine = Machine()
    before = machine.wall_ns
    for passed_ns, step_ns in steps:
        machine.steady_ns += passed_ns
        machine.wall_ns += passed_ns + step_ns
        now = machine.keeper.read(machine.wall_ns, machine.steady_ns)
        assert now >= before
        assert now >= machine.wall_ns
        before = now


def test_clocks_of_one_machine_agree() -> None:
    clocks = [ProcessClock(), SteadyClock(), ProcessClock()]
    first, *others = [clock.now_ms() for clock in clocks]
    assert all(abs(other - first) < 1000 for other in others)
