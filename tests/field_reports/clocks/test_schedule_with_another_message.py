"""A schedule that is put again with another payload and the same pattern uses the new payload.

Source: taskforcesh/bullmq issue 2940
Right: the next message is the new one, at the due time that stood already
"""

from tests.field_reports.clocks.conftest import At


def test_the_next_message_is_the_new_one(fila_at: At) -> None:
    fila = fila_at("2024-11-27T10:00:30+00:00")
    fila.create_queue("jobs")
    for number in range(3):
        fila.put_schedule("mine", "jobs", b"%d" % number, cron="*/1 * * * *")
        fila.clock.advance(60)
    assert [view.payload for view in fila.browse("jobs")] == [b"0", b"1", b"2"]
