"""Trials of the edited scripts: the choice of messages, a sample made by hand, and the results as tables."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, cast

from nicegui import ui

from fila_cluster import AsyncClient
from fila_cluster.client import checks
from fila_cluster.client.calls import queues
from fila_cluster.client.calls.request import Request
from fila_cluster.client.message import MessageView, message_view
from fila_cluster.errors import FilaError
from fila_cluster.figures import aged
from fila_cluster.ops.dashboard.hooks.editor import HookPolicy, changes
from fila_cluster.ops.dashboard.hooks.trials.plan import (
    MEMORY_LIMIT_BYTES,
    TIMEOUT_MS,
    HookReport,
    HookVerdict,
    TrialError,
    TrialMessage,
    TrialPlan,
    TrialReport,
    try_out,
)
from fila_cluster.ops.dashboard.shell.context import ADMIN, CONSUME, EVERYTHING, Context
from fila_cluster.ops.dashboard.widgets.forms import read_headers
from fila_cluster.ops.dashboard.widgets.paged_table import MONO, PagedTable, TableColumn
from fila_proto_zmq.commands import Browse, Browsed
from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.names import dead_letter_name
from fila_proto_zmq.record import record_id

TRIED_MAX: Final = 100
LOOKED_MAX: Final = 1000
LOOKED_BYTES_MAX: Final = 32 * 1024 * 1024
PAGE: Final = 100


async def first_messages(client: AsyncClient, queue: str, count: int) -> list[TrialMessage]:
    """Return the first ones, key by key."""
    return [message async for message in _messages(client, queue, count)]


async def newest_messages(client: AsyncClient, queue: str, count: int) -> list[TrialMessage]:
    """Return the newest of the first :data:`LOOKED_MAX`, the newest first."""
    found = [message async for message in _messages(client, queue, LOOKED_MAX)]
    found.sort(key=lambda message: message.id, reverse=True)  # ids begin with the time
    return found[:count]


async def _messages(client: AsyncClient, queue: str, count: int) -> AsyncIterator[TrialMessage]:
    """Yield up to ``count`` of them, page by page: a page is bounded, their sum is not."""
    name, looked_bytes, after = checks.queue_name(queue), 0, None
    while count > 0 and looked_bytes < LOOKED_BYTES_MAX:
        page = cast(Browsed, await client.request(Request(name, Browse(min(count, PAGE), after))))
        for view in page.messages:
            looked_bytes += len(view.record)
            yield trial_message(message_view(name, view))
        if not page.more or not page.messages:
            return
        count -= len(page.messages)
        after = record_id(page.messages[-1].record)


def trial_message(view: MessageView) -> TrialMessage:
    """Return a message for a trial. Malformed headers count as empty, as for a broker's hooks."""
    try:
        headers, payload_bytes = view.headers, len(view.payload)
    except InvalidFrameError:
        headers, payload_bytes = {}, 0
    return TrialMessage(
        view.id,
        headers,
        payload_bytes,
        view.fairness_key,
        view.weight,
        view.throttle_keys,
        view.priority,
        view.cost,
        max(1, view.attempts) if view.source_queue else view.attempts + 1,  # of a dead letter: the failure that made it one
        view.error,
    )


ENQUEUE_FIELDS: Final = {
    "fairness_key": "Fairness key",
    "weight": "Weight",
    "throttle_keys": "Throttle keys",
    "priority": "Priority",
    "cost": "Cost",
    "delay_ms": "Delay",
}
"""The fields that ``on_enqueue`` may set, with their names for people."""

LEFT_OUT: Final = "–"


def enqueue_rows(messages: Sequence[TrialMessage], report: HookReport) -> list[dict[str, Any]]:
    """Return rows of :data:`ENQUEUE_FIELDS`, as ``now → then`` where they differ; ``_changed`` names those fields."""
    return [
        _enqueue_row(number, message, each)
        for number, (message, each) in enumerate(zip(messages, report.verdicts, strict=False), 1)
    ]


def decided_fields(report: HookReport) -> list[str]:
    """Return the fields that any run has set, in order: the others need no column."""
    return [field for field in ENQUEUE_FIELDS if any(field in each.decided for each in report.verdicts)]


def failure_rows(messages: Sequence[TrialMessage], report: HookReport) -> list[dict[str, Any]]:
    """Return rows with the result of failed attempts."""
    return [
        _row(number, message, each)
        | {"attempts": message.attempts, "error": message.error or LEFT_OUT, "decision": _fate(each)}
        for number, (message, each) in enumerate(zip(messages, report.verdicts, strict=False), 1)
    ]


def result_line(messages: Sequence[TrialMessage], report: HookReport) -> str:
    """Return the results in one line."""
    tried, failed = len(report.verdicts), sum(bool(each.failure) for each in report.verdicts)
    parts = [f"{tried:,} tried", f"{failed:,} failed", f"{report.took_us / 1000:,.1f} ms in all"]
    if report.instructions:
        parts.append(f"{report.cost_us:.1f} µs and {report.instructions:,} instructions a run in a batch")
    if tried < len(messages):
        parts.append(f"the time was up: {len(messages) - tried:,} were not tried")
    return ", ".join(parts)


def _row(number: int, message: TrialMessage, each: HookVerdict) -> dict[str, Any]:
    return {
        "number": number,
        "id": message.id,
        "headers": ", ".join(f"{name}={value}" for name, value in message.headers.items())[:200] or LEFT_OUT,
        "failure": each.failure,
    }


def _enqueue_row(number: int, message: TrialMessage, each: HookVerdict) -> dict[str, Any]:
    row, changed = _row(number, message, each), []
    for field in ENQUEUE_FIELDS:
        now = None if field == "delay_ms" else getattr(message, field)
        then = each.decided.get(field)
        row[field] = _compared_text(field, now, then)
        if then is not None and not _is_same(now, then):
            changed.append(field)
    return row | {"_changed": changed}


def _compared_text(field: str, now: Any, then: Any) -> str:
    if then is None:
        return LEFT_OUT
    if now is None or _is_same(now, then):
        return _text(field, then)
    return f"{_text(field, now)} → {_text(field, then)}"


def _is_same(now: Any, then: Any) -> bool:
    """Compare two values; throttle keys as a set."""
    return bool(sorted(now) == sorted(then) if isinstance(now, list) else now == then)


def _text(field: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if field == "delay_ms":
        return aged(value / 1000)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _fate(each: HookVerdict) -> str:
    """Return a verdict of ``on_failure`` for people, with the effect of a failed run."""
    if each.decided.get("action") == "dlq":
        return "dead letter"
    delay_ms = each.decided.get("delay_ms", 0)
    return f"retry in {aged(delay_ms / 1000)}" if delay_ms else "retry at once"


_ID: Final = "00000000-0000-7000-8000-000000000001"


class SampleForm:
    """Headers, size, key and attempts."""

    def __init__(self) -> None:
        with ui.row().classes("w-full items-start gap-3") as self.row:
            self._headers = ui.textarea("Headers, a name=value on each line", placeholder="tenant=acme")
            self._headers.props("dense outlined rows=3 data-testid=sample-headers").classes("w-80 fila-mono")
            self._size = ui.number("Payload, bytes", value=100, min=0, precision=0).props("dense outlined").classes("w-36")
            self._key = ui.input("Fairness key", value="default").props("dense outlined").classes("w-40")
            self._attempts = ui.number("Failed attempts", value=1, min=1, precision=0).props("dense outlined").classes("w-36")

    def message(self) -> TrialMessage:
        """Return the message in the form. :class:`ValueError` names a line that is not a header."""
        return TrialMessage(
            _ID,
            read_headers(self._headers.value or ""),
            int(self._size.value or 0),
            self._key.value or "default",
            attempts=int(self._attempts.value or 1),
        )


SOURCES: Final = {
    "newest": "Newest messages",
    "first": "First of each key",
    "letters": "Newest dead letters",
    "sample": "A sample",
}

_FAILURE: Final = '<span class="text-negative fila-mono" style="white-space: normal">{{ props.value }}</span>'
_HEAD: Final = (
    TableColumn("number", "#", is_number=True),
    TableColumn("id", "Message", slot=MONO),
    TableColumn("headers", "Headers", slot='<div class="ellipsis" style="max-width: 18rem">{{ props.value }}</div>'),
)


class HookTrial:
    """A choice of messages, a button, and a table for each hook. ``wanted`` returns the hooks in the editors."""

    def __init__(self, context: Context, queue: str, wanted: Callable[[], HookPolicy]) -> None:
        self._context = context
        self._queue = queue
        self._wanted = wanted
        with ui.card().classes("w-full p-3 gap-2").props("data-testid=trial"):
            with ui.row().classes("w-full items-center gap-3"):
                ui.label("Try").classes("font-semibold")
                self._build_choice()
            self._sample = SampleForm()
            self._sample.row.bind_visibility_from(self._source, "value", lambda source: source == "sample")
            self._trouble = (
                ui.label().classes("text-negative fila-mono whitespace-pre-line").props("data-testid=trial-trouble")
            )
            self._results = ui.column().classes("w-full gap-2")

    def _build_choice(self) -> None:
        may_read = self._context.may(CONSUME, self._queue)
        sources = SOURCES if may_read else {"sample": SOURCES["sample"]}
        self._source = (
            ui.select(sources, value="newest" if may_read else "sample")
            .props("dense outlined data-testid=source")
            .classes("w-52")
        )
        self._count = ui.number("How many", value=20, min=1, max=TRIED_MAX, precision=0).props("dense outlined")
        self._count.classes("w-24").bind_visibility_from(self._source, "value", lambda source: source != "sample")
        self._error = ui.input("Error of the nack", placeholder="the message's last one").props("dense outlined")
        self._error.classes("w-64").props("data-testid=trial-error")
        self._button = ui.button("Try", icon="science", on_click=self._try).props("dense no-caps outline data-testid=try")
        without = "" if self._context.may(ADMIN, EVERYTHING) else " fila.get finds nothing: your key may not read the config."
        ui.label(f"Nothing is applied, no message changes.{without}").classes("fila-quiet")

    async def _try(self) -> None:
        self._button.disable()
        self._say("")
        self._results.clear()
        try:
            plan = await self._plan()
            report = await try_out(plan)
        except (FilaError, TrialError, ValueError) as error:
            self._say(str(error))
        else:
            self._show(plan, report)
        finally:
            self._button.enable()

    async def _plan(self) -> TrialPlan:
        wanted = self._wanted()
        queues.encode(changes(HookPolicy(), wanted))  # what can't be applied can't be tried
        if wanted.script("on_enqueue") is None and wanted.script("on_failure") is None:
            raise ValueError("there is no script to try: write one")
        return TrialPlan(
            self._queue,
            wanted.script("on_enqueue"),
            wanted.script("on_failure"),
            wanted.timeout_ms or TIMEOUT_MS,
            wanted.memory_limit_bytes or MEMORY_LIMIT_BYTES,
            await self._config(),
            await self._messages(),
            costs=self._source.value == "sample",
        )

    async def _config(self) -> dict[str, str]:
        """Return the runtime config, as far as the visitor may read it, for the scripts."""
        return await self._context.client.list_config() if self._context.may(ADMIN, EVERYTHING) else {}

    async def _messages(self) -> list[TrialMessage]:
        client, count = self._context.client, max(1, min(TRIED_MAX, int(self._count.value or 1)))
        match self._source.value:
            case "sample":
                found = [self._sample.message()]
            case "first":
                found = await first_messages(client, self._queue, count)
            case "letters":
                found = await newest_messages(client, dead_letter_name(self._queue), count)
            case _:
                found = await newest_messages(client, self._queue, count)
        if not found:
            raise ValueError("there are no such messages: try a sample")
        for message in found:
            message.error = self._error.value or message.error
        return found

    def _show(self, plan: TrialPlan, report: TrialReport) -> None:
        if report.refused:
            self._say(report.refused)
            return
        with self._results:
            for hook, each in report.hooks.items():
                with ui.row().classes("items-baseline gap-3"):
                    ui.label(hook).classes("font-semibold fila-mono")
                    ui.label(result_line(plan.messages, each)).classes("fila-quiet").props(f"data-testid=summary-{hook}")
                (_show_enqueue if hook == "on_enqueue" else _show_failure)(plan.messages, each)

    def _say(self, trouble: str) -> None:
        self._trouble.text = trouble
        self._trouble.set_visibility(bool(trouble))


def _show_enqueue(messages: list[TrialMessage], report: HookReport) -> None:
    fields = decided_fields(report)
    columns = [*_HEAD, *(TableColumn(field, ENQUEUE_FIELDS[field], slot=_compared(field)) for field in fields)]
    _table("on_enqueue", columns, enqueue_rows(messages, report))
    if not fields:
        ui.label("It decides nothing for any of them: all go as their producers asked.").classes("fila-quiet")


def _show_failure(messages: list[TrialMessage], report: HookReport) -> None:
    columns = [
        *_HEAD,
        TableColumn("attempts", "Failed attempts", is_number=True),
        TableColumn("error", "Error"),
        TableColumn("decision", "Then"),
    ]
    _table("on_failure", columns, failure_rows(messages, report))


def _table(hook: str, columns: list[TableColumn], rows: list[dict[str, Any]]) -> None:
    if any(row["failure"] for row in rows):
        columns = [*columns, TableColumn("failure", "The script failed", slot=_FAILURE)]
    PagedTable(columns, key="number", sort_by="number", mark=f"tried-{hook}").show(rows)


def _compared(field: str) -> str:
    changed = f"props.row._changed.includes('{field}')"
    return f"""<span :class="{changed} ? 'text-primary text-weight-medium' : ''">{{{{ props.value }}}}</span>"""
