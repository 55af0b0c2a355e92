"""The texts of the page of schedules."""

from datetime import UTC, datetime, timedelta

import pytest

from fila_cluster.client.schedule import Schedule, schedule
from fila_cluster.ops.dashboard.schedules import row, trouble
from fila_proto_zmq.commands import Fault, ScheduleView

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def shown(**fields: object) -> Schedule:
    view = ScheduleView("nightly", "reports", "", 30_000, "UTC", "once", 0, 1, 0)
    for name, value in fields.items():
        setattr(view, name, value)
    return schedule(view)


def test_a_row_of_a_schedule_that_has_not_been_due() -> None:
    found = row(shown(), NOW, lambda kind, name: (kind, name) == ("admin", "nightly"))
    assert (found["when"], found["next"], found["last"], found["trouble"]) == ("every 30s", None, None, None)
    assert (found["may_delete"], found["may_change"]) == (True, False)


def test_a_change_needs_admin_on_the_schedule_and_produce_on_its_queue() -> None:
    assert row(shown(), NOW, lambda kind, name: (kind, name) in {("admin", "nightly"), ("produce", "reports")})["may_change"]
    assert not row(shown(), NOW, lambda kind, name: kind == "produce")["may_change"]


def test_a_row_says_how_long_ago_the_last_message_was() -> None:
    last_ms = round((NOW - timedelta(seconds=90)).timestamp() * 1000)
    assert row(shown(last_at_ms=last_ms), NOW, lambda *_: False)["last"] == 90.0


@pytest.mark.parametrize(("under_way_ms", "text"), [(0, "OVERLOADED: full"), (5, "waits: OVERLOADED: full")])
def test_trouble_says_whether_the_message_waits(under_way_ms: int, text: str) -> None:
    assert trouble(shown(fault=Fault("OVERLOADED", "full"), under_way_ms=under_way_ms)) == text
