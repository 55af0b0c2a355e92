"""When a schedule that is not put yet would be due, in texts of a form and for people."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from fila_cluster.client.schedule import Schedule, schedule
from fila_cluster.errors import InvalidArgumentError
from fila_cluster.ops.dashboard.schedules import SHOWN, Due, Timing, due_lines, next_due, zone_names
from fila_proto_zmq.commands import ScheduleView

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
NOW_MS = round(NOW.timestamp() * 1000)
NIGHTLY = Timing("0 3 * * *", 0, "Europe/Lisbon", 0)


def put(**fields: object) -> Schedule:
    view = ScheduleView("refresh", "prices", "", 30_000, "UTC", "once", 5000, 1, 0)
    for name, value in fields.items():
        setattr(view, name, value)
    return schedule(view)


def test_texts_make_the_timing_that_they_say() -> None:
    assert Timing.read(cron="0 3 * * *", every="", timezone="Europe/Lisbon", jitter="") == NIGHTLY
    assert Timing.read(cron="", every="30s", timezone="UTC", jitter="5s") == Timing.of(put())


@pytest.mark.parametrize(("field", "label"), [("every", "Interval"), ("jitter", "Jitter")])
def test_a_text_that_is_no_duration_is_named(field: str, label: str) -> None:
    texts = {"cron": "", "every": "", "timezone": "UTC", "jitter": ""} | {field: "soon"}
    with pytest.raises(ValueError, match=f"{label}: 'soon' is not a duration"):
        Timing.read(**texts)


def test_due_times_are_those_of_the_workers() -> None:
    found = next_due("nightly", NIGHTLY, NOW_MS)
    assert len(found) == SHOWN
    assert due_lines(found[:2], "Europe/Lisbon", NOW).splitlines() == [
        "Tue 24 Nov 2026 03:00:00 WET   Tue 03:00:00 UTC   in 15 h",
        "Wed 25 Nov 2026 03:00:00 WET   Wed 03:00:00 UTC   in 39 h",
    ]


@pytest.mark.parametrize(
    ("timing", "reason"),
    [
        (Timing("0 3 * *", 0, "UTC", 0), r"bad cron expression '0 3 \* \*'"),
        (Timing("0 3 * * *", 0, "Mars/Olympus", 0), "unknown time zone 'Mars/Olympus'"),
        (Timing("", 500, "UTC", 0), "interval of 500 ms: use 1000 to"),
        (Timing("", 2000, "UTC", 3000), "jitter of 3000 ms: use 0 to 2000"),
    ],
)
def test_what_the_broker_would_refuse_is_refused_with_its_reason(timing: Timing, reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        next_due("any", timing, NOW_MS)


def test_a_new_interval_begins_now_and_an_unchanged_one_goes_on_where_it_is() -> None:
    timing = Timing.of(put())
    assert next_due("refresh", timing, NOW_MS)[0].due_ms == NOW_MS + 30_000
    due_ms = NOW_MS + 7_000
    for before in (put(next_due_ms=due_ms), put(under_way_ms=due_ms - 30_000)):
        assert next_due("refresh", timing, NOW_MS, before)[0].due_ms == due_ms
    changed = timing._replace(jitter_ms=0)
    assert next_due("refresh", changed, NOW_MS, put(next_due_ms=due_ms))[0].due_ms == NOW_MS + 30_000


def test_a_jitter_is_the_one_that_the_message_will_have() -> None:
    first, again = (next_due(name, Timing("", 60_000, "UTC", 30_000), NOW_MS)[0] for name in ("a", "a"))
    assert first == again
    assert 0 <= first.at_ms - first.due_ms <= 30_000
    late = Due(NOW_MS + 60_000, NOW_MS + 62_500)
    assert due_lines([late], "UTC", NOW) == "Mon 23 Nov 2026 12:01:00 UTC   in 60.0 s   comes 2.5 s later"


def test_with_a_jitter_longer_than_the_interval_messages_come_in_their_order() -> None:
    found = next_due("a", Timing("* * * * *", 0, "UTC", 600_000), NOW_MS)
    assert [each.at_ms for each in found] == sorted(each.at_ms for each in found)
    assert any(earlier.at_ms == later.at_ms for earlier, later in pairwise(found)), "one waits for the one before"


def test_all_time_zones_are_offered() -> None:
    assert zone_names()[0] == "UTC"
    assert {"Europe/Lisbon", "Asia/Kolkata"} <= set(zone_names())
