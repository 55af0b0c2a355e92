"""The page ``/hooks``: the queues that have scripts; for one of them the counters of its scripts, an editor and a trial."""

import time
from typing import Any

from nicegui import ui

from fila_cluster.client.calls.queues import describe_queue
from fila_cluster.errors import FilaError, QueueNotFoundError
from fila_cluster.figures import counted, quantile
from fila_cluster.ops.analysis.rates import all_queues
from fila_cluster.ops.dashboard.hooks.editor import HookEditor, Shelf
from fila_cluster.ops.dashboard.hooks.trial_card import HookTrial
from fila_cluster.ops.dashboard.shell.context import ADMIN, EVERYTHING, Context, Visits
from fila_cluster.ops.dashboard.shell.frame import frame, link, queue_page
from fila_cluster.ops.dashboard.shell.live import Look, keep_live
from fila_cluster.ops.dashboard.widgets.charts import Tile
from fila_cluster.ops.dashboard.widgets.forms import QueueChoice
from fila_cluster.ops.dashboard.widgets.paged_table import PagedTable, TableColumn, linked
from fila_proto_zmq.commands import HookMetrics, HookState, QueueDescription, QueueMetrics
from fila_proto_zmq.names import is_dead_letter


def register(visits: Visits) -> None:
    """Add the page."""
    shelf = Shelf()

    @ui.page("/hooks")
    def hooks(queue: str = "") -> None:
        context = visits.context()
        with frame(context, f"Hooks of {queue}" if queue else "Hooks", "/hooks"):
            if queue:
                page = _QueueHooks(context, queue, shelf)
                page.look_now = keep_live(context, page.look, page.trouble)
            else:
                keep_live(context, _AllHooks(context).look)


def _took(nanoseconds: float) -> str:
    return f"{nanoseconds / 1000:,.1f} µs"


_COLUMNS = (
    TableColumn("queue", "Queue", slot=linked("_link")),
    TableColumn("runs", "Runs", counted, is_number=True),
    TableColumn("failed", "Failed", counted, is_number=True),
    TableColumn("bypassed", "Bypassed", counted, is_number=True),
    TableColumn("p50", "Run p50", _took, is_number=True),
    TableColumn("p99", "Run p99", _took, is_number=True),
    TableColumn(
        "breaker",
        "Breaker",
        slot="""<q-badge :color="props.value == 'open' ? 'negative' : 'positive'">{{ props.value }}</q-badge>""",
    ),
)


class _AllHooks:
    """The queues that have hooks."""

    def __init__(self, context: Context) -> None:
        self._context = context
        with ui.row().classes("w-full items-center gap-3"):
            ui.label("Hooks").classes("text-xl font-semibold")
            ui.label("Lua scripts that decide how messages are scheduled, and what a failure means.").classes("fila-quiet")
            ui.space()
            QueueChoice(
                context,
                "",
                lambda name: ui.navigate.to(link("/hooks", queue=name)),
                mark="choose",
                wanted=lambda name: not is_dead_letter(name),
            )
        self._table = PagedTable(
            _COLUMNS,
            key="queue",
            sort_by="runs",
            descending=True,
            mark="hooks",
            search_in=("queue",),
            empty="No queue has hooks." + (" Choose one above to give it some." if context.may_some(ADMIN) else ""),
        )
        self._note = ui.label().classes("fila-quiet")

    async def look(self) -> None:
        metrics = self._context.latest
        assert metrics is not None
        self._table.show([_row(queue, queue.hooks) for queue in all_queues(metrics) if queue.hooks is not None])
        left_out = sum(shard.queues_left_out for worker in metrics.workers for shard in worker.shards)
        note = "Counted since the scripts were compiled, or their shard started. Decisions recalled for headers do not run."
        self._note.text = note + (f" {counted(left_out)} quieter queues are not counted here." if left_out else "")


def _row(queue: QueueMetrics, hooks: HookMetrics) -> dict[str, Any]:
    return {
        "queue": queue.info.name,
        "runs": hooks.runs,
        "failed": hooks.failed,
        "bypassed": hooks.bypassed,
        "p50": quantile(hooks.run_ns, 0.5),
        "p99": quantile(hooks.run_ns, 0.99),
        "breaker": "open" if hooks.breaker_open else "closed",
        "_link": link("/hooks", queue=queue.info.name),
    }


class _QueueHooks:
    """The hooks of one queue."""

    def __init__(self, context: Context, queue: str, shelf: Shelf) -> None:
        self._context = context
        self._queue = queue
        self.look_now: Look = self.look
        with ui.row().classes("w-full items-center gap-3"):
            ui.label("Hooks of").classes("text-xl")
            ui.link(queue, queue_page(queue)).classes("text-xl font-semibold break-all")
            ui.space()
            ui.link("All hooks", "/hooks")
        self.trouble = ui.label().classes("text-negative").props("data-testid=trouble")
        self._body = ui.column().classes("w-full gap-4")
        with self._body:
            self._state = HookStateCard()
            self._editor = HookEditor(context, queue, shelf, self._look_again)
            if context.may(ADMIN, queue):
                HookTrial(context, queue, lambda: self._editor.wanted)
            self._build_config()
        self._body.set_visibility(False)

    def _build_config(self) -> None:
        with ui.expansion("Runtime config, as fila.get reads it", icon="tune").classes("w-full") as self._config_box:
            self._config = PagedTable(
                (TableColumn("key", "Key"), TableColumn("value", "Value")),
                key="key",
                sort_by="key",
                mark="hook-config",
                search_in=("key", "value"),
                empty="It is empty.",
            )
            ui.link("Change it", "/config")
        self._config_box.props("data-testid=hook-config-box dense")
        self._config_box.set_visibility(self._context.may(ADMIN, EVERYTHING))

    async def _look_again(self) -> None:
        await self.look_now()

    async def look(self) -> None:
        try:
            description = await self._described()
        except QueueNotFoundError:
            self._body.set_visibility(False)
            raise
        except FilaError:
            self._state.show(None)  # no old numbers; edits stay
            raise
        self._body.set_visibility(True)
        self._state.show(description.hooks)
        self._editor.show(description)
        if self._config_box.value:
            config = await self._context.client.list_config()
            self._config.show([{"key": key, "value": value} for key, value in config.items()])

    async def _described(self) -> QueueDescription:
        if is_dead_letter(self._queue):
            raise QueueNotFoundError(f"{self._queue!r} is a dead letter queue: those have no hooks")
        return await describe_queue(self._context.client, self._queue)


class HookStateCard:
    """Numbers since the scripts were compiled, and the last failure."""

    def __init__(self) -> None:
        with ui.row().classes("w-full gap-3 items-stretch") as self._tiles:
            self._runs = Tile("Runs", "hook-runs")
            self._failed = Tile("Failed", "hook-failed")
            self._bypassed = Tile("Bypassed", "hook-bypassed")
            self._breaker = Tile("Breaker", "hook-breaker")
        self._failure = ui.label().classes("text-negative fila-mono").props("data-testid=last-failure")

    def show(self, hooks: HookState | None) -> None:
        """Show new numbers; None: the queue has no hooks."""
        self._tiles.set_visibility(hooks is not None)
        self._failure.set_visibility(hooks is not None and bool(hooks.last_failure))
        if hooks is None:
            return
        self._runs.show(counted(hooks.runs), "recalled decisions do not run")
        self._failed.show(counted(hooks.failed), alarming=hooks.failures_in_row > 0)
        self._bypassed.show(counted(hooks.bypassed))
        left_ms = hooks.open_until_ms - time.time_ns() // 1_000_000
        if left_ms > 0:
            self._breaker.show("open", f"tried again in {left_ms / 1000:.0f} s", alarming=True)
        else:
            self._breaker.show("closed", f"opens after {hooks.threshold} failures in a row, now {hooks.failures_in_row}")
        self._failure.text = f"The last failure: {hooks.last_failure}"
