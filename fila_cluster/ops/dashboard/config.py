"""``/config``: the runtime config, throttles first. ``?throttle=…`` fills the form, ``?search=…`` searches keys."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from nicegui import ui
from nicegui.events import GenericEventArguments

from fila_cluster import ConfigVersion
from fila_cluster.client.calls.cluster import first_throttles
from fila_cluster.errors import FilaError, InvalidConfigError
from fila_cluster.figures import counted
from fila_cluster.ops.dashboard.shell.context import Context, Visits
from fila_cluster.ops.dashboard.shell.frame import frame, may_govern
from fila_cluster.ops.dashboard.shell.live import Look, confirm, keep_live, notify, notify_error, succeeds
from fila_cluster.ops.dashboard.widgets.paged_table import MONO, MONO_BROKEN, PagedTable, TableColumn, short_time
from fila_proto_zmq import runtime_config
from fila_proto_zmq.commands import Metrics, ThrottleStats

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


@dataclass(frozen=True, slots=True)
class ThrottleRow:
    """A throttle key, or a pattern, that has limits. None: it lacks this limit, or is not among a shard's busiest."""

    key: str
    rate: float | None
    burst: float | None
    tokens: float | None
    rate_in_force: float | None
    concurrency: int | None
    in_use: int | None
    waiting: int
    passes: int | None
    hits: int | None


def throttle_rows(throttles: Iterable[ThrottleStats], metrics: Metrics) -> list[ThrottleRow]:
    """Return throttle keys, in use or not, with their counters."""
    seen = _seen(metrics)
    return [
        ThrottleRow(
            each.key,
            each.rate,
            each.burst,
            each.tokens,
            each.rate_in_force,
            each.concurrency,
            None if each.concurrency is None else each.in_use,
            each.waiting,
            *seen.get(each.key, (None, None)),
        )
        for each in throttles
    ]


def _seen(metrics: Metrics) -> dict[str, tuple[int, int]]:
    """Return passes and hits by key."""
    seen: dict[str, tuple[int, int]] = {}
    for each in (each for worker in metrics.workers for shard in worker.shards for each in shard.throttles):
        passes, hits = seen.get(each.key, (0, 0))
        seen[each.key] = (passes + each.passes, hits + each.hits)
    return seen


def wrong_field(error: str) -> str:
    """Return the field of a throttle's form for an error of the broker: ``key``, ``rate`` or ``burst``."""
    if ":burst' =" in error:
        return "burst"
    return "key" if error.startswith(("config key", "a config key", "a throttle key")) else "rate"


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


_THROTTLE_ACTIONS: Final = """
<q-btn dense flat size="sm" icon="edit" @click="$parent.$emit('pick', props.row)" aria-label="edit throttle"></q-btn>
<q-btn dense flat size="sm" icon="delete" color="negative" @click="$parent.$emit('drop', props.row)"
 aria-label="delete throttle"></q-btn>
"""

_THROTTLE_COLUMNS: Final = (
    TableColumn("key", "Throttle key", slot=MONO),
    TableColumn("rate", "Tokens / s", lambda number: f"{number:,g}", is_number=True),
    TableColumn("rate_in_force", "In force", lambda number: f"{number:,g}", is_number=True),
    TableColumn("burst", "Burst", lambda number: f"{number:,g}", is_number=True),
    TableColumn("tokens", "Tokens now", lambda number: f"{number:,.1f}", is_number=True),
    TableColumn("concurrency", "Leased at most", counted, is_number=True),
    TableColumn("in_use", "Leased", counted, is_number=True),
    TableColumn("waiting", "Waiting", counted, is_number=True),
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
            empty="No throttle key has a limit.",
            page_size=10,
            more=lambda row: {"key": row.key},
        )
        self._hidden = ui.label().classes("fila-quiet")
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

    def show(self, config: Mapping[str, str], throttles: list[ThrottleStats], *, more: bool) -> None:
        """Change the rows. ``more``: there are other throttle keys."""
        self._config = config
        metrics = self._context.latest
        rows: list[ThrottleRow] = throttle_rows(throttles, metrics) if metrics else []
        self._table.show(rows)
        self._hidden.text = f"Only the first {counted(len(rows))}: `fila-cluster throttle list --prefix` shows others." * more
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
            f"Delete all limits of {key}{rate}?\nA pattern may limit its messages instead. Else those that wait go at once."
        )
        if not await confirm(question, yes="Delete"):
            return
        if await succeeds(self._context.client.delete_throttle(key), f"Throttle {key} is gone"):
            await self._changed()


SHOWN: Final = 200

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
    """``changed`` is awaited after each undo."""

    def __init__(self, context: Context, changed: Callable[[], Awaitable[None]]) -> None:
        self._context = context
        self._changed = changed
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
            throttles, more = await first_throttles(self._context.client)
        except FilaError:
            self._body.set_visibility(False)
            raise
        self._body.set_visibility(True)
        self._throttles.show(config, throttles, more=more)
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
