"""Dead letters that were acked, purged or redriven are not there again after a restart.

Source: softwaremill/elasticmq issue 618
Right: what was confirmed to be gone is gone, and what was redriven is in its queue once
"""

from fila_cluster import Client, Message


def before(client: Client) -> None:
    """Make dead letters, and remove them in three ways."""
    for name in ("acked", "purged", "redriven"):
        client.create_queue(f"letters-{name}")
        client.enqueue_many(f"letters-{name}", [Message(b"x")] * 3)
        for delivery in client.receive(f"letters-{name}", 3):
            delivery.fail("no")
    client.ack(client.receive("letters-acked.dlq", 3))
    client.purge_queue("letters-purged.dlq")
    client.redrive("letters-redriven.dlq")


def test_they_do_not_come_back(restarted: Client) -> None:
    depths = {info.name: info.depth for info in restarted.list_queues("letters-") if info.depth}
    assert depths == {"letters-redriven": 3}
    assert [view.attempts for view in restarted.browse("letters-redriven")] == [0, 0, 0]
