"""A schedule of every minute goes on in the hour that the local clock has twice.

Source: sidekiq/sidekiq issue 5049
Right: one message for each minute of real time, also in the hour that comes again
"""

from tests.field_reports.clocks.conftest import At, due_times


def test_every_minute_of_the_repeated_hour_has_its_message(fila_at: At) -> None:
    fila = fila_at("2026-11-01T07:30:30+00:00")  # in Los Angeles, 00:30; the clock goes back at 02:00, which is 09:00 UTC
    fila.create_queue("beats")
    fila.put_schedule("heartbeat", "beats", cron="* * * * *", timezone="America/Los_Angeles")
    fila.clock.advance(3 * 3600)
    found = due_times(fila, "beats")
    assert found == [f"2026-11-01T{minute // 60:02}:{minute % 60:02}:00Z" for minute in range(7 * 60 + 31, 10 * 60 + 31)]
