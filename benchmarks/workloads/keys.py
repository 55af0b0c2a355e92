"""Measure a million fairness keys with a message each: a worker's memory, and the time of a restart.

One queue, a payload of 100 bytes for each key, one worker. The worker may take 700 MiB and be ready again within 10 s. Then
the first messages are received and acked, and each key must have its turn.
"""

import itertools
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import clients
from benchmarks.harness.fila import WAYS, Fila, blocking_client
from benchmarks.harness.messages import Load
from benchmarks.harness.processes import together
from benchmarks.harness.sampling import sampled
from benchmarks.harness.workload import Benchmark, Run, choice, number
from fila_cluster import Client

QUEUE = "keys"
PART = 50_000
PAYLOAD_BYTES = 100
RSS_MIB_MAX = 700
READY_S_MAX = 10.0
DRAINED_MAX = 100_000
TABLE = "A message for each fairness key"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    keys: int = number("Fairness keys.")
    way: str = choice("How clients reach the workers.", WAYS)


def measure(run: Run[Scale]) -> None:
    """Fill, restart, receive, and judge."""
    with run.directory() as path:
        _measure(run, Fila(way=run.scale.way), path / "data")


def _measure(run: Run[Scale], system: Fila, data: Path) -> None:
    keys = run.scale.keys
    column = f"{keys:,} keys"
    with system.serve(data) as server:
        run.system(system.name, server.facts)
        clients.create(system, server, QUEUE)
        empty = server.rss_bytes()["worker"]
        load = Load(keys, PAYLOAD_BYTES, keys)
        together((clients.produce_parts, system, server.address, QUEUE, load, PART), env=system.environment())
        full = server.rss_bytes()["worker"]
    run.figure(TABLE, "memory of the worker", column, "MiB", full >> 20)
    run.figure(TABLE, "memory for a key and its message", column, "bytes", (full - empty) / keys)
    start = time.monotonic()
    with system.serve(data) as server, blocking_client(server.address) as client:
        # Not from the statistics of the queue: those would list all keys.
        pending = next(info.pending for info in client.list_queues() if info.name == QUEUE)
        ready_s = time.monotonic() - start
        assert pending == keys, "messages are missing after the restart"
        again = server.rss_bytes()["worker"]
        with sampled(lambda: server.rss_bytes()["worker"]) as memory:
            rate, out_of_turn = drain(client, min(keys, DRAINED_MAX))
    run.figure(TABLE, "ready again after", column, "s", ready_s)
    run.figure(TABLE, "memory after the restart", column, "MiB", again >> 20)
    run.figure(TABLE, "memory for a key after the restart", column, "bytes", max(0, again - empty) / keys)
    run.figure(TABLE, "received and acked", column, "/s", rate)
    most = int(max(full, again, memory.most)) >> 20
    run.promise(f"the worker takes {most} MiB, at most {RSS_MIB_MAX}", most <= RSS_MIB_MAX)
    run.promise(f"ready again after {ready_s:.1f} s, at most {READY_S_MAX:g}", ready_s <= READY_S_MAX)
    run.promise(f"{out_of_turn} keys were served out of turn, none may", out_of_turn == 0)


def drain(client: Client, keys: int) -> tuple[float, int]:
    """Receive and ack one message of each of the first keys. Return how many a second, and how many keys came out of turn."""
    start, numbers = time.monotonic(), list[int]()
    while len(numbers) < keys:
        deliveries = client.receive(QUEUE, min(1000, keys - len(numbers)), wait=5)
        if not deliveries:
            break
        client.ack(deliveries)
        numbers += [int(each.fairness_key.removeprefix("tenant-")) for each in deliveries]
    out_of_turn = sum(one > other for one, other in itertools.pairwise(numbers)) + keys - len(set(numbers))
    return len(numbers) / (time.monotonic() - start), out_of_turn


BENCHMARK = Benchmark("keys", measure, Scale(3_000), Scale(200_000), Scale(1_000_000))
