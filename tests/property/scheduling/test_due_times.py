"""Due times of cron expressions over changes of the clocks: the same wherever one begins, and in order."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fila_worker.core.schedules.table import Interval, jitter_of
from fila_worker.process.cron import CALENDAR

ZONES = ["UTC", "Europe/Lisbon", "America/New_York", "Asia/Kolkata", "Africa/Casablanca", "America/Santiago"]
CRONS = [
    "* * * * *", "30 1 * * *", "*/30 * * * *", "0 * * * *", "0 2 * * *", "15 1,2 * * *", "5 0-3 * * *", "0 0 * * *", "30 2 * * SUN",
    "*/20 * * * * *", "0 30 1 * * *", "45 */2 * * *", "0 1 L * *", "0 3 * * MON#1",
]  # fmt: skip
CHANGES = [datetime(2026, month, day, tzinfo=UTC) for month, day in ((3, 8), (3, 29), (4, 5), (9, 6), (10, 25), (11, 1))]
"""Days on which clocks change in some of these zones."""


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


@settings(max_examples=60, deadline=None)
@given(
    cron=st.sampled_from(CRONS),
    zone=st.sampled_from(ZONES),
    day=st.sampled_from(CHANGES),
    offset_ms=st.integers(-86_400_000, 86_400_000),
    part=st.floats(0, 1),
)
def test_the_next_due_time_is_the_same_from_anywhere(
    cron: str, zone: str, day: datetime, offset_ms: int, part: float
) -> None:
    """What a restart computes from where it is agrees with what would have come without it."""
    times = CALENDAR.times(cron, zone)
    begin = ms(day) + offset_ms
    found = [begin]
    for _ in range(12):
        following = times.after(found[-1])
        assert following is not None
        found.append(following)
    assert all(earlier < later for earlier, later in pairwise(found))
    moment = begin + int(part * (found[-1] - 1 - begin))
    assert times.after(moment) == next(due for due in found[1:] if due > moment)
    passed = [due for due in found[1:] if due <= moment]
    if passed:
        assert times.before(moment) == passed[-1]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**41), st.integers(1000, 10**9), st.integers(0, 2**42))
def test_an_interval_is_counted_from_its_anchor(anchor_ms: int, every_ms: int, time_ms: int) -> None:
    times = Interval(anchor_ms, every_ms)
    after, before = times.after(time_ms), times.before(time_ms)
    assert after is not None
    assert (after - anchor_ms) % every_ms == 0
    assert max(time_ms, anchor_ms) < after
    assert after - every_ms <= max(time_ms, anchor_ms)
    assert before == (after - every_ms if after - every_ms > anchor_ms else None)


@given(st.text(min_size=1), st.integers(0, 2**42), st.integers(0, 86_400_000))
def test_jitter_is_within_its_bounds_and_always_the_same(name: str, due_ms: int, jitter_ms: int) -> None:
    assert 0 <= jitter_of(name, due_ms, jitter_ms) <= jitter_ms
    assert jitter_of(name, due_ms, jitter_ms) == jitter_of(name, due_ms, jitter_ms)


def local(cron: str, zone: str, begin: datetime, count: int) -> list[str]:
    """The due times after a moment, as the clocks of the zone show them."""
    times, now, shown = CALENDAR.times(cron, zone), ms(begin), []
    for _ in range(count):
        due = times.after(now)
        assert due is not None
        shown.append(f"{datetime.fromtimestamp(due / 1000, ZoneInfo(zone)):%d %H:%M %Z}")
        now = due
    return shown


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 1 * * *", ["29 02:00 WEST", "30 01:30 WEST"]),
        ("0 * * * *", ["29 00:00 WET", "29 02:00 WEST", "29 03:00 WEST"]),
        ("15 1,2 * * *", ["29 02:00 WEST", "29 02:15 WEST", "30 01:15 WEST"]),
    ],
)
def test_an_hour_that_is_skipped(cron: str, expected: list[str]) -> None:
    """In Lisbon clocks go from 01:00 to 02:00: a due time at a fixed hour comes right after the gap, none comes twice."""
    begin = datetime(2026, 3, 28, 23, 30, tzinfo=UTC)
    assert local(cron, "Europe/Lisbon", begin, len(expected)) == expected


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 1 * * *", ["25 01:30 WEST", "26 01:30 WET"]),
        ("0 * * * *", ["25 00:00 WEST", "25 01:00 WEST", "25 01:00 WET", "25 02:00 WET"]),
        ("15 1,2 * * *", ["25 01:15 WEST", "25 02:15 WET", "26 01:15 WET"]),
    ],
)
def test_an_hour_that_comes_twice(cron: str, expected: list[str]) -> None:
    """Clocks go from 02:00 back to 01:00: a due time at a fixed hour comes the first time, one of each hour comes each hour."""
    begin = datetime(2026, 10, 24, 22, 30, tzinfo=UTC)
    assert local(cron, "Europe/Lisbon", begin, len(expected)) == expected


def test_iso_has_milliseconds_only_where_there_are_some() -> None:
    begin = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert CALENDAR.iso(ms(begin)) == "2026-01-02T03:04:05Z"
    assert CALENDAR.iso(ms(begin + timedelta(milliseconds=7))) == "2026-01-02T03:04:05.007Z"
