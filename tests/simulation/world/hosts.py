"""A cluster on several hosts: each has workers with a copy of every shard, and a log that all of them share decides who leads.

All workers are linked to one router. Wall clocks of hosts may be a minute apart, and steady clocks begin anywhere and run a little fast or slow.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import fila_router.loop
import fila_worker.loop
import fila_worker.replication.replicated
from fila_proto_zmq.commands import PutDraining
from fila_proto_zmq.events import Event, ShardFollowed, ShardOpened, StorageFailed
from fila_worker.core.settings import ShardSettings
from fila_worker.log.kafka.settings import OVERHEAD_BYTES, KafkaSettings, partitions_for
from fila_worker.settings import Replication, WorkerSettings
from fila_worker.storage.replica import FlushLimits
from tests.simulation.faults.host_nature import HostsNature
from tests.simulation.options import Options
from tests.simulation.replacing import replaced
from tests.simulation.world.cluster import Cluster
from tests.simulation.world.copies import CopyDisk, SimExchange
from tests.simulation.world.hooks import compile_hooks
from tests.simulation.world.processes import RouterProcess, WorkerProcess
from tests.simulation.world.shared_log import ControlLog, SharedLog, SimLog
from tests.simulation.world.world import Killed, Process, World

LATE_MS = 4000
"""The longest that a slow reader of the log is behind it."""


class Machine:
    """One host."""

    def __init__(self, world: World, number: int, drift: float) -> None:
        self.world = world
        self.name = f"host-{number}"
        self.number = number
        self.workers: list[HostWorker] = []
        self.router: RouterProcess | None = None
        """Its own one, if each host has one."""
        self.off_log_until_us = 0
        """Until then it reaches no broker."""
        self.late_until_us = 0
        """Until then what it reads of the log is old."""
        self.full_until_us = 0
        """Until then its disk has less room than any limit asks for."""
        random = world.random(f"clock of {self.name}")
        self._begin_ms, self._rate = random.randrange(10**9), 1 + drift

    @property
    def processes(self) -> list[Process]:
        """All of its processes."""
        return [*self.workers, *([] if self.router is None else [self.router])]

    def steady_ms(self) -> int:
        """What its steady clock says."""
        return self._begin_ms + int(self.world.now_us * self._rate) // 1000

    def lag_us(self) -> int:
        """How old is what it reads of the log."""
        return min(LATE_MS * 1000, max(0, self.late_until_us - self.world.now_us))

    def heal(self) -> None:
        """Reach everything again."""
        self.off_log_until_us = self.late_until_us = self.full_until_us = 0


class HostWorker(WorkerProcess):
    """A worker of one of several hosts. ``changed``: called with each shard whose life in a process has begun or ended."""

    def __init__(
        self,
        machine: Machine,
        work_us: tuple[int, int],
        settings: WorkerSettings,
        copies: dict[tuple[str, int], CopyDisk],
        changed: Callable[[int], object],
    ) -> None:
        super().__init__(machine.world, settings.name, work_us, settings, {}, {})
        self.machine = machine
        self.copies = copies
        self._changed = changed
        self.opened: list[tuple[int, int, int]] = []
        """The epochs of shards that it has opened, as ``(shard, epoch, its own life)``."""

    @property
    def free_disk_bytes(self) -> int:
        """Less than the lowest limit while the host's disk is full."""
        return -1 if self.world.now_us < self.machine.full_until_us else super().free_disk_bytes

    def put_draining(self, draining: bool) -> None:
        """Have it leave its shards to other hosts, or lead some again, as a router does."""
        if self.host is not None and self.resting:
            self.host.features.messages[PutDraining](PutDraining(draining), self.now_ms())

    def noted(self, event: Event) -> None:
        """Take that another life of a shard has begun, or that one has ended."""
        if isinstance(event, ShardOpened):
            self.opened.append((event.shard, event.epoch, self.lives))
        if isinstance(event, (ShardOpened, ShardFollowed, StorageFailed)):
            self._changed(event.shard)


class HostedCluster(Cluster):
    """A cluster of several hosts."""

    nature: HostsNature

    def __init__(self, world: World, options: Options) -> None:
        assert options.hosts is not None
        self.nature = options.hosts
        self.machines = [Machine(world, number, drift) for number, drift in enumerate(self.nature.drift)]
        self.logs: list[SharedLog] = []
        """Of the shards."""
        self.control = ControlLog(world, sum(map(len, options.layout)), self.nature.append_us)
        super().__init__(world, options)
        for machine, apart_us in zip(self.machines, self.nature.apart_us, strict=True):
            for process in machine.processes:
                self._walls[process.name] = apart_us
        self.clocks_differ = any(self.nature.apart_us)

    def _make_disks(self) -> dict[Any, Any]:
        nature = self.nature
        self.logs = [SharedLog(self.world, shard, nature.append_us) for shard in range(self.shards)]
        limits = FlushLimits(nature.flush_bytes, 2 * nature.flush_bytes, 5000, 10_000, nature.flush_records)
        return {
            (machine.name, log.shard): CopyDisk(self.world, machine.name, log, limits)
            for machine in self.machines
            for log in self.logs
        }

    def _make_workers(self, settings: ShardSettings) -> list[WorkerProcess]:
        for machine, joined in zip(self.machines, self.nature.joined, strict=True):
            layout = (tuple(range(self.shards)),) if joined else self.layout
            machine.workers = [
                HostWorker(
                    machine, self.options.work_us, self._settings_of(machine, number, shards, settings), self.disks,
                    lambda shard: self.supervisor.deaths.append((f"shard {shard}", self.world.now_us)),
                )
                for number, shards in enumerate(layout)
            ]  # fmt: skip
        return [worker for machine in self.machines for worker in machine.workers]

    def _settings_of(self, machine: Machine, number: int, shards: tuple[int, ...], settings: ShardSettings) -> WorkerSettings:
        nature = self.nature
        kafka = KafkaSettings(
            bootstrap_servers="log:9092", topic="fila.log", partitions=partitions_for(self.shards), patience_ms=nature.patience_ms,
            record_bytes_max=nature.record_bytes_max + 2 * OVERHEAD_BYTES,
        )  # fmt: skip
        own, *others = self._routers_of(machine)
        return WorkerSettings(
            name=f"{machine.name}/worker-{number}",
            router=own,
            other_routers=[] if nature.finds else others,
            data_dir=f"/{machine.name}",
            shards=list(shards),
            shards_total=self.shards,
            shard=settings,
            auth=self.key_file is not None,
            doors=[f"tcp://{machine.name}-{number}:0"] if "direct" in self.options.features else [],
            replication=Replication(
                kafka=kafka,
                host=machine.name,
                router=own if nature.finds and nature.several else "",
                leadership=nature.leadership,
                placement=nature.placement,
            ),
        )

    def _make_routers(self) -> list[RouterProcess]:
        if not self.nature.several:
            return super()._make_routers()
        routers = []
        for machine in self.machines:
            machine.router = self._router(machine.number)
            machine.router.machine = machine
            routers.append(machine.router)
        return routers

    def _routers_of(self, machine: Machine) -> list[str]:
        """The endpoints of all routers for workers, the machine's own first."""
        own = [] if machine.router is None else [machine.router.back]
        return own + [router.back for router in self.routers if router is not machine.router]

    @property
    def partitions(self) -> list[SharedLog]:
        """All partitions of the log."""
        return [*self.logs, self.control]

    def watch(self, seen: Callable[[int, list[Any], Any], None]) -> None:
        """Show what counts in the logs."""
        for log in self.logs:
            log.watchers.append(seen)

    def heal(self) -> None:
        """Faults end."""
        super().heal()
        for machine in self.machines:
            machine.heal()
            for worker in machine.workers:
                worker.put_draining(False)
        for log in self.partitions:
            log.stalled_until_us, log.calm = 0, True

    def cut_power(self, back_us: dict[Any, int]) -> None:
        """Take the power from hosts. What was flushed is there afterwards, and the log has the rest."""
        for name in sorted({name for name, _ in back_us}):
            self.world.tell(name, "power cut")
            for process in self.machine(name).processes:
                process.kill()

    def machine(self, name: str) -> Machine:
        """A host by its name."""
        return next(each for each in self.machines if each.name == name)

    @contextmanager
    def in_place_of_the_log(self) -> Iterator[None]:
        """Let the product's replicated shards stand on the logs and copies of this cluster."""
        world, nature = self.world, self.nature

        def make_log(kafka: KafkaSettings, log: str, wake: Callable[[], None]) -> SimLog:
            return SimLog(world.current.machine, self.partitions, kafka, wake)

        def exit_now(code: int) -> None:
            raise Killed

        def open_copy(disk: CopyDisk, **_: Any) -> Any:
            return disk.open(world.current)

        def steady_ms() -> int:
            machine: Machine = world.current.machine
            return machine.steady_ms()

        kafka = {
            "fila_worker.log.kafka.partition": SimpleNamespace(KafkaLog=make_log, steady_ms=steady_ms),
            "fila_worker.log.kafka.topic": SimpleNamespace(prepare_topic=lambda settings, log: "log"),
        }
        replicated = fila_worker.replication.replicated
        fakes = [
            (replicated, "Replica", open_copy), (replicated, "SharedMemory", lambda: None), (replicated, "compile_hooks", compile_hooks),
            (replicated, "RECORD_BYTES_MAX", nature.record_bytes_max), (replicated, "FOLLOW_MS", nature.follow_ms),
            (replicated, "Exchange", lambda path, shard: SimExchange(world.current.copies[world.current.machine.name, shard])),
            (fila_worker.loop, "os", SimpleNamespace(_exit=exit_now)),
            (fila_worker.loop, "SteadyClock", lambda: SimpleNamespace(now_ms=steady_ms)),
        ]  # fmt: skip
        if nature.several:
            fakes.append((fila_router.loop, "SteadyClock", lambda: SimpleNamespace(now_ms=steady_ms)))
        with patch.dict(sys.modules, kafka), replaced(fakes):
            yield
