"""``/``: the state of the cluster, what needs attention, and the workers."""

from collections.abc import Sequence
from typing import Final

from nicegui import ui

from fila_cluster.analysis.attention import Concern
from fila_cluster.analysis.rows import totals, worker_rows
from fila_cluster.dashboard.shell.context import Context, Visits
from fila_cluster.dashboard.shell.frame import frame
from fila_cluster.dashboard.shell.links import link, queue_page
from fila_cluster.dashboard.shell.live import keep_live
from fila_cluster.dashboard.widgets.charts import Tile, TimeChart
from fila_cluster.dashboard.widgets.paged_table import PagedTable, TableColumn
from fila_cluster.figures import aged, counted, lasted, paced, ranged, shared, sized
from fila_proto_zmq.commands import Metrics

FLOWS = {"enqueued": "enqueued", "delivered": "delivered", "acked": "acked", "dead_lettered": "dead-lettered"}
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
        self._feed = ConcernFeed()
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
        held = totals(metrics)
        for name in ("pending", "in_flight", "delayed"):
            self._tiles[name].show(counted(getattr(held, name)))
        self._tiles["dead_letters"].show(counted(held.dead_letters), alarming=held.dead_letters > 0)
        total = self._context.rates().total
        for name in ("enqueued", "delivered", "acked"):
            self._tiles[name].show(paced(getattr(total, name)) if total else "–")
        if held.oldest is None:
            self._tiles["oldest"].show("–")
        else:
            self._tiles["oldest"].show(aged(held.oldest.oldest_pending_ms / 1000), held.oldest.info.name)


SHOWN: Final = 8

_ICONS: Final = {"critical": ("error", "negative"), "warning": ("warning", "warning"), "info": ("info", "info")}
_LETTER_CODES: Final = {"dead_letters", "dead_letters_growing"}


class ConcernFeed:
    """The first :data:`SHOWN` concerns; drawn again only when something changed."""

    def __init__(self) -> None:
        self._shown: Sequence[Concern] | None = None
        self._all = False
        with ui.card().classes("w-full p-3 gap-1").props("data-testid=attention"):
            ui.label("Needs attention").classes("font-semibold")
            self._list = ui.column().classes("w-full gap-0")

    def show(self, concerns: Sequence[Concern]) -> None:
        """Change the list."""
        if concerns == self._shown:
            return
        self._shown = concerns
        self._draw()

    def _draw(self) -> None:
        concerns = self._shown or ()
        self._list.clear()
        with self._list:
            if not concerns:
                with ui.row().classes("items-center gap-2 py-1"):
                    ui.icon("check_circle", color="positive").classes("text-xl")
                    ui.label("Nothing. All shards serve, and no messages wait for a reason that you could remove.")
            for concern in concerns if self._all else concerns[:SHOWN]:
                _entry(concern)
            if len(concerns) > SHOWN:
                text = "Show fewer" if self._all else f"Show {len(concerns) - SHOWN:,} more"
                ui.button(text, on_click=self._turn).props("flat dense no-caps")

    def _turn(self) -> None:
        self._all = not self._all
        self._draw()


def _entry(concern: Concern) -> None:
    icon, colour = _ICONS[concern.severity]
    with ui.row().classes("w-full items-start gap-3 py-1 no-wrap").props(f"data-testid=concern-{concern.code}"):
        ui.icon(icon, color=colour).classes("text-xl mt-[2px]")
        with ui.column().classes("gap-0 grow"):
            ui.label(concern.text)
            ui.label(concern.action).classes("fila-quiet")
        if concern.queue is not None:
            _way(concern.queue, concern.code)


def _way(queue: str, code: str) -> None:
    with ui.row().classes("gap-2 no-wrap"):
        if code in _LETTER_CODES:
            ui.link("Dead letters", link("/letters", queue=queue)).classes("text-sm whitespace-nowrap")
        else:
            ui.link("Why?", link("/why", queue=queue)).classes("text-sm whitespace-nowrap")
        ui.link("Open", queue_page(queue)).classes("text-sm")
