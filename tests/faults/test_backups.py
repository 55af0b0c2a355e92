"""Backups of a cluster under load whose workers are killed: each is restored, started, and has all that was confirmed before it.

Nothing is ever acked, so each confirmed message must be in the restored cluster exactly once: in its queue, or as a dead letter in the
queue of another shard, wherever it travelled when the shards were cut.
"""

import random
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from fila_cluster import Client, Message
from fila_cluster.errors import BatchError, FilaError
from fila_cluster.run.backup.repository import BackupManifest, Repository
from fila_cluster.run.backup.restoring import restore
from fila_cluster.run.backup.taking import take
from fila_cluster.run.backup.target import target_at
from tests.support.cluster.cluster import PATIENCE_S, Cluster, command, environment, eventually, running, settling_may_fail
from tests.support.cluster.faults import check_disk, queue_on, running_parts

pytestmark = pytest.mark.whole

BACKUPS = 2
WORKERS = 2


class Load:
    """A producer of ``source`` on shard 0, and a consumer that fails messages, which go to ``letters`` on shard 1, and back or aside."""

    def __init__(self, cluster: Cluster) -> None:
        self.confirmed: set[str] = set()
        self.sent = 0
        with cluster.client() as client:
            self.letters = queue_on(client, 1, "letters")
            self.aside = queue_on(client, 0, "aside")
            self.source = queue_on(client, 0, "source", dead_letter=self.letters)
        self._endpoint = cluster.endpoint
        self._stop = threading.Event()
        works = (self._produce, self._fail, self._redrive, self._move)
        self._threads = [threading.Thread(target=self._repeat, args=(work,)) for work in works]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, work: "object") -> None:
        with Client(self._endpoint, timeout=5.0) as client:
            while not self._stop.is_set():
                try:
                    work(client)  # type: ignore[operator]
                except FilaError:
                    time.sleep(0.01)  # a worker is down: that is the point

    def _produce(self, client: Client) -> None:
        batch = [Message(b"%d" % number, fairness_key=f"k{number % 5}") for number in range(self.sent, self.sent + 10)]
        self.sent += len(batch)
        try:
            self.confirmed.update(client.enqueue_many(self.source, batch))
        except BatchError as error:
            self.confirmed.update(result for result in error.results if isinstance(result, str))
        time.sleep(0.005)

    def _fail(self, client: Client) -> None:
        for delivery in client.receive(self.source, 20, wait=0.1):
            delivery.fail("not now")

    def _redrive(self, client: Client) -> None:
        client.redrive(self.letters, 5)
        time.sleep(0.02)

    def _move(self, client: Client) -> None:
        client.move(self.letters, self.aside, count=5)
        time.sleep(0.05)


class Killing:
    """kill -9 of a worker some tenths of a second after the block begins, and a whole cluster at its end."""

    def __init__(self, cluster: Cluster, choice: random.Random) -> None:
        self._cluster = cluster
        (victim,) = running_parts(cluster, f"worker-{choice.randrange(WORKERS)}")
        self._timer = threading.Timer(choice.uniform(0, 0.5), victim.kill)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.join()
        eventually(self._cluster.all_up, "all workers up")


def ids_of(cluster: Cluster) -> Counter[str]:
    """How often each message is there, in whatever queue."""
    with cluster.client() as client:
        return Counter(view.id for info in client.list_queues() for view in client.browse(info.name, limit=1_000_000))


def check_restored(data_dir: Path, confirmed: set[str]) -> None:
    """Start a restored cluster, and see that each confirmed message is in it once, as soon as those on their way have arrived."""
    check_disk(data_dir)
    with running(data_dir, workers=None) as restored:
        found = Counter[str]()

        def complete() -> bool:
            found.clear()
            found.update(ids_of(restored))
            return found.keys() >= confirmed

        with suppress(AssertionError):
            eventually(complete, "all messages", 15)
        missing, twice = confirmed - found.keys(), [each for each, times in found.items() if times > 1]
        assert not missing, f"{len(missing)} of {len(confirmed)} confirmed messages are missing"
        assert not twice, f"{len(twice)} messages are there twice"


def nothing_left(cluster: Cluster) -> None:
    eventually(lambda: not (cluster.data_dir / "checkpoints").exists(), "no checkpoints")


@settling_may_fail
def test_each_backup_under_kills_has_what_was_confirmed_before_it(tmp_path: Path) -> None:
    repository = Repository(target_at(str(tmp_path / "backups")))
    choice = random.Random(14)
    taken: list[tuple[BackupManifest, set[str]]] = []
    with running(tmp_path / "data", workers=WORKERS) as cluster:
        with Load(cluster) as load:
            for number in range(BACKUPS):
                eventually(lambda: len(load.confirmed) > 200 * number, "some load")  # noqa: B023
                with cluster.client() as client, Killing(cluster, choice):
                    confirmed = set(load.confirmed)
                    taken.append((take(client, repository), confirmed))
        nothing_left(cluster)
    assert [manifest.id for manifest, _ in taken] == repository.ids()
    assert repository.verify(repository.all()) == {manifest.id: [] for manifest, _ in taken}
    for manifest, confirmed in taken:
        data_dir = tmp_path / manifest.id
        restore(repository, data_dir, manifest.id)
        check_restored(data_dir, confirmed)


def test_an_interrupted_backup_is_none_and_leaves_nothing(tmp_path: Path) -> None:
    """kill -9 of `fila-cluster backup` while it copies: not listed, pruned, and its checkpoints go."""
    target = tmp_path / "backups"
    repository = Repository(target_at(str(target)))
    with running(tmp_path / "data", workers=WORKERS) as cluster, cluster.client() as client:
        queue = queue_on(client, 0)
        client.enqueue_many(queue, [Message(bytes(10_000)) for _ in range(2_000)])
        backing_up = subprocess.Popen(
            command("--endpoint", cluster.endpoint, "backup", target), env=environment(), stdout=subprocess.DEVNULL
        )
        eventually(lambda: any((cluster.data_dir / "checkpoints").glob("*/shard-*/CURRENT")), "a checkpoint")
        backing_up.kill()
        backing_up.wait(PATIENCE_S)
        if repository.ids():
            return  # it was faster
        ids = client.enqueue_many(queue, [Message(b"later")])
        manifest = take(client, repository)
        assert repository.ids() == [manifest.id]
        assert repository.prune(1)[0] == []
        assert repository.verify([manifest]) == {manifest.id: []}
        nothing_left(cluster)
    restore(repository, tmp_path / "restored")
    check_restored(tmp_path / "restored", set(ids))
