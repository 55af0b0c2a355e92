"""Hosts of one cluster on a replicated log: a router, and workers that each have a copy of all shards."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec

from fila_cluster import Client
from fila_router.settings import RouterSettings
from fila_worker.log.kafka.settings import KafkaSettings, partitions_for
from fila_worker.log.placement import PlacementLimits
from fila_worker.loop import DEPOSED
from fila_worker.settings import Replication, WorkerSettings
from tests.support.cluster import eventually


class Part:
    """A process with its settings on a pipe that stays open, through all its lives. A deposed one is started again."""

    def __init__(self, module: str, settings: msgspec.Struct, home: Path) -> None:
        self._module, self._settings, self._home = module, settings, home
        home.mkdir(parents=True, exist_ok=True)
        self.log = home / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def start(self) -> None:
        """Begin a life."""
        self._killed = False
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", self._module], stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=self._home
            )
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(self._settings) + b"\n")
        self.process.stdin.flush()
        Thread(target=self._look_after, args=(self.process,), daemon=True).start()

    def _look_after(self, process: subprocess.Popen[bytes]) -> None:
        if process.wait() == DEPOSED and not self._killed:
            self.start()
        assert process.stdin is not None
        process.stdin.close()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End as a machine does that loses its power, but for its disk."""
        self._killed = True
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        self.ended()

    def stop(self) -> int:
        """Ask to end, and return the exit code."""
        self.signal(signal.SIGTERM)
        return self.ended()

    def ended(self, within_s: float = 30) -> int:
        assert self.process is not None
        return self.process.wait(within_s)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def events(self, *names: str) -> list[dict[str, Any]]:
        """What it has logged."""
        lines = self.log.read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in found if not names or event["event"] in names]


STAYING = PlacementLimits(settle_ms=3_600_000)
"""Shards stay where they are unless their host stops, drains or dies."""


class Hosts:
    """``workers``: one for each host, by name."""

    def __init__(
        self,
        tmp_path: Path,
        bootstrap: str,
        *,
        hosts: int,
        shards: int,
        replicas: int,
        placement: PlacementLimits = STAYING,
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.endpoint = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        back = f"ipc://{tmp_path / 'router.ipc'}"
        self.router = Part("fila_router", RouterSettings(self.endpoint, back, shards, 15_000, 1 << 24), tmp_path / "router")
        kafka = KafkaSettings(
            bootstrap_servers=bootstrap, topic="fila.test", partitions=partitions_for(shards), replicas=replicas
        )
        self.shards = shards
        self.workers = {
            name: Part("fila_worker", self._settings(name, back, tmp_path / name, kafka, placement), tmp_path / name)
            for name in "abcdef"[:hosts]
        }

    def _settings(self, name: str, back: str, home: Path, kafka: KafkaSettings, placement: PlacementLimits) -> WorkerSettings:
        return WorkerSettings(
            name=f"worker-{name}", router=back, data_dir=str(home), shards=list(range(self.shards)), shards_total=self.shards,
            doors=["ipc://door.ipc"], replication=Replication(kafka=kafka, host=name, placement=placement),
        )  # fmt: skip

    def start(self, *, together: bool = False) -> None:
        """Start the hosts, one after the other, so that the first one leads all shards; or ``together``."""
        self.router.start()
        if together:
            for worker in self.workers.values():
                worker.start()
            self.until_served()
            return
        for number, (name, worker) in enumerate(self.workers.items()):
            worker.start()
            if number == 0:
                self.until_served()
            else:
                eventually(lambda name=name: self.follows(name), f"{name} follows")

    def client(self, timeout: float = 30) -> Client:
        return Client(self.endpoint, timeout=timeout)

    def leaders(self) -> dict[int, str]:
        """The host that serves each shard, as the router knows; shards without one are missing."""
        with self.client() as client:
            status = client.cluster_status()
        return {
            shard: worker.name.removeprefix("worker-")
            for worker in status.workers
            if worker.state == "up"
            for shard in {*worker.shards}.difference(outage.shard for outage in worker.outages)
        }

    def spread(self) -> list[int]:
        """How many shards the hosts serve that serve any, the most first."""
        return sorted(Counter(self.leaders().values()).values(), reverse=True)

    def follows(self, name: str) -> bool:
        """Whether a host has copies of all shards that it does not lead, as the router knows."""
        with self.client() as client:
            workers = {worker.name: worker for worker in client.cluster_status().workers}
        worker = workers.get(f"worker-{name}")
        if worker is None or worker.state != "up":
            return False
        leads = {*worker.shards}.difference(outage.shard for outage in worker.outages)
        return len(leads) + len(worker.outages) == self.shards and all(each.state == "following" for each in worker.outages)

    def until_served(self) -> None:
        eventually(lambda: len(self.leaders()) == self.shards, "all shards have a leader")

    def close(self) -> None:
        for part in (*self.workers.values(), self.router):
            if part.process is not None:
                with suppress(ProcessLookupError):
                    part.kill()


@contextmanager
def hosts_on(
    tmp_path: Path,
    bootstrap: str,
    *,
    hosts: int = 2,
    shards: int = 2,
    replicas: int = 1,
    placement: PlacementLimits = STAYING,
    together: bool = False,
) -> Iterator[Hosts]:
    """Start a cluster on brokers that run; show what its parts have logged if the test fails."""
    made = Hosts(tmp_path, bootstrap, hosts=hosts, shards=shards, replicas=replicas, placement=placement)
    try:
        made.start(together=together)
        yield made
    except BaseException:
        for part in (each for each in (made.router, *made.workers.values()) if each.process is not None):
            print(f"--- {part.log}", *part.log.read_text().splitlines()[-30:], sep=os.linesep, file=sys.stderr)
        raise
    finally:
        made.close()
