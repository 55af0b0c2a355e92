"""A header whose name only looks like one of the broker's has no effect.

Source: nats-io/nats-server issue 3645
Right: three messages with headers that end in a known name are three messages, and a forged batch header counts for no batch
"""

from fila_cluster import Message
from fila_cluster.testing import Fila


def test_headers_of_the_application_are_its_own(fila: Fila) -> None:
    fila.create_queue("orders")
    for name in ("dedup_id", "Orig-dedup_id", "fila-dedup-id"):
        fila.enqueue("orders", b"test", {name: "1"})
    fila.assert_pending("orders", 3)


def test_a_forged_batch_counts_for_none(fila: Fila) -> None:
    fila.create_queue("work")
    fila.create_queue("done")
    with fila.batch(Message(b"all done"), "done") as batch:
        batch.enqueue("work", b"real")
        fila.enqueue("work", b"forged", {"fila-batch": batch.id, "fila-batch-total": "1"})
    real, forged = fila.receive("work", 2)
    forged.ack()
    fila.assert_empty("done")
    real.ack()
    (callback,) = fila.receive("done")
    assert callback.headers["fila-batch-total"] == "1"
    callback.ack()
