"""``/schedules``: what the broker enqueues itself, when each schedule is due next, and what became of the last message."""

from datetime import UTC, datetime
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from fila_cluster import Schedule
from fila_cluster.dashboard.shell.context import ADMIN, Context, Visits
from fila_cluster.dashboard.shell.feedback import confirm, succeeds
from fila_cluster.dashboard.shell.frame import frame
from fila_cluster.dashboard.shell.live import Look, keep_live
from fila_cluster.dashboard.widgets.cells import MONO, ago, short_time, wrapped
from fila_cluster.dashboard.widgets.paged_table import PagedTable, TableColumn
from fila_cluster.figures import counted

_ACTIONS: Final = """
<q-btn v-if="props.row.may_delete" dense flat size="sm" icon="delete" color="negative" @click="$parent.$emit('drop', props.row)"
 aria-label="delete schedule"><q-tooltip>Delete the schedule</q-tooltip></q-btn>
"""

_COLUMNS: Final = (
    TableColumn("name", "Schedule", slot=MONO),
    TableColumn("queue", "Queue", slot=MONO),
    TableColumn("when", "When", slot=MONO),
    TableColumn("catch_up", "Catch-up"),
    TableColumn("next", "Next (UTC)", short_time),
    TableColumn("last", "Last", ago, is_number=True),
    TableColumn("fired", "Fired", counted, is_number=True),
    TableColumn("skipped", "Skipped", counted, is_number=True),
    TableColumn("failed", "Failed", counted, is_number=True),
    TableColumn("trouble", "Trouble", slot=wrapped("14rem")),
    TableColumn("actions", "", slot=_ACTIONS, is_value=False),
)


def register(visits: Visits) -> None:
    """Add the page."""

    @ui.page("/schedules")
    def schedules() -> None:
        context = visits.context()
        with frame(context, "Schedules", "/schedules"):
            page = _Schedules(context)
        page.look_now = keep_live(context, page.look, page.trouble)


class _Schedules:
    def __init__(self, context: Context) -> None:
        self._context = context
        self.look_now: Look = self.look
        with ui.row().classes("w-full items-baseline gap-3"):
            ui.label("Schedules").classes("text-xl font-semibold")
            self._count = ui.label().classes("fila-quiet").props("data-testid=schedule-count")
        self.trouble = ui.label().classes("text-negative").props("data-testid=trouble")
        self._table = PagedTable(
            _COLUMNS,
            key="name",
            sort_by="name",
            mark="schedules",
            search_in=("name", "queue", "when", "trouble"),
            empty="No schedule, or none that matches the search. fila-cluster schedule put makes one.",
        )
        self._table.table.on("drop", self._delete)

    async def look(self) -> None:
        found = await self._context.client.list_schedules()
        self._count.text = counted(len(found), "schedule")
        now = datetime.now(UTC)
        self._table.show([row(each, now, may_delete=self._context.may(ADMIN, each.name)) for each in found])

    async def _delete(self, event: GenericEventArguments) -> None:
        name = event.args["name"]
        if not await confirm(f"Delete the schedule {name}?\nMessages that it has enqueued stay.", yes="Delete it"):
            return
        if await succeeds(self._context.client.delete_schedule(name), f"the schedule {name} is deleted"):
            await self.look_now()


def row(schedule: Schedule, now: datetime, *, may_delete: bool) -> dict[str, Any]:
    """Return a schedule's row."""
    return {
        "name": schedule.name,
        "queue": schedule.queue,
        "when": schedule.when,
        "catch_up": schedule.catch_up,
        "next": schedule.next_at,
        "last": None if schedule.last_at is None else max(0.0, (now - schedule.last_at).total_seconds()),
        "fired": schedule.fired,
        "skipped": schedule.skipped,
        "failed": schedule.failed,
        "trouble": trouble(schedule),
        "may_delete": may_delete,
    }


def trouble(schedule: Schedule) -> str | None:
    """Return what keeps a schedule's messages out of their queue; None: nothing."""
    if schedule.error is None:
        return None
    waits = "waits: " if schedule.under_way_due_at is not None else ""
    return f"{waits}{schedule.error.code}: {schedule.error.message}"
