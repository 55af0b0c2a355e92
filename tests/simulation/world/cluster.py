"""A cluster in the virtual world: its disks, router, workers and supervisor, and what may go wrong with them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import Any

from fila_proto_zmq.names import shard_of
from fila_worker.core.settings import ShardSettings
from fila_worker.settings import WorkerSettings
from tests.simulation.options import Options
from tests.simulation.world.disk import Disk
from tests.simulation.world.key_file import KeyFile
from tests.simulation.world.processes import BACK, RouterProcess, Supervisor, WorkerProcess
from tests.simulation.world.sockets import Network
from tests.simulation.world.world import Process, World


class Cluster:
    """``layout``: which shards each worker hosts."""

    def __init__(self, world: World, options: Options) -> None:
        self.world = world
        self.options = options
        self.network = Network(world, options.latency_us)
        self.layout = options.layout
        self.shards = sum(map(len, self.layout))
        self.hosts: dict[int, str] = {}
        """The workers of the shards that were moved."""
        self.supervisor = Supervisor(world)
        self.disks: dict[Any, Any] = self._make_disks()
        self._walls: dict[str, int] = {}
        """How far each machine's wall clock is off, microseconds."""
        settings = options.shard_settings
        self.key_file = KeyFile(world) if "guest" in options.features else None
        self.routers = self._make_routers()
        self.workers = self._make_workers(settings)
        for process in self.processes:
            self.supervisor.watch(process)
        self.clock_steps = 0
        self.clocks_differ = False
        """Whether wall clocks show different times from the beginning."""
        self.power_cuts: list[tuple[int, int, int]] = []
        """``(shard, from when on its commits are gone, when the power was cut)``."""

    @property
    def processes(self) -> list[Process]:
        return [*self.routers, *self.workers]

    @property
    def fronts(self) -> list[str]:
        """Where clients reach the routers."""
        return [router.front for router in self.routers]

    @property
    def endpoints(self) -> list[str]:
        """Where routers are reached."""
        return [endpoint for router in self.routers for endpoint in (router.front, router.back)]

    def one_router(self, random: Random) -> RouterProcess:
        """A router. Nothing is drawn if there is one only."""
        return random.choice(self.routers) if len(self.routers) > 1 else self.routers[0]

    def _make_routers(self) -> list[RouterProcess]:
        return [self._router(None)]

    def _router(self, host: int | None) -> RouterProcess:
        """The router of a host, or the only one."""
        options = self.options
        timeout_ms = options.shard_settings.consumer_timeout_ms
        key_file = self.key_file if host is None or self.key_file is None else KeyFile(self.world)
        return RouterProcess(self.world, options.work_us, self.shards, timeout_ms, options.router_limits, key_file, host)

    def _make_disks(self) -> dict[Any, Any]:
        deaths = self.supervisor.deaths
        return {index: Disk(self.world, index, nature=self.options.log, deaths=deaths) for index in range(self.shards)}

    def _make_workers(self, settings: ShardSettings) -> list[WorkerProcess]:
        return [self._worker(number, shards, settings) for number, shards in enumerate(self.layout)]

    def watch(self, seen: Callable[[int, list[Any], Any], None]) -> None:
        """Show all commits that are there to stay."""
        for disk in self.disks.values():
            disk.watchers.append(seen)

    def heal(self) -> None:
        """What stands under the shards fails no more."""
        for disk in self.disks.values():
            disk.fail_in = None
            if disk.slow_log is not None:
                disk.slow_log.heal()

    def _worker(self, number: int, shards: Sequence[int], settings: ShardSettings) -> WorkerProcess:
        told = WorkerSettings(
            name=f"worker-{number}",
            router=BACK,
            data_dir="/data",
            shards=list(shards),
            shards_total=self.shards,
            shard=settings,
            auth=self.key_file is not None,
            doors=[f"tcp://worker-{number}:0"] if "direct" in self.options.features else [],
        )
        return WorkerProcess(self.world, told.name, self.options.work_us, told, self.disks, self.hosts)

    def in_place_of_the_log(self) -> AbstractContextManager[None]:
        """Let the product's shards stand on what this cluster has: nothing more is needed."""
        return nullcontext()

    def start(self) -> None:
        """Start everything."""
        for process in self.processes:
            process.start()

    def is_up(self) -> bool:
        """Whether all shards are open, and the routers know where."""
        return all(map(_knows_all, self.routers))

    def stop(self) -> None:
        """End everything, for good."""
        self.supervisor.off = True
        for process in self.processes:
            process.kill()

    def shard_of(self, queue: str) -> int:
        """Which shard a queue lives on."""
        return shard_of(queue, self.shards)

    def worker_of(self, shard: int) -> WorkerProcess:
        """Who hosts a shard: who has it open, or else who is to open it."""
        holder = self.disks[shard].holder
        if holder is not None and holder[0].alive and isinstance(holder[0], WorkerProcess):
            return holder[0]
        host = self.hosts.get(shard)
        return next(each for each in self.workers if (each.name == host if host else shard in each.settings.shards))

    def wall_us(self, process: Any) -> int:
        """How far off a process's wall clock is."""
        return self._walls.get(getattr(process, "name", ""), 0) if self._walls else 0

    def step_clock(self, name: str, by_us: int) -> None:
        """Set the wall clock of a process's machine."""
        self.clock_steps += 1
        self._walls[name] = self._walls.get(name, 0) + by_us
        self.world.tell(name, f"its wall clock is set by {by_us / 1e6:+.3f} s")

    def cut_power(self, back_us: dict[int, int]) -> None:
        """Take the power from workers: their disks come back older, each by its own span."""
        self._go_back(back_us, "power cut", Disk.cut_power)

    def put_back(self, back_us: dict[int, int]) -> None:
        """Put earlier copies of shards in their places, each of its own age, while the cluster is stopped. The others go on as they are.

        A router that goes on knows of later openings of a shard, and refuses its worker, as one with a copy of it.
        """
        for process in self.processes:
            process.kill()
        self._go_back(back_us, "put back", Disk.put_back)

    def _go_back(self, back_us: dict[int, int], what: str, go_back: "Callable[[Disk, int], int | None]") -> None:
        workers = {self.worker_of(shard).name: self.worker_of(shard) for shard in back_us}
        for worker in workers.values():
            worker.kill()
        for shard, span_us in back_us.items():
            first_us = go_back(self.disks[shard], span_us)
            self.world.tell(f"shard {shard}", f"{what}: commits since {(first_us or self.world.now_us) / 1e6:.6f} are gone")
            if first_us is not None:
                self.power_cuts.append((shard, first_us, self.world.now_us))


def _knows_all(router: RouterProcess) -> bool:
    core = router.core
    return core is not None and all(owner is not None and owner.routable for owner in core._table.owners)
