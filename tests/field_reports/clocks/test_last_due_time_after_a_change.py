"""The last due time before a change of clocks is told as it was, 23 hours before the next one.

Source: sidekiq/sidekiq issue 6223
Right: the two due times are 23 hours apart, in the schedule's own account and in the messages
"""

from datetime import timedelta

from tests.field_reports.clocks.conftest import At, due_times


def test_a_day_may_have_23_hours(fila_at: At) -> None:
    fila = fila_at("2024-03-09T12:00:00+00:00")
    fila.create_queue("daily")
    fila.put_schedule("early", "daily", cron="0 1 * * *", timezone="America/Denver")
    lasts = []
    for _ in range(2):
        fila.clock.advance(86_400)
        schedule = fila.get_schedule("early")
        assert schedule is not None
        lasts.append(schedule.last_due_at)
    assert due_times(fila, "daily") == ["2024-03-10T08:00:00Z", "2024-03-11T07:00:00Z"]
    assert lasts[0] is not None
    assert lasts[1] is not None
    assert lasts[1] - lasts[0] == timedelta(hours=23)
