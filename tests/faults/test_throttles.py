"""Limits shared by queues on two workers, over real processes: never exceeded, whichever process is killed or paused.

How much of them is used is measured in ``python -m benchmarks throttles`` and ``concurrency``; here only what must hold on any
machine.
"""

import threading
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from fila_cluster import Client, Message
from fila_cluster.errors import FilaError
from tests.support.cluster.cluster import Cluster, eventually, running, settling_may_fail
from tests.support.cluster.place_life import LIMITS, QUEUES, live

pytestmark = pytest.mark.whole

RATE, BURST = 100, 40
MESSAGES = 180
SLACK = 15
"""A delivery is dated when its turn began, which may be long before the tokens came that it used, if the turn was interrupted there.
Far less than the burst that would be there twice if what was granted were forgotten."""


def queues_on_both(client: Client) -> list[str]:
    """Names of two queues, one on each shard."""
    names: dict[int, str] = {}
    for number in range(32):
        name = f"limited-{number}"
        client.create_queue(name, visibility_timeout=3)  # what was on its way through a router that dies comes again
        names.setdefault(next(info.shard for info in client.list_queues(name) if info.name == name), name)
        if len(names) == 2:
            return list(names.values())
    raise AssertionError("32 names on one shard")


def consume(client: Client, queue: str, leased_ms: dict[tuple[str, int], float], stop: threading.Event) -> None:
    """Ack what comes, and note when it was leased."""
    while not stop.is_set():
        with suppress(FilaError):
            for delivery in client.receive(queue, 20, wait=0.2):
                leased_ms[delivery.id, delivery.attempts] = delivery.leased_at.timestamp() * 1000
                delivery.ack()


def worst_excess(times_ms: list[float]) -> float:
    """By how many deliveries the worst window is over burst + rate × its length."""
    drifts = [index - RATE * time_ms / 1000 for index, time_ms in enumerate(sorted(times_ms))]
    return max(drift - min(drifts[: index + 1]) + 1 - BURST for index, drift in enumerate(drifts))


@settling_may_fail
@pytest.mark.parametrize("victim", ["worker-0", "worker-1", "router"])
def test_the_limit_holds_over_two_workers_while_one_process_is_killed(tmp_path: Path, victim: str) -> None:
    leased_ms: dict[tuple[str, int], float] = {}
    stop = threading.Event()
    with running(tmp_path, workers=2) as cluster, cluster.client() as client:
        client.set_config("throttle.shared", f"{RATE},{BURST}")
        queues = queues_on_both(client)
        for queue in queues:
            client.enqueue_many(queue, [Message(b"", throttle_keys=["shared"]) for _ in range(MESSAGES // 2)])
        clients = [cluster.client() for _ in queues]
        threads = [
            threading.Thread(target=consume, args=(each, queue, leased_ms, stop))
            for each, queue in zip(clients, queues, strict=True)
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: len(leased_ms) >= MESSAGES // 3, "a third of the deliveries")
        kill(cluster, victim)
        eventually(lambda: all(client.queue_stats(queue).depth == 0 for queue in queues), "two empty queues")
        stop.set()
        for thread in threads:
            thread.join()
        for each in clients:
            each.close()
    assert len({message_id for message_id, _ in leased_ms}) == MESSAGES
    assert worst_excess(list(leased_ms.values())) <= SLACK


def kill(cluster: Cluster, victim: str) -> None:
    pids = {worker.name: worker.pid for worker in cluster.status().workers} | {"router": cluster.router_pid()}
    next(child for child in cluster.children() if child.pid == pids[victim]).kill()
    eventually(cluster.all_up, "all workers up again")


def test_no_more_are_worked_on_than_a_concurrency_allows_and_nothing_is_lost(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--shards", QUEUES, workers=2) as cluster:
        life = live(cluster, tmp_path, [range(5)], quiet_s=0, chance=Random(5))
    assert len(life.faults) == 5
    assert life.missing == 0
    for key, limit in LIMITS.items():
        assert life.most_at_once(key) == limit, (key, life.faults)


def test_a_deferral_parks_its_throttle_key_on_every_worker_and_over_a_crash(tmp_path: Path) -> None:
    with running(tmp_path, workers=2) as cluster, cluster.client() as client:
        first, second = queues_on_both(client)
        _, waiting = (client.enqueue(queue, b"limited", throttle_keys=["api"]) for queue in (first, second))
        (limited,) = client.receive(first, 2)
        limited.defer(3600)

        def is_parked() -> bool:
            return "parked" in {reason.code for reason in client.why(second, message_id=waiting).reasons}

        eventually(is_parked, "the other worker knows")
        client.enqueue(second, b"free")
        eventually(lambda: acked(client, second) == [b"free"], "the free message on the other worker")
        assert acked(client, second, wait=0.1) == []
        for victim in cluster.children():
            victim.kill()
        eventually(cluster.all_up, "all workers up again")
        eventually(is_parked, "the other worker knows it again")
        client.enqueue(second, b"another key", throttle_keys=["other"], dedup_id="repeatable")
        eventually(lambda: acked(client, second) == [b"another key"], "another key's message")
        assert acked(client, second, wait=0.1) == []
        assert client.queue_stats(first).delayed == 1


def acked(client: Client, queue: str, wait: float = 0.0) -> list[bytes]:
    """The payloads of what can be had now, acked; nothing while the broker is away."""
    with suppress(FilaError):
        deliveries = client.receive(queue, 5, wait=wait)
        client.ack(deliveries)
        return [delivery.payload for delivery in deliveries]
    return []
