"""Kill processes while a batch of messages over four shards is enqueued and worked on; its callback must come once.

A cluster of two workers has four shards. A batch puts messages into a queue of each, consumers ack most of them and fail one
in twenty, and workers or the router are killed while messages come in and after the batch is sealed. The callback must come
exactly once, when nothing of the batch is left, and say how many messages there were and how they ended.
"""

import random
import warnings
from dataclasses import dataclass

from benchmarks.harness.report.results import Verified
from benchmarks.harness.workload import Benchmark, Run, number
from tests.support.cluster.batch_life import BatchLife, live
from tests.support.cluster.cluster import running

SHARDS = 4
TABLE = "Batches"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    batches: int = number("Batches, each on a cluster of its own.")
    members: int = number("Messages of each batch.")
    kills: int = number("Kills during each batch.", 2)
    seed: int = number("Seed of the choice of victims.", 1)


def measure(run: Run[Scale]) -> None:
    """Run, and judge."""
    scale, lives = run.scale, list[BatchLife]()
    for batch in range(scale.batches):
        with warnings.catch_warnings(), run.directory() as directory:
            warnings.simplefilter("ignore", ResourceWarning)
            with running(directory / "data", "--shards", SHARDS, workers=2) as cluster:
                lives.append(live(cluster, scale.members, SHARDS, scale.kills, random.Random(scale.seed + batch)))
    counts = {
        "without a callback": sum(not life.callbacks for life in lives),
        "with more than one callback": sum(len(life.callbacks) > 1 for life in lives),
        "with a callback before the end": sum(life.open_then > 0 for life in lives),
        "with wrong counts": sum(bool(life.callbacks) and life.counts != life.expected for life in lives),
    }
    run.figure(TABLE, "batches", "fila-cluster", "", len(lives))
    run.figure(TABLE, "kills", "fila-cluster", "", sum(len(life.kills) for life in lives))
    run.figure(TABLE, "seconds, the longest", "fila-cluster", "s", max(life.seconds for life in lives))
    for name, count in counts.items():
        run.figure(TABLE, name, "fila-cluster", "", count)
        run.promise(f"batches {name}: {count}, none may be", count == 0)
    settled = sum(life.counts[1] + life.dead_letters for life in lives if life.callbacks)
    run.verified.add(Verified(scale.members * len(lives), settled, 0, 0))


BENCHMARK = Benchmark("batches", measure, Scale(1, 1000), Scale(3, 10_000), Scale(30, 10_000))
