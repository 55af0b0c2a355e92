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
from fila_cluster.run.backup.process import KeeperSettings
from fila_process.parent import DEPOSED
from fila_router.settings import RouterSettings
from fila_worker.log.kafka.settings import KafkaSettings, partitions_for
from fila_worker.log.placement import PlacementLimits
from fila_worker.settings import CheckpointSettings, Replication, WorkerSettings
from tests.support.cluster.cluster import eventually


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
        checkpoints: CheckpointSettings | None = None,
        placement: PlacementLimits = STAYING,
    ) -> None:
        """``checkpoints``: when they are made; then each host has a process that keeps them in ``tmp_path/target``."""
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
            name: Part(
                "fila_worker", self._settings(name, back, tmp_path / name, kafka, checkpoints, placement), tmp_path / name
            )
            for name in "abcdef"[:hosts]
        }
        self.keepers = {
            name: Part(
                "fila_cluster.run.backup.log_checkpoints",
                KeeperSettings(data_dir=str(tmp_path / name), target=str(tmp_path / "target")),
                tmp_path / f"{name}-keeper",
            )
            for name in (self.workers if checkpoints else ())
        }

    def _settings(
        self,
        name: str,
        back: str,
        home: Path,
        kafka: KafkaSettings,
        checkpoints: CheckpointSettings | None,
        placement: PlacementLimits,
    ) -> WorkerSettings:
        return WorkerSettings(
            name=f"worker-{name}", router=back, data_dir=str(home), shards=list(range(self.shards)), shards_total=self.shards,
            doors=["ipc://door.ipc"],
            replication=Replication(kafka=kafka, host=name, checkpoints=checkpoints, placement=placement),
        )  # fmt: skip

    def start(self, hosts: int | None = None, *, together: bool = False) -> None:
        """Start the hosts, one after the other, so that the first one leads all shards; or ``together``.

        ``hosts``: how many of them; the others stay down.
        """
        self.router.start()
        chosen = [*self.workers][:hosts]
        if together:
            for name in chosen:
                self.start_host(name)
            self.until_served()
            return
        for number, name in enumerate(chosen):
            self.start_host(name)
            if number == 0:
                self.until_served()
            else:
                eventually(lambda name=name: self.follows(name), f"{name} follows")

    def start_host(self, name: str) -> None:
        self.workers[name].start()
        if name in self.keepers:
            self.keepers[name].start()

    def kill_host(self, name: str) -> None:
        """End a host as a machine does that loses its power, but for its disk."""
        for part in (self.workers[name], *([self.keepers[name]] if name in self.keepers else [])):
            part.kill()

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

    @property
    def parts(self) -> list[Part]:
        return [self.router, *self.workers.values(), *self.keepers.values()]

    def close(self) -> None:
        for part in self.parts:
            if part.process is not None:
                with suppress(ProcessLookupError):
                    part.kill()


@contextmanager
def hosts_on(
    tmp_path: Path,
    bootstrap: str,
    *,
    hosts: int = 2,
    started: int | None = None,
    shards: int = 2,
    replicas: int = 1,
    checkpoints: CheckpointSettings | None = None,
    placement: PlacementLimits = STAYING,
    together: bool = False,
) -> Iterator[Hosts]:
    """Start a cluster on brokers that run, with some of its hosts; show what its parts have logged if the test fails."""
    made = Hosts(
        tmp_path, bootstrap, hosts=hosts, shards=shards, replicas=replicas, checkpoints=checkpoints, placement=placement
    )
    try:
        made.start(started, together=together)
        yield made
    except BaseException:
        for part in (part for part in made.parts if part.process is not None):
            print(f"--- {part.log}", *part.log.read_text().splitlines()[-30:], sep=os.linesep, file=sys.stderr)
        raise
    finally:
        made.close()
