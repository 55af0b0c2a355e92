"""A listing on the screen. Only visible rows are drawn, each as one line, so their number does not matter.

Rejected: Textual's ``DataTable``. It keeps an object for each cell, and filling it with 10,000 rows takes one of every two
seconds.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click, MouseScrollDown, MouseScrollUp, Resize
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from fila_cluster.ops.top.columns import Column, SortedRows

R = TypeVar("R")

NAME_CELLS_MIN: Final = 12
"""The least room of the column that takes the rest."""
NAME_CELLS: Final = 24
"""The room of that column, if its texts are shorter: columns should not jump with each new name."""
GAP: Final = 1
WHEEL_ROWS: Final = 3
_HEAD: Final = Style(bold=True)
_SORTED: Final = Style(bold=True, color="cyan")
_CURSOR: Final = Style(reverse=True)


class Grid(Widget, Generic[R], can_focus=True):
    """Draws a listing, and moves in it."""

    DEFAULT_CSS = "Grid { height: 1fr; }"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "go(0)", show=False),
        Binding("end,G", "go(-1)", show=False),
        Binding("left,less_than_sign", "sort(-1)", show=False),
        Binding("right,greater_than_sign", "sort(1)", show=False),
        Binding("s", "reverse", show=False),
        Binding("enter", "enter", show=False),
    ]

    class Entered(Message):
        """The user opens the chosen row."""

    class Moved(Message):
        """The visible rows or their order have changed."""

    def __init__(self, listing: SortedRows[R], *, id: str) -> None:  # noqa: A002 # Textual's name for it
        super().__init__(id=id)
        self.listing = listing
        self._empty = ""

    def fill(self, rows: Sequence[R], empty: str) -> None:
        """Show these rows; if there are none, ``empty``."""
        self.listing.fill(rows)
        self._empty = empty
        self.refresh()

    def changed(self) -> None:
        """Draw it again, and report the change."""
        self.refresh()
        self.post_message(self.Moved())

    # --- drawing ------------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """Draw one line: titles, then rows."""
        strip = Strip(self._line(y)).extend_cell_length(self.size.width).crop(0, self.size.width)
        chosen = self.listing.top + y - 1 == self.listing.cursor and y <= len(self.listing.visible())
        return strip.apply_style(self.rich_style + _CURSOR if chosen and y else self.rich_style)

    def _line(self, y: int) -> list[Segment]:
        if y == 0:
            return self._titles(self._columns())
        rows = self.listing.visible()
        if y <= len(rows):
            return _cells(self._columns(), rows[y - 1], chosen=self.listing.top + y - 1 == self.listing.cursor)
        return [Segment(f"  {self._empty}", Style(dim=True))] if not rows and y == 2 else []

    def _columns(self) -> list[tuple[Column[R], int]]:
        """Return the columns that there is room for, with their cells."""
        columns = self.listing.shown_columns()
        room = self.size.width - sum(column.cells + GAP for column in columns)
        rest = max(NAME_CELLS_MIN, min(room, max(NAME_CELLS, self.listing.longest_cells)))
        return [(column, column.cells or rest) for column in columns]

    def _titles(self, columns: list[tuple[Column[R], int]]) -> list[Segment]:
        sorted_by = self.listing.columns[self.listing.sort]
        segments = []
        for column, cells in columns:
            style = _SORTED if column is sorted_by else _HEAD
            mark = ("▼" if self.listing.backwards else "▲") if column is sorted_by else ""
            title = column.title[: cells - len(mark)] + mark
            segments += [Segment(_set(title, cells, right=column.right), style), Segment(" " * GAP)]
        return segments

    # --- moving -------------------------------------------------------------------------------------------------------

    def on_resize(self, event: Resize) -> None:
        """Fit the listing to the new size."""
        self.listing.resize(event.size.width, event.size.height - 1)
        self.changed()

    def action_move(self, by: int) -> None:
        """Move the cursor by rows."""
        self.listing.move(by)
        self.changed()

    def action_page(self, by: int) -> None:
        """Move the cursor by pages."""
        self.action_move(by * self.listing.height)

    def action_go(self, to: int) -> None:
        """Go to the first row, or the last one (-1)."""
        self.listing.go(len(self.listing.rows) - 1 if to < 0 else to)
        self.changed()

    def action_sort(self, step: int) -> None:
        """Sort by the next column in this direction."""
        self.listing.sort_beside(step)
        self.changed()

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self.listing.sort_by(self.listing.sort)
        self.changed()

    def action_enter(self) -> None:
        """Open this row."""
        self.post_message(self.Entered())

    def on_mouse_scroll_down(self, _: MouseScrollDown) -> None:
        """Move the cursor with the wheel."""
        self.action_move(WHEEL_ROWS)

    def on_mouse_scroll_up(self, _: MouseScrollUp) -> None:
        """Move the cursor with the wheel."""
        self.action_move(-WHEEL_ROWS)

    def on_click(self, event: Click) -> None:
        """Sort by a clicked title; choose a clicked row, and open it with a double click."""
        if event.y == 0:
            column = _column_at(self._columns(), event.x)
            if column is not None:
                self.listing.sort_by(self.listing.columns.index(column))
        elif self.listing.top + event.y - 1 < len(self.listing.rows):
            self.listing.go(self.listing.top + event.y - 1)
            if event.chain == 2:
                self.action_enter()
        self.changed()


def _cells(columns: list[tuple[Column[R], int]], row: R, *, chosen: bool) -> list[Segment]:
    segments = []
    for column, cells in columns:
        style = Style.null() if chosen else Style.parse(column.style(row))
        segments += [Segment(_set(column.text(row), cells, right=column.right), style), Segment(" " * GAP)]
    return segments


def _set(text: str, cells: int, *, right: bool) -> str:
    """Return a text in this many cells: cut with a mark, or filled up."""
    length = cell_len(text)
    if length > cells:
        return set_cell_size(text, cells - 1) + "…"
    blank = " " * (cells - length)
    return blank + text if right else text + blank


def _column_at(columns: list[tuple[Column[Any], int]], x: int) -> Column[Any] | None:
    edge = 0
    for column, cells in columns:
        edge += cells + GAP
        if x < edge:
            return column
    return None
