"""Measure what ``on_enqueue`` costs: the enqueue rate with and without a hook, and microseconds a message in the engine
alone.

The rate: rounds alternate on one broker, in batches of 100. The script reads two headers and returns three fields; without
the script the producer sets the same options. Headers mostly repeat (a tenant, a plan), and then a decision is recalled; so
there are rounds with headers that all differ, too, where each decision is made. At least 0.8 of the rate without a hook must
be left.

The engine: each script runs for each message, except in the rows with "recalled", where earlier decisions of pure scripts for
the same headers are recalled (1,500 different headers). The first row is the same loop without Lua. Scripts in rows with
"watched" run under the count hook; the text of the others bounds what they do.
"""

import asyncio
from dataclasses import dataclass

from benchmarks.harness import clients
from benchmarks.harness.cluster import OneCluster
from benchmarks.harness.fila import WAYS, Fila, blocking_client
from benchmarks.harness.messages import Load
from benchmarks.harness.processes import Gate, together
from benchmarks.harness.report.spread import ratios, spread
from benchmarks.harness.workload import Benchmark, Run, choice, number
from benchmarks.inside.hook_engine import measure_engine
from fila_cluster import Message

HOOK = """
function on_enqueue(msg)
  return {
    fairness_key = msg.headers.tenant,
    weight = msg.headers.plan == "pro" and 3 or 1,
    throttle_keys = { "tenant:" .. msg.headers.tenant },
  }
end
"""
QUEUE = "hooked"
BATCH = 100
IN_FLIGHT = 4
SHARE_MIN = 0.8
CALL_US_MAX = 50.0
PLAIN, REPEAT, DIFFER = "no hook", "hook, headers repeat", "hook, headers all differ"
KINDS = (PLAIN, REPEAT, DIFFER)
RATES = "Enqueues a second, batches of 100"
COSTS = "CPU time of the worker for a message"
SHARES = "Share of the rate without a hook"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    messages: int = number("Messages of each round.")
    rounds: int = number("Rounds.")
    decisions: int = number("Messages that the engine decides on.")
    way: str = choice("How clients reach the workers.", WAYS)


def batch(load: Load, kind: str) -> list[Message]:
    """Return ten tenants' messages; without a hook, with the options that the hook would choose."""
    messages = []
    for place, payload in enumerate(load.payloads(), load.first):
        tenant = f"tenant-{place % 10}"
        headers = {"tenant": tenant, "plan": "pro"}
        if kind == DIFFER:
            headers["request"] = str(place)
        if kind == PLAIN:
            messages.append(Message(payload, headers, fairness_key=tenant, weight=3, throttle_keys=[f"tenant:{tenant}"]))
        else:
            messages.append(Message(payload, headers))
    return messages


async def enqueue(gate: Gate, system: Fila, address: str, load: Load, kind: str) -> clients.Work:
    """Enqueue the batches, a few at a time. They are made before the clock starts."""
    batches = [batch(part, kind) for part in load.parts(BATCH)]
    waiting: set[asyncio.Task[list[str]]] = set()
    async with system.connect(address) as connection:
        gate.wait()
        for messages in batches:
            waiting.add(asyncio.create_task(connection.client.enqueue_many(QUEUE, messages)))
            if len(waiting) == IN_FLIGHT:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*waiting)
        spent = gate.spent()
    return clients.Work(spent)


def _round(run: Run[Scale], system: Fila, cluster: OneCluster, kind: str) -> None:
    load = Load(run.scale.messages)
    with blocking_client(cluster.address) as client:
        client.create_queue(QUEUE, on_enqueue=None if kind == PLAIN else HOOK)
        before = cluster.cpu_seconds()["worker"]
        (sent,) = together((enqueue, system, cluster.address, load, kind), env=system.environment())
        spent_us = (cluster.cpu_seconds()["worker"] - before) / load.count * 1e6
        (taken,) = together((clients.consume, system, cluster.address, QUEUE, load), env=system.environment())
        client.delete_queue(QUEUE, force=True)
    run.verify(taken.verified)
    run.figure(RATES, kind, system.name, "/s", load.count / sent.spent.seconds)
    run.figure(COSTS, kind, system.name, "µs", spent_us)


def measure(run: Run[Scale]) -> None:
    """Measure and judge."""
    system = Fila(way=run.scale.way)
    with run.serving(system) as cluster:
        for kind in run.rounds(run.scale.rounds, KINDS, "hooks"):
            _round(run, system, cluster, kind)
    for kind in KINDS[1:]:
        run.figure(SHARES, kind, system.name, "", *ratios(*(run.values(RATES, each, system.name) for each in (kind, PLAIN))))
    share = spread(run.values(SHARES, REPEAT, system.name)).median
    run.promise(f"a hook leaves {share:.2f} of the enqueue rate, at least {SHARE_MIN}", share >= SHARE_MIN)
    p99_us = measure_engine(run, run.scale.decisions)
    run.promise(f"p99 of a lone run of a usual hook is {p99_us:.0f} µs, below {CALL_US_MAX:g}", p99_us < CALL_US_MAX)


BENCHMARK = Benchmark("hooks", measure, Scale(1_000, 1, 500), Scale(30_000, 3, 20_000), Scale(100_000, 7, 50_000))
