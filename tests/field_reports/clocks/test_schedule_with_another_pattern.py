"""A schedule whose pattern is changed does not fire once more at the old times.

Source: taskforcesh/bullmq issue 3500
Right: no message at the next minute; the next one comes by the new pattern
"""

from tests.field_reports.clocks.conftest import At, due_times


def test_the_old_pattern_is_over_at_once(fila_at: At) -> None:
    fila = fila_at("2025-10-15T12:00:10+00:00")
    fila.create_queue("archive")
    fila.put_schedule("recurring", "archive", cron="*/1 * * * *", timezone="America/New_York")
    fila.clock.advance(60)
    fila.put_schedule("recurring", "archive", cron="0 8 * * *", timezone="America/New_York")
    fila.clock.advance(86_400)
    assert due_times(fila, "archive") == ["2025-10-15T12:01:00Z", "2025-10-16T12:00:00Z"]
