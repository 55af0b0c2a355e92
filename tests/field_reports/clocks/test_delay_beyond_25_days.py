"""A delay of more than 2**31 milliseconds does not end at once.

Source: OptimalBits/bull pull request 452
Right: delivered after 30 days, not before
"""

from tests.field_reports.clocks.conftest import At

DAY_S = 86_400


def test_a_month_is_a_month(fila_at: At) -> None:
    fila = fila_at("2026-01-01T00:00:00+00:00")
    fila.create_queue("later")
    fila.enqueue("later", b"x", delay=30 * DAY_S)
    fila.assert_delayed("later", 1)
    fila.clock.advance(30 * DAY_S - 1)
    fila.assert_delayed("later", 1)
    fila.clock.advance(1)
    fila.assert_pending("later", 1)
