"""``/config``: the runtime config. ``?search=…`` searches keys."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from nicegui import ui
from nicegui.events import GenericEventArguments

from fila_cluster.errors import FilaError
from fila_cluster.ops.dashboard.shell.context import Context, Visits
from fila_cluster.ops.dashboard.shell.frame import frame, may_govern
from fila_cluster.ops.dashboard.shell.live import Look, confirm, keep_live, notify, succeeds
from fila_cluster.ops.dashboard.widgets.config_history import ConfigHistoryTable
from fila_cluster.ops.dashboard.widgets.paged_table import MONO_BROKEN, PagedTable, TableColumn

FREE_TEXT: Final = "for hooks to read, with fila.get"


class KeyFamily(NamedTuple):
    """Keys of one kind."""

    key: str
    value: str
    meaning: str


FAMILIES: Final = (
    KeyFamily(
        "throttle:<key>:rate",
        "tokens a second",
        "the limit of a throttle key over the whole cluster; without one there is no limit",
    ),
    KeyFamily(
        "throttle:<key>:burst", "tokens", "how many it may save up; without one as many as it gets in a second, 1 at least"
    ),
    KeyFamily(
        "throttle:<key>:concurrency",
        "messages",
        "how many of its messages may be leased at a time, in the whole cluster; without one any number",
    ),
    KeyFamily("throttle:<key>:rate_min", "tokens a second", "the least to which deferrals lower the rate"),
    KeyFamily("throttle.<key>", "rate,burst", "both in one: another way to write and to read the same"),
    KeyFamily(
        "namespace:<ns>:max_enqueues_per_minute",
        "a number",
        "what the queues <ns>/… may take in together; beyond it, RateLimitedError",
    ),
    KeyFamily("any other", "any text", FREE_TEXT + "(key)"),
)


def meaning(key: str) -> str:
    """Return the meaning of a stored key."""
    kind, _, rest = key.partition(":")
    name, _, what = rest.rpartition(":")
    match kind, what:
        case "throttle", "rate":
            return f"tokens a second for throttle key {name}"
        case "throttle", "burst":
            return f"tokens that throttle key {name} may save up"
        case "throttle", "concurrency":
            return f"messages with throttle key {name} that may be leased at a time"
        case "throttle", "rate_min":
            return f"the least rate of throttle key {name} after deferrals"
        case "namespace", "max_enqueues_per_minute":
            return f"messages a minute into the queues {name}/…"
    return FREE_TEXT


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
        return {"_edited": edited, "_draft": self._draft if edited else "", "_error": self._error if edited else ""}

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


def register(visits: Visits) -> None:
    """Add the page."""

    @ui.page("/config")
    def config(search: str = "") -> None:
        context = visits.context()
        with frame(context, "Config", "/config"):
            if not may_govern(context, "the runtime config"):
                return
            page = _Config(context, search)
        page.look_now = keep_live(context, page.look, page.trouble)


class _Config:
    def __init__(self, context: Context, search: str) -> None:
        self._context = context
        self.look_now: Look = self.look
        with ui.row().classes("w-full items-baseline gap-3"):
            ui.label("Runtime config").classes("text-xl font-semibold")
            ui.label("A change holds at once, for the whole cluster, and survives restarts.").classes("fila-quiet")
            ui.space()
            ui.link("Limits of throttle keys", "/limits")
        self.trouble = ui.label().classes("text-negative").props("data-testid=trouble")
        self._body = ui.column().classes("w-full gap-4")
        with self._body:
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
