"""A table for ten thousand rows, sorted, searched and paged here (a browser gets one page); and the cells of tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from nicegui import ui
from nicegui.events import GenericEventArguments

from fila_cluster.figures import aged, clock
from fila_cluster.ops.dashboard.shell.live import LOADING, register

MONO: Final = '<span class="fila-mono">{{ props.value }}</span>'
"""Text in which each character counts: ids, addresses, keys."""

MONO_BROKEN: Final = '<span class="fila-mono" style="white-space: normal; word-break: break-all">{{ props.value }}</span>'
"""The same, broken into lines anywhere, for long texts without spaces."""


def wrapped(width_min: str, look: str = "") -> str:
    """Return the slot of a column whose text is wrapped, at least ``width_min`` (CSS) wide. ``look``: one more class."""
    style = f"white-space: normal; overflow-wrap: anywhere; min-width: {width_min}"
    return f'<div class="{look}" style="{style}">{{{{ props.value }}}}</div>'


def linked(href: str) -> str:
    """Return the slot of a column whose text links to the address in another column of the row."""
    return f'<a :href="props.row.{href}" class="text-primary">{{{{ props.value }}}}</a>'


def short_time(at: datetime) -> str:
    """Return a time in UTC: the time of day, or, if that is long ago, the day and the minute."""
    return clock(at, datetime.now(UTC))


def ago(seconds: float) -> str:
    """Return how long ago something was."""
    return f"{aged(seconds)} ago"


def origin(address: str) -> str:
    """Return the origin of a client. One on a socket file of the same host has no address."""
    return address or "local"


COLOURS: Final = {
    "down": "negative",
    "silent": "negative",
    "breaker": "negative",
    "paused": "warning",
    "unread": "warning",
    "active": "positive",
    "idle": "grey",
}

STATE_SLOT: Final = f'<q-badge :color="({COLOURS!r})[props.value]">{{{{ props.value }}}}</q-badge>'
"""The inside of a table's cell."""


def state_badge() -> ui.badge:
    """Return a badge for :func:`show_state`."""
    return ui.badge("").classes("px-2 py-1").props("data-testid=queue-state")


def show_state(badge: ui.badge, state: str) -> None:
    """Show another state."""
    badge.text = state
    badge.props(f"color={COLOURS.get(state, 'grey')}")


UNKNOWN: Final = "–"
"""The text for a value that is None; it sorts below all others."""

Row: TypeAlias = Any
"""A mapping by column names, or an object with attributes of these names."""

PAGE_SIZES: Final = [25, 50, 100]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """``shown`` makes a text of a value, rows are sorted by the value itself; ``slot``: a Vue template over ``props``."""

    name: str
    label: str
    shown: Callable[[Any], str] = str
    is_number: bool = False
    slot: str | None = None
    is_value: bool = True
    """False: the column has buttons, and no values of rows."""

    def text(self, value: Any) -> str:
        """Return the text of a value."""
        return UNKNOWN if value is None else self.shown(value)


class PagedTable:
    """A table of all rows of the last :meth:`show`. The user's page, order, search and selection stay."""

    def __init__(
        self,
        columns: Sequence[TableColumn],
        *,
        key: str,
        sort_by: str,
        descending: bool = False,
        mark: str,
        search_in: Sequence[str] = (),
        selection: bool = False,
        empty: str = "Nothing here.",
        page_size: int = 25,
        more: Callable[[Row], Mapping[str, Any]] | None = None,
    ) -> None:
        """``key``: the column that identifies rows; ``search_in``: columns whose text is searched; ``more`` adds fields for
        slots, such as addresses, to the rows that are shown."""
        self._columns = {column.name: column for column in columns}
        self._key = key
        self._search_in = search_in
        self._more = more
        self._empty = empty
        self._rows: Sequence[Row] = ()
        self._wanted = ""
        self._page: dict[str, Any] = {
            "page": 1,
            "rowsPerPage": page_size,
            "sortBy": sort_by,
            "descending": descending,
            "rowsNumber": 0,
        }
        if search_in:
            self.search = ui.input(placeholder="Search", on_change=self._searched).props(
                "dense outlined clearable debounce=250"
            )
            self.search.classes("w-72").props(f"data-testid={mark}-search")
        self.table = ui.table(
            rows=[],
            columns=[_quasar(column) for column in columns],
            row_key=key,
            pagination=dict(self._page),
            selection="multiple" if selection else None,
        )
        self.table.props(
            f':rows-per-page-options="{PAGE_SIZES}" no-data-label="{LOADING}" flat bordered dense binary-state-sort'
        )
        self.table.classes("w-full").props(f"data-testid={mark}")
        self.table.on("request", self._requested)
        self.table.on_pagination_change(self._draw)  # a new table reports its first, empty page
        for column in columns:
            if column.slot is not None:
                self.table.add_slot(f"body-cell-{column.name}", f'<q-td :props="props">{column.slot}</q-td>')

        if selection:
            for place, what in (("header", "'select all rows'"), ("body", "`select ${props.key}`")):
                box = f'<q-checkbox v-model="props.selected" dense :aria-label="{what}"></q-checkbox>'
                self.table.add_slot(f"{place}-selection", box)

        register(self)

    @property
    def selected(self) -> list[Any]:
        """The keys of the selected rows."""
        return [row[self._key] for row in self.table.selected]

    def show(self, rows: Sequence[Row], missing: str = "") -> None:
        """Replace all rows. ``missing``: rows that may exist and are unknown."""
        self._rows = rows
        self._say(f"Unknown: {missing}" if missing else self._empty)
        self._draw()

    def unknown(self, reason: str) -> None:
        """Show the reason, if there are no rows."""
        self._say(f"Unknown: {reason}")

    def known(self) -> None:
        """Do nothing: :meth:`show` comes with each answer."""

    def _say(self, text: str) -> None:
        if self.table.props["no-data-label"] != text:
            self.table.props["no-data-label"] = text
            self.table.update()

    def _searched(self) -> None:
        self._wanted = (self.search.value or "").casefold()
        self._page["page"] = 1
        self._draw()

    def _requested(self, event: GenericEventArguments) -> None:
        asked = event.args["pagination"]
        self._page |= {name: asked[name] for name in ("page", "rowsPerPage", "sortBy", "descending")}
        self._draw()

    def _draw(self) -> None:
        found = [row for row in self._rows if self._is_wanted(row)]
        if (order := self._page["sortBy"]) is not None:
            found.sort(key=lambda row: _ordinal(_value(row, order)), reverse=self._page["descending"])
        size = self._page["rowsPerPage"]
        pages = max(1, -(-len(found) // size))
        page = self._page["page"] = max(1, min(self._page["page"], pages))
        self._page["rowsNumber"] = len(found)
        shown = [self._texts(row) for row in found[(page - 1) * size : page * size]]
        if shown != self.table.rows or self._page != self.table.pagination:
            self.table.rows = shown
            self.table.pagination = dict(self._page)

    def _is_wanted(self, row: Row) -> bool:
        return not self._wanted or any(self._wanted in str(_value(row, name)).casefold() for name in self._search_in)

    def _texts(self, row: Row) -> dict[str, Any]:
        more = self._more(row) if self._more else row if isinstance(row, Mapping) else {}
        return {**more, **{name: column.text(_value(row, name)) for name, column in self._columns.items() if column.is_value}}


def _value(row: Row, name: str) -> Any:
    return row[name] if isinstance(row, Mapping) else getattr(row, name)


def _ordinal(value: Any) -> tuple[bool, Any]:
    return (value is not None, value)


def _quasar(column: TableColumn) -> dict[str, Any]:
    return {
        "name": column.name,
        "label": column.label,
        "field": column.name,
        "sortable": column.is_value,
        "sortOrder": "da" if column.is_number else "ad",
        "align": "right" if column.is_number else "left",
    }
