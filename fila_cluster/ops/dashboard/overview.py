"""``/``: the state of the cluster, concerns, and the workers."""

from nicegui import ui

from fila_cluster.figures import aged, counted, lasted, paced, ranged, shared, sized
from fila_cluster.ops.analysis.rows import coverage, totals, worker_rows
from fila_cluster.ops.dashboard.shell.context import Context, Visits
from fila_cluster.ops.dashboard.shell.frame import frame
from fila_cluster.ops.dashboard.shell.live import keep_live, unknown_here
from fila_cluster.ops.dashboard.widgets.charts import Tile, TimeChart
from fila_cluster.ops.dashboard.widgets.concern_feed import ConcernFeed
from fila_cluster.ops.dashboard.widgets.paged_table import PagedTable, TableColumn
from fila_proto_zmq.commands import Metrics

FLOWS = {"enqueued": "enqueued", "delivered": "delivered", "acked": "acked", "dead_lettered": "dead-lettered"}
ALL_WELL = "Nothing. All shards serve, and no messages wait for a reason that you could remove."
LEVELS = {"pending": "pending", "in_flight": "in flight", "delayed": "delayed"}


def register(visits: Visits) -> None:
    """Add the page."""

    @ui.page("/")
    def overview() -> None:
        context = visits.context()
        with frame(context, "Overview", "/"):
            page = _Overview(context)
        keep_live(context, page.look)


_WORKER_COLUMNS = (
    TableColumn("name", "Worker"),
    TableColumn(
        "state",
        "State",
        slot="""<q-badge :color="props.value == 'up' ? 'positive' : 'negative'">{{ props.value }}</q-badge>""",
    ),
    TableColumn("pid", "Pid", is_number=True),
    TableColumn("shards", "Shards", ranged),
    TableColumn("queues", "Queues", counted, is_number=True),
    TableColumn("cpu", "CPU", shared, is_number=True),
    TableColumn("rss_bytes", "Memory", sized, is_number=True),
    TableColumn("turn_p50_ns", "Turn p50", lasted, is_number=True),
    TableColumn("turn_p99_ns", "Turn p99", lasted, is_number=True),
    TableColumn("commit_p99_ns", "Commit p99", lasted, is_number=True),
)


class _Overview:
    def __init__(self, context: Context) -> None:
        self._context = context
        with ui.row().classes("w-full gap-3 items-stretch"):
            self._tiles = {
                name: Tile(label, f"total-{name}")
                for name, label in (
                    ("pending", "Pending"),
                    ("in_flight", "In flight"),
                    ("delayed", "Delayed"),
                    ("dead_letters", "Dead letters"),
                    ("enqueued", "Enqueued / s"),
                    ("delivered", "Delivered / s"),
                    ("acked", "Acked / s"),
                    ("oldest", "Oldest waits"),
                )
            }
        self._feed = ConcernFeed("Needs attention", ALL_WELL)
        with ui.row().classes("w-full gap-3"):
            self._flows = TimeChart("Messages a second", FLOWS)
            self._levels = TimeChart("Messages held", LEVELS, stacked=True)
        with ui.column().classes("w-full gap-4") as all_workers:
            ui.label("Workers").classes("text-lg font-semibold")
            self._workers = PagedTable(
                _WORKER_COLUMNS, key="name", sort_by="name", mark="workers", empty="No worker has come yet."
            )
        all_workers.set_visibility(context.sees_all)

    async def look(self) -> None:
        metrics = self._context.latest
        assert metrics is not None
        self._show_totals(metrics)
        self._feed.show(self._context.concerns())
        times, history = await self._context.series_of_all()
        self._flows.show(times, history)
        self._levels.show(times, history)
        if self._context.sees_all:
            self._workers.show(worker_rows(metrics, self._context.rates()))

    def _show_totals(self, metrics: Metrics) -> None:
        held, part = totals(metrics), coverage(metrics)
        if part.startswith("0 "):
            unknown_here(part)
            return
        for name in ("pending", "in_flight", "delayed"):
            self._tiles[name].show(counted(getattr(held, name)), part)
        self._tiles["dead_letters"].show(counted(held.dead_letters), part, alarming=held.dead_letters > 0)
        total = self._context.rates().total
        for name in ("enqueued", "delivered", "acked"):
            self._tiles[name].show(paced(getattr(total, name)) if total else "–", part)
        if held.oldest is None:
            self._tiles["oldest"].show("–", part)
        else:
            self._tiles["oldest"].show(
                aged(held.oldest.oldest_pending_ms / 1000), held.oldest.info.name + (f", {part}" if part else "")
            )
