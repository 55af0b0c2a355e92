"""The last half hour over HTTP, of a real cluster: the numbers are those of its queues' statistics."""

import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import psutil
import pytest

from fila_cluster import Client, Delivery, Message, QueueStats
from fila_cluster.ops.analysis.history import FLOWS, TICK_S
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually, running

pytestmark = pytest.mark.whole

QUEUES = ("eu/orders", "mail")
LEVELS = ("pending", "in_flight", "delayed")
TWO_TICKS_S = 2 * TICK_S + PATIENCE_S
"""How long to wait for a number that comes with the next tick."""


def address_of(cluster: Cluster) -> str:
    return cluster.ready_line.split(" ")[4]


def history(cluster: Cluster, queue: str | None = None) -> Any:
    query = "" if queue is None else f"?queue={quote(queue, safe='')}"
    with urlopen(f"{address_of(cluster)}/history{query}", timeout=PATIENCE_S) as answer:
        assert answer.headers["content-type"] == "application/json"
        return json.loads(answer.read())


def knows(cluster: Cluster, queue: str) -> bool:
    try:
        return bool(history(cluster, queue)["times"])
    except HTTPError as unknown:
        unknown.close()
        return False


def work(client: Client, queue: str) -> list[Delivery]:
    """60 sent, 12 received, of which 8 are acked, 3 failed and 1 is kept; one waits for its time."""
    client.enqueue_many(queue, [Message(b"x", fairness_key=f"tenant-{number % 3}") for number in range(60)])
    client.enqueue(queue, b"x", delay=600)
    deliveries = client.receive(queue, 12)
    client.ack(deliveries[:8])
    for delivery in deliveries[8:11]:
        delivery.fail("no")
    return deliveries[11:]


def counted(told: Any, name: str) -> float:
    """How many there were since the first tick: rates by how long each holds."""
    times, rates = told["times"], told["series"][name]
    return sum((rates[tick] or 0) * (times[tick] - times[tick - 1]) for tick in range(1, len(times)))


def agrees(told: Any, stats: QueueStats) -> bool:
    levels = {name: told["series"][name][-1] for name in LEVELS}
    flows = {name: round(counted(told, name)) for name in FLOWS}
    return levels == {name: getattr(stats, name) for name in LEVELS} and flows == {
        name: getattr(stats, name) for name in FLOWS
    }


@pytest.mark.timeout(180)
def test_its_numbers_are_those_of_the_queues_statistics(tmp_path: Path):
    flags = ("--dashboard", "127.0.0.1:0", "--shards", 2)
    with running(tmp_path / "data", *flags, workers=2) as cluster, cluster.client() as client:
        for queue in QUEUES:
            client.create_queue(queue, visibility_timeout=600)
        eventually(lambda: all(knows(cluster, queue) for queue in QUEUES), "the new queues are seen", TWO_TICKS_S)
        kept = [delivery for queue in QUEUES for delivery in work(client, queue)]
        for queue in QUEUES:
            stats = client.queue_stats(queue)
            eventually(lambda stats=stats: agrees(history(cluster, stats.name), stats), "the numbers agree", TWO_TICKS_S)
            told = history(cluster, queue)
            assert told["queue"] == queue
            assert {share["fairness_key"]: share["actual"] for share in told["shares"]} == {
                key.fairness_key: pytest.approx(key.delivered / stats.delivered) for key in stats.keys
            }
        with pytest.raises(HTTPError, match="404") as unknown:
            history(cluster, "nobody")
        with unknown.value as refusal:
            assert json.loads(refusal.read())["error"].startswith("no history of the queue 'nobody': ")
        told = history(cluster)
        assert told["series"]["pending"][-1] == sum(client.queue_stats(queue).pending for queue in QUEUES)
        assert told["series"]["dead_letters"][-1] == sum(client.queue_stats(f"{queue}.dlq").depth for queue in QUEUES)
        assert told["workers"] == {worker.name: worker.pid for worker in client.cluster_status().workers}
        client.ack(kept)
        check_an_outage(cluster, "mail")


def check_an_outage(cluster: Cluster, queue: str) -> None:
    """It is a gap, and what was before is remembered."""
    before = history(cluster, queue)
    supervisor = psutil.Process(cluster.supervisor.pid)
    supervisor.suspend()
    try:
        psutil.Process(cluster.router_pid()).kill()
        eventually(lambda: history(cluster, queue)["series"]["pending"][-1] is None, "the outage shows", TWO_TICKS_S)
        told = history(cluster, queue)
        assert told["series"]["pending"][: len(before["times"])] == before["series"]["pending"]
        assert (told["shares"], told["workers"]) == ([], {})
    finally:
        supervisor.resume()
