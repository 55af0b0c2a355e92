"""The time that all cores are given.

Two clocks of the system are read. The *steady* one never jumps, and runs on while the machine sleeps where the system has
such a clock (``CLOCK_BOOTTIME``). The *wall* clock is what people and other machines call the time, and is set now and then:
by an operator, by NTP, after a sleep.

:class:`ProcessClock` is for what has a date (delays, times to live, leases, ids). It follows the wall clock forward at once, so that
all processes agree, however long ago they were started. It never goes back: when the wall clock was set back, it runs slower
until the two agree.

:class:`SteadyClock` is for rates: ``burst + rate × t`` has to hold however the wall clock is set.
"""

import time
from typing import Final

SLOWER: Final = 20
"""A clock that is ahead loses a twentieth: a lease of 30 s lasts 1.5 s longer, an hour is made up in twenty."""

PERIOD_NS: Final = 1_000_000_000
"""How long readings are gathered before the clock decides whether it is ahead."""

AHEAD_NS: Final = 5_000_000
"""A smaller lead is an imprecise reading, not a step of the wall clock."""

_LOOKS: Final = 9


class Timekeeper:
    """Unix nanoseconds from readings of both clocks, the wall clock read first.

    A process that is interrupted between the two readings reads the steady clock too late, and finds the wall clock's lead
    too small, never too large. So of several readings the largest lead is the most exact.
    """

    def __init__(self, wall_ns: int, steady_ns: int) -> None:
        self._lead_ns = self._truest_ns = wall_ns - steady_ns
        """The time minus the steady clock; and what that difference should be, by the best reading of this period."""
        self._read_ns = steady_ns
        self._period_ends_ns = steady_ns + PERIOD_NS
        self._ahead_ns = 0

    def read(self, wall_ns: int, steady_ns: int) -> int:
        """Return the time at these readings; never less than before."""
        if self._ahead_ns:
            self._lose(steady_ns)
        lead_ns = wall_ns - steady_ns
        if lead_ns > self._truest_ns:  # noqa: PLR1730  # it is read several times a turn, and a call is half of the cost
            self._truest_ns = lead_ns
        if lead_ns > self._lead_ns:
            self._lead_ns, self._ahead_ns = lead_ns, 0
        if steady_ns >= self._period_ends_ns:
            self._judge(lead_ns, steady_ns)
        return steady_ns + self._lead_ns

    def _lose(self, steady_ns: int) -> None:
        """Run slower: lose a part of the time that has passed since the last reading while the clock was ahead."""
        passed_ns, self._read_ns = steady_ns - self._read_ns, steady_ns
        lost_ns = min(self._ahead_ns, passed_ns // SLOWER)
        self._ahead_ns -= lost_ns
        self._lead_ns -= lost_ns

    def _judge(self, lead_ns: int, steady_ns: int) -> None:
        self._read_ns = steady_ns
        ahead_ns = self._lead_ns - self._truest_ns
        self._ahead_ns = ahead_ns if ahead_ns > AHEAD_NS else 0
        self._truest_ns, self._period_ends_ns = lead_ns, steady_ns + PERIOD_NS


class ProcessClock:
    """Unix milliseconds that follow the wall clock and never go back."""

    def __init__(self) -> None:
        self._keeper = Timekeeper(*_look())
        for _ in range(_LOOKS):
            self._keeper.read(*_look())

    def now_ms(self) -> int:
        """Return the time."""
        return self._keeper.read(time.time_ns(), _steady_ns()) // 1_000_000


class SteadyClock:
    """Unix milliseconds as of the start, counted on by the steady clock."""

    def __init__(self) -> None:
        self._lead_ns = max(wall_ns - steady_ns for wall_ns, steady_ns in (_look() for _ in range(_LOOKS)))

    def now_ms(self) -> int:
        """Return the time."""
        return (_steady_ns() + self._lead_ns) // 1_000_000


def _look() -> tuple[int, int]:
    return time.time_ns(), _steady_ns()


if hasattr(time, "CLOCK_BOOTTIME"):

    def _steady_ns() -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)  # looked up each time: the simulation has a clock of its own

else:
    _steady_ns = time.monotonic_ns
