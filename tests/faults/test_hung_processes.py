"""Processes that run and do nothing are noticed and restarted; a supervisor that was paused itself takes none for hung."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fila_cluster.run.supervisor.child import HUNG_S
from tests.support.cluster.cluster import Cluster, eventually, running

pytestmark = pytest.mark.whole

PARTS = ("fila_router", "fila_worker", "fila_cluster.ops.observer")


def pids(cluster: Cluster) -> dict[str, int]:
    found = {}
    for child in cluster.children():
        with suppress(psutil.NoSuchProcess):
            found |= {name: child.pid for name in PARTS if name in child.cmdline()}
    return found


def test_every_part_that_stands_still_is_restarted(tmp_path: Path) -> None:
    with running(tmp_path, "--dashboard", "127.0.0.1:0", logged="error") as cluster:
        with cluster.client() as client:
            client.create_queue("q")
            client.enqueue("q", b"kept")
        before = pids(cluster)
        assert len(before) == 3
        time.sleep(1.5)  # whoever is stopped before its first sign of life may be starting
        for pid in before.values():
            os.kill(pid, signal.SIGSTOP)
        eventually(
            lambda: not set(before.values()) & set(pids(cluster).values()) and len(pids(cluster)) == 3, "new processes"
        )
        with cluster.client() as client:
            assert client.queue_stats("q").pending == 1
        hung = cluster.events("child.hung")
        assert {event["child"] for event in hung} == {"router", "worker-0", "observer"}
        assert all(event["silent_ms"] >= 1000 * HUNG_S for event in hung)
        assert cluster.stop() == 0


def test_a_pause_of_the_supervisor_counts_as_no_process_s_silence(tmp_path: Path) -> None:
    """All of it is paused for longer than a child may be silent, as a laptop's lid does it where time goes on."""
    with running(tmp_path, logged="error") as cluster:
        before = pids(cluster)
        time.sleep(1.5)
        everybody = [cluster.supervisor.pid, *before.values()]
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(HUNG_S + 1)
        for pid in everybody:
            os.kill(pid, signal.SIGCONT)
        eventually(cluster.all_up, "it serves again")
        time.sleep(2)
        assert pids(cluster) == before
        assert cluster.events("child.hung") == []
