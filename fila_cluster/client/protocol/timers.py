"""Times at which a session has something to do for a caller, without a call that has a deadline of its own."""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

_STALE_MIN = 64
"""Cancelled timers are dropped together, once there are so many and they are the larger part."""


@dataclass(slots=True, eq=False)
class SessionTimer:
    """One date. ``then`` is None once it is over."""

    when: float
    then: Callable[[], object] | None


class Timers:
    """Timers in the order of their dates, in monotonic seconds. ``heap`` is empty if there is none."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, SessionTimer]] = []
        self._numbers = count()
        self._stale = 0

    def __len__(self) -> int:
        return len(self.heap)

    @property
    def due_at(self) -> float:
        """When to call :meth:`tick`; it may be too early."""
        return self.heap[0][0] if self.heap else math.inf

    def at(self, when: float, then: Callable[[], object]) -> SessionTimer:
        """Call ``then`` at a time, once."""
        timer = SessionTimer(when, then)
        heapq.heappush(self.heap, (when, next(self._numbers), timer))
        return timer

    def cancel(self, timer: SessionTimer) -> None:
        """Do not call it; no effect if it was called."""
        if timer.then is None:
            return
        timer.then = None
        self._stale += 1
        if self._stale >= _STALE_MIN and 2 * self._stale > len(self.heap):
            self.heap = [entry for entry in self.heap if entry[2].then is not None]
            heapq.heapify(self.heap)
            self._stale = 0

    def tick(self, now: float) -> None:
        """Call the timers that are due."""
        while self.heap and self.heap[0][0] <= now:
            timer = heapq.heappop(self.heap)[2]
            then, timer.then = timer.then, None
            if then is None:
                self._stale -= 1
            else:
                then()
