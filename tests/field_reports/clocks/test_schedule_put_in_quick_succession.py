"""A schedule that is put many times in a moment, as by many processes that start, fires once for each due time.

Source: taskforcesh/bullmq issue 2988, taskforcesh/bullmq issue 2876
Right: one message a second, and one schedule
"""

from tests.field_reports.clocks.conftest import At


def test_putting_it_again_adds_nothing(fila_at: At) -> None:
    fila = fila_at("2026-01-01T00:00:00+00:00")
    fila.create_queue("ticks")
    for tick in range(5):
        for number in range(20):
            fila.put_schedule("tick", "ticks", b"%d" % number, every=1.0)
            fila.clock.advance(0.05)
        assert len(fila.browse("ticks")) == tick + 1
    assert len(fila.list_schedules()) == 1
