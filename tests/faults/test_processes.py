"""kill -9 and SIGSTOP of every process of a cluster, alone and together, under confirmed load.

After each: nothing confirmed is lost, nothing acked comes back, each redelivery has its reason, no call outlives its timeout, other
queues go on, and every shard can be recovered from its disk and holds what it says.
"""

import threading
from pathlib import Path

import pytest

from tests.support.cluster.client_records import ClientRecords, Load
from tests.support.cluster.cluster import Cluster, eventually, is_dead, running, settling_may_fail
from tests.support.cluster.faults import check_disk, kill, paused, queue_on, running_parts, wait_until_served

pytestmark = pytest.mark.whole

PAUSE_S = 1.5
VICTIMS = [("router",), ("worker-0",), ("worker-0", "worker-1"), ("router", "worker-1"), ("observer",), ("supervisor",)]


def loaded(cluster: Cluster, seed: int) -> Load:
    """A load on two queues, one on each shard."""
    with cluster.client() as client:
        queues = [queue_on(client, shard, visibility_timeout=3.0) for shard in (0, 1)]
    load = Load(cluster.endpoint, ClientRecords(), queues, seed)
    load.start()
    return load


def moved_on(load: Load) -> None:
    """Wait until more was confirmed and acked: the fault shall find them at work."""
    confirmed, acked = load.records.confirmed, load.records.acked
    eventually(lambda: load.records.confirmed > confirmed + 30 and load.records.acked > acked + 30, "work is done")


def finished(cluster: Cluster, load: Load) -> None:
    """Empty the queues, stop, and look into the records and at the disk."""
    moved_on(load)
    load.stop()
    assert cluster.stop() == 0
    load.records.check()
    assert {queue: count for queue, count in check_disk(cluster.data_dir).items() if queue in load.queues and count} == {}


@settling_may_fail
@pytest.mark.parametrize("victims", VICTIMS, ids="+".join)
def test_killed_then_paused(tmp_path: Path, victims: tuple[str, ...]) -> None:
    flags = ("--dashboard", "127.0.0.1:0") if "observer" in victims else ()
    with running(tmp_path / "data", *flags, workers=2) as cluster:
        load = loaded(cluster, seed=1)
        if "supervisor" not in victims:
            moved_on(load)
            with load.records.fault():
                kill(cluster, *victims)
                wait_until_served(cluster, *load.queues)
        moved_on(load)
        with load.records.fault():
            with paused(cluster, *victims):
                threading.Event().wait(PAUSE_S)  # the length of the pause is what is being tried
            wait_until_served(cluster, *load.queues)
        finished(cluster, load)


@settling_may_fail
def test_a_worker_is_killed_while_the_router_is_paused(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=2) as cluster:
        load = loaded(cluster, seed=3)
        moved_on(load)
        with load.records.fault():
            with paused(cluster, "router"):
                (worker,) = running_parts(cluster, "worker-0")
                kill(cluster, "worker-0")
                eventually(lambda: is_dead(worker), "its end")
            wait_until_served(cluster, *load.queues)
        finished(cluster, load)


@settling_may_fail
def test_the_supervisor_is_killed_and_another_one_started_at_once(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data", workers=2)
    load = loaded(cluster, seed=4)
    try:
        for _ in range(2):
            moved_on(load)
            with load.records.fault():
                cluster.supervisor.kill()  # its children live for a moment, with ports and storage
                cluster.wait()
                cluster.close()
                cluster = Cluster(cluster.data_dir, workers=2, listen=cluster.endpoint)
                wait_until_served(cluster, *load.queues)
        finished(cluster, load)
    finally:
        cluster.close()
