"""The due times of a schedule that is not put yet, by the workers' own rules."""

from datetime import datetime
from functools import cache
from typing import Final, NamedTuple, Self
from zoneinfo import ZoneInfo, available_timezones

from fila_cluster import Schedule
from fila_cluster.client.message import utc
from fila_cluster.figures import aged, distance, duration_s
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
