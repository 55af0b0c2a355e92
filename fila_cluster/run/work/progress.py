"""The counts of all processes, and their line in the terminal."""

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fila_cluster.app.telemetry import Tally

RATE_OVER_S: Final = 5.0
PASSING: Final = ("in_hand", "overdue")
"""Present counts; the others are sums."""

ENDS: Final = {
    "nack": "nacked",
    "retry": "retried",
    "fail": "dead-lettered",
    "defer": "deferred",
    "lost": "lost",
    "given_back": "given back",
}


class ProgressBoard:
    """The counts of all processes, past ones included."""

    def __init__(self) -> None:
        self._past: Counter[str] = Counter()
        self._now: dict[int, Counter[str]] = {}
        self._ended: deque[tuple[float, int]] = deque()

    def counted(self, number: int, tallies: dict[str, Tally], now: float) -> None:
        """Note the report of a process."""
        total: Counter[str] = Counter()
        for tally in tallies.values():
            total.update(asdict(tally))
        self._now[number] = total
        self._ended.append((now, self._all_ended()))
        while len(self._ended) > 1 and self._ended[1][0] < now - RATE_OVER_S:
            self._ended.popleft()

    def ended(self, number: int) -> None:
        """Keep the sums of a process that has ended."""
        last = self._now.pop(number, Counter())
        self._past.update({name: count for name, count in last.items() if name not in PASSING})

    def totals(self) -> Counter[str]:
        """Return the counts of all."""
        return sum(self._now.values(), self._past.copy())

    def rate(self) -> float:
        """Return how many deliveries a second have ended lately."""
        if len(self._ended) < 2:
            return 0.0
        (since, before), (until, after) = self._ended[0], self._ended[-1]
        return (after - before) / (until - since) if until > since else 0.0

    def text(self, processes: int) -> str:
        """Return the line."""
        totals = self.totals()
        parts = [
            f"{processes} {'process' if processes == 1 else 'processes'}",
            f"{totals['ack'] + totals['own']:,} done",
            f"{self.rate():,.0f}/s",
            f"{totals['in_hand']:,} in hand",
            *(f"{totals[name]:,} {word}" for name, word in ENDS.items() if totals[name]),
        ]
        if totals["overdue"]:
            parts.append(f"{totals['overdue']:,} over their time limit")
        return " · ".join(parts)

    def _all_ended(self) -> int:
        totals = self.totals()
        return totals.total() - sum(totals[name] for name in PASSING)


Write = Callable[[str], None]
"""Write a line above the progress line."""


@contextmanager
def shown(console: Console, line: Callable[[], str]) -> Iterator[tuple[Write, Callable[[], None]]]:
    """Show a line at the bottom of a terminal. Yield how to write lines above it, and how to draw it again."""
    redirect = sys.stdout.isatty()  # else it is a pipe or a file, whose reader wants what is printed
    with Live(console=console, transient=True, auto_refresh=False, redirect_stdout=redirect, redirect_stderr=False) as live:

        def write(text: str) -> None:
            live.console.print(Text.from_ansi(text), soft_wrap=True)

        def draw() -> None:
            live.update(Text(f"{time.strftime('%H:%M:%S')}  {line()}", no_wrap=True, overflow="ellipsis"), refresh=True)

        yield write, draw
