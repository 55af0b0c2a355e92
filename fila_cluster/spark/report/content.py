"""The numbers of a report: plain data, which ``--json`` prints as it is.

Lists are cut to what a person reads; the rest is in a last entry with the name None. Times are datetimes in UTC,
durations seconds. Payloads and headers are left out.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

TENANTS_SHOWN = 15
ERRORS_SHOWN = 10
SERIES_SHOWN = 5
"""Kinds that get a colour of their own in a plot."""

Span: TypeAlias = Literal["last_minute", "since_start"]


@dataclass(frozen=True, slots=True)
class Count:
    """The number of dead letters of one kind. ``parts``: the same, by a second kind."""

    name: str | None
    count: int
    parts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Dwell:
    """How long messages of a tenant were in the queue, in seconds. The tenant None: all of them together."""

    fairness_key: str | None
    messages: int
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class Failures:
    """The dead letters of a queue. ``by_time``: when they were dead-lettered, each entry named by the ISO time of its start,
    in steps of ``bucket_s``. ``dwell``: from their enqueue to their end."""

    total: int
    tenants: int
    by_reason: list[Count]
    by_error: list[Count]
    by_tenant: list[Count]
    by_time: list[Count]
    bucket_s: int
    dwell: list[Dwell]


@dataclass(frozen=True, slots=True)
class TenantShare:
    """The share of a tenant (None: the others together), and the one that its weight entitles it to, as parts of 1.
    ``delivered`` counts since the shard started; ``delivered_per_s`` is of the last minute, if the shares are."""

    fairness_key: str | None
    weight: int
    delivered: int
    pending: int
    share: float
    entitled: float
    delivered_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """The queue's counters: its messages now, and the events since its shard started."""

    pending: int
    in_flight: int
    delayed: int
    enqueued: int
    delivered: int
    acked: int
    nacked: int
    expired: int
    dead_lettered: int


@dataclass(frozen=True, slots=True)
class ReportHistory:
    """The last half hour of a dashboard: numbers for each of ``times``, None if unknown. ``series``: pending, in_flight,
    delayed, the oldest one's age; the others are rates per second."""

    times: list[datetime]
    series: dict[str, list[float | None]]


@dataclass(frozen=True, slots=True)
class QueueReport:
    """All of it; a ``history``, or a line with the reason. ``dead_letter_queue`` None: letters are discarded or go elsewhere."""

    queue: str
    dead_letter_queue: str | None
    made_at: datetime
    totals: QueueTotals
    failures: Failures
    waiting: list[Dwell]
    shares: list[TenantShare]
    shares_span: Span = "since_start"
    history: ReportHistory | None = None
    no_history: str | None = None
