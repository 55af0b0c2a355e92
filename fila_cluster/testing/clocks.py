"""The clocks of the kit: one that goes where a test wants it, and the world's."""

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from fila_cluster.testing.memory import MemoryBroker
from fila_proto_zmq.errors import InvalidArgumentError

WAIT_S_MAX: Final = 30.0
"""The longest wait on a real broker."""
ADVANCE_S_MAX: Final = 10 * 365 * 86_400.0
"""Ten years: more is a mistake in the unit."""


class Clock(Protocol):
    """The time of the broker of a test."""

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass, and have the broker and its clients do what is due by then."""

    def now(self) -> datetime:
        """Return the time, in UTC."""


class VirtualClock:
    """The clock of a broker in memory. It begins at the time of the day, and stands still unless the test moves it."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass at once, and have the broker and its clients do what is due by then, in order."""
        self._broker.advance(round(1000 * checked("advance", seconds)))

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return self._broker.now_at

    def __repr__(self) -> str:
        return f"<VirtualClock, {self._broker.age:g} s after its start>"


class RealClock:
    """The time of a broker outside: to advance is to wait."""

    def __init__(self, too_long: Callable[[str], object], wait_s_max: float = WAIT_S_MAX) -> None:
        """``too_long(why)`` is called instead of a longer wait than ``wait_s_max``."""
        self._too_long = too_long
        self._wait_s_max = wait_s_max

    def advance(self, seconds: float) -> None:
        """Wait for so many seconds."""
        if checked("advance", seconds) > self._wait_s_max:
            self._too_long(
                f"clock.advance({seconds:g}) would wait for longer than {self._wait_s_max:g} s on a real broker (--fila-wait-max)"
            )
            return
        time.sleep(seconds)

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return datetime.now(UTC)


def checked(name: str, seconds: Any) -> float:
    """Return a number of seconds; raise :class:`InvalidArgumentError` for what is none."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
        raise InvalidArgumentError(f"{name}: {seconds!r} is no number of seconds")
    if not 0 <= seconds <= ADVANCE_S_MAX:
        raise InvalidArgumentError(f"{name}: {seconds:g} is not from 0 to {ADVANCE_S_MAX:g} s (ten years)")
    return float(seconds)
