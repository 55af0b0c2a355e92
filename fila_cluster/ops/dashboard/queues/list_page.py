"""``/queues``: all of them, to search and to sort. ``?search=…`` searches."""

from typing import Any

from nicegui import ui

from fila_cluster.figures import aged, counted, paced
from fila_cluster.ops.analysis.rows import QueueRow
from fila_cluster.ops.dashboard.queues.options_dialog import create_dialog
from fila_cluster.ops.dashboard.shell.context import ADMIN, EVERYTHING, Context, Visits
from fila_cluster.ops.dashboard.shell.feedback import notify
from fila_cluster.ops.dashboard.shell.frame import frame
from fila_cluster.ops.dashboard.shell.links import link, queue_page
from fila_cluster.ops.dashboard.shell.live import keep_live
from fila_cluster.ops.dashboard.widgets.cells import STATE_SLOT, linked
from fila_cluster.ops.dashboard.widgets.paged_table import PagedTable, TableColumn
from fila_proto_zmq.names import dead_letter_name


def register(visits: Visits) -> None:
    """Add the page."""

    @ui.page("/queues")
    def queues(search: str = "") -> None:
        context = visits.context()
        with frame(context, "Queues", "/queues"):
            page = _Queues(context, search)
        keep_live(context, page.look)


LETTERS_SLOT = """<a v-if="props.value !== '0'" :href="props.row.letters" class="text-negative">{{ props.value }}</a>
<span v-else>0</span>"""

_COLUMNS = (
    TableColumn("name", "Queue", slot=linked("href")),
    TableColumn("state", "State", slot=STATE_SLOT),
    TableColumn("pending", "Pending", counted, is_number=True),
    TableColumn("in_flight", "In flight", counted, is_number=True),
    TableColumn("delayed", "Delayed", counted, is_number=True),
    TableColumn("oldest_pending_age", "Oldest waits", aged, is_number=True),
    TableColumn("consumers", "Consumers", counted, is_number=True),
    TableColumn("enqueued_per_s", "Enqueued / s", paced, is_number=True),
    TableColumn("delivered_per_s", "Delivered / s", paced, is_number=True),
    TableColumn("acked_per_s", "Acked / s", paced, is_number=True),
    TableColumn("dead_letters", "Dead letters", counted, is_number=True, slot=LETTERS_SLOT),
    TableColumn("shard", "Shard", is_number=True),
)


class _Queues:
    def __init__(self, context: Context, search: str) -> None:
        self._context = context
        with ui.row().classes("w-full items-center gap-6"):
            self._with_letters = ui.switch("Dead letter queues, too").props("data-testid=with-letters")
            self._only_full = ui.switch("Only those with messages").props("data-testid=only-full")
            self._count = ui.label().classes("fila-quiet").props("data-testid=queue-count")
            ui.space()
            if context.may(ADMIN, EVERYTHING):
                ui.link("Templates", "/templates")
            create = ui.button("Create queue", icon="add", on_click=self._create)
            create.props("outline dense no-caps data-testid=create-queue").set_visibility(context.may_some(ADMIN))
        self._table = PagedTable(
            _COLUMNS,
            key="name",
            sort_by="name",
            mark="queues",
            search_in=["name", "state"],
            more=_addresses,
            empty="No queue.",
        )
        self._table.search.value = search
        for switch in (self._with_letters, self._only_full):
            switch.on_value_change(self.look)

    async def _create(self) -> None:
        name = await create_dialog(lambda name, options: self._context.client.create_queue(name, **options))
        if name is not None:
            notify(f"{name} and {dead_letter_name(name)} are there")
            ui.navigate.to(queue_page(name))

    async def look(self) -> None:
        rows = [row for row in await self._context.queue_rows() if self._is_wanted(row)]
        part = self._context.coverage
        self._count.text = counted(len(rows), "queue") + (f", {part}" if part else "")
        self._table.show(rows, part)

    def _is_wanted(self, row: QueueRow) -> bool:
        return (self._with_letters.value or not row.is_dead_letter) and (not self._only_full.value or row.depth != 0)


def _addresses(row: QueueRow) -> dict[str, Any]:
    return {"href": queue_page(row.name), "letters": link("/dead-letters", queue=dead_letter_name(row.name))}
