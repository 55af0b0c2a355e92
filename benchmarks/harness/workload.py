"""What a benchmark is: a function over a :class:`Run`, and three sizes of the same numbers.

A module of a benchmark ends with ``BENCHMARK = Benchmark("name", measure, tiny=…, small=…, full=…)``. The sizes are instances
of one frozen dataclass; each of its fields becomes an option of the command, with the documentation that its metadata has
(:func:`number`).
"""

import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.progress import track

from benchmarks.harness.machine import Machine, this_machine
from benchmarks.harness.report.histogram import Histogram
from benchmarks.harness.report.results import FORMAT, SIZES, Chart, Figure, Promise, Result, Verified
from benchmarks.harness.systems import Server, Serves

Scale = TypeVar("Scale")
Scale_co = TypeVar("Scale_co", covariant=True)
Item = TypeVar("Item")
ServerType = TypeVar("ServerType", bound=Server)


def number(help_text: str, default: Any = dataclasses.MISSING) -> Any:
    """Return a field of a size, with the help of its option."""
    return field(default=default, metadata={"help": help_text})


def choice(help_text: str, choices: Sequence[str]) -> Any:
    """Return a field of a size that has one of some values; the first one is the default."""
    return field(default=choices[0], metadata={"help": help_text, "choices": list(choices)})


@dataclass(frozen=True)
class Benchmark(Generic[Scale]):
    """One command. Its documentation is that of the module of ``measure``."""

    name: str
    measure: "Callable[[Run[Scale]], None]"
    tiny: Scale
    small: Scale
    full: Scale

    @property
    def documentation(self) -> str:
        """The text of its module."""
        return (sys.modules[self.measure.__module__].__doc__ or "").strip()

    def scale(self, size: str, changes: Mapping[str, Any] = {}) -> Scale:
        """Return the numbers of a size, with some of them changed."""
        numbers: Any = {"tiny": self.tiny, "small": self.small, "full": self.full}[size]
        scale: Scale = dataclasses.replace(numbers, **changes)
        return scale

    def run(
        self, size: str = "small", changes: Mapping[str, Any] = {}, command: str = "", console: Console | None = None
    ) -> Result:
        """Measure, and return the result."""
        assert size in SIZES, size
        run = Run(self.scale(size, changes), size, console or Console(stderr=True))
        self.measure(run)
        return run.result(self.name, command)


class Run(Generic[Scale_co]):
    """One run of a benchmark: its numbers, and what it finds out."""

    def __init__(self, scale: Scale_co, size: str, console: Console) -> None:
        self.scale = scale
        self.size = size
        self.console = console
        self.verified = Verified()
        self._machine: Machine = this_machine()
        self._started_at = datetime.now(UTC)
        self._started = time.monotonic()
        self._figures: dict[tuple[str, str, str], Figure] = {}
        self._charts: list[Chart] = []
        self._promises: list[Promise] = []
        self._notes: list[str] = []
        self._histograms: dict[str, str] = {}
        self._systems: dict[str, dict[str, str]] = {}

    # --- what a benchmark does ----------------------------------------------------------------------------------------

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """Return an empty temporary directory."""
        with tempfile.TemporaryDirectory(prefix="fila-bench-") as path:
            yield Path(path)

    @contextmanager
    def serving(self, system: "Serves[ServerType]") -> Iterator[ServerType]:
        """Start a system with an empty data directory: what one figure leaves for the disk must not count for another."""
        with self.directory() as path, system.serve(path / "data") as server:
            self._systems[system.name] = dict(server.facts)
            yield server

    def rounds(self, count: int, variants: Iterable[Item], title: str = "") -> Iterator[Item]:
        """Yield the variants in turn, ``count`` times. Odd rounds go backwards, so that a drift of the machine is in all of
        them."""
        several = list(variants)
        steps = [item for turn in range(count) for item in (several[::-1] if turn % 2 else several)]
        yield from track(steps, title or "measuring", console=self.console, transient=True)

    # --- what a benchmark finds out -----------------------------------------------------------------------------------

    def figure(self, table: str, row: str, column: str, unit: str, *values: float) -> None:
        """Add values to a cell of a table: usually one for each round."""
        cell = self._figures.setdefault((table, row, column), Figure(table, row, column, unit, []))
        cell.values.extend(map(float, values))

    def values(self, table: str, row: str, column: str) -> list[float]:
        """Return the values of a cell."""
        return self._figures[table, row, column].values

    def cells(self) -> list[tuple[str, str, str]]:
        """Return the table, row and column of each figure."""
        return list(self._figures)

    def chart(self, chart: Chart) -> None:
        """Add a chart of lines."""
        self._charts.append(chart)

    def histogram(self, name: str, histogram: Histogram) -> None:
        """Keep a histogram with the result."""
        self._histograms[name] = histogram.encoded()

    def promise(self, text: str, kept: bool) -> None:
        """Note a limit that the documentation promises, and whether it was kept."""
        self._promises.append(Promise(text, bool(kept)))

    def note(self, text: str) -> None:
        """Add a sentence that stands below the tables."""
        self._notes.append(text)

    def verify(self, verified: Verified) -> None:
        """Count messages that were checked. A message that is lost, damaged or repeated ends the benchmark."""
        self.verified.add(verified)
        if not verified.sound:
            raise SystemExit(f"messages are not what was sent: {verified}")

    def system(self, name: str, facts: Mapping[str, str]) -> None:
        """Note what was measured, where :meth:`serving` does not."""
        self._systems[name] = dict(facts)

    def result(self, name: str, command: str) -> Result:
        """Return what was found out."""
        names = [each.name for each in dataclasses.fields(self.scale)]  # type: ignore[arg-type]
        scale = {name: getattr(self.scale, name) for name in names}
        return Result(
            FORMAT,
            name,
            self.size,
            command,
            self._started_at,
            round(time.monotonic() - self._started, 1),
            self._machine,
            scale,
            self._systems,
            list(self._figures.values()),
            self._charts,
            self._promises,
            self._notes,
            self.verified,
            self._histograms,
        )
