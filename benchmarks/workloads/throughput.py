"""Measure how many messages a second go in, come out, and do both at once, and the CPU time that they cost.

One producer and one consumer, each in a process of its own, 1 KB payloads with two headers, one worker. A load is enqueued in
bulk, once with ``enqueue_many`` and once message by message through ``producer()``, then received and acked with
``consume_batches``; then another load is received while it is enqueued, from the first enqueue to the last ack. Each figure
has a server of its own. Beside it stands a bare loop that puts the same messages into RocksDB in batches of 100, and one that
deletes them again, as a broker has to: no network, no scheduling, no leases.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rocksdict import Options, Rdict, WriteBatch

from benchmarks.harness import clients
from benchmarks.harness.fila import WAYS_OR_BOTH, Fila, FilaProducer, by_ways
from benchmarks.harness.messages import Load
from benchmarks.harness.processes import together
from benchmarks.harness.systems import Server, System
from benchmarks.harness.workload import Benchmark, Run, choice, number

QUEUE = "measured"
FLUSH_S = 0.5
"""How long flushes that are under way after the last ack may still cost CPU time."""
PER = 100_000
RATES = "Messages a second"
COSTS = "CPU seconds of the server for 100,000 messages"
CLIENT_COSTS = "CPU seconds of the clients for 100,000 messages"
BARE = "A bare loop over RocksDB, messages a second"


@dataclass(frozen=True)
class Loads:
    """What is measured of each system, and how often."""

    messages: int = number("Messages of each load.", 2_000)
    rounds: int = number("Rounds.", 1)
    payload: int = number("Bytes of a payload.", 1024)


@dataclass(frozen=True)
class Scale(Loads):
    """The numbers of this benchmark."""

    keys: int = number("Fairness keys of the rows with many keys.", 100)
    way: str = choice("How clients reach the workers.", WAYS_OR_BOTH)


def compare(run: Run[Loads], systems: Sequence[System], keys: Sequence[int] = (1,)) -> None:
    """Measure systems side by side, round by round."""
    variants = [(system, count) for system in systems for count in keys]
    for system, count in run.rounds(run.scale.rounds, variants, "throughput"):
        load = Load(run.scale.messages, run.scale.payload, count)
        backlog(run, system, load)
        both_at_once(run, system, load)


def backlog(run: Run[Loads], system: System, load: Load) -> None:
    """Enqueue a load, then consume it."""
    with run.serving(system) as server:
        clients.create(system, server, QUEUE)
        before = server.cpu_seconds()
        (sent,) = together((clients.produce, system, server.address, QUEUE, load), env=system.environment())
        (taken,) = together((clients.consume, system, server.address, QUEUE, load), env=system.environment())
        run.verify(taken.verified)
        run.figure(RATES, _row("enqueue", load), system.name, "/s", load.count / sent.spent.seconds)
        run.figure(RATES, _row("receive + ack", load), system.name, "/s", load.count / taken.spent.seconds)
        row = _row("enqueue, then receive + ack", load)
        server_costs(run, server, before, system, row, load.count)
        run.figure(CLIENT_COSTS, _row("enqueue", load), system.name, "s", sent.spent.cpu_s * PER / load.count)
        run.figure(CLIENT_COSTS, _row("receive + ack", load), system.name, "s", taken.spent.cpu_s * PER / load.count)


def both_at_once(run: Run[Loads], system: System, load: Load) -> None:
    """Consume a load while it is enqueued."""
    with run.serving(system) as server:
        clients.create(system, server, QUEUE)
        before = server.cpu_seconds()
        sent, taken = together(
            (clients.produce, system, server.address, QUEUE, load),
            (clients.consume, system, server.address, QUEUE, load),
            env=system.environment(),
        )
        run.verify(taken.verified)
        row = _row("both at once", load)
        run.figure(RATES, row, system.name, "/s", load.count / (taken.spent.ended - sent.spent.began))
        server_costs(run, server, before, system, row, load.count)


def server_costs(run: Run[Loads], server: Server, before: dict[str, float], system: System, row: str, count: int) -> None:
    """Add the CPU seconds of all processes of a server since ``before``, and of each kind if there are several."""
    time.sleep(FLUSH_S)
    after = server.cpu_seconds()
    spent = {kind: (after[kind] - before[kind]) * PER / count for kind in before}
    run.figure(COSTS, row, system.name, "s", sum(spent.values()))
    if len(spent) > 1:
        for kind, seconds in spent.items():
            run.figure(COSTS, f"{row}: {kind}", system.name, "s", seconds)


def _row(what: str, load: Load) -> str:
    return what if load.keys == 1 else f"{what}, {load.keys} keys"


def bare_loop(load: Load, *, delete: bool) -> float:
    """Return messages a second into bare RocksDB, in batches of 100; ``delete``: and out again soon after."""
    payloads = load.payloads()
    with tempfile.TemporaryDirectory(prefix="fila-bare-") as path:
        database = Rdict(path, Options(raw_mode=True))
        start = time.perf_counter()
        for first in range(0, load.count, 100):
            batch = WriteBatch(raw_mode=True)
            for place in range(first, min(first + 100, load.count)):
                batch.put(place.to_bytes(20, "big"), payloads[place])
                if delete and place >= 1000:
                    batch.delete((place - 1000).to_bytes(20, "big"))
            database.write(batch)
        rate = load.count / (time.perf_counter() - start)
        database.close()
    return rate


def measure(run: Run[Scale]) -> None:
    """Measure this broker, with one fairness key and with many."""
    load = Load(run.scale.messages, run.scale.payload)
    for _ in range(run.scale.rounds):
        run.figure(BARE, "put", "RocksDB", "/s", bare_loop(load, delete=False))
        run.figure(BARE, "put, delete", "RocksDB", "/s", bare_loop(load, delete=True))
    compare(run, by_ways(run.scale.way, Fila(), FilaProducer()), (1, run.scale.keys))


BENCHMARK = Benchmark("throughput", measure, Scale(way="direct"), Scale(50_000, 3), Scale(200_000, 5))
