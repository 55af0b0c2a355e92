"""``/schedules``: the schedules of the broker, with their next due times and last messages."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from fila_cluster import Schedule
from fila_cluster.figures import counted
from fila_cluster.ops.dashboard.schedules.form import schedule_dialog
from fila_cluster.ops.dashboard.shell.context import ADMIN, PRODUCE, Context, Visits
from fila_cluster.ops.dashboard.shell.feedback import attempt, confirm, notify, succeeds
from fila_cluster.ops.dashboard.shell.frame import frame
from fila_cluster.ops.dashboard.shell.live import Look, keep_live
from fila_cluster.ops.dashboard.widgets.cells import ago, short_time, wrapped
from fila_cluster.ops.dashboard.widgets.forms import OFFERED_MAX
from fila_cluster.ops.dashboard.widgets.paged_table import PagedTable, TableColumn

_ACTIONS: Final = """
<q-btn v-if="props.row.may_change" dense flat size="sm" icon="edit" @click="$parent.$emit('change', props.row)"
 aria-label="change schedule"><q-tooltip>Change the schedule</q-tooltip></q-btn>
<q-btn v-if="props.row.may_delete" dense flat size="sm" icon="delete" color="negative"
 @click="$parent.$emit('drop', props.row)" aria-label="delete schedule"><q-tooltip>Delete the schedule</q-tooltip></q-btn>
"""

_COLUMNS: Final = (
    TableColumn("name", "Schedule", slot=wrapped("7rem", "fila-mono")),
    TableColumn("queue", "Queue", slot=wrapped("7rem", "fila-mono")),
    TableColumn("when", "When", slot=wrapped("8rem", "fila-mono")),
    TableColumn("catch_up", "Catch-up"),
    TableColumn("next", "Next (UTC)", short_time),
    TableColumn("last", "Last", ago, is_number=True),
    TableColumn("fired", "Fired", counted, is_number=True),
    TableColumn("skipped", "Skipped", counted, is_number=True),
    TableColumn("failed", "Failed", counted, is_number=True),
    TableColumn("trouble", "Trouble", slot=wrapped("11rem")),
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
        may = context.may_some
        with ui.row().classes("w-full items-center gap-3"):
            ui.label("Schedules").classes("text-xl font-semibold")
            self._count = ui.label().classes("fila-quiet").props("data-testid=schedule-count")
            ui.space()
            create = ui.button("Create schedule", icon="add", on_click=self._create)
            create.props("outline dense no-caps data-testid=create-schedule").set_visibility(may(ADMIN) and may(PRODUCE))
        self.trouble = ui.label().classes("text-negative").props("data-testid=trouble")
        self._table = PagedTable(
            _COLUMNS,
            key="name",
            sort_by="name",
            mark="schedules",
            search_in=("name", "queue", "when", "trouble"),
            empty="No schedule, or none that matches the search.",
        )
        self._table.table.on("change", self._change)
        self._table.table.on("drop", self._delete)

    async def look(self) -> None:
        found = await self._context.client.list_schedules()
        self._count.text = counted(len(found), "schedule")
        now = datetime.now(UTC)
        self._table.show([row(each, now, self._context.may) for each in found])

    async def _create(self) -> None:
        name = await schedule_dialog(self._context.client, await self._queues())
        if name is not None:
            notify(f"the schedule {name} is there")
            await self.look_now()

    async def _change(self, event: GenericEventArguments) -> None:
        schedule = await attempt(self._context.client.get_schedule(event.args["name"]))
        if schedule is None:  # it was deleted meanwhile, or the error is shown
            await self.look_now()
            return
        if await schedule_dialog(self._context.client, await self._queues(), schedule) is not None:
            notify(f"the schedule {schedule.name} is changed")
            await self.look_now()

    async def _queues(self) -> list[str]:
        """Return the names of queues that the visitor's schedules may enqueue to."""
        rows = await attempt(self._context.queue_rows()) or []
        names = (row.name for row in rows if not row.is_dead_letter and self._context.may(PRODUCE, row.name))
        return sorted(names)[:OFFERED_MAX]

    async def _delete(self, event: GenericEventArguments) -> None:
        name = event.args["name"]
        if not await confirm(f"Delete the schedule {name}?\nMessages that it has enqueued stay.", yes="Delete it"):
            return
        if await succeeds(self._context.client.delete_schedule(name), f"the schedule {name} is deleted"):
            await self.look_now()


def row(schedule: Schedule, now: datetime, may: Callable[[str, str], bool]) -> dict[str, Any]:
    """Return a schedule's row. ``may``: whether the visitor has a kind of permission on a name."""
    governs = may(ADMIN, schedule.name)
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
        "may_delete": governs,
        "may_change": governs and may(PRODUCE, schedule.queue),
    }


def trouble(schedule: Schedule) -> str | None:
    """Return the reason that keeps a schedule's messages out of their queue, if any."""
    if schedule.error is None:
        return None
    waits = "waits: " if schedule.under_way_due_at is not None else ""
    return f"{waits}{schedule.error.code}: {schedule.error.message}"
