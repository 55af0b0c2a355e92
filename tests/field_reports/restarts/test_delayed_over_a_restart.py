"""A delayed message is delivered at its time after the broker was restarted, not hours later.

Source: Bogdanp/dramatiq issue 527
Right: it comes as soon as it is due, without anyone having to find out that it is there
"""

from datetime import UTC, datetime

from fila_cluster import Client
from tests.support.cluster.cluster import PATIENCE_S


def before(client: Client) -> None:
    """Delay a message, and a retry."""
    client.create_queue("delayed")
    client.enqueue("delayed", b"enqueued", delay=1)
    client.create_queue("retried")
    client.enqueue("retried", b"x")
    (delivery,) = client.receive("retried")
    delivery.retry(1, "not yet", metadata=b"page 3")


def test_it_is_delivered_when_it_is_due(restarted: Client) -> None:
    (delivery,) = restarted.receive("delayed", wait=PATIENCE_S)
    assert (delivery.payload, delivery.attempts) == (b"enqueued", 0)
    assert delivery.leased_at >= delivery.enqueued_at
    delivery.ack()
    (delivery,) = restarted.receive("retried", wait=PATIENCE_S)
    assert (delivery.attempts, delivery.error, delivery.metadata) == (1, "not yet", b"page 3")
    assert delivery.leased_at <= datetime.now(UTC)
    delivery.ack()
