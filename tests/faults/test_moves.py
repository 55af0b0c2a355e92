"""kill -9 of each process that has a part in a move, at moments all through it: each shard comes up on exactly one worker, with all of
its messages."""

import random
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from fila_cluster import Client
from fila_cluster.errors import FilaError
from fila_proto_zmq.commands import DrainWorker, MoveShard
from tests.support.cluster.client_records import ClientRecords, Load
from tests.support.cluster.cluster import Cluster, eventually, running, settling_may_fail
from tests.support.cluster.faults import check_disk, kill, queue_on, wait_until_served

pytestmark = pytest.mark.whole

KILLS = 4
MOVE_S = 0.3
"""About how long a move takes: kills fall anywhere into it."""


def ask(cluster: Cluster, command: MoveShard | DrainWorker) -> threading.Thread:
    """Ask for a move that is about to be disturbed."""

    def attempt() -> None:
        with suppress(FilaError), Client(cluster.endpoint, timeout=5.0) as client:
            client.request(command)

    asking = threading.Thread(target=attempt)
    asking.start()
    return asking


def served_once(cluster: Cluster) -> bool:
    """Whether each shard is on one worker, which serves it."""
    with suppress(FilaError):
        workers = cluster.status().workers
        shards = sorted(shard for worker in workers for shard in worker.shards)
        return shards == [0, 1] and all(worker.state == "up" and not worker.outages for worker in workers)
    return False


@settling_may_fail
@pytest.mark.parametrize("seed", [1, 2])
def test_a_shard_that_moves_while_processes_are_killed_is_on_one_worker(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with running(tmp_path / "data", "--shards", 2, workers=2) as cluster:
        with cluster.client() as client:
            queues = [queue_on(client, shard, visibility_timeout=3.0) for shard in (0, 1)]
        load = Load(cluster.endpoint, ClientRecords(), queues, seed)
        load.start()
        for number in range(KILLS):
            acked = load.records.acked
            eventually(lambda acked=acked: load.records.acked > acked + 20, "work is done")
            shard = number % 2
            home = cluster.worker_of(shard).name
            target = "worker-0" if home == "worker-1" else "worker-1"
            victim = (home, target, "router")[(number + seed) % 3]
            with load.records.fault():
                asking = ask(cluster, MoveShard(shard, target) if number % 4 < 3 else DrainWorker(home))
                threading.Event().wait(chance.uniform(0.0, MOVE_S))  # when the kill comes is what is being tried
                kill(cluster, victim)
                asking.join()
                eventually(lambda: served_once(cluster), f"each shard on one worker after {victim} was killed")
                wait_until_served(cluster, *queues)
            with cluster.client() as client, suppress(FilaError):
                for worker in ("worker-0", "worker-1"):
                    client.request(DrainWorker(worker, undo=True))
        load.stop()
        assert cluster.stop() == 0
        load.records.check()
        assert not cluster.events("shard.quarantined", "process.failed")
    assert {queue: count for queue, count in check_disk(tmp_path / "data").items() if queue in queues and count} == {}
