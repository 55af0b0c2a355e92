"""Throttles: the rate of each, how full its bucket is, and a form to set one."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from fila_cluster.errors import FilaError
from fila_cluster.figures import counted
from fila_cluster.ops.dashboard.config.meaning import ThrottleRow, throttle_rows, wrong_field
from fila_cluster.ops.dashboard.shell.context import Context
from fila_cluster.ops.dashboard.shell.feedback import confirm, notify, succeeds
from fila_cluster.ops.dashboard.widgets.cells import MONO
from fila_cluster.ops.dashboard.widgets.paged_table import PagedTable, TableColumn
from fila_proto_zmq import runtime_config

_ACTIONS: Final = """
<q-btn dense flat size="sm" icon="edit" @click="$parent.$emit('pick', props.row)" aria-label="edit throttle"></q-btn>
<q-btn dense flat size="sm" icon="delete" color="negative" @click="$parent.$emit('drop', props.row)" aria-label="delete throttle"></q-btn>
"""

_COLUMNS: Final = (
    TableColumn("key", "Throttle key", slot=MONO),
    TableColumn("rate", "Tokens / s", lambda number: f"{number:,g}", is_number=True),
    TableColumn("burst", "Burst", lambda number: f"{number:,g}", is_number=True),
    TableColumn("tokens", "Tokens now", lambda number: f"{number:,.1f}", is_number=True),
    TableColumn("passes", "Passed", counted, is_number=True),
    TableColumn("hits", "Had to wait", counted, is_number=True),
    TableColumn("actions", "", slot=_ACTIONS, is_value=False),
)


class ThrottleCard:
    """``changed`` is awaited after each change."""

    def __init__(self, context: Context, wanted: str, changed: Callable[[], Awaitable[None]]) -> None:
        """``wanted``: the throttle key in the form at first; may be empty."""
        self._context = context
        self._wanted = wanted
        self._changed = changed
        self._config: Mapping[str, str] = {}
        with ui.row().classes("items-baseline gap-3"):
            ui.label("Throttles").classes("text-lg font-semibold")
            ui.label("of the whole cluster; passed and had to wait are counted since shards started").classes("fila-quiet")
        self._table = PagedTable(
            _COLUMNS,
            key="key",
            sort_by="key",
            mark="throttles",
            empty="No throttle key has a rate: none is limited.",
            page_size=10,
            more=lambda row: {"key": row.key},
        )
        self._table.table.on("pick", self._picked)
        self._table.table.on("drop", self._drop)
        self._build_form()

    def _build_form(self) -> None:
        with ui.row().classes("w-full items-start gap-3"):
            self._fields = {
                "key": ui.input("Throttle key", value=self._wanted).classes("w-64"),
                "rate": ui.input("Tokens a second").classes("w-40"),
                "burst": ui.input("Burst", placeholder="the rate").classes("w-40"),
            }
            for name, field in self._fields.items():
                field.props(f"dense outlined data-testid=throttle-{name}").on("keydown.enter", self._set)
            ui.button("Set throttle", icon="speed", on_click=self._set).props(
                "dense no-caps outline data-testid=set-throttle"
            )

    def show(self, config: Mapping[str, str]) -> None:
        """Change the rows."""
        self._config = config
        metrics = self._context.latest
        rows: list[ThrottleRow] = throttle_rows(config, metrics) if metrics else []
        self._table.show(rows)
        if self._wanted:
            self._fill(self._wanted)
            self._wanted = ""

    def _picked(self, event: GenericEventArguments) -> None:
        self._fill(event.args["key"])

    def _fill(self, key: str) -> None:
        self._fields["key"].value = key
        for name in ("rate", "burst"):
            self._fields[name].value = self._config.get(f"throttle:{key}:{name}", "")
        self._complain("", "")

    async def _set(self) -> None:
        key, rate, burst = (str(field.value or "").strip() for field in self._fields.values())
        self._complain("", "")
        try:
            await self._store(key, rate, burst)
        except FilaError as error:
            self._complain(wrong_field(str(error)), str(error))
            return
        notify(f"Throttle {key}: {rate} a second")
        await self._changed()

    async def _store(self, key: str, rate: str, burst: str) -> None:
        client, stored_burst = self._context.client, f"throttle:{key}:burst"
        if burst:
            await client.set_config(f"throttle.{key}", f"{rate},{burst}")
            return
        await client.set_config(f"throttle:{key}:rate", rate)
        if stored_burst in self._config:
            await client.delete_config(stored_burst)

    def _complain(self, field: str, text: str) -> None:
        for name, each in self._fields.items():
            each.props["error"] = name == field
            each.props["error-message"] = text if name == field else ""
            each.update()

    async def _drop(self, event: GenericEventArguments) -> None:
        key = event.args["key"]
        limit = runtime_config.limit_of(key, self._config)
        rate = f" ({limit.rate_milli / 1000:g} a second)" if limit else ""
        question = (
            f"Delete the throttle {key}{rate}?\nIts messages are not limited any more, and those that wait for it go at once."
        )
        if not await confirm(question, yes="Delete"):
            return
        if await succeeds(self._context.client.delete_config(f"throttle.{key}"), f"Throttle {key} is gone"):
            await self._changed()
