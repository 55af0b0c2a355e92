"""Move shards between two workers under load; show how long their queues are away, and that no client sees an error.

A cluster of two workers has four shards, 4 producers and 8 consumers on queues of all of them, and a probe for each shard
that enqueues all the time. A random shard is moved to the other worker, again and again. The longest span without success of
a shard's probe during a move is the outage of the shard's queues; it includes the probe's own pause of 50 ms, and the pause
before the client asks again. Beside it is the span from the router's last request for the shard to its registration by the
other worker, as the log has it.

No client may see an error, and nothing may be lost or stored twice.
"""

import multiprocessing
import random
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.chaos import CONSUMERS, PRODUCERS
from benchmarks.faults.load.outages import MACHINE, Fault, away_s, percentile, probe
from benchmarks.harness.report.results import Verified
from benchmarks.harness.workload import Benchmark, Run, number
from fila_proto_zmq.commands import MoveShard
from tests.support.cluster.client_records import ClientRecords, Load
from tests.support.cluster.cluster import Cluster, running
from tests.support.cluster.faults import queue_on

SHARDS = 4
PAUSE_S = 0.5
CONTEXT = multiprocessing.get_context("spawn")
AWAY, MOVED = "Seconds without success of a probe", "Clients"
MOVING, OTHERS = "queues of the shard that moves", "all other queues"
ASLEEP = "(a thread that only sleeps)"
CLOSED = "router's log: from the last request to the registration"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    moves: int = number("Moves.")
    seed: int = number("Seed of the choice of shards.", 1)


@dataclass
class Found:
    """What a run found out: spans in sorted seconds, and the records."""

    away: dict[str, list[float]]
    records: ClientRecords
    late: int


def move_about(scale: Scale, data_dir: Path) -> Found:
    """Run the cluster, the clients and the moves. Return what was found out."""
    choice, records, moves = random.Random(scale.seed), ClientRecords(), []
    with running(data_dir, "--shards", SHARDS, workers=2, logged="info") as cluster:
        with cluster.client() as client:
            queues = [queue_on(client, shard, f"queue-{shard}") for shard in range(SHARDS)]
            options = {"default_ttl": 5.0, "dead_letter": "discard"}
            probed = [queue_on(client, shard, f"probe-{shard}", **options) for shard in range(SHARDS)]
        pipe, theirs = CONTEXT.Pipe()
        prober = CONTEXT.Process(target=probe, args=(cluster.endpoint, probed, theirs))
        prober.start()
        load = Load(cluster.endpoint, records, queues, scale.seed, timeout=30.0)
        load.start(PRODUCERS, CONSUMERS)
        time.sleep(PAUSE_S)
        for _ in range(scale.moves):
            moves.append(_move(cluster, records, choice.randrange(SHARDS)))
            time.sleep(PAUSE_S)
        pipe.send("stop")
        moments, late = pipe.recv()
        prober.join()
        load.stop(patience_s=120)
        closed = sorted(event["outage_ms"] / 1000 for event in cluster.events("shard.moved"))
        cluster.stop()
    away: dict[str, list[float]] = {MOVING: [], OTHERS: [], ASLEEP: []}
    for moved in moves:
        for shard, successes in moments.items():
            whose = ASLEEP if shard == MACHINE else MOVING if shard == int(moved.kind) else OTHERS
            away[whose].append(away_s(successes, moved))
    return Found({name: sorted(spans) for name, spans in away.items()} | {CLOSED: closed}, records, len(late))


def _move(cluster: Cluster, records: ClientRecords, shard: int) -> Fault:
    home = cluster.worker_of(shard).name
    with records.fault(), cluster.client() as client:  # a push may be lost with its connection, and comes again
        move = Fault(str(shard), (home,), time.monotonic())
        client.request(MoveShard(shard, "worker-0" if home == "worker-1" else "worker-1"))
        time.sleep(PAUSE_S)  # clients that wait to ask again
        move.ended = time.monotonic()
    return move


def measure(run: Run[Scale]) -> None:
    """Run, and judge."""
    with warnings.catch_warnings(), run.directory() as directory:
        warnings.simplefilter("ignore", ResourceWarning)
        found = move_about(run.scale, directory / "data")
    records = found.records
    for name, spans in found.away.items():
        for column, share in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0)):
            run.figure(AWAY, name, column, "s", percentile(spans, share))
    counts = {
        "errors": len(records.refused),
        "calls beyond their timeout": found.late,
        "lost": len(records.lost()),
        "stored twice": len(records.stored_twice()),
    }
    run.figure(MOVED, "confirmed", "fila-cluster", "", records.confirmed)
    for name, count in counts.items():
        run.figure(MOVED, name, "fila-cluster", "", count)
        run.promise(f"{name}: {count}, none may", count == 0)
    run.verified.add(Verified(records.confirmed, records.acked, counts["lost"], counts["stored twice"]))


BENCHMARK = Benchmark("moves", measure, Scale(3), Scale(40), Scale(200))
