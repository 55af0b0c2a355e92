"""A dedup id is known after a restart, also if its message was purged or acked before.

Source: nats-io/nats-server issue 3272
Right: within the window, the answer is the same before and after the restart: the first id, and nothing is stored
"""

from fila_cluster import Client

FIRST: dict[str, str] = {}


def before(client: Client) -> None:
    """Store, and take out again."""
    client.create_queue("dedup")
    for name in ("kept", "purged", "acked"):
        FIRST[name] = client.enqueue("dedup", name.encode(), dedup_id=name, fairness_key=name)
    client.purge_queue("dedup", fairness_key="purged")
    for delivery in client.receive("dedup", 2):
        if delivery.payload == b"acked":
            delivery.ack()
        else:
            delivery.nack()


def test_the_answer_is_the_same(restarted: Client) -> None:
    for name, first in FIRST.items():
        assert restarted.enqueue("dedup", b"again", dedup_id=name) == first
    assert [view.payload for view in restarted.browse("dedup")] == [b"kept"]
