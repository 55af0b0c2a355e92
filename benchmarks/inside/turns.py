"""Measure a worker's CPU time for a turn: an empty one, one with an enqueue, and the turns of a whole life of a message.

The host is driven in this process, with RocksDB and without sockets: a turn takes its frames, decodes them, commits, and
encodes what is to be sent. The time is the CPU time of the thread; each figure is the least of several rounds, because other
work on the machine only adds to it. An empty turn may take 25 µs, one with an enqueue 60 µs.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.workload import Benchmark, Run, number
from fila_proto_zmq import commands as c
from fila_proto_zmq.codec import encode_command
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.effects import Effect, Push
from fila_worker.core.recovery import recover
from fila_worker.core.settings import ShardSettings
from fila_worker.lua import compile_hooks
from fila_worker.process.shard_process import ShardProcess
from fila_worker.process.slots import Slot
from fila_worker.storage.rocks import RocksStore

EMPTY_US_MAX, ENQUEUE_US_MAX = 25.0, 60.0
PAYLOAD = seal_envelope(bytes(1024))
QUEUE = "q"
PRODUCER, CONSUMER = b"p" * 16, b"c" * 16
TABLE = "CPU time of the worker"
PREFETCH = 1000


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    turns: int = number("Turns of each round.")
    rounds: int = number("Rounds.", 5)


class Driver:
    """A host of one shard, a millisecond later at each turn."""

    def __init__(self, host: ShardProcess, now_ms: int) -> None:
        self._host = host
        self._now_ms = now_ms
        self._request = 0
        self._enqueue = c.Enqueue([PAYLOAD])

    def turn(self, command: c.Command | None = None, client: bytes = PRODUCER) -> list[Effect]:
        """Make a turn with one command, or with none. Return its effects, encoded."""
        if command is None:
            return self.read()
        self._request += 1
        return self.read([client, *encode_command(command, self._request, QUEUE)])

    def read(self, frame: list[bytes] | None = None) -> list[Effect]:
        """Make a turn with one frame, behind the identity of its client, or with none. Return its effects, encoded."""
        self._now_ms += 1
        host, now_ms = self._host, self._now_ms
        host.begin_turn(now_ms)
        if frame is not None:
            host.accept(frame, now_ms)
        effects = list(host.turn(now_ms))
        for effect in effects:
            effect.frames()
        host.next_due(now_ms)
        return effects

    def empty(self) -> None:
        """Make a turn with nothing to do."""
        self.turn()

    def enqueue(self) -> None:
        """Make a turn with one enqueue."""
        self.turn(self._enqueue)

    def life(self) -> None:
        """Enqueue a message for a waiting consumer, and ack it."""
        for effect in self.turn(self._enqueue):
            if isinstance(effect, Push):
                for batch in effect.delivered.batches:
                    self.turn(c.Settle(c.Verb.ACK, [(batch.lease, [])]), CONSUMER)


@contextmanager
def driver(directory: Path) -> Iterator[Driver]:
    """Make a host with one queue."""
    now_ms, store = 1_800_000_000_000, RocksStore(directory)
    shard = recover(store, ShardSettings(), compile_hooks, index=0, shards=1, now_ms=now_ms)
    drive = Driver(ShardProcess([Slot.of(shard)], 1, now_ms), now_ms)
    drive.turn(c.CreateQueue(c.QueueOptions()))
    yield drive
    store.close()


def cost_us(action: Callable[[], None], times: int) -> float:
    """Return the CPU time of one call."""
    gc.collect()
    gc.freeze()  # as in a worker: garbage collections skip long-lived objects
    started = time.thread_time_ns()
    for _ in range(times):
        action()
    return (time.thread_time_ns() - started) / times / 1000


def measure(run: Run[Scale]) -> None:
    """Measure and judge."""
    least: dict[str, float] = {}
    with run.directory() as path, driver(path / "shard") as drive:
        for _ in range(run.scale.turns):
            drive.enqueue()  # warm up
        kinds = {"an empty turn": drive.empty, "a turn with one enqueue": drive.enqueue}
        for name, action in kinds.items():
            least[name] = _least(run, name, action)
        drive.turn(c.PurgeQueue())
        drive.turn(c.Subscribe(1, PREFETCH), CONSUMER)
        least["enqueue, delivery and ack: two turns"] = _least(run, "enqueue, delivery and ack: two turns", drive.life)
    gc.unfreeze()
    for name, limit_us in zip(kinds, (EMPTY_US_MAX, ENQUEUE_US_MAX), strict=True):
        run.promise(f"{name} takes {least[name]:.1f} µs, at most {limit_us:g}", least[name] <= limit_us)


def _least(run: Run[Scale], name: str, action: Callable[[], None]) -> float:
    values = [cost_us(action, run.scale.turns) for _ in range(run.scale.rounds)]
    run.figure(TABLE, name, "least of the rounds", "µs", min(values))
    run.figure(TABLE, name, "median of the rounds", "µs", *values)
    return min(values)


BENCHMARK = Benchmark("turns", measure, Scale(200, 2), Scale(3_000), Scale(10_000))
