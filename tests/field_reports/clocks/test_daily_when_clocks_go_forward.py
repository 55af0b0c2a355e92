"""A daily schedule at a local time that is skipped is carried out on that day, too.

Source: kelektiv/node-cron issue 563
Right: one message right after the gap, and the next ones at the usual local time
"""

from tests.field_reports.clocks.conftest import At, due_times


def test_a_skipped_time_is_due_right_after_the_gap(fila_at: At) -> None:
    fila = fila_at("2026-03-28T00:00:00+00:00")
    fila.create_queue("reports")
    fila.put_schedule(
        "nightly", "reports", cron="30 2 * * *", timezone="Europe/Berlin"
    )  # 02:00 to 03:00 is left out on 29 March
    fila.clock.advance(3 * 86_400)
    assert due_times(fila, "reports") == ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
