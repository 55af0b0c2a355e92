"""A list that is sorted and filtered, without a screen: the visible rows, and the chosen one.

The cursor stays with its row when the order changes, because a key acts on the row that the user saw. Only on the first line
it stays on the line, because a list is watched from there. A sort of all rows for each picture takes a few ms for 10,000.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from rich.cells import cell_len

from fila_cluster.ops.top.columns import Column

R = TypeVar("R")


class Listing(Generic[R]):
    """Rows in order, ``height`` of which are visible. ``name_of`` identifies rows; filters search it, or ``text_of``.

    Rows that are equal by the column keep their order.
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
