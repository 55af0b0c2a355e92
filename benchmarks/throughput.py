"""Measure how fast a cluster of one worker is, beside what its disk and one loop could do at most.

    python benchmarks/throughput.py [--messages 100000] [--rounds 3] [--lone 1000]

Starts a cluster in a temporary directory and prints, as medians over rounds: enqueues a second (one producer, batches),
receives with acks a second (one consumer in a process of its own, a backlog), both at once from the first enqueue to the
last ack, the CPU seconds that router and worker spend on 100,000 lifecycles, and how long a lone enqueue takes to reach a
waiting consumer. The reference, taken in the same run, is a bare loop that puts the same messages into RocksDB in batches of
100, and one that deletes them again, as a broker has to: no network, no scheduling, no leases, and a core to itself. Payloads
are 1 KB with two headers; each figure is taken with one fairness key, as other brokers would have it, and with 100.
"""

import argparse
import asyncio
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
from cluster import OneCluster
from rich.console import Console
from rich.table import Table
from rocksdict import Options, Rdict, WriteBatch

from fila_cluster import AsyncClient, Client, Message
from fila_cluster.client.io.reactor import run

PAYLOAD = os.urandom(1024)
HEADERS = {"tenant": "acme", "kind": "order.created"}
KEYS = (1, 100)
ACK_BATCH = 500
ACKS_IN_FLIGHT = 4
PREFETCH = 4000
PAUSE_S = 0.5
QUEUE = "bench"


def messages(count: int, keys: int) -> list[Message]:
    """Return messages over ``keys`` fairness keys in turn. They are made before the clock starts, because an application has them already."""
    names = [f"tenant-{number}" for number in range(keys)]
    return [Message(PAYLOAD, HEADERS, fairness_key=names[number % keys]) for number in range(count)]


def bare_loop(count: int, *, delete: bool) -> float:
    """Return messages a second into bare RocksDB, in batches of 100; ``delete``: and out again soon after."""
    path = tempfile.mkdtemp(prefix="fila-bare-")
    database = Rdict(path, Options(raw_mode=True))
    start = time.perf_counter()
    for first in range(0, count, 100):
        batch = WriteBatch(raw_mode=True)
        for number in range(first, first + 100):
            batch.put(number.to_bytes(20, "big"), PAYLOAD)
            if delete and number >= 1000:
                batch.delete((number - 1000).to_bytes(20, "big"))
        database.write(batch)
    rate = count / (time.perf_counter() - start)
    database.close()
    shutil.rmtree(path)
    return rate


# --- the consumer's process -------------------------------------------------------------------------------------------


def consume_all(endpoint: str, queue: str, count: int, pipe: Connection) -> None:
    """Report when ready, consume and ack ``count`` messages on request, and report when done."""
    run(_consume_all(endpoint, queue, count, pipe))


async def _consume_all(endpoint: str, queue: str, count: int, pipe: Connection) -> None:
    async with AsyncClient(endpoint) as client:
        await client.queue_stats(queue)
        pipe.send("ready")
        pipe.recv()
        acks: deque[asyncio.Task[None]] = deque()
        held, taken = [], 0
        async with client.consume(queue, prefetch=PREFETCH) as deliveries:
            async for delivery in deliveries:
                held.append(delivery)
                taken += 1
                if len(held) == ACK_BATCH or taken == count:
                    acks.append(asyncio.create_task(client.ack(held)))
                    held = []
                    if len(acks) == ACKS_IN_FLIGHT:
                        await acks.popleft()
                if taken == count:
                    break
            await asyncio.gather(*acks)
            pipe.send(time.monotonic())


def wait_for_lone(endpoint: str, queue: str, count: int, pipe: Connection) -> None:
    """Measure how long each message was on its way. Its payload is the time of its enqueue."""
    latencies = []
    with Client(endpoint) as client, client.consume(queue, prefetch=10) as deliveries:
        pipe.send("ready")
        for delivery in deliveries:
            latencies.append(time.monotonic() - float(delivery.text()))
            delivery.ack()
            pipe.send("got it")
            if len(latencies) == count:
                break
    pipe.send(latencies)


class Process:
    """A child that runs one of the functions above, and the pipe to it."""

    def __init__(self, target: Callable[..., None], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(*arguments, theirs))
        self._process.start()
        assert self.pipe.recv() == "ready"

    def join(self) -> None:
        """Wait for its end."""
        self._process.join()


# --- measurements -----------------------------------------------------------------------------------------------------


def backlog(count: int, keys: int) -> dict[str, float]:
    """Build a backlog, then consume it."""
    with fresh_cluster() as cluster, Client(cluster.endpoint, timeout=30) as client:
        client.create_queue(QUEUE)
        sent = messages(count, keys)
        before = cluster.cpu_seconds()
        start = time.monotonic()
        client.enqueue_many(QUEUE, sent)
        enqueued_s = time.monotonic() - start
        consumed_s = _consume_s(cluster, QUEUE, count)
        rates = {_rate("enqueue", keys): count / enqueued_s, _rate("receive + ack", keys): count / consumed_s}
        return rates | _cpu(cluster, before, count, _rate("enqueue, then receive + ack", keys))


def both_at_once(count: int, keys: int) -> dict[str, float]:
    """Consume messages while they are enqueued."""
    with fresh_cluster() as cluster, Client(cluster.endpoint, timeout=30) as client:
        client.create_queue(QUEUE)
        sent = messages(count, keys)
        before = cluster.cpu_seconds()
        both_s = _both_s(cluster, client, QUEUE, sent)
        name = _rate("both at once", keys)
        return {name: count / both_s} | _cpu(cluster, before, count, name)


def _rate(what: str, keys: int) -> str:
    return f"{what}, {keys} {'key' if keys == 1 else 'keys'}"


@contextmanager
def fresh_cluster() -> Iterator[OneCluster]:
    """Start a cluster of its own for each figure, so that work that one figure leaves for the disk does not count for another."""
    with tempfile.TemporaryDirectory(prefix="fila-bench-") as directory, OneCluster(Path(directory)) as cluster:
        yield cluster


def _cpu(cluster: OneCluster, before: dict[str, float], count: int, kind: str) -> dict[str, float]:
    """Return CPU seconds per 100,000 messages since ``before``, with flushes that are under way."""
    time.sleep(PAUSE_S)
    after = cluster.cpu_seconds()
    return {f"{process} CPU, {kind}": (after[process] - before[process]) * 100_000 / count for process in before}


def _consume_s(cluster: OneCluster, queue: str, count: int) -> float:
    consumer = Process(consume_all, cluster.endpoint, queue, count)
    start = time.monotonic()
    consumer.pipe.send("go")
    end: float = consumer.pipe.recv()
    consumer.join()
    return end - start


def _both_s(cluster: OneCluster, client: Client, queue: str, sent: list[Message]) -> float:
    consumer = Process(consume_all, cluster.endpoint, queue, len(sent))
    consumer.pipe.send("go")
    start = time.monotonic()
    client.enqueue_many(queue, sent)
    end: float = consumer.pipe.recv()
    consumer.join()
    return end - start


def lone_latencies_ms(cluster: OneCluster, count: int) -> list[float]:
    """Return the milliseconds from the call of ``enqueue`` to the waiting consumer, one message at a time."""
    with Client(cluster.endpoint) as client:
        client.create_queue("lone")
        consumer = Process(wait_for_lone, cluster.endpoint, "lone", count)
        for _ in range(count):
            client.enqueue("lone", repr(time.monotonic()).encode())
            consumer.pipe.recv()
        latencies: list[float] = consumer.pipe.recv()
        consumer.join()
        client.delete_queue("lone")
    return sorted(1000 * latency for latency in latencies)


def sequential_per_second(cluster: OneCluster, count: int) -> float:
    """Return enqueues a second when each waits for the one before."""
    with Client(cluster.endpoint) as client:
        client.create_queue("sequential")
        start = time.monotonic()
        for _ in range(count):
            client.enqueue("sequential", PAYLOAD, HEADERS)
        rate = count / (time.monotonic() - start)
        client.delete_queue("sequential")
    return rate


def report(console: Console, count: int, bare: dict[str, list[float]], rounds: list[dict[str, float]]) -> None:
    """Return the table of rates and costs."""
    table = Table(title=f"{count:,} messages of 1 KB, medians of {len(rounds)} rounds (min … max)", title_justify="left")
    table.add_column("what")
    table.add_column("median", justify="right")
    table.add_column("min … max", justify="right")
    table.add_column("of bare", justify="right")
    table.add_row(*_rate_row("bare RocksDB loop: put", bare["puts"], bare["puts"]))
    table.add_row(*_rate_row("bare RocksDB loop: put, delete", bare["lifecycles"], bare["puts"]))
    for keys in KEYS:
        table.add_section()
        for what in ("enqueue", "receive + ack", "both at once"):
            name = _rate(what, keys)
            table.add_row(*_rate_row(name, [each[name] for each in rounds], bare["puts"]))
    console.print(table)
    costs = Table(title="CPU seconds of the broker per 100,000 lifecycles", title_justify="left")
    costs.add_column("what")
    costs.add_column("router", justify="right")
    costs.add_column("worker", justify="right")
    costs.add_column("both, min … max", justify="right")
    for keys in KEYS:
        for what in ("enqueue, then receive + ack", "both at once"):
            costs.add_row(*_cost_row(_rate(what, keys), rounds))
    console.print(costs)


def _cost_row(name: str, rounds: list[dict[str, float]]) -> tuple[str, str, str, str]:
    router, worker = ([each[f"{process} CPU, {name}"] for each in rounds] for process in ("router", "worker"))
    sums = [sum(pair) for pair in zip(router, worker, strict=True)]
    spread = f"{statistics.median(sums):.2f}, {min(sums):.2f} … {max(sums):.2f}"
    return name, f"{statistics.median(router):.2f}", f"{statistics.median(worker):.2f}", spread


def _rate_row(name: str, rates: list[float], bare: list[float]) -> tuple[str, str, str, str]:
    median = statistics.median(rates)
    return name, f"{median:,.0f}/s", f"{min(rates):,.0f} … {max(rates):,.0f}", f"{median / statistics.median(bare):.0%}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lone", type=int, default=1000, help="messages that are sent one at a time")
    parser.add_argument("--one-core", action="store_true", help="pin everything to one core")
    arguments = parser.parse_args()
    console = Console()
    if arguments.one_core:
        psutil.Process().cpu_affinity([0])
    rounds: list[dict[str, float]] = []
    bare: dict[str, list[float]] = {"puts": [], "lifecycles": []}
    for _ in range(arguments.rounds):
        bare["puts"].append(bare_loop(arguments.messages, delete=False))
        bare["lifecycles"].append(bare_loop(arguments.messages, delete=True))
        figures: dict[str, float] = {}
        for keys in KEYS:
            figures |= backlog(arguments.messages, keys) | both_at_once(arguments.messages, keys)
        rounds.append(figures)
    report(console, arguments.messages, bare, rounds)
    with fresh_cluster() as cluster:
        lone = lone_latencies_ms(cluster, arguments.lone)
        console.print(
            f"lone enqueue → waiting consumer: p50 {lone[len(lone) // 2]:.2f} ms, p99 {lone[-len(lone) // 100]:.2f} ms"
        )
        console.print(f"sequential enqueues: {sequential_per_second(cluster, 2 * arguments.lone):,.0f}/s")


if __name__ == "__main__":
    main()
