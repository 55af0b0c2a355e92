"""The numbers of a report: plain data, which ``--json`` prints as it is.

Lists are cut to what a person reads; what was left out is in a last entry with the name None. Times are datetimes in UTC,
durations seconds. Payloads and headers are nowhere in here.
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
    """So many dead letters of one kind. ``parts``: the same, by a second kind."""

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
    """The dead letters of a queue.

    ``by_time``: when they were given up; each entry's name is an ISO time, and is about ``bucket_s`` from there. ``dwell``: from
    their enqueueing to their end.
    """

    total: int
    tenants: int
    by_reason: list[Count]
    by_error: list[Count]
    by_tenant: list[Count]
    by_time: list[Count]
    bucket_s: int
    dwell: list[Dwell]


@dataclass(frozen=True, slots=True)
class Share:
    """What a tenant got, and what its weight entitles it to, as parts of 1. The tenant None: the others together.

    ``delivered`` is since the shard started in any case; ``delivered_per_s`` is of the last minute, if that is what the shares are of.
    """

    fairness_key: str | None
    weight: int
    delivered: int
    pending: int
    share: float
    entitled: float
    delivered_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """The queue's counters: what it holds now, and what happened since its shard started."""

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
class History:
    """The last half hour, as a dashboard remembers it: a number for each of ``times``, None where nothing is known.

    ``series``: how many are pending, in_flight, delayed, the oldest one's age; of the others, how many a second.
    """

    times: list[datetime]
    series: dict[str, list[float | None]]


@dataclass(frozen=True, slots=True)
class Report:
    """All of it. ``dead_letter_queue`` is None where there is none: dead letters are discarded, or go elsewhere.

    There is either a ``history``, or a line that says why not.
    """

    queue: str
    dead_letter_queue: str | None
    made_at: datetime
    totals: Totals
    failures: Failures
    waiting: list[Dwell]
    shares: list[Share]
    shares_span: Span = "since_start"
    history: History | None = None
    no_history: str | None = None
