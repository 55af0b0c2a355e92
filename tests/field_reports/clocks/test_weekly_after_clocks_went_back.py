"""A weekly schedule of the morning after the change of clocks does not run twice, an hour apart.

Source: OptimalBits/bull issue 2207 (the Monday of its report)
Right: one message, at 06:00 by the new local time
"""

from tests.field_reports.clocks.conftest import At, due_times


def test_the_monday_after_has_one_message(fila_at: At) -> None:
    fila = fila_at("2021-11-05T12:00:00+00:00")
    fila.create_queue("weekly")
    for _ in range(3):  # programs put their schedules again whenever they are deployed
        fila.put_schedule("monday", "weekly", cron="0 6 * * MON", timezone="America/New_York")
        fila.clock.advance(86_400)
    fila.clock.advance(5 * 86_400)
    assert due_times(fila, "weekly") == ["2021-11-08T11:00:00Z"]
