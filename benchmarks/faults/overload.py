"""Ask for ten times more than the broker can do, beside clients that never read; show what it accepts and refuses, and its
memory.

The queues of a cluster with two workers have a limit. First the capacity is measured, with producers and consumers that keep
up with each other. Then, for so many seconds each, ten times as many producers send as fast as they can while the consumers
stay the same, and clients that never read what they ask for join. The tables have the messages accepted a second beside the
capacity, refusals and whether retries after ``retry_after`` were accepted, how long acks took (they are always admitted), and
the most memory of router and workers.

At least 80 % of the capacity must be accepted, no ack refused, and no process may exceed its bound of memory.
"""

import time
import warnings
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from benchmarks.faults.deaf import Deaf
from benchmarks.faults.load.busy import QUEUES, Clients, Tally
from benchmarks.harness.cluster import OneCluster
from benchmarks.harness.fila import Fila, blocking_client
from benchmarks.harness.workload import Benchmark, Run, number
from fila_cluster import Message

PRODUCERS, CONSUMERS = 2, 2
TIMES = 10
DEAF_QUEUES = ["deaf-0", "deaf-1", "deaf-2", "deaf-3"]
"""Two of each kind on each shard. Clients that never read have queues of their own, because what they leased is away until
the leases end."""
DEAF_MESSAGES = 10_000
LIMIT = 20_000
"""Messages that a queue holds before enqueues are refused."""
PAYLOAD = bytes(1024)
SHARE_MIN = 0.8
RSS_MIB_MAX = 400
RATES, REFUSED, ACKS, MEMORY = "Messages a second", "Refused calls, and retries", "Acks", "Most memory"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    seconds: float = number("Seconds of each overload.")
    deaf: int = number("Clients that never read.")


def phase(cluster: OneCluster, seconds: float, producers: int, deaf: int) -> dict[str, Any]:
    """Run clients for so long. Return the figures."""
    rss: dict[str, int] = {}
    with ExitStack() as stack:
        if deaf:
            stack.enter_context(Deaf(cluster.address, deaf, QUEUES, DEAF_QUEUES))
        consumers = stack.enter_context(Clients("consume", cluster.address, CONSUMERS))
        senders = stack.enter_context(Clients("produce", cluster.address, producers))
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            time.sleep(0.25)
            for processes in cluster.processes().values():
                for process in processes:
                    with suppress(Exception):
                        name = process.cmdline()[-1]
                        rss[name] = max(rss.get(name, 0), process.memory_info().rss)
    return {"seconds": seconds, "rss MiB": {name: size >> 20 for name, size in rss.items()}} | _figures(
        senders.tally, consumers.tally, seconds
    )


def _figures(producers: Tally, consumers: Tally, seconds: float) -> dict[str, Any]:
    acks = sorted(consumers.ack_s) or [0.0]
    return {
        "taken/s": producers.taken / seconds,
        "acked/s": consumers.acked / seconds,
        "refused": dict(producers.refused),
        "refused without retry_after": producers.untimed,
        "came back": producers.came_back,
        "helped": producers.helped,
        "acks refused": dict(consumers.acks_refused),
        "ack p50 ms": 1000 * acks[len(acks) // 2],
        "ack p99 ms": 1000 * acks[int(0.99 * (len(acks) - 1))],
        "ack max ms": 1000 * acks[-1],
    }


def phases_of(run: Run[Scale]) -> dict[str, dict[str, Any]]:
    """Measure capacity, overload, and overload beside clients that never read."""
    seconds, deaf = run.scale.seconds, run.scale.deaf
    with run.directory() as directory:
        config = directory / "fila.toml"
        config.write_text(f"[limits]\nmax_queue_messages = {LIMIT}\n")
        with run.serving(Fila(workers=2, options=("--config", str(config)))) as cluster:
            with blocking_client(cluster.address) as client:
                for queue in (*QUEUES, *DEAF_QUEUES):
                    client.create_queue(queue, visibility_timeout=30)
                for queue in DEAF_QUEUES:
                    client.enqueue_many(queue, [Message(PAYLOAD)] * DEAF_MESSAGES)
            return {
                "usual load": phase(cluster, seconds / 3, PRODUCERS, 0),
                f"{TIMES} times the load": phase(cluster, seconds, TIMES * PRODUCERS, 0),
                f"{TIMES} times the load, and {deaf} clients that never read": phase(
                    cluster, seconds, TIMES * PRODUCERS, deaf
                ),
            }


def verdict(phases: dict[str, dict[str, Any]]) -> list[str]:
    """Return the promises that do not hold."""
    capacity = phases["usual load"]["acked/s"]
    broken = []
    for name, figures in phases.items():
        if figures["acked/s"] < SHARE_MIN * capacity:
            broken.append(f"{name}: {figures['acked/s'] / capacity:.0%} of the capacity")
        if figures["acks refused"]:
            broken.append(f"{name}: acks were refused: {figures['acks refused']}")
        if figures["refused without retry_after"]:
            broken.append(f"{name}: {figures['refused without retry_after']} refusals do not say when to come back")
        broken += [
            f"{name}: {process} needed {size} MiB" for process, size in figures["rss MiB"].items() if size > RSS_MIB_MAX
        ]
    return broken


def measure(run: Run[Scale]) -> None:
    """Measure and judge."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        phases = phases_of(run)
    for name, figures in phases.items():
        run.figure(RATES, "accepted", name, "/s", figures["taken/s"])
        run.figure(RATES, "done (acked)", name, "/s", figures["acked/s"])
        run.figure(REFUSED, "calls refused", name, "", sum(figures["refused"].values()))
        run.figure(REFUSED, "came back after retry_after", name, "", figures["came back"])
        run.figure(REFUSED, "accepted then", name, "%", 100 * figures["helped"] / max(1, figures["came back"]))
        for percentile in ("p50", "p99", "max"):
            run.figure(ACKS, percentile.replace("max", "longest"), name, "ms", figures[f"ack {percentile} ms"])
        for process, size in figures["rss MiB"].items():
            run.figure(MEMORY, process.removeprefix("fila_"), name, "MiB", size)
    broken = verdict(phases)
    run.promise("; ".join(broken) or "all loads are within the bounds", not broken)


BENCHMARK = Benchmark("overload", measure, Scale(1.0, 5), Scale(15.0, 100), Scale(60.0, 100))
