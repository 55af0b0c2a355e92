"""A Celery project of three tenants on a cluster of two workers: four worker processes, kills of a child and of the whole broker."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from celery import Celery

from tests.support.cluster.cluster import Cluster, eventually, running
from tests.support.external.celery import Worker, lines, sending, working

pytestmark = pytest.mark.whole

WEIGHTS = {"acme": 1, "bolt": 2, "coil": 3}
PREFETCHED = 4
"""Tasks that the two Celery workers hold: two processes each, with a prefetch multiplier of 1."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path / "data", workers=2) as cluster:
        yield cluster


def send(app: Celery, tenant: str, count: int, **headers: object) -> None:
    for number in range(count):
        named = {"fila-fairness-key": tenant, "fila-weight": WEIGHTS[tenant], **headers}
        app.send_task("record", (tenant, number), headers=named)


def runs(file: Path) -> Counter[tuple[str, str]]:
    """How often each task has run, by tenant and number."""
    return Counter((line[2], line[3]) for line in lines(file))


def two_workers(stack: ExitStack, cluster: Cluster, file: Path) -> list[Worker]:
    names = ("one", "two")
    return [stack.enter_context(working(cluster, file.with_name(name), "-c", "2", "-n", name)) for name in names]


def test_tenants_share_by_weight_and_a_throttle_holds_over_all_processes(cluster: Cluster, tmp_path: Path) -> None:
    each, limited, rate, burst = 240, 60, 20.0, 10.0
    with ExitStack() as stack:
        app, client = stack.enter_context(sending(cluster)), stack.enter_context(cluster.client())
        for tenant in WEIGHTS:
            send(app, tenant, each)
        (one, two) = two_workers(stack, cluster, tmp_path / "lines")

        def order() -> list[list[str]]:
            return sorted(lines(one.file) + lines(two.file), key=lambda line: float(line[0]))

        eventually(lambda: len(order()) == 3 * each, "all tasks have run")
        # As long as all have a backlog: the heaviest tenant's tasks are gone after twice as many.
        window = 2 * each * 9 // 10
        shares = Counter(line[2] for line in order()[:window])
        for tenant, weight in WEIGHTS.items():
            due = window * weight / sum(WEIGHTS.values())
            assert abs(shares[tenant] - due) <= max(0.05 * due, weight + PREFETCHED), (tenant, shares, due)

        client.set_config("throttle:mail:burst", str(burst))
        full_at = time.time()  # at the earliest: the bucket begins full
        client.set_config("throttle:mail:rate", str(rate))
        before = len(order())
        send(app, "acme", limited, **{"fila-throttle-keys": "mail"})
        eventually(lambda: len(order()) == before + limited, "the limited tasks have run")
        for count, line in enumerate(order()[before:], 1):  # a task runs after its delivery, never before
            assert count <= burst + rate * (float(line[0]) - full_at)


def test_two_tasks_of_a_tenant_run_at_a_time_and_other_processes_work_for_others(cluster: Cluster, tmp_path: Path) -> None:
    each, seconds = 40, 0.1
    with ExitStack() as stack:
        app, client = stack.enter_context(sending(cluster)), stack.enter_context(cluster.client())
        client.set_throttle("tenant:*", concurrency=2)
        for tenant in WEIGHTS:
            for number in range(each):
                named = {"fila-throttle-keys": f"tenant:{tenant}", "fila-fairness-key": tenant}
                app.send_task("work", (tenant, number, seconds), headers=named)
        worker = stack.enter_context(working(cluster, tmp_path / "lines", "-c", str(2 * len(WEIGHTS)), "-n", "one"))
        eventually(lambda: len(lines(worker.file)) == 2 * each * len(WEIGHTS), "all tasks have run")
    at_once, most, all_at_once = Counter[str](), Counter[str](), 0
    for _, _, tenant, _, what in sorted(lines(worker.file), key=lambda line: float(line[0])):
        at_once[tenant] += 1 if what == "began" else -1
        most[tenant] = max(most[tenant], at_once[tenant])
        all_at_once = max(all_at_once, at_once.total())
    assert most == dict.fromkeys(WEIGHTS, 2)
    assert all_at_once == 2 * len(WEIGHTS), "no process waits while another tenant has work"


def test_no_task_is_lost_when_a_child_and_the_broker_are_killed(cluster: Cluster, tmp_path: Path) -> None:
    each = 150
    with ExitStack() as stack:
        app = stack.enter_context(sending(cluster))
        for tenant in WEIGHTS:
            send(app, tenant, each)
        (one, two) = two_workers(stack, cluster, tmp_path / "lines")

        def done() -> Counter[tuple[str, str]]:
            return runs(one.file) + runs(two.file)

        eventually(lambda: len(done()) > 50, "they work")
        os.kill(one.children()[0].pid, signal.SIGKILL)
        eventually(lambda: len(done()) > 150, "they still work")
        cluster.kill_all()
        stack.enter_context(running(cluster.data_dir, workers=2, listen=cluster.endpoint.removeprefix("tcp://")))
        eventually(lambda: len(done()) == 3 * each, "every task has run")
        # At the child's death one task of it was running, at the broker's what the workers held; their leases lasted.
        repeated = sum(count - 1 for count in done().values())
        assert repeated <= 1 + PREFETCHED, [task for task, count in done().items() if count > 1]
        with cluster.client() as client:
            eventually(lambda: client.queue_stats("celery").depth == 0, "all are acked")
            assert client.queue_stats("celery.dlq").depth == 0
