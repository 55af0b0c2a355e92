"""``/``: is all well, what needs attention, who does the work."""

from nicegui import ui

from fila_cluster.dashboard.desk import Desk
from fila_cluster.dashboard.frame import frame
from fila_cluster.dashboard.live import keep_live
from fila_cluster.dashboard.parts.concerns import ConcernFeed
from fila_cluster.dashboard.parts.paged_table import Column, PagedTable
from fila_cluster.dashboard.parts.tile import Tile
from fila_cluster.dashboard.parts.time_chart import TimeChart
from fila_cluster.figures import aged, counted, lasted, paced, ranged, shared, sized
from fila_cluster.observing.rows import worker_rows
from fila_cluster.observing.totals import totals
from fila_proto_zmq.commands import Metrics

FLOWS = {"enqueued": "enqueued", "delivered": "delivered", "acked": "acked", "dead_lettered": "dead-lettered"}
LEVELS = {"pending": "pending", "in_flight": "in flight", "delayed": "delayed"}


def register(desk: Desk) -> None:
    """Add the page."""

    @ui.page("/")
    def overview() -> None:
        with frame(desk, "Overview", "/"):
            page = _Overview(desk)
        keep_live(desk, page.look)


_WORKER_COLUMNS = (
    Column("name", "Worker"),
    Column(
        "state", "State",
        slot="""<q-badge :color="props.value == 'up' ? 'positive' : 'negative'">{{ props.value }}</q-badge>""",
    ),
    Column("pid", "Pid", is_number=True),
    Column("shards", "Shards", ranged),
    Column("queues", "Queues", counted, is_number=True),
    Column("cpu", "CPU", shared, is_number=True),
    Column("rss_bytes", "Memory", sized, is_number=True),
    Column("turn_p50_ns", "Turn p50", lasted, is_number=True),
    Column("turn_p99_ns", "Turn p99", lasted, is_number=True),
    Column("commit_p99_ns", "Commit p99", lasted, is_number=True),
)  # fmt: skip


class _Overview:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        with ui.row().classes("w-full gap-3 items-stretch"):
            self._tiles = {
                name: Tile(label, f"total-{name}")
                for name, label in (
                    ("pending", "Pending"), ("in_flight", "In flight"), ("delayed", "Delayed"), ("dead_letters", "Dead letters"),
                    ("enqueued", "Enqueued / s"), ("delivered", "Delivered / s"), ("acked", "Acked / s"), ("oldest", "Oldest waits"),
                )
            }  # fmt: skip
        self._feed = ConcernFeed()
        with ui.row().classes("w-full gap-3"):
            self._flows = TimeChart("Messages a second", FLOWS)
            self._levels = TimeChart("Messages held", LEVELS, stacked=True)
        ui.label("Workers").classes("text-lg font-semibold")
        self._workers = PagedTable(
            _WORKER_COLUMNS, key="name", sort_by="name", mark="workers", empty="No worker has come yet."
        )

    async def look(self) -> None:
        metrics = self._desk.watch.latest
        assert metrics is not None
        self._show_totals(metrics)
        self._feed.show(self._desk.concerns())
        history, times = self._desk.history.of_all(), self._desk.history.times()
        self._flows.show(times, history)
        self._levels.show(times, history)
        self._workers.show(worker_rows(metrics, self._desk.pace()))

    def _show_totals(self, metrics: Metrics) -> None:
        held = totals(metrics)
        for name in ("pending", "in_flight", "delayed"):
            self._tiles[name].show(counted(getattr(held, name)))
        self._tiles["dead_letters"].show(counted(held.dead_letters), alarming=held.dead_letters > 0)
        total = self._desk.pace().total
        for name in ("enqueued", "delivered", "acked"):
            self._tiles[name].show(paced(getattr(total, name)) if total else "–")
        if held.oldest is None:
            self._tiles["oldest"].show("–")
        else:
            self._tiles["oldest"].show(aged(held.oldest.oldest_pending_ms / 1000), held.oldest.info.name)
