"""Kill and pause processes at random; show what survives, and how long queues are away.

A cluster of two workers has six queues on both, 4 producers with dedup ids, and 8 consumers that ack, nack and retry what
they receive or are pushed. Every few seconds a random choice of workers and router is killed with kill -9 or paused with
SIGSTOP. At the end all queues are emptied, the records of the clients are balanced, and every shard is recovered from its disk
and checked. A probe for each shard enqueues all the time: the longest span without success is the outage of the shard's
queues. The probes share one client, so a probe that waits for a shard must not delay another one. The log has the stages of
the outage of a killed worker's queues.

Processes start from bytecode, as they do where the package is installed, also if the environment has PYTHONDONTWRITEBYTECODE:
the bytecode is kept beside the data. Without bytecode a worker's modules take twice as long to load.

Not one message may be lost, come back after its ack, be stored twice or come again without a reason, and no call may take
longer than its timeout. p99 of the outages of a killed worker's queues is at most 3 s, and no other queue is away.
"""

import multiprocessing
import random
import signal
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.load.outages import AWAY_S_MIN, Fault, away_s, outages, percentile, probe, stages
from benchmarks.harness.report.results import Verified
from benchmarks.harness.workload import Benchmark, Run, number
from tests.support.cluster.client_records import ClientRecords, Load
from tests.support.cluster.cluster import Cluster, running
from tests.support.cluster.faults import check_disk, processes, queue_on, serves

PRODUCERS, CONSUMERS = 4, 8
QUEUES_A_SHARD = 3
OUTAGE_S_MAX = 3.0
VICTIMS = (("worker-0",), ("worker-1",), ("worker-0", "worker-1"), ("router",), ("router", "worker-0"))
SERVED_S_MAX = 30.0
CONTEXT = multiprocessing.get_context("spawn")
MESSAGES = "Messages"
AWAY = "Seconds without success of a probe"
STAGES = "Where the outage of a killed worker's queues went, seconds"
KILLED, OTHERS, ASLEEP = "queues of the worker killed", "all other queues, worker killed", "(a thread that only sleeps)"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    minutes: float = number("Minutes.")
    seed: int = number("Seed of the choice of faults.", 1)


@dataclass
class Found:
    """What a run found out: counts, outages by kind and their stages, in sorted seconds."""

    counts: dict[str, int]
    away: dict[str, list[float]]
    stages: dict[str, list[float]]
    verified: Verified


def torment(cluster: Cluster, load: Load, queues: list[str], seconds: float, choice: random.Random) -> list[Fault]:
    """Kill and pause processes for so long. Return the faults."""
    faults = []
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        time.sleep(choice.uniform(0.5, 3.0))
        with load.records.fault():
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


def cause(minutes: float, seed: int, data_dir: Path) -> Found:
    """Run the cluster, the clients and the faults. Return what was found out."""
    choice, records = random.Random(seed), ClientRecords()
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(data_dir.with_name("bytecode"))}
    with running(data_dir, workers=2, logged="info", env=bytecode) as cluster:
        queues, probed = _queues(cluster)
        pipe, theirs = CONTEXT.Pipe()
        prober = CONTEXT.Process(target=probe, args=(cluster.endpoint, probed, theirs))
        prober.start()
        load = Load(cluster.endpoint, records, queues, seed)
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
    counts = _counts(records, faults) | {
        "calls beyond their timeout": len(records.late) + len(late),
        "left on disk": sum(left.values()),
        "exit code": code,
    }
    verified = Verified(records.confirmed, records.acked, len(records.lost()), counts["stored twice"])
    return Found(counts, outages(faults), stages(faults, cluster.events()), verified)


def _queues(cluster: Cluster) -> tuple[list[str], list[str]]:
    """Make queues for the load, and one on each shard for the probe."""
    with cluster.client() as client:
        queues = [
            queue_on(client, shard, f"queue-{shard}", visibility_timeout=5.0)
            for shard in (0, 1)
            for _ in range(QUEUES_A_SHARD)
        ]
        options = {"default_ttl": 5.0, "dead_letter": "discard"}
        return queues, [queue_on(client, shard, f"probe-{shard}", **options) for shard in (0, 1)]


def _counts(records: ClientRecords, faults: list[Fault]) -> dict[str, int]:
    return {
        "kills and pauses": len(faults),
        "confirmed": records.confirmed,
        "acked": records.acked,
        "lost": len(records.lost()),
        "acked messages back": len([text for text in records.wrong if "after its ack" in text]),
        "attempts forgotten": len([text for text in records.wrong if "was forgotten" in text]),
        "stored twice": len(records.stored_twice()),
        "delivered again, open at a fault": records.duplicates() - len(records.unexplained()),
        "delivered again without a reason": len(records.unexplained()),
    }


MUST_BE_ZERO = (
    "lost",
    "acked messages back",
    "attempts forgotten",
    "stored twice",
    "delivered again without a reason",
    "calls beyond their timeout",
    "left on disk",
    "exit code",
)


def measure(run: Run[Scale]) -> None:
    """Run, and judge."""
    with warnings.catch_warnings(), run.directory() as directory:
        warnings.simplefilter("ignore", ResourceWarning)  # deliveries whose settlement was lost are dropped unsettled
        found = cause(run.scale.minutes, run.scale.seed, directory / "data")
    for name, count in found.counts.items():
        run.figure(MESSAGES, name, "fila-cluster", "", count)
    for table, spans in ((AWAY, found.away), (STAGES, found.stages)):
        for name, each in spans.items():
            for column, share in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0)):
                run.figure(table, name, column, "s", percentile(each, share))
    run.verified.add(found.verified)
    for name in MUST_BE_ZERO:
        run.promise(f"{name}: {found.counts[name]}, none may", found.counts[name] == 0)
    killed = percentile(found.away.get(KILLED, [0.0]), 0.99)
    run.promise(f"p99 of a killed worker's queues: {killed:.2f} s, at most {OUTAGE_S_MAX:g}", killed <= OUTAGE_S_MAX)
    late, others = max(found.away.get(ASLEEP, [0.0])), max(found.away.get(OTHERS, [0.0]))
    run.promise(f"other queues were away for {others:.2f} s, a sleeping thread for {late:.2f} s", others <= AWAY_S_MIN + late)


BENCHMARK = Benchmark("chaos", measure, Scale(0.05), Scale(1.0), Scale(10.0))
