"""``/schedules``: the schedules of the broker, with their next due times and last messages; and the form that changes one."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, NamedTuple, Self
from zoneinfo import ZoneInfo, available_timezones

from nicegui import ui
from nicegui.events import GenericEventArguments

from fila_cluster import AsyncClient, Schedule
from fila_cluster.client.message import utc
from fila_cluster.errors import FilaError
from fila_cluster.figures import aged, counted, distance, duration_s, written_ms
from fila_cluster.ops.dashboard.shell.context import ADMIN, PRODUCE, Context, Visits
from fila_cluster.ops.dashboard.shell.frame import frame
from fila_cluster.ops.dashboard.shell.live import Look, attempt, confirm, keep_live, notify, succeeds
from fila_cluster.ops.dashboard.widgets.forms import OFFERED_MAX, FormDialog, MessageFields
from fila_cluster.ops.dashboard.widgets.paged_table import PagedTable, TableColumn, ago, short_time, wrapped
from fila_proto_zmq.commands import MESSAGE_OPTIONS
from fila_worker.core.schedules.table import ONCE, check_rest, due_times, jitter_of
from fila_worker.process.cron import CALENDAR

SHOWN: Final = 5
"""Due times before it is put."""

UTC_NAME: Final = "UTC"


class Timing(NamedTuple):
    """When a schedule is due. It has a cron expression, or an interval; the other one is empty or 0."""

    cron: str
    every_ms: int
    timezone: str
    jitter_ms: int

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        """Return that of a schedule."""
        every_ms, jitter_ms = round(1000 * (schedule.every or 0)), round(1000 * schedule.jitter)
        return cls(schedule.cron or "", every_ms, schedule.timezone, jitter_ms)

    @classmethod
    def read(cls, *, cron: str, every: str, timezone: str, jitter: str) -> Self:
        """Return the timing in the texts of a form. :class:`ValueError` names a text that can't be read."""
        return cls(cron, _milliseconds("Interval", every), timezone, _milliseconds("Jitter", jitter))

    @property
    def zone(self) -> str:
        """The time zone for its due times; of an interval UTC."""
        return self.timezone if self.cron else UTC_NAME


class Due(NamedTuple):
    """A due time, and when its message comes: up to the jitter later, and not before the one of the due time before."""

    due_ms: int
    at_ms: int


def _milliseconds(label: str, text: str) -> int:
    try:
        return round(1000 * duration_s(text)) if text else 0
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None


def next_due(name: str, timing: Timing, now_ms: int, before: Schedule | None = None) -> list[Due]:
    """Return the next due times if a schedule is put now. :class:`InvalidArgumentError` says why it would be refused.

    ``before``: the schedule that it replaces. It keeps its position if that has the same timing; else it begins now.
    """
    check_rest(ONCE, timing.jitter_ms, timing.every_ms)
    start_ms = anchor_ms = now_ms
    if before is not None and Timing.of(before) == timing:
        known = before.next_due_at or before.under_way_due_at
        if known is not None:
            anchor_ms = round(1000 * known.timestamp()) - timing.every_ms
        if before.next_due_at is not None:
            start_ms = round(1000 * before.next_due_at.timestamp()) - 1
    times = due_times(CALENDAR, timing.cron, timing.every_ms, timing.timezone, anchor_ms)
    found: list[Due] = []
    due_ms, at_ms = times.after(start_ms), 0
    while due_ms is not None and len(found) < SHOWN:
        at_ms = max(at_ms, due_ms + jitter_of(name, due_ms, timing.jitter_ms))
        found.append(Due(due_ms, at_ms))
        due_ms = times.after(due_ms)
    return found


def due_lines(found: list[Due], zone: str, now: datetime) -> str:
    """Return due times in a time zone, one on each line."""
    lines = [_parts(each, zone, now) for each in found]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "   ".join(part.ljust(width) for part, width in zip(line, widths, strict=True) if width).rstrip() for line in lines
    )


def _parts(each: Due, zone: str, now: datetime) -> list[str]:
    due, jitter_ms = utc(each.due_ms), each.at_ms - each.due_ms
    return [
        f"{due.astimezone(ZoneInfo(zone)):%a %d %b %Y %H:%M:%S %Z}",
        f"{due:%a %H:%M:%S} UTC" if zone != UTC_NAME else "",
        distance(due, now),
        f"comes {aged(jitter_ms / 1000)} later" if jitter_ms else "",
    ]


@cache
def zone_names() -> list[str]:
    """Return the names of the time zone database, UTC first."""
    return [UTC_NAME, *sorted(available_timezones() - {UTC_NAME})]


_MARK: Final = "schedule"

_CRON, _EVERY = "cron", "every"
_KINDS: Final = {_CRON: "Cron expression", _EVERY: "Interval"}

_CATCH_UPS: Final = {"skip": "skip: none of them", "once": "once: the last of them", "all": "all: each of them"}

_REFRESH_S: Final = 1.0
"""How often the due times are shown anew: those of an interval begin now."""


async def schedule_dialog(client: AsyncClient, queues: list[str], before: Schedule | None = None) -> str | None:
    """Ask for a schedule until it is put, and return its name; None: cancelled. ``before``: the schedule to change."""
    title = "Create a schedule" if before is None else f"Schedule {before.name}"
    form = FormDialog(title, "Create" if before is None else "Change", mark=_MARK, width="52rem")
    with form.fields:
        fields = _ScheduleFields(queues, before)

    async def put() -> None:
        if before is None and await client.get_schedule(fields.name) is not None:
            raise ValueError(f"there is a schedule {fields.name}: change it in the list")
        await fields.put(client)

    return fields.name if await form.ask(put) else None


class _ScheduleFields:
    def __init__(self, queues: list[str], before: Schedule | None) -> None:
        self._before = before
        with ui.grid().classes("w-full gap-x-4 gap-y-3 grid-cols-1 sm:grid-cols-2"):
            self._name = ui.input("Name", value=before.name if before else "")
            self._name.props(f"dense outlined data-testid={_MARK}-name{'' if before else ' autofocus'}")
            self._name.set_enabled(before is None)
            self._queue = ui.input("Queue", value=before.queue if before else "", autocomplete=queues)
            self._queue.props(f"dense outlined data-testid={_MARK}-queue")
        self._build_timing()
        ui.separator()
        message = before.message if before else None
        self._message = MessageFields("Its message", mark=_MARK, message=message)
        self._show_due()
        ui.timer(_REFRESH_S, self._show_due)

    def _build_timing(self) -> None:
        before = self._before
        shown = Timing.of(before) if before else Timing("", 0, UTC_NAME, 0)
        with ui.row().classes("w-full items-center gap-4"):
            ui.label("When").classes("text-lg font-semibold")
            self._kind = ui.toggle(_KINDS, value=_EVERY if shown.every_ms else _CRON, on_change=self._show_due)
            self._kind.props('dense no-caps unelevated padding="2px 10px"')
        with ui.grid().classes("w-full gap-x-4 gap-y-1 grid-cols-1 sm:grid-cols-2"):
            self._cron = _text("Cron expression", "cron", shown.cron, "0 3 * * MON-FRI", self._show_due)
            self._cron.props('input-class=fila-mono hint="[second] minute hour day month weekday"')
            self._timezone = _text("Time zone", "timezone", shown.timezone, UTC_NAME, self._show_due)
            self._timezone.set_autocomplete(zone_names())
            self._timezone.props('hint="whose clock the expression follows"')
            self._every = _text("Interval", "every", _written(shown.every_ms), "30s, 5m, 2h", self._show_due)
            self._every.props('hint="from one second to a year"')
            for field in (self._cron, self._timezone):
                field.bind_visibility_from(self._kind, "value", value=_CRON)
            self._every.bind_visibility_from(self._kind, "value", value=_EVERY)
            self._jitter = _text("Jitter", "jitter", _written(shown.jitter_ms), "none; or 5s, 1m", self._show_due)
            self._jitter.props('hint="each message comes up to so much later"')
            self._catch_up = ui.select(_CATCH_UPS, label="Catch-up", value=before.catch_up if before else "once")
            self._catch_up.props(
                f'dense outlined stack-label hint="which due times of an outage are carried out" data-testid={_MARK}-catch-up'
            )
        with ui.column().classes("w-full gap-1"):
            self._heading = ui.label().classes("fila-quiet")
            self._due = ui.label().classes("fila-mono fila-text whitespace-pre w-full").props(f"data-testid={_MARK}-due")
            self._wrong = ui.label().classes("text-negative break-words w-full").props(f"data-testid={_MARK}-wrong")

    @property
    def name(self) -> str:
        """The name in its field."""
        return str(self._name.value or "").strip()

    def _timing(self) -> Timing | None:
        """Return the timing in the fields; None: it is incomplete."""
        is_cron = self._kind.value == _CRON
        cron, every, timezone, jitter = (
            str(field.value or "").strip() for field in (self._cron, self._every, self._timezone, self._jitter)
        )
        if not (cron if is_cron else every):
            return None
        return Timing.read(
            cron=cron if is_cron else "", every="" if is_cron else every, timezone=timezone or UTC_NAME, jitter=jitter
        )

    def _show_due(self) -> None:
        """Show the next due times, or why they are missing."""
        lines = wrong = ""
        zone = UTC_NAME
        try:
            if timing := self._timing():
                found = next_due(self.name, timing, time.time_ns() // 1_000_000, self._before)
                zone, lines = timing.zone, due_lines(found, timing.zone, datetime.now(UTC))
        except (FilaError, ValueError) as error:
            wrong = str(error)
        self._heading.text = f"Next due times in {zone}" if lines else "" if wrong else "The next due times are shown here."
        self._due.text, self._wrong.text = lines, wrong
        self._due.set_visibility(bool(lines))
        self._wrong.set_visibility(bool(wrong))

    async def put(self, client: AsyncClient) -> None:
        """Put the schedule that is in the fields."""
        timing = self._timing()
        if timing is None:
            raise ValueError(f"{_KINDS[self._kind.value]}: say when the schedule is due")
        message = self._message.read()
        await client.put_schedule(
            self.name,
            str(self._queue.value or "").strip(),
            message.payload,
            message.headers,
            cron=timing.cron or None,
            every=timing.every_ms / 1000 or None,
            timezone=timing.timezone,
            catch_up=self._catch_up.value,
            jitter=timing.jitter_ms / 1000,
            **{name: getattr(message, name) for name in MESSAGE_OPTIONS if name != "deliver_at"},
        )


def _text(label: str, mark: str, value: str, placeholder: str, changed: Callable[[], None]) -> ui.input:
    field = ui.input(label, value=value, placeholder=placeholder, on_change=changed)
    return field.props(f"dense outlined stack-label data-testid={_MARK}-{mark}")


def _written(milliseconds: int) -> str:
    return written_ms(milliseconds) if milliseconds else ""


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
