"""The lists of each view: the columns, with numbers for narrow ones; and the sorted and filtered rows, without a screen."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from rich.cells import cell_len

from fila_cluster.figures import ranged
from fila_cluster.ops.analysis.attention import SEVERITIES, Concern
from fila_cluster.ops.analysis.rows import KeyRow, QueueRow, WorkerRow

UNKNOWN: Final = "–"
BARS: Final = "▁▂▃▄▅▆▇"
"""Without the full block: bars of neighbouring lines would run into each other."""


def counted(number: int | None) -> str:
    """Return a number in at most six cells, up to 999 thousand millions: 1,234, 12.3k, 123k, 1.23M."""
    if number is None:
        return UNKNOWN
    return f"{number:,}" if abs(number) < 10_000 else _scaled(number)


def _scaled(number: float) -> str:
    number, unit = _stepped(number, 1000, "kMG")
    digits = 2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0
    return f"{number:.{digits}f}{unit}"


def _stepped(number: float, step: int, units: str) -> tuple[float, str]:
    """Return the number in the first unit in which it has three digits, or in the last one."""
    steps = next((power for power in range(1, len(units)) if abs(number) < 999.5 * step**power), len(units))
    return number / step**steps, units[steps - 1]


def rated(per_second: float | None) -> str:
    """Return a rate; a small one with a digit behind the point."""
    if per_second is None:
        return UNKNOWN
    return f"{per_second:.1f}" if 0 < per_second < 9.95 else counted(round(per_second))


def aged(seconds: float | None) -> str:
    """Return a duration in at most four cells up to 999 days: 0.2s, 12s, 3m, 5h, 12d."""
    if seconds is None:
        return UNKNOWN
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds // length_s:.0f}{unit}"
    return f"{seconds:.0f}s"


def lasted(nanoseconds: float | None) -> str:
    """Return how long something took: 80µs, 1.2ms, 300ms, 1.0s."""
    if nanoseconds is None:
        return UNKNOWN
    if nanoseconds < 1e6:
        return f"{nanoseconds / 1e3:.0f}µs"
    milliseconds = nanoseconds / 1e6
    return f"{milliseconds / 1e3:.1f}s" if milliseconds >= 999.5 else f"{milliseconds:.{int(milliseconds < 9.95)}f}ms"


def sized(number_bytes: int | None) -> str:
    """Return a size: 512B, 12K, 345M, 1.2G."""
    if number_bytes is None:
        return UNKNOWN
    if number_bytes < 1024:
        return f"{number_bytes}B"
    size, unit = _stepped(number_bytes, 1024, "KMG")
    return f"{size:.{int(size < 9.95)}f}{unit}"


def shared(part: float | None) -> str:
    """Return a part of one, in per cent."""
    if part is None:
        return UNKNOWN
    if 0 < part < 0.0005:
        return "<0.1%"
    return f"{part:.1%}" if 0 < part < 0.0995 else f"{part:.0%}"


def sparkline(values: Sequence[int], width: int) -> str:
    """Return the last values as bars, the highest one full; zeros are blank, and values of one or two are low bars."""
    shown = values[-width:]
    highest = max(len(BARS), *shown) if shown else 0
    return "".join(" " if not value else BARS[(value * len(BARS) - 1) // highest] for value in shown)


def printable(text: str) -> str:
    """Return a text without characters that would move the cursor or change the terminal."""
    return text if text.isprintable() else "".join(each if each.isprintable() else "�" for each in text)


R = TypeVar("R")

PLAIN: Final = ""
BAD: Final = "bold red"
WARNING: Final = "bold yellow"
GOOD: Final = "green"
FAINT: Final = "dim"
BARS_STYLE: Final = "cyan"

SPARK_CELLS: Final = 16


def _plain(_: Any) -> str:
    return PLAIN


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """One column.

    ``order``: its sort key; None comes last in both directions. ``cells`` 0: it takes the rest of the room, as far as its
    texts need it. ``right``: numbers, highest first; else text, from A to Z. ``screen_cells``: narrower screens leave it out.
    """

    title: str
    cells: int
    text: Callable[[R], str]
    order: Callable[[R], Any]
    style: Callable[[R], str] = _plain
    right: bool = True
    screen_cells: int = 0


# --- queues -----------------------------------------------------------------------------------------------------------

_STATE_STYLES: Final = {
    "down": BAD,
    "silent": BAD,
    "breaker": BAD,
    "paused": WARNING,
    "unread": WARNING,
    "active": GOOD,
    "idle": FAINT,
}

QUEUES: Final[tuple[Column[QueueRow], ...]] = (
    Column("queue", 0, lambda row: printable(row.name), lambda row: row.name, right=False),
    Column("state", 7, lambda row: row.state, lambda row: row.state, lambda row: _STATE_STYLES[row.state], right=False),
    Column("pend", 6, lambda row: counted(row.pending), lambda row: row.pending),
    Column("leased", 6, lambda row: counted(row.in_flight), lambda row: row.in_flight),
    Column("delay", 6, lambda row: counted(row.delayed), lambda row: row.delayed),
    Column("old", 4, lambda row: aged(row.oldest_pending_age), lambda row: row.oldest_pending_age),
    Column(
        "cons",
        4,
        lambda row: counted(row.consumers),
        lambda row: row.consumers,
        lambda row: WARNING if row.state == "unread" else PLAIN,
    ),
    Column("in/s", 5, lambda row: rated(row.enqueued_per_s), lambda row: row.enqueued_per_s),
    Column("out/s", 5, lambda row: rated(row.delivered_per_s), lambda row: row.delivered_per_s),
    Column("ack/s", 5, lambda row: rated(row.acked_per_s), lambda row: row.acked_per_s, screen_cells=90),
    Column(
        "dead",
        5,
        lambda row: counted(row.dead_letters),
        lambda row: row.dead_letters,
        lambda row: BAD if row.dead_letters else PLAIN,
    ),
    Column("shard", 5, lambda row: str(row.shard), lambda row: row.shard, screen_cells=100),
    Column(
        "depth",
        SPARK_CELLS,
        lambda row: sparkline(row.depths, SPARK_CELLS),
        lambda row: row.depth,
        lambda row: BARS_STYLE,
        screen_cells=110,
    ),
)

# --- fairness keys ----------------------------------------------------------------------------------------------------


def _share_style(row: KeyRow) -> str:
    """Return the style of a key that gets less than three quarters of its due share."""
    behind = row.share_due is not None and row.share is not None and row.share < 0.75 * row.share_due
    return WARNING if behind else PLAIN


KEYS: Final[tuple[Column[KeyRow], ...]] = (
    Column("fairness key", 0, lambda row: printable(row.fairness_key), lambda row: row.fairness_key, right=False),
    Column(
        "state", 6, lambda row: "paused" if row.paused else "", lambda row: not row.paused, lambda row: WARNING, right=False
    ),
    Column("weight", 6, lambda row: counted(row.weight), lambda row: row.weight),
    Column("pend", 6, lambda row: counted(row.pending), lambda row: row.pending),
    Column("leased", 6, lambda row: counted(row.in_flight), lambda row: row.in_flight),
    Column("delay", 6, lambda row: counted(row.delayed), lambda row: row.delayed),
    Column("out/s", 6, lambda row: rated(row.delivered_per_s), lambda row: row.delivered_per_s),
    Column("due", 5, lambda row: shared(row.share_due), lambda row: row.share_due),
    Column("got", 5, lambda row: shared(row.share), lambda row: row.share, _share_style),
)

# --- workers ----------------------------------------------------------------------------------------------------------


def _busy_style(row: WorkerRow) -> str:
    return WARNING if row.cpu is not None and row.cpu >= 0.9 else PLAIN


WORKERS: Final[tuple[Column[WorkerRow], ...]] = (
    Column("worker", 0, lambda row: printable(row.name), lambda row: row.name, right=False),
    Column("pid", 8, lambda row: str(row.pid), lambda row: row.pid),
    Column(
        "state", 5, lambda row: row.state, lambda row: row.state, lambda row: GOOD if row.state == "up" else BAD, right=False
    ),
    Column("queues", 6, lambda row: counted(row.queues), lambda row: row.queues, screen_cells=90),
    Column("rss", 5, lambda row: sized(row.rss_bytes), lambda row: row.rss_bytes),
    Column("cpu", 5, lambda row: shared(row.cpu), lambda row: row.cpu, _busy_style),
    Column("turn p50", 8, lambda row: lasted(row.turn_p50_ns), lambda row: row.turn_p50_ns),
    Column("p99", 6, lambda row: lasted(row.turn_p99_ns), lambda row: row.turn_p99_ns),
    Column("commit p99", 10, lambda row: lasted(row.commit_p99_ns), lambda row: row.commit_p99_ns),
    Column("shards", 8, lambda row: ranged(row.shards), lambda row: row.shards, right=False),
)

# --- attention --------------------------------------------------------------------------------------------------------

SEVERITY_STYLES: Final = {"critical": BAD, "warning": WARNING, "info": PLAIN}

CONCERNS: Final[tuple[Column[Concern], ...]] = (
    Column(
        "severity",
        9,
        lambda row: row.severity,
        lambda row: SEVERITIES.index(row.severity),
        lambda row: SEVERITY_STYLES[row.severity],
        right=False,
    ),
    Column("what needs attention", 0, lambda row: printable(row.text), lambda row: row.text, right=False),
)


class SortedRows(Generic[R]):
    """Rows in order, ``height`` of which are visible. ``name_of`` identifies rows; filters search it, or ``text_of``.

    Rows that are equal by the column keep their order. The cursor stays with its row when the order changes, because a key
    acts on the row that the user saw; only on the first line it stays on the line, because a list is watched from there.
    """

    def __init__(
        self,
        columns: Sequence[Column[R]],
        name_of: Callable[[R], str],
        sort: int = 0,
        text_of: Callable[[R], str] | None = None,
    ) -> None:
        self.columns = columns
        self.rows: list[R] = []
        self.total = 0
        """Rows before filtering."""
        self.longest_cells = 0
        """The longest text of a row, those that are filtered out included."""
        self.wanted = ""
        self.sort, self.backwards = sort, columns[sort].right
        self.cursor = self.top = 0
        self.height, self.width = 1, 0
        self._name_of, self._text_of = name_of, text_of or name_of
        self._all: list[R] = []

    @property
    def chosen(self) -> R | None:
        """The row under the cursor; None: there is no row."""
        return self.rows[self.cursor] if self.rows else None

    def visible(self) -> list[R]:
        """Return the visible rows."""
        return self.rows[self.top : self.top + self.height]

    def shown_columns(self) -> list[Column[R]]:
        """Return the columns that there is room for."""
        return [column for column in self.columns if column.screen_cells <= self.width]

    # --- contents -----------------------------------------------------------------------------------------------------

    def fill(self, rows: Iterable[R]) -> None:
        """Take in new rows."""
        self._all = list(rows)
        self.total = len(self._all)
        self.longest_cells = max((cell_len(self._text_of(row)) for row in self._all), default=0)
        self._arrange()

    def filter_by(self, text: str) -> None:
        """Show only rows with this in their names, in upper or lower case."""
        self.wanted = text.strip().casefold()
        self._arrange()

    def sort_by(self, column: int) -> None:
        """Sort by a column; by the same one again: backwards."""
        if column == self.sort:
            self.backwards = not self.backwards
        else:
            self.sort, self.backwards = column, self.columns[column].right
        self._arrange()

    def sort_beside(self, step: int) -> None:
        """Sort by the next column in this direction that there is room for."""
        shown = [self.columns.index(column) for column in self.shown_columns()]
        place = shown.index(self.sort) if self.sort in shown else 0
        self.sort_by(shown[(place + step) % len(shown)])

    def _arrange(self) -> None:
        chosen = self.chosen
        rows = [row for row in self._all if self.wanted in self._text_of(row).casefold()] if self.wanted else self._all
        self.rows = _in_order(rows, self.columns[self.sort].order, backwards=self.backwards)
        if chosen is not None and self.cursor:
            name = self._name_of(chosen)
            self.cursor = next((place for place, row in enumerate(self.rows) if self._name_of(row) == name), self.cursor)
        self.go(self.cursor)

    # --- position -----------------------------------------------------------------------------------------------------

    def resize(self, width: int, height: int) -> None:
        """Set the room in cells and rows."""
        self.width, self.height = width, max(1, height)
        self.go(self.cursor)

    def move(self, by: int) -> None:
        """Move the cursor down, or up."""
        self.go(self.cursor + by)

    def go(self, to: int) -> None:
        """Put the cursor on a row, or the nearest there is, and make it visible."""
        self.cursor = max(0, min(to, len(self.rows) - 1))
        lowest, highest = self.cursor - self.height + 1, self.cursor
        self.top = max(0, min(max(self.top, lowest), highest, max(0, len(self.rows) - self.height)))


def _in_order(rows: list[R], order: Callable[[R], Any], *, backwards: bool) -> list[R]:
    """Return rows sorted, unknown values last."""
    known = [row for row in rows if order(row) is not None]
    known.sort(key=order, reverse=backwards)
    return known + [row for row in rows if order(row) is None]
