"""Three throttle keys with a concurrency on a real cluster whose processes are killed and paused, and what its consumers saw.

The consumers are processes. They write down when they work on which message. Work that its lease outlived counts until the end
of the lease, and that of a killed consumer until its death.
"""

import asyncio
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from fila_cluster import AsyncClient, AsyncDelivery, Client, Message
from fila_cluster.errors import FilaError
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually
from tests.support.cluster.faults import kill, paused, queue_on, wait_until_served

LIMITS = {"one": 1, "few": 5, "many": 50}
WORK_S = {"one": 0.05, "few": 0.05, "many": 0.2}
"""The messages of all three keys are some 370 a second."""
QUEUES, CONSUMERS, PREFETCH = 4, 3, 40
LEASE_S = 3.0
SETTLE_S = LEASE_S + 1.0
"""The time in which leases end that were lost with a process, and their places are used again."""
LOST_S = 15.0
"""How long a consumer that was killed is still given messages. They hold their places."""
PAUSE_S = 1.5
BACKLOG = 300
"""Messages of each key that wait at least."""
CHUNK = 200
FAULTS = 10
"""The number of :func:`_faults`."""


@dataclass
class Work:
    """Work on one message, Unix seconds. ``ended`` and ``acked``: infinite if the consumer did not come so far."""

    key: str
    message: str
    leased: float
    began: float
    expires: float
    ended: float = float("inf")
    acked: float = float("inf")


@dataclass
class PlaceLife:
    """What was found out."""

    sent: set[str] = field(default_factory=set)
    done: list[Work] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    quiet: list[tuple[float, float]] = field(default_factory=list)
    """The times in which no fault was felt."""
    limited_until: float = 0.0

    @property
    def missing(self) -> int:
        """Messages on which nobody has worked to the end."""
        return len(self.sent - {each.message for each in self.done if each.ended < float("inf")})

    def most_at_once(self, key: str) -> int:
        """The most messages of a key on which consumers worked at one moment, while their leases lasted."""
        moments = []
        for each in self.done:
            end = min(each.ended, each.expires)
            if each.key == key and each.began < min(end, self.limited_until):
                moments += [(each.began, 1), (end, -1)]
        return max(itertools.accumulate(step for _, step in sorted(moments)), default=0)

    def share_used(self, key: str) -> float:
        """The part of a key's places that was leased in the quiet times."""
        used = sum(
            max(0.0, min(each.acked, each.expires, until) - max(each.leased, since))
            for since, until in self.quiet
            for each in self.done
            if each.key == key
        )
        return used / LIMITS[key] / sum(until - since for since, until in self.quiet)


# --- consumers --------------------------------------------------------------------------------------------------------


def consume(endpoint: str, queues: list[str], file: Path) -> None:
    """Be a consumer of all queues until killed."""
    asyncio.run(_consume_all(endpoint, queues, file))


async def _consume_all(endpoint: str, queues: list[str], file: Path) -> None:
    with file.open("ab", buffering=0) as out:
        async with AsyncClient(endpoint, timeout=PATIENCE_S) as client:
            await asyncio.gather(*(_consume(client, queue, lambda words: out.write(words.encode())) for queue in queues))


async def _consume(client: AsyncClient, queue: str, note: Callable[[str], object]) -> None:
    tasks = set[asyncio.Task[None]]()
    while True:
        with suppress(FilaError):
            async with client.consume(queue, prefetch=PREFETCH) as deliveries:
                async for delivery in deliveries:
                    task = asyncio.create_task(_work(delivery, note))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)


async def _work(delivery: AsyncDelivery, note: Callable[[str], object]) -> None:
    (key,) = delivery.throttle_keys
    work = f"{delivery.id}.{delivery.attempts}.{delivery.leased_at.timestamp()}"
    times = f"{delivery.leased_at.timestamp()} {delivery.lease_expires_at.timestamp()}"
    note(f"{work} began {time.time()} {key} {delivery.payload.decode()} {times}\n")
    await asyncio.sleep(WORK_S[key])
    note(f"{work} ended {time.time()}\n")
    with suppress(FilaError):
        await delivery.ack()
        note(f"{work} acked {time.time()}\n")


class Consumers:
    """The processes. Each has a file of its own, also after it was killed and started again."""

    def __init__(self, cluster: Cluster, queues: list[str], folder: Path) -> None:
        self._cluster, self._queues, self._folder = cluster, queues, folder
        self._context = multiprocessing.get_context("spawn")
        self._deaths: dict[Path, float] = {}
        self._files: list[Path] = []
        self._running = [self._start() for _ in range(CONSUMERS)]

    def _start(self) -> tuple[multiprocessing.process.BaseProcess, Path]:
        file = self._folder / f"consumer-{len(self._files)}"
        file.touch()
        self._files.append(file)
        process = self._context.Process(target=consume, args=(self._cluster.endpoint, self._queues, file), daemon=True)
        process.start()
        return process, file

    def kill_one(self, chance: Random) -> None:
        """kill -9 one, and start another."""
        place = chance.randrange(CONSUMERS)
        self._end(*self._running[place])
        self._running[place] = self._start()

    def _end(self, process: multiprocessing.process.BaseProcess, file: Path) -> None:
        process.kill()
        process.join()
        self._deaths[file] = time.time()

    @contextmanager
    def one_paused(self, chance: Random) -> Iterator[None]:
        """SIGSTOP one for a block."""
        pid = self._running[chance.randrange(CONSUMERS)][0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill all."""
        for process, file in self._running:
            self._end(process, file)

    def done(self) -> list[Work]:
        """What all have written so far."""
        found: list[Work] = []
        for file in self._files:
            found += _read(file, self._deaths.get(file, float("inf")))
        return found


def _read(file: Path, died: float) -> list[Work]:
    works: dict[str, Work] = {}
    for line in file.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            break  # its consumer was killed, or is writing
        name, what, at, *words = line.split()
        if what == "began":
            key, message, leased, expires = words
            works[name] = Work(key, message, float(leased), float(at), min(float(expires), died))
        elif what == "ended":
            works[name].ended = float(at)
        else:
            works[name].acked = float(at)
    return list(works.values())


# --- the whole --------------------------------------------------------------------------------------------------------


class _Producer(threading.Thread):
    """Keeps a backlog of each key in all queues."""

    def __init__(self, cluster: Cluster, queues: list[str], life: PlaceLife, consumers: Consumers) -> None:
        super().__init__(daemon=True)
        self._endpoint, self._queues, self._life, self._consumers = cluster.endpoint, queues, life, consumers
        self._stopping = threading.Event()
        self._sent = Counter[str]()

    def run(self) -> None:
        with Client(self._endpoint, timeout=PATIENCE_S) as client:
            while not self._stopping.wait(0.2):
                done = Counter(each.key for each in self._consumers.done() if each.ended < float("inf"))
                for key in LIMITS:
                    while self._sent[key] - done[key] < BACKLOG:
                        self._send(client, key)

    def _send(self, client: Client, key: str) -> None:
        """Send some to each queue, until all are confirmed."""
        for queue in self._queues:
            names = [f"{key}-{self._sent[key] + number}" for number in range(CHUNK // len(self._queues))]
            messages = [Message(name.encode(), throttle_keys=[key], fairness_key=key, dedup_id=name) for name in names]
            while True:
                with suppress(FilaError):
                    client.enqueue_many(queue, messages)
                    break
            self._sent[key] += len(names)
            self._life.sent |= {*names}

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def _faults(cluster: Cluster, consumers: Consumers, chance: Random) -> dict[str, Callable[[], None]]:
    def pause(*names: str) -> None:
        with paused(cluster, *names):
            threading.Event().wait(PAUSE_S)

    def pause_consumer(for_s: float) -> None:
        with consumers.one_paused(chance):
            threading.Event().wait(for_s)

    return {
        "worker-0 killed": lambda: kill(cluster, "worker-0"),
        "consumer paused for longer than its leases": lambda: pause_consumer(LEASE_S + PAUSE_S),
        "router killed": lambda: kill(cluster, "router"),
        "worker-1 paused": lambda: pause("worker-1"),
        "consumer killed": lambda: consumers.kill_one(chance),
        "worker-1 killed": lambda: kill(cluster, "worker-1"),
        "router paused": lambda: pause("router"),
        "worker-0 paused": lambda: pause("worker-0"),
        "consumer paused": lambda: pause_consumer(PAUSE_S),
        "all killed": lambda: kill(cluster, "worker-0", "worker-1", "router"),
    }


def live(cluster: Cluster, folder: Path, rounds: Iterable[Sequence[int]], quiet_s: float, chance: Random) -> PlaceLife:
    """Work under the limits, in rounds of some faults of :func:`_faults` and a quiet time after them. Then empty the queues.

    ``quiet_s``: 0 leaves out the quiet times, and those to settle before.
    """
    life = PlaceLife()
    with cluster.client() as client:
        queues = [queue_on(client, shard, f"places-{shard}", visibility_timeout=LEASE_S) for shard in range(QUEUES)]
        for key, limit in LIMITS.items():
            client.set_throttle(key, concurrency=limit)
        consumers = Consumers(cluster, queues, folder)
        producer = _Producer(cluster, queues, life, consumers)
        producer.start()
        try:
            eventually(lambda: {each.key for each in consumers.done()} == {*LIMITS}, "work on all keys")
            faults = list(_faults(cluster, consumers, chance).items())
            for numbers in rounds:
                for name, do in (faults[number % len(faults)] for number in numbers):
                    do()
                    life.faults.append(name)
                    wait_until_served(cluster, *queues)
                if quiet_s:
                    threading.Event().wait(SETTLE_S + LOST_S * ("consumer killed" in life.faults[-len(numbers) :]))
                    since = time.time()
                    threading.Event().wait(quiet_s)  # the length of the time is what is being measured
                    life.quiet.append((since, time.time()))
            producer.stop()
            life.limited_until = time.time()
            for key in LIMITS:
                client.delete_throttle(key)
            eventually(lambda: not sum(client.queue_stats(queue).depth for queue in queues), "empty queues")
        finally:
            consumers.end()
    life.done = consumers.done()
    return life
