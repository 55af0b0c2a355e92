"""The form that makes a schedule or changes one, with its next due times as the broker will read them."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from nicegui import ui

from fila_cluster import AsyncClient, Schedule
from fila_cluster.errors import FilaError
from fila_cluster.figures import written_ms
from fila_cluster.ops.dashboard.schedules.timing import UTC_NAME, Timing, due_lines, next_due, zone_names
from fila_cluster.ops.dashboard.widgets.forms import FormDialog, MessageFields
from fila_proto_zmq.commands import MESSAGE_OPTIONS

_MARK: Final = "schedule"

_CRON, _EVERY = "cron", "every"
_KINDS: Final = {_CRON: "Cron expression", _EVERY: "Interval"}

_CATCH_UPS: Final = {
    "skip": "skip: none of them",
    "once": "once: the last of them",
    "all": "all: each of them",
}

_REFRESH_S: Final = 1.0
"""How often the due times are shown anew: those of an interval begin now."""


async def schedule_dialog(client: AsyncClient, queues: list[str], before: Schedule | None = None) -> str | None:
    """Ask for a schedule until it is put, and return its name; None: the user has cancelled.

    ``queues``: names to offer; ``before``: the schedule to change, with its message.
    """
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
