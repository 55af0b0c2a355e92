"""The latest changes of the runtime config as a table, each with an undo."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from fila_cluster import ConfigVersion
from fila_cluster.errors import FilaError, InvalidConfigError
from fila_cluster.ops.dashboard.shell.context import Context
from fila_cluster.ops.dashboard.shell.live import confirm, notify, notify_error
from fila_cluster.ops.dashboard.widgets.paged_table import MONO_BROKEN, PagedTable, TableColumn, short_time

SHOWN: Final = 200
"""The latest changes that are asked for."""

_UNDO: Final = """
<q-btn dense flat size="sm" icon="undo" @click="$parent.$emit('undo', props.row)" aria-label="undo change">
<q-tooltip>Bring back the value before</q-tooltip></q-btn>
"""

_HISTORY_COLUMNS: Final = (
    TableColumn("version", "Version", is_number=True),
    TableColumn("at", "At (UTC)", short_time),
    TableColumn("by", "API key"),
    TableColumn("key", "Key", slot=MONO_BROKEN),
    TableColumn("old", "Before", slot=MONO_BROKEN),
    TableColumn("new", "After", slot=MONO_BROKEN),
    TableColumn("actions", "", slot=_UNDO, is_value=False),
)


class ConfigHistoryTable:
    """``changed`` is awaited after each undo. ``prefix``: only changes of keys that begin with it are shown."""

    def __init__(self, context: Context, changed: Callable[[], Awaitable[None]], prefix: str = "") -> None:
        self._context = context
        self._changed = changed
        self._prefix = prefix
        with ui.row().classes("items-baseline gap-3"):
            ui.label("History").classes("text-lg font-semibold")
            ui.label("the latest changes; an undo is a change, too").classes("fila-quiet")
        self._table = PagedTable(
            _HISTORY_COLUMNS,
            key="version",
            sort_by="version",
            descending=True,
            mark="config-history",
            search_in=("key", "by", "old", "new"),
            empty="No change is remembered.",
            page_size=10,
        )
        self._table.table.on("undo", self._undo)

    async def look(self) -> None:
        """Ask for the changes."""
        edits = await self._context.client.config_history(limit=SHOWN)
        self._table.show([_row(edit) for edit in edits if edit.key.startswith(self._prefix)])

    async def _undo(self, event: GenericEventArguments) -> None:
        row = event.args
        version = int(row["version"].replace(",", ""))
        if not await confirm(
            f"Bring back {row['key']} as it was before version {version}?\n{row['tells']}", yes="Undo", danger=False
        ):
            return
        client = self._context.client
        try:
            try:
                await client.undo_config(version)
            except InvalidConfigError as error:
                if not await confirm(f"{error}\nBring the old value back all the same?", yes="Undo all the same"):
                    return
                await client.undo_config(version, force=True)
        except FilaError as error:
            notify_error(str(error))
            return
        notify(f"{row['key']} is as it was before version {version}")
        await self._changed()


def _row(edit: ConfigVersion) -> dict[str, Any]:
    tells = "It had no value before: it is deleted." if edit.old is None else f"It becomes {edit.old!r} again."
    return {
        "version": edit.version,
        "at": edit.at,
        "by": edit.by or None,
        "key": edit.key,
        "old": edit.old,
        "new": edit.new,
        "tells": tells,
    }
