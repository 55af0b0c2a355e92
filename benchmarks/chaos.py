"""Kill and pause processes at random; show what survives, and how long queues are away.

    python benchmarks/chaos.py [--minutes 10] [--seed 1] [--json chaos.json]

A cluster of two workers has six queues on both, 4 producers with dedup ids, and 8 consumers that ack, nack and retry what they receive or are
pushed. Every few seconds a random choice of workers and router is killed with kill -9 or paused with SIGSTOP. At the end all queues are
emptied, the books of the clients are balanced, and every shard is recovered from its disk and checked. A probe for each shard
enqueues all the time: the longest span without success is the outage of the shard's queues. The probes share one client, so a probe that
waits for a shard must not delay another one. The log has the stages of the outage of a killed worker's queues.

Processes start from bytecode, as they do where the package is installed, also if the environment has PYTHONDONTWRITEBYTECODE: the bytecode
is kept beside the data. Without bytecode a worker's modules take twice as long to load.

The exit code is 1 if a message was lost, came back after its ack, was stored twice or came again without a reason, if a call took longer
than its timeout, or if p99 of the outages of a killed worker's queues is over 3 s, or any other queue was away.
"""

import argparse
import multiprocessing
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from concluding import conclude
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from fila_cluster import Client
from fila_cluster.errors import FilaError
from tests.support.books import SLOW_MACHINE_S, Books, Load
from tests.support.cluster import Cluster, running
from tests.support.faults import check_disk, processes, queue_on, serves

PRODUCERS, CONSUMERS = 4, 8
QUEUES_A_SHARD = 3
PROBE_S = 0.05
PROBE_TIMEOUT_S = 2.0
AWAY_S_MIN = 0.5
"""A shorter span without success comes from the machine, because everything runs on the same cores."""
OUTAGE_S_MAX = 3.0
VICTIMS = (("worker-0",), ("worker-1",), ("worker-0", "worker-1"), ("router",), ("router", "worker-0"))
SERVED_S_MAX = 30.0
CONTEXT = multiprocessing.get_context("spawn")


@dataclass
class Fault:
    """A kill or a pause, and how long each shard was away because of it."""

    kind: str
    victims: tuple[str, ...]
    began: float
    ended: float = 0.0
    away_s: dict[int, float] = field(default_factory=dict)

    def concerns(self, shard: int) -> bool:
        """Tell whether a shard's own worker is among the victims."""
        return f"worker-{shard}" in self.victims


MACHINE = -1
"""Instead of a shard: a thread that only sleeps. Its delay is the machine's."""


def probe(endpoint: str, queues: list[str], pipe: Connection) -> None:
    """Ask each shard all the time, in a process of its own, until the pipe says stop. Send the times of success, and calls that took too long."""
    stop = threading.Event()
    moments: dict[int, list[float]] = {shard: [time.monotonic()] for shard in (MACHINE, *range(len(queues)))}
    late: list[float] = []
    threads = [threading.Thread(target=_sleep, args=(moments[MACHINE], stop))]
    with Client(endpoint, timeout=PROBE_TIMEOUT_S) as client:
        threads += [
            threading.Thread(target=_ask, args=(client, queue, moments[shard], late, stop))
            for shard, queue in enumerate(queues)
        ]
        for thread in threads:
            thread.start()
        pipe.recv()
        stop.set()
        for thread in threads:
            thread.join()
    pipe.send((moments, late))


def _sleep(moments: list[float], stop: threading.Event) -> None:
    while not stop.wait(PROBE_S):
        moments.append(time.monotonic())


def _ask(client: Client, queue: str, moments: list[float], late: list[float], stop: threading.Event) -> None:
    while not stop.wait(PROBE_S):
        started = time.monotonic()
        with suppress(FilaError):
            client.enqueue(queue, b"probe")
            moments.append(time.monotonic())
        if time.monotonic() - started > PROBE_TIMEOUT_S + SLOW_MACHINE_S:
            late.append(time.monotonic() - started)


STAGES = (
    "until the supervisor has started another",
    "interpreter, modules",
    "RocksDB, recovery",
    "registration, and a probe that asks again",
)


def stages(faults: list[Fault], events: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the stages of the outage of each killed worker's queues."""
    found: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for fault in faults:
        for shard, away in fault.away_s.items():
            if fault.kind == "killed" and fault.concerns(shard) and "router" not in fault.victims:
                for stage, span in zip(STAGES, _divided(fault, shard, away, events), strict=False):
                    found[stage].append(span)
    return {stage: sorted(spans) for stage, spans in found.items() if spans}


def _divided(fault: Fault, shard: int, away: float, events: list[dict[str, Any]]) -> list[float]:
    """Return the stages of one outage, or none if the log lacks a part of it."""
    name, clock_s = f"worker-{shard}", time.time() - time.monotonic()

    def at(event: str) -> list[tuple[float, dict[str, Any]]]:
        noted = [
            (datetime.fromisoformat(each["timestamp"]).timestamp() - clock_s, each)
            for each in events
            if each["event"] == event
        ]
        return [(when, each) for when, each in noted if fault.began <= when <= fault.ended + 0.1 and name in each.values()]

    started, opened = at("child.started"), at("shard.opened")
    if len(started) != 1 or len(opened) != 1:
        return []
    recovered_s = opened[0][1]["recovery_ms"] / 1000
    edges = [fault.began, started[0][0], opened[0][0] - recovered_s, opened[0][0], fault.began + away]
    return [later - earlier for earlier, later in pairwise(edges)]


def away_s(moments: list[float], fault: Fault) -> float:
    """Return the longest span without success that began with a fault or after it."""
    first = fault.began - AWAY_S_MIN / 2  # a span that began before belongs to an earlier fault
    spans = (later - earlier for earlier, later in pairwise(moments) if first <= earlier < fault.ended)
    return max(spans, default=0.0)


def torment(cluster: Cluster, load: Load, queues: list[str], seconds: float, choice: random.Random) -> list[Fault]:
    """Kill and pause processes for so long. Return the faults."""
    faults = []
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        time.sleep(choice.uniform(0.5, 3.0))
        with load.books.fault():
            fault = strike(cluster, choice)
            give_up_at = time.monotonic() + SERVED_S_MAX
            while not serves(cluster, *queues):
                if time.monotonic() > give_up_at:
                    raise SystemExit(f"after {fault}: not served again within {SERVED_S_MAX:.0f} s")
                time.sleep(0.05)
            fault.ended = time.monotonic()
        faults.append(fault)
    return faults


def strike(cluster: Cluster, choice: random.Random) -> Fault:
    """Kill or pause some processes."""
    fault = Fault(choice.choice(("killed", "killed", "paused")), choice.choice(VICTIMS), time.monotonic())
    victims = [process for name, process in processes(cluster).items() if name in fault.victims]
    for victim in victims:
        victim.send_signal(signal.SIGKILL if fault.kind == "killed" else signal.SIGSTOP)
    if fault.kind == "paused":
        time.sleep(choice.choice((0.3, 1.0, 4.0)))  # after the last one the router counts a silent worker as lost
        for victim in victims:
            with suppress(Exception):
                victim.send_signal(signal.SIGCONT)
    return fault


def outages(faults: list[Fault]) -> dict[str, list[float]]:
    """Return the spans by kind of fault, the shortest first."""
    found: dict[str, list[float]] = {}
    for fault in faults:
        for shard, away_s in fault.away_s.items():
            found.setdefault(whose(fault, shard), []).append(away_s)
    return {name: sorted(spans) for name, spans in sorted(found.items())}


def whose(fault: Fault, shard: int) -> str:
    """Return the kind of fault, and of queues, that a span belongs to."""
    if shard == MACHINE:
        return "(a thread that only sleeps)"
    if "router" in fault.victims:
        return f"all queues, router {fault.kind}"
    return f"queues of the worker {fault.kind}" if fault.concerns(shard) else f"all other queues, worker {fault.kind}"


def percentile(spans: list[float], share: float) -> float:
    """Return a quantile of sorted values."""
    return spans[min(len(spans) - 1, int(share * len(spans)))]


def run(minutes: float, seed: int, data_dir: Path) -> dict[str, object]:
    """Run the cluster, the clients and the faults. Return the figures."""
    choice = random.Random(seed)
    books = Books()
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(data_dir.with_name("bytecode"))}
    with running(data_dir, workers=2, logged="info", env=bytecode) as cluster:
        with cluster.client() as client:
            queues = [
                queue_on(client, shard, f"queue-{shard}", visibility_timeout=5.0)
                for shard in (0, 1)
                for _ in range(QUEUES_A_SHARD)
            ]
            options = {"default_ttl": 5.0, "dead_letter": "discard"}
            probed = [queue_on(client, shard, f"probe-{shard}", **options) for shard in (0, 1)]
        pipe, theirs = CONTEXT.Pipe()
        prober = CONTEXT.Process(target=probe, args=(cluster.endpoint, probed, theirs))
        prober.start()
        load = Load(cluster.endpoint, books, queues, seed)
        load.start(PRODUCERS, CONSUMERS)
        faults = torment(cluster, load, queues, 60 * minutes, choice)
        pipe.send("stop")
        moments, late = pipe.recv()
        prober.join()
        for fault in faults:
            fault.away_s = {shard: away_s(successes, fault) for shard, successes in moments.items()}
        load.stop(patience_s=120)
        code = cluster.stop()
    left = {queue: count for queue, count in check_disk(data_dir).items() if queue in queues and count}
    return {
        "minutes": minutes, "seed": seed, "faults": len(faults), "confirmed": books.confirmed, "acked": books.acked,
        "lost": len(books.lost()), "acked messages back": len([text for text in books.wrong if "after its ack" in text]),
        "attempts forgotten": len([text for text in books.wrong if "was forgotten" in text]), "stored twice": len(books.stored_twice()),
        "delivered again, open at a fault": books.duplicates() - len(books.unexplained()),
        "delivered again without a reason": len(books.unexplained()),
        "calls beyond their timeout": len(books.late) + len(late),
        "left on disk": sum(left.values()), "exit code": code,
        "outages": {
            name: {"times": len(spans), "p50": statistics.median(spans), "p99": percentile(spans, 0.99), "max": spans[-1]}
            for name, spans in outages(faults).items()
        },
        "stages": {
            name: {"p50": statistics.median(spans), "p99": percentile(spans, 0.99)}
            for name, spans in stages(faults, cluster.events()).items()
        },
    }  # fmt: skip


MUST_BE_ZERO = (
    "lost", "acked messages back", "attempts forgotten", "stored twice", "delivered again without a reason",
    "calls beyond their timeout", "left on disk", "exit code",
)  # fmt: skip


def verdict(figures: dict[str, object]) -> list[str]:
    """Return the promises that do not hold."""
    broken = [name for name in MUST_BE_ZERO if figures[name]]
    spans: dict[str, dict[str, float]] = figures["outages"]  # type: ignore[assignment]
    if spans.get("queues of the worker killed", {"p99": 0})["p99"] > OUTAGE_S_MAX:
        broken.append(f"p99 of a killed worker's queues is over {OUTAGE_S_MAX} s")
    late = spans.get("(a thread that only sleeps)", {"max": 0})["max"]
    if spans.get("all other queues, worker killed", {"max": 0})["max"] > AWAY_S_MIN + late:
        broken.append("another queue was away")
    return broken


def show(console: Console, figures: dict[str, object]) -> None:
    """Return the tables."""
    table = Table(title=f"{figures['faults']} kills and pauses in {figures['minutes']:g} minutes", title_justify="left")
    table.add_column("messages")
    table.add_column("", justify="right")
    for name in ("confirmed", "acked", "delivered again, open at a fault", *MUST_BE_ZERO):
        table.add_row(name, f"{figures[name]:,}")
    console.print(table)
    away = Table(title=f"seconds without success of a probe (it asks every {PROBE_S} s)", title_justify="left")
    for column in ("", "times", "p50", "p99", "max"):
        away.add_column(column, justify="right" if column else "left")
    spans: dict[str, dict[str, float]] = figures["outages"]  # type: ignore[assignment]
    for name, each in spans.items():
        away.add_row(name, f"{each['times']}", *(f"{each[column]:.2f}" for column in ("p50", "p99", "max")))
    console.print(away)
    parts = Table(title="where the outage of a killed worker's queues went, seconds", title_justify="left")
    for column in ("", "p50", "p99"):
        parts.add_column(column, justify="right" if column else "left")
    stages: dict[str, dict[str, float]] = figures["stages"]  # type: ignore[assignment]
    for name, each in stages.items():
        parts.add_row(name, *(f"{each[column]:.2f}" for column in ("p50", "p99")))
    console.print(parts)


def main() -> None:
    """Run, print, and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ResourceWarning)  # deliveries whose settlement was lost are dropped unsettled
    console = Console()
    with tempfile.TemporaryDirectory(prefix="fila-chaos-") as directory:
        figures = run(arguments.minutes, arguments.seed, Path(directory) / "data")
    show(console, figures)
    conclude(console, figures, arguments.json, verdict(figures), sound="all promises kept", bad="BROKEN")


if __name__ == "__main__":
    main()
