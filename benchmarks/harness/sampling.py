"""A thread of the harness that reads a figure of the server again and again while clients work."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

import psutil

from benchmarks.harness.report.results import Series


class Samples:
    """Values and their times, in seconds since the first one."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.values: list[float] = []

    def add(self, time_s: float, value: float) -> None:
        """Add a value."""
        self.times_s.append(time_s)
        self.values.append(value)

    @property
    def most(self) -> float:
        """The greatest value."""
        return max(self.values, default=0.0)

    def series(self, name: str) -> Series:
        """Return the line of a chart."""
        return Series(name, self.times_s, self.values)


@contextmanager
def sampled(read: Callable[[], float], every_s: float = 0.5) -> Iterator[Samples]:
    """Read a value again and again for the length of a ``with`` block. A process that ends meanwhile has no value."""
    samples, stop, start = Samples(), Event(), time.monotonic()

    def sample() -> None:
        while not stop.is_set():
            with suppress(psutil.Error, OSError, KeyError):
                samples.add(time.monotonic() - start, read())
            stop.wait(every_s)

    thread = Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()
