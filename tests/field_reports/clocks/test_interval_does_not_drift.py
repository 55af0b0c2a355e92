"""An interval of a minute does not begin later each time.

Source: coleifer/huey issue 304
Right: all due times are whole intervals after the schedule was put, however unevenly the broker is looked at
"""

from datetime import datetime, timedelta

from tests.field_reports.clocks.conftest import At, due_times


def test_due_times_are_multiples_of_the_interval(fila_at: At) -> None:
    fila = fila_at("2026-03-20T23:33:37+00:00")
    fila.create_queue("minutes")
    began = fila.put_schedule("minutely", "minutes", every=60.0).created_at
    for seconds in (61.0, 0.7, 59.9, 130.3, 59.0, 1.1, 420.0):
        fila.clock.advance(seconds)
    found = [datetime.fromisoformat(each) for each in due_times(fila, "minutes")]
    assert [due - began for due in found] == [timedelta(minutes=number) for number in range(1, 13)]
