"""Measure Dramatiq tasks that do nothing, a second: on this broker, and on Dramatiq's Redis broker in the same run.

A process sends the messages, one ``send`` after another, each of which returns when the message is in the hands of the
server's operating system. Then one worker process with eight threads runs them. Then both go on at once. Redis has its
append-only file, synced each second; redis-py uses hiredis. With ``confirm_delivery=False`` this broker takes messages in
batches: the clock stops when all are confirmed. Both servers are reached over tcp, and each task's number is checked: once
each.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.harness.fila import Fila
from benchmarks.harness.processes import Gate, Spent, together
from benchmarks.harness.report.results import Verified
from benchmarks.harness.systems import Server, Serves
from benchmarks.harness.workload import Benchmark, Run, number
from benchmarks.peers.doors import OverTcp
from benchmarks.peers.programs import find
from benchmarks.peers.redis_streams import Redis

RATES = "Dramatiq messages a second"
COSTS = "CPU seconds of the server for 100,000 messages, sent and run"
PER = 100_000
SEND, WORK, BOTH = "send", "run by one worker", "send and run at once"
THREADS = 8
QUEUE = "measured"
WAIT_S_MAX = 600.0


class TaskSystem(Protocol):
    """A server, and Dramatiq's broker for it."""

    @property
    def name(self) -> str:
        """As tables show it."""

    @property
    def server(self) -> Serves[Server]:
        """What starts the server."""

    def broker(self, address: str) -> Any:
        """Return Dramatiq's broker, in a client process."""


@dataclass(frozen=True)
class OnFila:
    """This broker. ``confirmed``: whether a send waits for its confirmation."""

    name: str = "fila-cluster, os"
    confirmed: bool = True

    @property
    def server(self) -> Serves[Server]:
        """What starts the server."""
        return OverTcp(Fila("os", label=self.name))

    def broker(self, address: str) -> Any:
        """Return Dramatiq's broker, in a client process."""
        from fila_cluster.dramatiq import FilaBroker  # noqa: PLC0415 # an extra: only this benchmark needs it

        return FilaBroker(address, timeout=60.0, confirm_delivery=self.confirmed)


@dataclass(frozen=True)
class OnRedis:
    """Redis, with an append-only file."""

    name: str = "Redis, AOF everysec"

    @property
    def server(self) -> Serves[Server]:
        """What starts the server."""
        return Redis()

    def broker(self, address: str) -> Any:
        """Return Dramatiq's broker, in a client process."""
        from dramatiq.brokers.redis import RedisBroker  # noqa: PLC0415 # an extra

        return RedisBroker(url=address)


class Counter:
    """Counts the tasks by their numbers; ``done`` once there are so many."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.counts = bytearray(count)
        self.lock = threading.Lock()
        self.done = threading.Event()

    def note(self, task: int) -> None:
        """Count one."""
        with self.lock:
            self.counts[task] += 1
            self.left -= 1
            if not self.left:
                self.done.set()

    def verified(self) -> Verified:
        """Return what came."""
        missing, once = self.counts.count(0), self.counts.count(1)
        return Verified(len(self.counts), sum(self.counts), missing, len(self.counts) - once - missing)


def _actor(system: TaskSystem, address: str, run: Callable[[int], None]) -> Any:
    import dramatiq  # noqa: PLC0415 # an extra

    broker = system.broker(address)
    dramatiq.set_broker(broker)
    return dramatiq.actor(actor_name="run", queue_name=QUEUE, broker=broker)(run)


async def send(gate: Gate, system: TaskSystem, address: str, count: int) -> Spent:
    """Send so many messages."""
    actor = _actor(system, address, lambda task: None)
    gate.wait()
    for task in range(count):
        actor.send(task)
    actor.broker.join(f"no-{QUEUE}")  # what is not confirmed yet counts
    spent = gate.spent()
    actor.broker.close()
    return spent


async def work(gate: Gate, system: TaskSystem, address: str, count: int) -> tuple[Spent, Verified]:
    """Run so many tasks. The clock stops with the last of them; then those that come too often have a moment to come."""
    from dramatiq import Worker  # noqa: PLC0415 # an extra

    counter = Counter(count)
    actor = _actor(system, address, counter.note)
    worker = Worker(actor.broker, worker_threads=THREADS)
    gate.wait()
    worker.start()
    counter.done.wait(WAIT_S_MAX)
    spent = gate.spent()
    actor.broker.join(QUEUE)
    worker.stop()
    actor.broker.close()
    return spent, counter.verified()


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    messages: int = number("Messages of each load.", 300)
    rounds: int = number("Rounds.", 1)


def measure(run: Run[Scale]) -> None:
    """Measure both, round by round."""
    systems: list[TaskSystem] = [OnFila(), OnFila("fila-cluster, os, confirmed later", confirmed=False)]
    if find("redis-server"):
        systems.append(OnRedis())
    else:
        run.note("Redis is not measured: there is no redis-server here.")
    count = run.scale.messages
    for system in run.rounds(run.scale.rounds, systems, "dramatiq"):
        with run.directory() as path, system.server.serve(path / "data") as server:
            run.system(system.name, server.facts)
            before = sum(server.cpu_seconds().values())
            (sent,) = together((send, system, server.address, count))
            ((worked, verified),) = together((work, system, server.address, count))
            run.verify(verified)
            run.figure(RATES, SEND, system.name, "/s", count / sent.seconds)
            run.figure(RATES, WORK, system.name, "/s", count / worked.seconds)
            time.sleep(0.1)
            run.figure(COSTS, "", system.name, "s", (sum(server.cpu_seconds().values()) - before) * PER / count)
            sent, (worked, verified) = together((send, system, server.address, count), (work, system, server.address, count))
            run.verify(verified)
            run.figure(RATES, BOTH, system.name, "/s", count / (max(sent.ended, worked.ended) - sent.began))


BENCHMARK = Benchmark("dramatiq", measure, Scale(), Scale(10_000, 3), Scale(50_000, 5))
