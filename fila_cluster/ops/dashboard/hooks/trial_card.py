"""Trials of the edited scripts: the choice of messages, a sample made by hand, and the results."""

from collections.abc import Callable
from typing import Any, Final

from nicegui import ui

from fila_cluster.client.calls import queues
from fila_cluster.errors import FilaError
from fila_cluster.ops.dashboard.hooks.editor import HookPolicy, changes
from fila_cluster.ops.dashboard.hooks.trials.messages import TRIED_MAX, first_messages, newest_messages
from fila_cluster.ops.dashboard.hooks.trials.plan import (
    MEMORY_LIMIT_BYTES,
    TIMEOUT_MS,
    HookReport,
    TrialError,
    TrialMessage,
    TrialPlan,
    TrialReport,
    try_out,
)
from fila_cluster.ops.dashboard.hooks.trials.verdicts import (
    ENQUEUE_FIELDS,
    decided_fields,
    enqueue_rows,
    failure_rows,
    result_line,
)
from fila_cluster.ops.dashboard.shell.context import ADMIN, CONSUME, EVERYTHING, Context
from fila_cluster.ops.dashboard.widgets.forms import read_headers
from fila_cluster.ops.dashboard.widgets.paged_table import MONO, PagedTable, TableColumn
from fila_proto_zmq.names import dead_letter_name

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
