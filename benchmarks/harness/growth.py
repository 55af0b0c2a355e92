"""What processes hold, watched for long, and whether it grows: the medians of two windows of the samples, with a slack for
noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

import psutil

WINDOWS: Final = 6
"""The first one is not judged: caches fill, and windows of time with them."""
RELATIVE: Final = 0.1
SLACK: Final = {
    "MiB": 8.0,
    "descriptors": 50.0,
    "threads": 3.0,
    "files": 100.0,
    "disk MiB": 64.0,
    "queues": 20.0,
    "messages": 500.0,
    "connections": 5.0,
}
"""By unit: how much more there may be, besides a tenth. Files and descriptors: RocksDB joins the files of a family when there
are 12 of them, and a family that is seldom written takes hours to get there. A leak of one for each action would be
thousands."""


@dataclass
class Watched:
    """A figure over time. ``unit``: see :data:`SLACK`."""

    name: str
    unit: str
    times_s: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def windows(self) -> list[float]:
        """Return the medians of its windows, which are equally long."""
        count = len(self.values)
        edges = [count * number // WINDOWS for number in range(WINDOWS + 1)]
        parts = [self.values[begin:end] for begin, end in pairwise(edges)]
        return [median(part) for part in parts if part]

    @property
    def grows(self) -> bool:
        """Whether its last window is above its second one, by more than the slack."""
        return grows(self.windows(), SLACK[self.unit])


def grows(medians: Sequence[float], slack: float) -> bool:
    """Return whether the last median is above the second by more than a tenth and the slack."""
    if len(medians) < WINDOWS:
        return False
    return medians[-1] > medians[1] * (1 + RELATIVE) + slack


class Watch:
    """Watches processes and a directory. Each sample adds a value to each figure."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.figures: dict[tuple[str, str], Watched] = {}

    def sample(self, time_s: float, processes: Mapping[str, psutil.Process], counts: Mapping[str, int]) -> None:
        """Read all of them now. ``counts``: of the cluster, by unit."""
        for name, process in processes.items():
            with process.oneshot():
                self._add(name, "MiB", time_s, process.memory_info().rss / (1 << 20))
                self._add(name, "threads", time_s, process.num_threads())
                self._add(name, "descriptors", time_s, process.num_fds())
        for unit, count in counts.items():
            self._add("cluster", unit, time_s, count)
        files = [path for path in self._directory.rglob("*") if path.is_file()]
        self._add("data directory", "files", time_s, len(files))
        self._add("data directory", "disk MiB", time_s, sum(map(_blocks, files)) / (1 << 20))

    def _add(self, name: str, unit: str, time_s: float, value: float) -> None:
        watched = self.figures.setdefault((name, unit), Watched(name, unit))
        watched.times_s.append(time_s)
        watched.values.append(float(value))

    def line(self) -> str:
        """Return the newest memory of all, for people."""
        return ", ".join(f"{name} {each.values[-1]:.0f} {unit}" for (name, unit), each in self.figures.items())


def _blocks(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:  # compacted away meanwhile
        return 0
