"""Producers and batches while the processes of a cluster are killed: what is confirmed is there once, in order, and nothing hangs."""

import threading
from collections import defaultdict
from pathlib import Path

import pytest

from fila_cluster import Client
from fila_cluster.errors import BatchError, FilaError
from tests.support.cluster.cluster import PATIENCE_S, Cluster, running, settling_may_fail
from tests.support.cluster.faults import kill, queue_on, wait_until_served

COUNT = 20_000
VICTIMS = [("worker-0",), ("router",), ("router", "worker-0")]


def send_all(cluster: Cluster, queue: str, begun: threading.Event) -> dict[int, str | FilaError]:
    """Send numbered messages of five keys, and return the result of each."""
    with Client(cluster.endpoint, timeout=10.0) as client, client.producer(queue, batch=50, max_outstanding=1000) as producer:
        futures = []
        for number in range(COUNT):
            futures.append(producer.send(b"%d" % number, fairness_key=f"key-{number % 5}"))
            if number == COUNT // 20:
                begun.set()
    results: dict[int, str | FilaError] = {}
    for number, future in enumerate(futures):
        error = future.exception(0)
        results[number] = future.result(0) if error is None else error  # type: ignore[assignment]
    return results


@settling_may_fail
@pytest.mark.parametrize("victims", VICTIMS, ids="+".join)
def test_what_is_confirmed_is_in_once_and_in_order(tmp_path: Path, victims: tuple[str, ...]) -> None:
    with running(tmp_path / "data", workers=2) as cluster:
        with cluster.client() as client:
            queue = queue_on(client, 0)
        begun = threading.Event()
        results: dict[int, str | FilaError] = {}
        sender = threading.Thread(target=lambda: results.update(send_all(cluster, queue, begun)))
        sender.start()
        assert begun.wait(PATIENCE_S)
        kill(cluster, *victims)
        wait_until_served(cluster, queue)
        sender.join(PATIENCE_S)
        assert len(results) == COUNT
        confirmed = [number for number, result in results.items() if isinstance(result, str)]
        assert all(isinstance(result, str) or result.retryable for result in results.values())
        assert len(confirmed) > COUNT // 2, "it goes on after the fault"
        taken = drained(cluster, queue)
        assert set(confirmed) <= set(taken)
        assert len(taken) == len(set(taken))
        refused = {
            number for number, result in results.items() if isinstance(result, FilaError) and result.details.get("refused")
        }
        assert not refused & set(taken)
        # Ids ascend as messages are stored. The order of the deliveries says less: one that is lost comes again later.
        by_key: dict[int, list[str]] = defaultdict(list)
        for number in confirmed:
            by_key[number % 5].append(str(results[number]))
        assert all(ids == sorted(ids) for ids in by_key.values())


def drained(cluster: Cluster, queue: str) -> list[int]:
    """Take and ack everything, while a worker is killed once; each message counts where it was first acked."""
    acked: dict[int, None] = {}
    with cluster.client() as client:
        killed = False
        while client.queue_stats(queue).depth:
            try:
                with client.consume_batches(queue, max_messages=200) as batches:
                    for batch in batches:
                        numbers = [int(delivery.payload) for delivery in batch]
                        batch.ack()
                        acked.update(dict.fromkeys(numbers))
                        if not killed and len(acked) > COUNT // 4:
                            killed = True
                            kill(cluster, "worker-0")
                            wait_until_served(cluster, queue)
                        if client.queue_stats(queue).depth == 0:
                            break
            except BatchError:
                continue
    return list(acked)
