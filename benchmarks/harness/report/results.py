"""The results of a run, as they are kept in a JSON file.

A table is made of figures: each has a row, a column and a value for each round. Tables, plots and the page are made from the
file alone, so they can be made again on any machine.
"""

import json
from datetime import datetime
from pathlib import Path

import msgspec

from benchmarks.harness.machine import Machine

FORMAT = 1
FOLDER = Path(__file__).parents[2] / "results"
"""Where results are kept unless ``--results`` names another folder. Git ignores it."""


class Figure(msgspec.Struct, frozen=True):
    """One cell of a table: a value for each round. ``unit``: as it is printed ("/s", "ms", "MiB", "µs", "s", "×", "%",
    "")."""

    table: str
    row: str
    column: str
    unit: str
    values: list[float]


class Series(msgspec.Struct, frozen=True):
    """A line of a chart."""

    name: str
    x: list[float]
    y: list[float]


class Chart(msgspec.Struct, frozen=True):
    """A chart of lines. Charts of bars are made from tables."""

    title: str
    x_label: str
    y_label: str
    series: list[Series]
    x_log: bool = False
    y_log: bool = False
    x_percentiles: bool = False
    """The x values are percentiles: 90, 99 and 99.9 stand at equal distances."""


class Promise(msgspec.Struct, frozen=True):
    """A limit that the benchmark judges, and whether it was kept."""

    text: str
    kept: bool


class Verified(msgspec.Struct):
    """Messages that were sent and came back. Counts; ``damaged``: payloads that are not what was sent."""

    sent: int = 0
    received: int = 0
    missing: int = 0
    repeated: int = 0
    damaged: int = 0

    @property
    def sound(self) -> bool:
        """Whether each message came once, as it was sent."""
        return not (self.missing or self.repeated or self.damaged)

    def add(self, other: "Verified") -> None:
        """Add the counts of another check."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Result(msgspec.Struct):
    """One run of one benchmark."""

    format: int
    name: str
    size: str
    command: str
    started_at: datetime
    seconds: float
    machine: Machine
    scale: dict[str, float | int | str | bool]
    """The numbers of the size, with the changes of the command line."""
    systems: dict[str, dict[str, str]]
    """What was measured, by name: version, durability, client library, way."""
    figures: list[Figure]
    charts: list[Chart]
    promises: list[Promise]
    notes: list[str]
    verified: Verified
    histograms: dict[str, str]
    """Histograms of latencies in ns, as HdrHistogram writes them (``HdrHistogram.decode``)."""

    @property
    def kept(self) -> bool:
        """Whether all promises were kept."""
        return all(promise.kept for promise in self.promises)

    def tables(self) -> dict[str, list[Figure]]:
        """Return the figures by table, in the order in which they were added."""
        found: dict[str, list[Figure]] = {}
        for figure in self.figures:
            found.setdefault(figure.table, []).append(figure)
        return found


def write(result: Result, folder: Path) -> Path:
    """Write a result into a file of its own. Return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.name}-{result.size}-{result.started_at:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(msgspec.to_builtins(result), indent=1, ensure_ascii=False) + "\n")
    return path


def read(path: Path) -> Result:
    """Return the result of a file."""
    return msgspec.json.decode(path.read_bytes(), type=Result)


SIZES = ("tiny", "small", "full")


def newest(folder: Path) -> dict[str, Result]:
    """Return the result to show for each benchmark: of the largest size, the newest."""
    best: dict[str, Result] = {}
    for path in sorted(folder.glob("*.json")):
        result = read(path)
        other = best.get(result.name)
        if other is None or _rank(result) >= _rank(other):
            best[result.name] = result
    return best


def _rank(result: Result) -> tuple[int, datetime]:
    return SIZES.index(result.size), result.started_at
