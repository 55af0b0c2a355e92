"""Messages with extreme values can be read again when the queue is recovered.

Source: rabbitmq/rabbitmq-server issue 16279 (its queue could not be started any more)
Right: the least and the greatest of all options survive a restart, in order, and the queue can be purged
"""

from fila_cluster import Client

YEARS_10_S = 316_224_000.0


def before(client: Client) -> None:
    """Store the extremes."""
    client.create_queue("extremes")
    for priority in (2**31 - 1, -(2**31)):
        client.enqueue(
            "extremes", b"", {"": ""}, priority=priority, weight=1_000_000, cost=1_000_000, ttl=YEARS_10_S, lease=43_200
        )
        client.enqueue("extremes", b"", priority=priority, cost=0.001, max_attempts=2**31 - 1, fairness_key="k" * 100)
    client.enqueue("extremes", b"far", delay=YEARS_10_S - 1)


def test_all_of_them_are_there(restarted: Client) -> None:
    stats = restarted.queue_stats("extremes")
    assert (stats.pending, stats.delayed) == (4, 1)
    deliveries = restarted.receive("extremes", 10)
    assert sorted(each.priority for each in deliveries[:2]) == [-(2**31)] * 2
    assert {each.cost for each in deliveries} == {0.001, 1_000_000}
    restarted.nack(deliveries)
    assert restarted.purge_queue("extremes") == 5
