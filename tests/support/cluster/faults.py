"""What is done to the processes of a cluster, and what its disk must hold afterwards."""

import json
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from fila_cluster import Client
from fila_worker.core.recovery import recover
from fila_worker.core.settings import ShardSettings
from fila_worker.lua import compile_hooks
from fila_worker.storage.rocks import RocksStore
from tests.support.cluster.cluster import Cluster, eventually


def processes(cluster: Cluster) -> dict[str, psutil.Process]:
    """All that runs now: ``supervisor``, ``router``, ``observer`` if there is one, ``worker-0`` and so on."""
    found = {"supervisor": psutil.Process(cluster.supervisor.pid)}
    for child in cluster.children():
        with suppress(psutil.NoSuchProcess, IndexError):  # one that has just died has no command line
            found[child.cmdline()[-1]] = child
    return found


def running_parts(cluster: Cluster, *names: str) -> list[psutil.Process]:
    """Wait until parts of a cluster run, and return their processes. One that is just started has the command line of its supervisor."""
    eventually(lambda: {*names} <= processes(cluster).keys(), f"{', '.join(names)} run")
    running = processes(cluster)
    return [running[name] for name in names]


def kill(cluster: Cluster, *names: str) -> None:
    """kill -9 some processes at once."""
    for victim in running_parts(cluster, *names):
        victim.kill()


@contextmanager
def paused(cluster: Cluster, *names: str) -> Iterator[None]:
    """SIGSTOP some processes for a block, then let those go on that still live."""
    victims = running_parts(cluster, *names)
    for victim in victims:
        victim.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGCONT)


def serves(cluster: Cluster, *queues: str, timeout: float = 1.0) -> bool:
    """Whether every queue answers."""
    with suppress(Exception), Client(cluster.endpoint, timeout=timeout) as client:
        for queue in queues:
            client.queue_stats(queue)
        return cluster.all_up()
    return False


def wait_until_served(cluster: Cluster, *queues: str) -> None:
    """Wait for the end of an outage."""
    eventually(lambda: serves(cluster, *queues), f"{queues} served again")


def queue_on(client: Client, shard: int, prefix: str = "queue", **options: object) -> str:
    """A new queue on a certain shard."""
    taken = {info.name for info in client.list_queues(prefix)}
    for number in range(100):
        name = f"{prefix}-{number}"
        if name in taken:
            continue
        client.create_queue(name, **options)  # type: ignore[arg-type]
        if next(info.shard for info in client.list_queues(name) if info.name == name) == shard:
            return name
        client.delete_queue(name)
    raise AssertionError(f"100 names, and none on shard {shard}")


def check_disk(data_dir: Path) -> dict[str, int]:
    """Recover every shard of a stopped cluster from a copy of its files and check its invariants; the messages of each queue."""
    shards = int(json.loads((data_dir / "fila.json").read_text())["shards"])
    depths: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="fila-disk-") as directory:
        for index in range(shards):
            copy = Path(directory) / f"shard-{index}"
            shutil.copytree(data_dir / f"shard-{index:04d}", copy, ignore=shutil.ignore_patterns("LOCK"))
            store = RocksStore(copy)
            try:
                now_ms = round(time.time() * 1000)
                shard = recover(store, ShardSettings(), compile_hooks, index=index, shards=shards, now_ms=now_ms)
                shard.check()
                for queue in shard.queues.values():
                    depths[queue.name] = queue.pending + queue.in_flight + queue.delayed
                del shard
            finally:
                store.close()
    return depths
