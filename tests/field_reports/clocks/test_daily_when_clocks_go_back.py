"""A daily schedule at a local time that comes twice is carried out once.

Source: OptimalBits/bull issue 2207
Right: one message on that day, at the first of the two, and the next one a day later by the local clock
"""

from tests.field_reports.clocks.conftest import At, due_times


def test_a_time_that_comes_twice_is_due_once(fila_at: At) -> None:
    fila = fila_at("2026-10-31T12:00:00+00:00")
    fila.create_queue("reports")
    fila.put_schedule("nightly", "reports", cron="30 1 * * *", timezone="America/New_York")
    fila.clock.advance(2 * 86_400)
    assert due_times(fila, "reports") == ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]
