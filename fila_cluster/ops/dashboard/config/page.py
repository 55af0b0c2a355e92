"""``/config``: the runtime config, throttles first.

``?throttle=…`` opens the form with a throttle key, ``?search=…`` searches keys.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from fila_cluster import ConfigVersion
from fila_cluster.errors import FilaError, InvalidConfigError
from fila_cluster.ops.dashboard.config.meaning import FAMILIES
from fila_cluster.ops.dashboard.config.table import ConfigTable, ThrottleCard
from fila_cluster.ops.dashboard.shell.context import Context, Visits
from fila_cluster.ops.dashboard.shell.feedback import confirm, notify, notify_error
from fila_cluster.ops.dashboard.shell.frame import frame, may_govern
from fila_cluster.ops.dashboard.shell.live import Look, keep_live
from fila_cluster.ops.dashboard.widgets.cells import MONO_BROKEN, short_time
from fila_cluster.ops.dashboard.widgets.paged_table import PagedTable, TableColumn

SHOWN: Final = 200

_UNDO: Final = """
<q-btn dense flat size="sm" icon="undo" @click="$parent.$emit('undo', props.row)" aria-label="undo change">
<q-tooltip>Bring back the value before</q-tooltip></q-btn>
"""

_COLUMNS: Final = (
    TableColumn("version", "Version", is_number=True),
    TableColumn("at", "At (UTC)", short_time),
    TableColumn("by", "API key"),
    TableColumn("key", "Key", slot=MONO_BROKEN),
    TableColumn("old", "Before", slot=MONO_BROKEN),
    TableColumn("new", "After", slot=MONO_BROKEN),
    TableColumn("actions", "", slot=_UNDO, is_value=False),
)


class ConfigHistoryTable:
    """``changed`` is awaited after each undo."""

    def __init__(self, context: Context, changed: Callable[[], Awaitable[None]]) -> None:
        self._context = context
        self._changed = changed
        with ui.row().classes("items-baseline gap-3"):
            ui.label("History").classes("text-lg font-semibold")
            ui.label("the latest changes; an undo is a change, too").classes("fila-quiet")
        self._table = PagedTable(
            _COLUMNS,
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
        self._table.show([_row(edit) for edit in await self._context.client.config_history(limit=SHOWN)])

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


def register(visits: Visits) -> None:
    """Add the page."""

    @ui.page("/config")
    def config(throttle: str = "", search: str = "") -> None:
        context = visits.context()
        with frame(context, "Config", "/config"):
            if not may_govern(context, "the runtime config"):
                return
            page = _Config(context, throttle, search)
        page.look_now = keep_live(context, page.look, page.trouble)


class _Config:
    def __init__(self, context: Context, throttle: str, search: str) -> None:
        self._context = context
        self.look_now: Look = self.look
        with ui.row().classes("w-full items-baseline gap-3"):
            ui.label("Runtime config").classes("text-xl font-semibold")
            ui.label("A change holds at once, for the whole cluster, and survives restarts.").classes("fila-quiet")
        self.trouble = ui.label().classes("text-negative").props("data-testid=trouble")
        self._body = ui.column().classes("w-full gap-4")
        with self._body:
            self._throttles = ThrottleCard(context, throttle, self._look_again)
            self._table = ConfigTable(context, search, self._look_again)
            self._history = ConfigHistoryTable(context, self._look_again)
        self._body.set_visibility(False)
        _explain()

    async def _look_again(self) -> None:
        await self.look_now()

    async def look(self) -> None:
        try:
            config = await self._context.client.list_config()
        except FilaError:
            self._body.set_visibility(False)
            raise
        self._body.set_visibility(True)
        self._throttles.show(config)
        self._table.show(config)
        await self._history.look()


def _explain() -> None:
    with ui.expansion("What keys mean, and where the other settings are", icon="info").classes("w-full").props("dense"):
        with ui.element("table").classes("text-left"):
            for family in FAMILIES:
                with ui.element("tr"):
                    for text, look in ((family.key, "fila-mono"), (family.value, ""), (family.meaning, "fila-quiet")):
                        with ui.element("td").classes("pr-6 py-1"):
                            ui.label(text).classes(look)
        ui.label(
            "Ports, directories, defaults and limits are static: they are read at the start, from fila.toml, FILA_… "
            "variables and flags of fila-cluster up, and can't be changed here. docs/configuration.md lists them."
        ).classes("fila-quiet pt-2")
