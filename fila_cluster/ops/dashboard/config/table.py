"""Tables of the runtime config: all keys, edited in place; and throttles, with their rates and the fill of their buckets."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from fila_cluster.errors import FilaError
from fila_cluster.figures import counted
from fila_cluster.ops.dashboard.config.meaning import ThrottleRow, meaning, throttle_rows, wrong_field
from fila_cluster.ops.dashboard.shell.context import Context
from fila_cluster.ops.dashboard.shell.feedback import confirm, notify, succeeds
from fila_cluster.ops.dashboard.widgets.cells import MONO, MONO_BROKEN
from fila_cluster.ops.dashboard.widgets.paged_table import PagedTable, TableColumn
from fila_proto_zmq import runtime_config

_VALUE: Final = """
<div v-if="props.row._edited" class="row items-start no-wrap q-gutter-xs">
  <q-input dense outlined autofocus hide-bottom-space v-model="props.row._draft" data-testid="edit-value"
   style="min-width: 18rem" :error="!!props.row._error" :error-message="props.row._error"
   @keydown.enter="$parent.$emit('save', props.row)" @keydown.esc="$parent.$emit('leave', props.row)"></q-input>
  <q-btn dense flat icon="check" color="primary" @click="$parent.$emit('save', props.row)" aria-label="save"></q-btn>
  <q-btn dense flat icon="close" @click="$parent.$emit('leave', props.row)" aria-label="cancel"></q-btn>
</div>
<span v-else class="fila-mono cursor-pointer" style="white-space: pre-wrap; word-break: break-word"
 @click="$parent.$emit('edit', props.row)"><span data-testid="value">{{ props.value }}</span><q-icon name="edit"
 class="q-ml-sm" style="opacity: .4"></q-icon></span>
"""

_ACTIONS: Final = """
<q-btn dense flat size="sm" icon="delete" color="negative" @click="$parent.$emit('drop', props.row)"
 aria-label="delete"></q-btn>
"""

_COLUMNS: Final = (
    TableColumn("key", "Key", slot=MONO_BROKEN),
    TableColumn("value", "Value", slot=_VALUE),
    TableColumn("meaning", "Meaning"),
    TableColumn("actions", "", slot=_ACTIONS, is_value=False),
)


class ConfigTable:
    """While a value is being edited the table does not change. ``changed`` is awaited after each change."""

    def __init__(self, context: Context, search: str, changed: Callable[[], Awaitable[None]]) -> None:
        self._context = context
        self._changed = changed
        self._config: Mapping[str, str] = {}
        self._edited: str | None = None
        self._draft = ""
        self._error = ""
        ui.label("All keys").classes("text-lg font-semibold")
        self._build_form()
        self._table = PagedTable(
            _COLUMNS,
            key="key",
            sort_by="key",
            mark="config",
            search_in=("key", "value", "meaning"),
            more=self._more,
            empty="No keys, or none that match the search.",
        )
        self._table.search.value = search
        for name, then in (("edit", self._edit), ("save", self._save), ("leave", self._leave), ("drop", self._drop)):
            self._table.table.on(name, then)

    def _build_form(self) -> None:
        with ui.row().classes("w-full items-start gap-3"):
            self._new_key = ui.input("New key").props("dense outlined data-testid=new-key").classes("w-80")
            self._new_value = ui.input("Value").props("dense outlined data-testid=new-value").classes("w-80")
            self._new_value.on("keydown.enter", self._add)
            ui.button("Add", icon="add", on_click=self._add).props("dense no-caps outline data-testid=add")

    def show(self, config: Mapping[str, str]) -> None:
        """Change the rows, unless one is being edited."""
        self._config = config
        if self._edited is None or self._edited not in config:
            self._draw()

    def _draw(self) -> None:
        self._table.show([{"key": key, "value": value, "meaning": meaning(key)} for key, value in self._config.items()])

    def _more(self, row: Any) -> dict[str, Any]:
        edited = row["key"] == self._edited
        return {
            "_edited": edited,
            "_draft": self._draft if edited else "",
            "_error": self._error if edited else "",
        }

    def _edit(self, event: GenericEventArguments) -> None:
        self._edited = event.args["key"]
        self._draft, self._error = self._config.get(self._edited, ""), ""
        self._draw()

    def _leave(self) -> None:
        self._edited = None
        self._draw()

    async def _save(self, event: GenericEventArguments) -> None:
        key, self._draft = event.args["key"], event.args["_draft"]
        try:
            await self._context.client.set_config(key, self._draft)
        except FilaError as error:
            self._error = str(error)
            self._draw()
            return
        self._edited = None
        notify(f"{key} is {self._draft}")
        await self._changed()

    async def _drop(self, event: GenericEventArguments) -> None:
        key = event.args["key"]
        question = f"Delete {key}?\nIts value is {self._config.get(key, '')!r}: {meaning(key)}."
        if not await confirm(question, yes="Delete"):
            return
        if await succeeds(self._context.client.delete_config(key), f"{key} is gone"):
            self._edited = None
            await self._changed()

    async def _add(self) -> None:
        key, value = str(self._new_key.value or "").strip(), str(self._new_value.value or "")
        taken = f"{key} is there: edit it below" if key in self._config else ""
        try:
            if not taken:
                await self._context.client.set_config(key, value)
        except FilaError as error:
            taken = str(error)
        self._new_key.props["error"], self._new_key.props["error-message"] = bool(taken), taken
        self._new_key.update()
        if not taken:
            self._new_key.value = self._new_value.value = ""
            notify(f"{key} is {value}")
            await self._changed()


_THROTTLE_ACTIONS: Final = """
<q-btn dense flat size="sm" icon="edit" @click="$parent.$emit('pick', props.row)" aria-label="edit throttle"></q-btn>
<q-btn dense flat size="sm" icon="delete" color="negative" @click="$parent.$emit('drop', props.row)"
 aria-label="delete throttle"></q-btn>
"""

_THROTTLE_COLUMNS: Final = (
    TableColumn("key", "Throttle key", slot=MONO),
    TableColumn("rate", "Tokens / s", lambda number: f"{number:,g}", is_number=True),
    TableColumn("burst", "Burst", lambda number: f"{number:,g}", is_number=True),
    TableColumn("tokens", "Tokens now", lambda number: f"{number:,.1f}", is_number=True),
    TableColumn("passes", "Passed", counted, is_number=True),
    TableColumn("hits", "Had to wait", counted, is_number=True),
    TableColumn("actions", "", slot=_THROTTLE_ACTIONS, is_value=False),
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
            _THROTTLE_COLUMNS,
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
