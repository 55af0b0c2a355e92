"""The next due time of a schedule in summer is not computed with the offset of winter.

Source: sidekiq/sidekiq issue 5214
Right: midnight of 1 May in Los Angeles is 07:00 UTC, asked in February
"""

from datetime import UTC, datetime

from tests.field_reports.clocks.conftest import At


def test_the_offset_is_that_of_the_due_time(fila_at: At) -> None:
    fila = fila_at("2026-02-22T18:39:51+00:00")
    fila.create_queue("may")
    schedule = fila.put_schedule("spring", "may", cron="0 0 1 5 *", timezone="America/Los_Angeles")
    assert schedule.next_due_at == datetime(2026, 5, 1, 7, tzinfo=UTC)
