"""``/limits``: throttle keys with their limits, who holds their places and who waits. ``?key=…`` shows one of them."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from fila_cluster.client.calls.cluster import describe_throttle, first_throttles
from fila_cluster.errors import FilaError
from fila_cluster.figures import counted
from fila_cluster.ops.analysis.rates import all_queues
from fila_cluster.ops.dashboard.shell.context import Context, Visits
from fila_cluster.ops.dashboard.shell.frame import frame, link, may_govern, queue_page
from fila_cluster.ops.dashboard.shell.live import Look, confirm, keep_live, notify, succeeds
from fila_cluster.ops.dashboard.widgets.config_history import ConfigHistoryTable
from fila_cluster.ops.dashboard.widgets.paged_table import MONO, PagedTable, TableColumn, ago, linked
from fila_proto_zmq.commands import Metrics, ThrottleHolder, ThrottleList, ThrottleStats
from fila_proto_zmq.runtime_config import THROTTLE_LIMITS, throttle_entry


@dataclass(frozen=True, slots=True)
class ThrottleRow:
    """A throttle key, or a pattern, that has limits. None: it lacks this limit, or is not among a shard's busiest."""

    key: str
    rate: float | None
    rate_in_force: float | None
    burst: float | None
    tokens: float | None
    rate_min: float | None
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
            each.rate_in_force,
            each.burst,
            each.tokens,
            each.rate_min,
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


def limited_queues(metrics: Metrics) -> list[dict[str, Any]]:
    """Return the queues with a ``max_in_flight``, as rows: name, leased messages, the most of them, waiting messages."""
    return [
        {"name": each.info.name, "in_use": each.info.in_flight, "limit": each.max_in_flight, "pending": each.info.pending}
        for each in all_queues(metrics)
        if each.max_in_flight is not None
    ]


def wrong_field(error: str) -> str:
    """Return the field of the form for an error of the broker: a limit, or ``key``."""
    return next((name for name in THROTTLE_LIMITS if f":{name}' =" in error or f':{name}" =' in error), "key")


def changed_limits(key: str, fields: Mapping[str, str], config: Mapping[str, str]) -> dict[str, str | None]:
    """Return the limits that a form changes. An empty field is no limit."""
    now = {name: config.get(throttle_entry(key, name)) for name in fields}
    return {name: text or None for name, text in fields.items() if (text or None) != now[name]}


def _number(number: float) -> str:
    return f"{number:,g}"


_ACTIONS: Final = """
<q-btn dense flat size="sm" icon="edit" @click="$parent.$emit('pick', props.row)" aria-label="edit throttle"></q-btn>
<q-btn dense flat size="sm" icon="delete" color="negative" @click="$parent.$emit('drop', props.row)"
 aria-label="delete throttle"></q-btn>
"""

_COLUMNS: Final = (
    TableColumn("key", "Throttle key", slot=linked("href")),
    TableColumn("concurrency", "Places", counted, is_number=True),
    TableColumn("in_use", "In use", counted, is_number=True),
    TableColumn("waiting", "Waiting", counted, is_number=True),
    TableColumn("rate", "Tokens / s", _number, is_number=True),
    TableColumn("rate_in_force", "In force", _number, is_number=True),
    TableColumn("rate_min", "At least", _number, is_number=True),
    TableColumn("burst", "Burst", _number, is_number=True),
    TableColumn("tokens", "Tokens now", lambda number: f"{number:,.1f}", is_number=True),
    TableColumn("passes", "Passed", counted, is_number=True),
    TableColumn("hits", "Had to wait", counted, is_number=True),
    TableColumn("actions", "", slot=_ACTIONS, is_value=False),
)

_LABELS: Final = {
    "rate": ("Tokens a second", "no limit"),
    "burst": ("Burst", "the rate"),
    "concurrency": ("Places", "no limit"),
    "rate_min": ("Rate at least", "no learning"),
}


class ThrottleForm:
    """The limits of one throttle key. ``changed`` is awaited after each change."""

    def __init__(self, context: Context, changed: Callable[[], Awaitable[None]]) -> None:
        self._context = context
        self._changed = changed
        self._config: Mapping[str, str] = {}
        with ui.row().classes("w-full items-start gap-3"):
            self._fields = {"key": ui.input("Throttle key, or prefix*").classes("w-64")}
            for name, (label, without) in _LABELS.items():
                self._fields[name] = ui.input(label, placeholder=without).classes("w-36")
            for name, field in self._fields.items():
                field.props(f"dense outlined data-testid=throttle-{name}").on("keydown.enter", self._set)
            ui.button("Set limits", icon="speed", on_click=self._set).props("dense no-caps outline data-testid=set-throttle")

    def know(self, config: Mapping[str, str]) -> None:
        """Take over the config as it is now."""
        self._config = config

    def fill(self, key: str) -> None:
        """Show the limits of a key."""
        self._fields["key"].value = key
        for name in _LABELS:
            self._fields[name].value = self._config.get(throttle_entry(key, name), "")
        self._complain("", "")

    async def _set(self) -> None:
        texts = {name: str(field.value or "").strip() for name, field in self._fields.items()}
        key = texts.pop("key")
        self._complain("", "")
        try:
            limits: dict[str, Any] = changed_limits(key, texts, self._config)
            if limits or not key:
                await self._context.client.set_throttle(key, **limits)
        except FilaError as error:
            self._complain(wrong_field(str(error)), str(error))
            return
        notify(f"Limits of {key} are set" if limits else f"{key} has these limits already")
        await self._changed()

    def _complain(self, field: str, text: str) -> None:
        for name, each in self._fields.items():
            each.props["error"] = name == field
            each.props["error-message"] = text if name == field else ""
            each.update()


_HOLDER_COLUMNS: Final = (
    TableColumn("since", "Leased", ago, is_number=True),
    TableColumn("message_id", "Message", slot=linked("href")),
    TableColumn("queue", "Queue"),
    TableColumn("fairness_key", "Fairness key"),
    TableColumn("consumer", "Consumer", slot=MONO),
)

_WAITER_COLUMNS: Final = (
    TableColumn("pending", "Waiting", counted, is_number=True),
    TableColumn("queue", "Queue", slot=linked("href")),
    TableColumn("fairness_key", "Fairness key"),
)


def holder_rows(holders: Sequence[ThrottleHolder], now_s: float) -> list[dict[str, Any]]:
    """Return the leased messages of a key as rows. ``now_s``: Unix seconds."""
    return [
        {
            "since": max(0.0, now_s - each.since_ms / 1000),
            "message_id": each.message_id,
            "queue": each.queue,
            "fairness_key": each.fairness_key,
            "consumer": each.consumer,
            "href": link("/why", queue=each.queue, id=each.message_id),
        }
        for each in holders
    ]


class ThrottleUsers:
    """Who holds the places of one throttle key, and who waits for it. Hidden while none is chosen."""

    def __init__(self) -> None:
        with ui.card().classes("w-full p-3 gap-2").props("data-testid=throttle-users") as self._card:
            self._title = ui.label().classes("font-semibold break-all")
            with ui.row().classes("w-full items-start gap-4"):
                with ui.column().classes("grow gap-1"):
                    ui.label("Leased for longest").classes("fila-quiet")
                    self._holders = PagedTable(
                        _HOLDER_COLUMNS,
                        key="message_id",
                        sort_by="since",
                        descending=True,
                        mark="holders",
                        empty="No message with it is leased.",
                    )
                with ui.column().classes("gap-1"):
                    ui.label("Waiting most").classes("fila-quiet")
                    self._waiters = PagedTable(
                        _WAITER_COLUMNS,
                        key="number",
                        sort_by="pending",
                        descending=True,
                        mark="waiters",
                        empty="No message waits for it.",
                        more=lambda row: row,
                    )
        self._card.set_visibility(False)

    def show(self, key: str, told: ThrottleList) -> None:
        """Show the users of a key."""
        self._card.set_visibility(True)
        (limits,) = told.throttles
        places = "" if limits.concurrency is None else f": {limits.in_use:,} of {counted(limits.concurrency, 'place')} in use"
        self._title.text = f"{key}{places}, {counted(limits.waiting, 'message')} waiting"
        self._holders.show(holder_rows(told.holders, time.time()))
        self._waiters.show(
            [
                {
                    "number": number,
                    "pending": each.pending,
                    "queue": each.queue,
                    "fairness_key": each.fairness_key,
                    "href": queue_page(each.queue),
                }
                for number, each in enumerate(told.waiters)
            ]
        )


_QUEUE_COLUMNS: Final = (
    TableColumn("name", "Queue", slot=linked("href")),
    TableColumn("limit", "Leased at most", counted, is_number=True),
    TableColumn("in_use", "Leased", counted, is_number=True),
    TableColumn("pending", "Pending", counted, is_number=True),
)


def register(visits: Visits) -> None:
    """Add the page."""

    @ui.page("/limits")
    def limits(key: str = "", prefix: str = "") -> None:
        context = visits.context()
        with frame(context, "Limits", "/limits"):
            if not may_govern(context, "the list of limits"):
                return
            page = _Limits(context, key, prefix)
        page.look_now = keep_live(context, page.look, page.trouble)


class _Limits:
    def __init__(self, context: Context, key: str, prefix: str) -> None:
        self._context = context
        self._key = key
        self._unfilled = key
        self.look_now: Look = self.look
        with ui.row().classes("w-full items-baseline gap-3"):
            ui.label("Limits").classes("text-xl font-semibold")
            ui.label("of throttle keys, in the whole cluster. A change holds at once, for all keys of a pattern.").classes(
                "fila-quiet"
            )
        self.trouble = ui.label().classes("text-negative").props("data-testid=trouble")
        self._body = ui.column().classes("w-full gap-4")
        with self._body:
            self._form = ThrottleForm(context, self._look_again)
            self._users = ThrottleUsers()
            self._prefix = ui.input("Keys that begin with", value=prefix, on_change=self._look_again)
            self._prefix.props("dense outlined clearable debounce=250 data-testid=throttle-prefix").classes("w-72")
            self._build_tables(context)
        self._body.set_visibility(False)

    def _build_tables(self, context: Context) -> None:
        self._table = PagedTable(
            _COLUMNS,
            key="key",
            sort_by="key",
            mark="throttles",
            empty="No throttle key has a limit.",
            more=lambda row: {"href": link("/limits", key=row.key)},
        )
        self._table.table.on("pick", lambda event: self._form.fill(event.args["key"]))
        self._table.table.on("drop", self._drop)
        self._hidden = ui.label().classes("fila-quiet")
        ui.label("Queues with a max_in_flight").classes("text-lg font-semibold")
        self._queues = PagedTable(
            _QUEUE_COLUMNS,
            key="name",
            sort_by="name",
            mark="limited-queues",
            page_size=10,
            empty="No queue has a max_in_flight.",
            more=lambda row: {"href": queue_page(row["name"])},
        )
        self._history = ConfigHistoryTable(context, self._look_again, "throttle:")

    async def _look_again(self) -> None:
        await self.look_now()

    async def look(self) -> None:
        client = self._context.client
        try:
            config = await client.list_config("throttle:")
            page = await first_throttles(client, str(self._prefix.value or ""))
        except FilaError:
            self._body.set_visibility(False)
            raise
        self._form.know(config)
        metrics = self._context.latest
        self._table.show(throttle_rows(page.throttles, metrics) if metrics else [])
        shown = counted(len(page.throttles))
        self._hidden.text = f"Only the first {shown}: type how others begin." if page.next else ""
        self._queues.show(limited_queues(metrics) if metrics else [])
        self._body.set_visibility(True)
        if self._unfilled:
            self._form.fill(self._unfilled)
            self._unfilled = ""
        if self._key:
            self._users.show(self._key, await describe_throttle(client, self._key))
        await self._history.look()

    async def _drop(self, event: GenericEventArguments) -> None:
        key = event.args["key"]
        question = f"Delete all limits of {key}?\nA pattern may limit its messages instead. Else those that wait go at once."
        if not await confirm(question, yes="Delete"):
            return
        if await succeeds(self._context.client.delete_throttle(key), f"{key} has no limits of its own"):
            await self._look_again()
