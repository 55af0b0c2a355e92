"""The processes of a cluster: the product's own loops, with the world in place of the kernel."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import fila_cluster.client.asynchronous.client
import fila_cluster.client.io.link
import fila_cluster.client.io.reactor
import fila_cluster.client.io.wire
import fila_process.clock
import fila_router.__main__
import fila_router.loop
import fila_router.sockets
import fila_worker.loop
import fila_worker.process.slots
import fila_worker.transport.client_socket
import fila_worker.transport.link
import fila_worker.transport.router_links
from fila_cluster.run.supervisor.child import RestartBackoff
from fila_proto_zmq.events import Event
from fila_router.core.limits import RouterLimits
from fila_router.core.router import Router
from fila_router.settings import RouterSettings
from fila_worker.core.effects import Effect
from fila_worker.process.shard_process import ShardProcess
from fila_worker.settings import WorkerSettings
from fila_worker.transport.direct_clients import DirectClients, DirectConnection
from tests.simulation.replacing import replaced
from tests.simulation.world.disk import Disk, SimResidence
from tests.simulation.world.hooks import compile_hooks
from tests.simulation.world.key_file import AUTH, KeyFile
from tests.simulation.world.log import SimWakeup
from tests.simulation.world.sockets import FakeZmq, Network, StopDescriptor
from tests.simulation.world.streams import FakeSockets
from tests.simulation.world.world import Process, World

FRONT = "tcp://10.0.0.1:5555"
BACK = "ipc://router"
HOSTS_MAX = 3


def front_of(host: int) -> str:
    """Where clients reach the router of one of several hosts."""
    return f"tcp://10.0.2.{host}:5555"


def back_of(host: int) -> str:
    """Where workers reach it."""
    return f"tcp://10.0.2.{host}:5556"


FRONTS = frozenset([FRONT, *map(front_of, range(HOSTS_MAX))])
BACKS = frozenset([BACK, *map(back_of, range(HOSTS_MAX))])

BIRTH_MS = 1_700_000_000_000
"""Unix time at the beginning of a world."""


UNEXPECTED = ("process.failed", "shard.failed", "shard.quarantined", "command.refused")
"""Events that say that something met a bug, or damage: there is none here."""


class Journal:
    """Notes of a process become lines of the story."""

    def __init__(self, process: str, settings: object) -> None:
        """What it has to know, the process knows: journals of several routers have one name."""

    world: World

    def tell(self, events: Iterable[Event]) -> None:
        process = self.world.current
        for event in events:
            self.world.tell(process.name, f"notes {event.event} {_short(event.fields())}")
            process.noted(event)
            if event.event in UNEXPECTED:
                self.world.fail("crash", f"{process.name}: {_short(event.fields())}")


def _short(fields: Any) -> str:
    return " ".join(f"{key}={value!r}"[:300] for key, value in fields.items() if value not in (None, "", 0))


class StopRequests:
    """When its process is asked to stop."""

    world: World

    def __init__(self, parent_fd: int) -> None:
        self._process = self.world.current
        self.fds = [StopDescriptor()]

    def requested(self, readable: object) -> bool:
        return bool(self._process.stop_wanted)

    def close(self) -> None:
        """No signal disturbs an end here."""


class Heartbeat:
    """Signs of life for a supervisor that does not look for them: nothing hangs here."""

    def __init__(self, parent_fd: int) -> None:
        """Nothing to open."""

    def beat(self) -> None:
        """Nobody listens."""


class RouterProcess(Process):
    """A router. ``host``: the number of the host that it is on, if there are several routers."""

    core: Router | None = None
    machine: Any = None
    """Of several ones, the host that it is on."""

    def __init__(
        self,
        world: World,
        work_us: tuple[int, int],
        shards: int,
        consumer_timeout_ms: int,
        limits: RouterLimits,
        key_file: KeyFile | None,
        host: int | None = None,
    ) -> None:
        """``key_file``: None without authentication."""
        super().__init__(world, "router" if host is None else f"router-{host}", work_us)
        self.limits = limits
        self.key_file = key_file
        auth = None if key_file is None else AUTH
        self.front, self.back = (FRONT, BACK) if host is None else (front_of(host), back_of(host))
        self._settings = RouterSettings(
            self.front, self.back, shards, consumer_timeout_ms, 16 * 1024 * 1024, several=host is not None, auth=auth
        )

    def run(self) -> str:
        return f"exit {fila_router.__main__.serve(self._settings)}"

    def _ended(self, why: str) -> None:
        self.core = None
        super()._ended(why)


class WorkerProcess(Process):
    """A worker with some shards. It may open each of ``disks``."""

    host: ShardProcess | None = None
    clients: DirectClients | None = None

    @property
    def free_disk_bytes(self) -> int:
        """How much room its disk has."""
        return 1 << 40

    def __init__(
        self,
        world: World,
        name: str,
        work_us: tuple[int, int],
        settings: WorkerSettings,
        disks: dict[int, Disk],
        hosts: dict[int, str],
    ) -> None:
        super().__init__(world, name, work_us)
        self.settings = settings
        self.disks = disks
        self.hosts = hosts
        """The workers of the shards that were moved."""

    def run(self) -> str:
        return f"exit {fila_worker.loop.run(self.settings)}"

    def now_ms(self) -> int:
        """About what its clock says."""
        return BIRTH_MS + self.world.now_us // 1000

    def _ended(self, why: str) -> None:
        self.host = None
        super()._ended(why)


class Supervisor:
    """Starts what died, after the pauses of the real one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._backoffs: dict[str, RestartBackoff] = {}
        self.deaths: list[tuple[str, int]] = []
        self.off = False

    def watch(self, process: Process) -> None:
        self._backoffs[process.name] = RestartBackoff()
        process.on_death = lambda why: self._died(process)

    def _died(self, process: Process) -> None:
        self.deaths.append((process.name, self._world.now_us))
        if self.off or process.away:
            return
        lived_s = (self._world.now_us - process.started_us) / 1e6
        delay_s = self._backoffs[process.name].delay_s(lived_s)
        self._world.after(round(delay_s * 1e6) + 150_000, lambda: self._start(process))  # and the time that Python takes

    def keep_away(self, process: Process, span_us: int) -> None:
        """Kill a process, and start it again after a while and no sooner."""
        process.away = True
        process.kill()
        self._world.after(span_us, lambda: self.bring_back(process))

    def bring_back(self, process: Process) -> None:
        """Start a process that was kept away."""
        process.away = False
        self._start(process)

    def _start(self, process: Process) -> None:
        if not process.alive and not process.away and not self.off:
            process.start()


class VirtualTime:
    """Stands in for the module ``time``."""

    CLOCK_BOOTTIME = 7

    def __init__(self, world: World, wall_us: Callable[[Any], int]) -> None:
        self._world = world
        self._wall_us = wall_us

    def monotonic(self) -> float:
        return 1000.0 + self._world.now_us / 1e6

    def monotonic_ns(self) -> int:
        return 1_000_000_000_000 + self._world.now_us * 1000

    perf_counter_ns = monotonic_ns

    def clock_gettime_ns(self, clock: int) -> int:
        return 1_000_000_000_000 + self._world.now_us * 1000

    def process_time_ns(self) -> int:
        return self._world.now_us * 10

    def time_ns(self) -> int:
        return (BIRTH_MS * 1000 + self._world.now_us + self._wall_us(self._world.current)) * 1000

    def time(self) -> float:
        return self.time_ns() / 1e9


class PlainClock:
    """What the product's clocks say in a run whose wall clocks are never set: the time."""

    world: World

    def now_ms(self) -> int:
        return BIRTH_MS + self.world.now_us // 1000


class _Psutil:
    @staticmethod
    def Process() -> Any:  # noqa: N802
        return SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=100_000_000))


def _observed(world: World, make: Callable[..., Any], attribute: str) -> Callable[..., Any]:
    """What a process makes of this kind is also kept at the process, for those who look into it."""

    def made(*arguments: Any, **options: Any) -> Any:
        thing = make(*arguments, **options)
        setattr(world.current, attribute, thing)
        return thing

    return made


class _WatchedClients(DirectClients):
    """Shows what a worker gives to a client to those who watch the wire. The connection may end before it is on the wire, and at most
    once, it counts as given all the same."""

    def __init__(self, network: Network, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._network = network
        network.world.current.clients = self

    def send(self, effect: Effect) -> DirectConnection | None:
        connection = super().send(effect)
        if connection is not None:
            for tap in self._network.direct_taps:
                tap(effect.client, effect.frames())
        return connection


@contextmanager
def in_place_of_the_kernel(
    world: World, network: Network, wall_us: Callable[[Any], int], limits: RouterLimits, *, clocks_are_set: bool
) -> Iterator[None]:
    """Let the product's processes and clients live in a world. ``clocks_are_set``: perhaps, so that the product's own are needed."""
    zmq, time, sockets = FakeZmq(network), VirtualTime(world, wall_us), FakeSockets(network)

    entropy = world.random("entropy")

    def make_router(*arguments: Any, **options: Any) -> Router:
        return Router(*arguments, **options, limits=world.current.limits)

    Journal.world = StopRequests.world = PlainClock.world = SimWakeup.world = world
    shutil = SimpleNamespace(disk_usage=lambda path: SimpleNamespace(free=world.current.free_disk_bytes))
    fakes: dict[Any, dict[str, Any]] = {
        fila_process.clock: {"time": time},
        fila_router.__main__: {
            "zmq": zmq, "time": time, "StopRequests": StopRequests, "Journal": Journal, "VERSION": "0",
            "allow_many_connections": lambda: None, "gc": SimpleNamespace(freeze=lambda: None),
            "Router": _observed(world, make_router, "core"), "ParentHeartbeat": Heartbeat,
            "secrets": SimpleNamespace(token_bytes=entropy.randbytes), "DEFAULTS": limits,
            "load_keys": lambda directory: world.current.key_file.load(),
            "load_version": lambda directory: world.current.key_file.version,
            "save_keys": lambda directory, keys, version: world.current.key_file.save(keys, version),
            "checked_workers": lambda context, settings: nullcontext(),  # CurveZMQ is libzmq's
        },
        fila_router.sockets: {"zmq": zmq, "_seed": lambda: None, "DEFAULTS": limits},
        fila_router.loop: {"zmq": zmq, "time": time, "psutil": _Psutil},
        fila_worker.loop: {
            "selectors": sockets, "time": time, "StopRequests": StopRequests, "Journal": Journal, "shutil": shutil,
            "_spare_the_collector": lambda: None, "gc": SimpleNamespace(freeze=lambda: None), "ParentHeartbeat": Heartbeat, "Wakeup": SimWakeup, "compile_hooks": compile_hooks, "SharedMemory": lambda: None,
            "RocksStore": lambda path, **options: world.current.disks[int(str(path)[-4:])].open(world.current, options.get("wake")),
            "Residence": lambda data_dir, worker, total: SimResidence(world, world.current.hosts, worker),
            "refuse_missing": lambda path: None, "mark_made": lambda path: None,
            "ShardProcess": _observed(world, ShardProcess, "host"), "allow_many_connections": lambda: None, "connections_allowed": lambda reserved: 10_000,
            "secrets": SimpleNamespace(token_bytes=world.random("doors").randbytes),
            "DirectClients": partial(_WatchedClients, network),
        },
        fila_worker.transport.link: {"zmq": zmq, "os": SimpleNamespace(getpid=lambda: 1000 + world.current.lives)},
        fila_worker.transport.router_links: {"psutil": _Psutil},
        fila_worker.transport.client_socket: {"socket": sockets, "select": sockets},
        fila_cluster.client.io.wire: {"socket": sockets},
        fila_worker.process.slots: {"secrets": SimpleNamespace(randbits=entropy.getrandbits)},
        fila_cluster.client.io.link: {"zmq": zmq},
        fila_cluster.client.io.reactor: {"time": time},
        fila_cluster.client.asynchronous.client: {"Random": lambda: world.random("clients")},
    }  # fmt: skip
    if not clocks_are_set:
        fakes[fila_router.loop] |= {"ProcessClock": PlainClock, "SteadyClock": PlainClock}
        fakes[fila_worker.loop] |= {"ProcessClock": PlainClock, "SteadyClock": PlainClock}
    with replaced((module, name, fake) for module, names in fakes.items() for name, fake in names.items()):
        yield
