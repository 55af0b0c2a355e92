"""Limits on the messages that are leased at a time, on a real cluster: over queues of two workers, by pattern."""

import time
from collections import Counter

from fila_cluster import Client, Consumer, Delivery, Message
from tests.support.cluster.cluster import PATIENCE_S, Cluster
from tests.support.cluster.faults import queue_on

TENANTS = ("acme", "globex", "initech")
EACH = 10
"""Messages of a tenant in a queue."""


def taken(consumers: tuple[Consumer, ...], enough: int) -> list[Delivery]:
    """What the consumers get while nothing is settled: ``enough`` in the end, and whatever comes in a while after that."""
    held: list[Delivery] = []
    last_s = time.monotonic() + PATIENCE_S
    while len(held) < enough and time.monotonic() < last_s:
        held += [got for consumer in consumers if (got := consumer.take(0.01)) is not None]
    return held + [got for consumer in consumers if (got := consumer.take(0.1)) is not None]


def test_a_pattern_bounds_each_of_its_keys_over_queues_of_two_workers(shared_cluster: Cluster, client: Client) -> None:
    workers = client.cluster_status().workers
    assert len(workers) == 2
    queues = [queue_on(client, worker.shards[0], "places") for worker in workers]
    client.set_throttle("seats:*", concurrency=2)
    for queue in queues:
        messages = [Message(b"", fairness_key=each, throttle_keys=[f"seats:{each}"]) for each in TENANTS for _ in range(EACH)]
        client.enqueue_many(queue, messages)
    served: Counter[tuple[str, str]] = Counter()
    with client.consume(queues[0]) as here, client.consume(queues[1]) as there:
        for _ in range(EACH):  # two of each tenant at a time, and there are two queues
            held = taken((here, there), 2 * len(TENANTS))
            assert Counter(each.fairness_key for each in held) == dict.fromkeys(TENANTS, 2)
            in_use = {each.key: each.in_use for each in client.list_throttles("seats:")}
            assert in_use == {"seats:*": 0, **{f"seats:{tenant}": 2 for tenant in TENANTS}}
            served.update((each.queue, each.fairness_key) for each in held)
            client.ack(held)
    assert served == {(queue, tenant): EACH for queue in queues for tenant in TENANTS}
    client.delete_throttle("seats:*")
