"""Shards go from worker to worker while clients work: retries at most, never errors; nothing lost, and order kept."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fila_cluster import Client, Message
from fila_cluster.client.calls.request import Request
from fila_cluster.errors import InvalidArgumentError
from fila_proto_zmq.commands import DescribeQueue, DrainWorker, MoveShard
from tests.support.cluster.client_records import ClientRecords, Load
from tests.support.cluster.cluster import PATIENCE_S, Cluster, command, environment, eventually, running
from tests.support.cluster.faults import check_disk, queue_on

pytestmark = pytest.mark.whole

SHARDS = 3
END = -1
"""The number of the last message of a line."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("moves") / "data", "--shards", SHARDS, workers=2) as cluster:
        yield cluster


def told(cluster: Cluster, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command of the operator."""
    return subprocess.run(
        command("--endpoint", cluster.endpoint, "--json", *arguments),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def home_of(cluster: Cluster, shard: int) -> str:
    return cluster.worker_of(shard).name


def other(worker: str) -> str:
    return "worker-0" if worker == "worker-1" else "worker-1"


class Lines:
    """Producers that number what they enqueue, each call once and without a dedup id, and consumers that want it in order."""

    def __init__(self, endpoint: str, queues: list[str]) -> None:
        self.wrong: list[str] = []
        self.sent = dict.fromkeys(queues, 0)
        self.got: dict[str, list[int]] = {queue: [] for queue in queues}
        self._endpoint = endpoint
        self._stop = threading.Event()
        ways = [bool(number % 2) for number in range(len(queues))]
        self._producers = [
            threading.Thread(target=self._guarded, args=(self._send, *each)) for each in zip(queues, ways, strict=True)
        ]
        self._consumers = [
            threading.Thread(target=self._guarded, args=(self._take, *each)) for each in zip(queues, ways, strict=True)
        ]
        for thread in (*self._producers, *self._consumers):
            thread.start()

    def _guarded(self, target: object, *arguments: object) -> None:
        try:
            target(*arguments)  # type: ignore[operator]
        except BaseException as error:
            self.wrong.append(f"{arguments}: {error!r}")
            raise

    def _send(self, queue: str, direct: bool) -> None:
        with Client(self._endpoint, timeout=PATIENCE_S, direct=direct) as client:
            while not self._stop.wait(0.002):
                client.enqueue(queue, b"%d" % self.sent[queue])
                self.sent[queue] += 1

    def _take(self, queue: str, direct: bool) -> None:
        with (
            Client(self._endpoint, timeout=PATIENCE_S, direct=direct) as client,
            client.consume(queue, prefetch=10) as deliveries,
        ):
            for delivery in deliveries:
                number = int(delivery.payload)
                delivery.ack()
                if number == END:
                    return
                if number not in self.got[queue][-20:]:  # a push that was lost comes again
                    self.got[queue].append(number)

    def went_on(self) -> bool:
        """Whether each line has got something since this was last asked."""
        now = {queue: len(got) for queue, got in self.got.items()}
        before, self._before = getattr(self, "_before", dict.fromkeys(now, 0)), now
        return all(now[queue] > before[queue] for queue in now) or bool(self.wrong)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._producers:
            thread.join()
        with Client(self._endpoint, timeout=PATIENCE_S) as client:
            for queue in self.sent:
                client.enqueue(queue, b"%d" % END)
        for thread in self._consumers:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in self._consumers), {
            q: (len(got), self.sent[q]) for q, got in self.got.items()
        }


def test_shards_move_under_load_and_clients_see_no_error(cluster: Cluster) -> None:
    with cluster.client() as client:
        queues = [queue_on(client, shard, "loaded", visibility_timeout=60.0) for shard in range(SHARDS)]
        strict = [
            queue_on(client, shard, "strict", max_in_flight_per_key=1, visibility_timeout=60.0) for shard in range(SHARDS)
        ]
        records, lines = ClientRecords(), Lines(cluster.endpoint, strict)
        load = Load(cluster.endpoint, records, queues, timeout=PATIENCE_S)
        load.start()
        try:
            for turn in range(8):
                shard = turn % SHARDS
                target = other(home_of(cluster, shard))
                with records.fault():  # a push may be lost with the connection, and comes again
                    client.request(MoveShard(shard, target))
                    assert home_of(cluster, shard) == target
                    client.set_config(f"moved:{turn}", target)
                acked = records.acked
                eventually(lambda acked=acked: records.acked > acked + 20 and lines.went_on(), "work goes on")
            with records.fault():
                done = told(cluster, "drain", "worker-0")
            assert json.loads(done.stdout) == {"worker": "worker-0", "shards": [], "draining": True}, done.stderr
            assert cluster.worker_of(0).shards == [0, 1, 2]
        finally:
            lines.stop()
            load.stop()
        assert (lines.wrong, records.refused) == ([], [])
        records.check()
        for queue in strict:
            assert lines.got[queue] == list(range(lines.sent[queue])), queue
        assert {client.get_config(f"moved:{turn}") for turn in range(8)} <= {"worker-0", "worker-1"}
        client.request(DrainWorker("worker-0", undo=True))


def test_leases_hold_where_they_are_moved_to(cluster: Cluster) -> None:
    with cluster.client() as client:
        queue = queue_on(client, 1, "leases")
        client.enqueue_many(queue, [Message(b"a"), Message(b"b"), Message(b"c")])
        deliveries = client.receive(queue, 3)
        client.request(MoveShard(1, other(home_of(cluster, 1))))
        deliveries[0].ack()
        deliveries[1].nack("again")
        deliveries[2].extend(30.0)
        assert client.queue_stats(queue).in_flight == 1
        again = client.receive(queue, 3, wait=PATIENCE_S)
        assert [(each.payload, each.attempts) for each in again] == [(b"b", 1)]
        client.ack([*again, deliveries[2]])
        assert client.queue_stats(queue).depth == 0


def test_a_receive_that_waits_is_not_told(cluster: Cluster) -> None:
    with cluster.client() as client, cluster.client() as another:
        queue = queue_on(client, 2, "waited")
        got: list[bytes] = []

        def receive() -> None:
            for delivery in another.receive(queue, wait=PATIENCE_S):
                got.append(delivery.payload)
                delivery.ack()

        waiting = threading.Thread(target=receive)
        waiting.start()
        eventually(lambda: len(client.request(Request(queue, DescribeQueue())).consumers) == 1, "it waits")
        client.request(MoveShard(2, other(home_of(cluster, 2))))
        client.enqueue(queue, b"there")
        waiting.join(PATIENCE_S)
        assert got == [b"there"]


def test_what_cannot_be_done_is_refused_with_the_reason(cluster: Cluster) -> None:
    with cluster.client() as client:
        for asked, why in (
            (MoveShard(9, "worker-0"), "no shard 9: this cluster has shards 0 to 2"),
            (MoveShard(0, "worker-7"), "no worker 'worker-7': the workers are worker-0, worker-1"),
            (DrainWorker("worker-7"), "no worker 'worker-7'"),
        ):
            with pytest.raises(InvalidArgumentError, match=why):
                client.request(asked)
        assert told(cluster, "drain", "worker-1").returncode == 0
        with pytest.raises(InvalidArgumentError, match="worker-1 is drained and takes no shard"):
            client.request(MoveShard(0, "worker-1"))
        refused = told(cluster, "drain", "worker-0")
        assert refused.returncode == 1
        assert "worker-0 is the last worker that takes shards" in refused.stderr
        assert (
            "up, drained"
            in subprocess.run(
                command("--endpoint", cluster.endpoint, "status"),
                env=environment(),
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        assert told(cluster, "drain", "worker-1", "--undo").returncode == 0
        assert told(cluster, "shard", "move", 0, "worker-1").returncode == 0
        assert told(cluster, "shard", "move", 0, "worker-1").returncode == 0, "it is there already"
        assert home_of(cluster, 0) == "worker-1"


def test_a_restarted_worker_keeps_what_was_moved_to_it_and_the_next_start_deals_anew(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--shards", 2, workers=2) as cluster:
        with cluster.client() as client:
            queue = queue_on(client, 0)
            client.enqueue(queue, b"kept")
            client.request(MoveShard(0, "worker-1"))
            for worker in list(client.cluster_status().workers):
                os.kill(worker.pid, signal.SIGKILL)
            eventually(
                lambda: cluster.all_up() and home_of_all(cluster) == {"worker-0": [], "worker-1": [0, 1]}, "both are back"
            )
            assert client.queue_stats(queue).pending == 1
        assert cluster.stop() == 0
    with running(tmp_path / "data", workers=2) as cluster:
        assert home_of_all(cluster) == {"worker-0": [0], "worker-1": [1]}
        assert not (tmp_path / "data" / "moved").exists()
        with cluster.client() as client:
            (delivery,) = client.receive(queue)
            assert delivery.payload == b"kept"
            delivery.ack()
        assert cluster.stop() == 0
    assert check_disk(tmp_path / "data")[queue] == 0


def home_of_all(cluster: Cluster) -> dict[str, list[int]]:
    return {worker.name: worker.shards for worker in cluster.status().workers}
