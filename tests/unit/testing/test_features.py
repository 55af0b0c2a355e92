"""What the broker does by itself works on the kit's clock: schedules, templates, batches, messages that replace others."""

from collections.abc import Iterator

import pytest

from fila_cluster import Message
from fila_cluster.testing import Fila, broker


@pytest.fixture
def fila() -> Iterator[Fila]:
    with broker() as memory:
        yield memory


def test_an_hour_of_schedules(fila: Fila) -> None:
    fila.create_queue("reports")
    fila.put_schedule("hourly", "reports", b"hour", cron="0 * * * *")
    fila.put_schedule("often", "reports", b"minute", every=60)
    fila.clock.advance(3600)
    got = fila.receive("reports", 100)
    fila.ack(got)
    assert sorted({each.payload: None for each in got}) == [b"hour", b"minute"]
    assert len(got) == 61


def test_a_queue_of_a_template_comes_and_goes(fila: Fila) -> None:
    fila.put_template("tenant-*", max_attempts=2, idle_expiry=30)
    fila.enqueue("tenant-1", b"x")
    assert [each.name for each in fila.list_queues("tenant-")] == ["tenant-1", "tenant-1.dlq"]
    (delivery,) = fila.receive("tenant-1")
    delivery.ack()
    fila.clock.advance(60)
    assert fila.list_queues("tenant-") == []


def test_a_schedule_and_a_batch_meet_a_template(fila: Fila) -> None:
    fila.put_template("made-*", max_attempts=2)
    fila.put_schedule("once", "made-1", b"tick", every=60)
    with fila.batch(Message(b"done"), "made-2") as batch:
        batch.enqueue("made-3", b"member")
    fila.clock.advance(60)
    for queue, payload in {"made-1": b"tick", "made-3": b"member", "made-2": b"done"}.items():
        (delivery,) = fila.receive(queue, wait=5)
        assert delivery.payload == payload
        delivery.ack()


def test_a_member_that_is_replaced_counts_once(fila: Fila) -> None:
    for queue in ("work", "done"):
        fila.create_queue(queue)
    with fila.batch(Message(b""), "done") as batch:
        first = batch.enqueue("work", b"1", dedup_id="a", delay=10)
        assert batch.enqueue("work", b"2", dedup_id="a", dedup_mode="last", delay=20) == first
    assert fila.receive("work", wait=15) == []
    (delivery,) = fila.receive("work", wait=10)
    assert delivery.payload == b"2"
    delivery.ack()
    (callback,) = fila.receive("done", wait=5)
    assert (callback.headers["fila-batch-total"], callback.headers["fila-batch-acked"]) == ("1", "1")
    callback.ack()
