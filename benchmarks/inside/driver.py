"""A shard and a host without sockets, on RocksDB and a virtual clock, whose turns are timed.

A turn's time is the CPU time of its thread, so that other processes of the machine are not in the figures.
"""

import gc
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from fila_proto_zmq import commands as c
from fila_proto_zmq.codec import encode_command
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.effects import Answer, ClientCall, Effect, Push
from fila_worker.core.recovery import recover
from fila_worker.core.settings import ShardSettings
from fila_worker.core.shard import Shard
from fila_worker.lua import compile_hooks
from fila_worker.process.shard_process import ShardProcess
from fila_worker.storage.rocks import RocksStore

BATCH = 500
SMALL = seal_envelope(b"x")


@dataclass
class Driver:
    """A shard whose turns are timed."""

    shard: Shard
    now_ms: int = 1_800_000_000_000
    requests: int = 0
    longest_ms: float = 0.0
    turns: int = 0
    answers: dict[int, object] = field(default_factory=dict)
    pushed: list[Push] = field(default_factory=list)
    waiting: deque[tuple[c.Command, str, bytes]] = field(default_factory=deque)
    """Commands that are not read yet, because the turn was full."""

    def turn(self, *commands: tuple[c.Command, str, bytes]) -> list[int]:
        """Run a turn that reads commands, each with its queue and its client, until the turn is full. Return their
        numbers."""
        started, numbers = time.thread_time(), []
        self.waiting += commands
        while self.waiting and not self.shard.jobs.full:
            command, queue, client = self.waiting.popleft()
            self.requests += 1
            numbers.append(self.requests)
            self.shard.apply(ClientCall(client, self.requests, queue, self.now_ms), command)
        effects: list[Effect] = self.shard.turn(self.now_ms)
        for effect in effects:
            effect.frames()
        self.longest_ms = max(self.longest_ms, 1000 * (time.thread_time() - started))
        self.turns += 1
        for effect in effects:
            if isinstance(effect, Answer):
                self.answers[effect.call.request] = effect.reply
            elif isinstance(effect, Push):
                self.pushed.append(effect)
        return numbers

    def settle(self, turns_max: int = 100_000) -> None:
        """Run turns until nothing is due."""
        while (self.waiting or self.shard.jobs.open or self.shard.next_due(self.now_ms) == 0) and turns_max:
            self.turn()
            turns_max -= 1

    def ask(self, command: c.Command, queue: str = "q", client: bytes = b"asker") -> object:
        """Return the answer to a command."""
        (number,) = self.turn((command, queue, client))
        while number not in self.answers and (self.shard.jobs.open or self.shard.next_due(self.now_ms) == 0):
            self.turn()
        return self.answers.pop(number, None)


@contextmanager
def driver(settings: ShardSettings | None = None, index: int = 0) -> Iterator[Driver]:
    """Make a new shard in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="fila-turns-") as directory:
        store = RocksStore(Path(directory))
        settings = settings or ShardSettings(consumer_timeout_ms=1 << 40)
        yield Driver(recover(store, settings, compile_hooks, index=index, shards=index + 1, now_ms=1_800_000_000_000))
        store.close()


def fill(drive: Driver, keys: int, priorities: int = 1, **columns: object) -> c.Enqueued:
    """Make a queue with a message for each of many keys."""
    drive.ask(c.CreateQueue(c.QueueOptions()))
    last: object = None
    for start in range(0, keys, BATCH):
        count = min(BATCH, keys - start)
        names = [f"tenant-{start + number:09d}" for number in range(count)]
        levels = [(start + number) % priorities for number in range(count)]
        last = drive.ask(c.Enqueue([SMALL] * count, names, priority=levels, **columns))  # type: ignore[arg-type]
    assert isinstance(last, c.Enqueued)
    drive.settle()
    return last


Scene: TypeAlias = Callable[["Bench"], None]


class Bench:
    """Run scenes and keep the longest turn of each request."""

    def __init__(self, keys: int, only: str = "") -> None:
        self.keys = keys
        self.rows: list[tuple[str, str, float, int]] = []
        self._only = only

    def time(self, drive: Driver, scene: str, what: str, *questions: tuple[c.Command, str, bytes]) -> None:
        """Send a request, and time the turns until all is done."""
        gc.collect()
        gc.freeze()  # as in a worker: garbage collections skip long-lived objects
        drive.longest_ms, drive.turns = 0.0, 0
        drive.turn(*questions)
        drive.settle()
        self.rows.append((scene, what, drive.longest_ms, drive.turns))

    def time_host(self, host: ShardProcess, scene: str, what: str, *commands: c.Command) -> None:
        """Send a request to a host, and time its turns until all is done. Frames are decoded and encoded, but not sent."""
        gc.collect()
        gc.freeze()
        now_ms, longest_ms, turns = 1_800_000_000_000, 0.0, 0
        waiting = deque([b"", *encode_command(command, number)] for number, command in enumerate(commands))
        while waiting or not turns or host.next_due(now_ms) == 0:
            started = time.thread_time()
            host.begin_turn(now_ms)
            while waiting and not host.full:
                host.accept(waiting.popleft(), now_ms)
            for effect in host.turn(now_ms):
                effect.frames()
            longest_ms, turns = max(longest_ms, 1000 * (time.thread_time() - started)), turns + 1
        self.rows.append((scene, what, longest_ms, turns))

    def clock(self, scene: str, what: str, action: Callable[[], object]) -> None:
        """Time one part of a turn, without the rest of the turn."""
        gc.collect()
        gc.freeze()
        started = time.thread_time()
        action()
        self.rows.append((scene, what, 1000 * (time.thread_time() - started), 1))

    def run(self, scenes: "list[Scene]") -> None:
        """Run the scenes that were chosen."""
        for scene in scenes:
            if self._only in scene.__name__:
                scene(self)

    @property
    def longest_ms(self) -> float:
        """Of all turns."""
        return max((longest_ms for _, _, longest_ms, _ in self.rows), default=0.0)


def question(command: c.Command, queue: str = "q", client: bytes = b"asker") -> tuple[c.Command, str, bytes]:
    """Return a command as the host reads it."""
    return command, queue, client
