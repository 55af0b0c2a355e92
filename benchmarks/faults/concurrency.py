"""Kill and pause processes while three throttle keys may have 1, 5 and 50 messages leased at a time, over four queues on two
workers.

Three consumer processes write down when they work on what. In each round something is killed or paused: workers, the router,
consumers, or several of them. Then follows a time to settle, in which leases end whose consumers are gone, and a quiet time that
is measured. At no moment may consumers work on more messages of a key than its limit, no message may be lost, and in the quiet
times at least 90 % of the places must be leased: there is always work.
"""

import random
import warnings
from dataclasses import dataclass

from benchmarks.harness.report.results import Verified
from benchmarks.harness.workload import Benchmark, Run, number
from tests.support.cluster.cluster import running
from tests.support.cluster.place_life import FAULTS, LIMITS, QUEUES, live

SHARE_MIN = 0.9
MOST, SHARE, COUNTS = "Messages that are worked on, the most at one moment", "Share of the places that is leased", "Rounds"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    rounds: int = number("Rounds, each with one or two faults.")
    quiet_s: float = number("Seconds that are measured after each round.", 5.0)
    seed: int = number("Seed of the choice of faults.", 1)


def measure(run: Run[Scale]) -> None:
    """Run, and judge."""
    chance = random.Random(run.scale.seed)
    rounds = [chance.sample(range(FAULTS), chance.choice([1, 1, 2])) for _ in range(run.scale.rounds)]
    with warnings.catch_warnings(), run.directory() as directory:
        warnings.simplefilter("ignore", ResourceWarning)
        with running(directory / "data", "--shards", QUEUES, workers=2) as cluster:
            life = live(cluster, directory, rounds, run.scale.quiet_s, chance)
    run.figure(COUNTS, "faults", "fila-cluster", "", len(life.faults))
    run.figure(COUNTS, "messages", "fila-cluster", "", len(life.sent))
    for key, limit in LIMITS.items():
        most, share = life.most_at_once(key), life.share_used(key)
        run.figure(MOST, f"limit {limit}", "fila-cluster", "", most)
        run.figure(SHARE, f"limit {limit}", "fila-cluster", "", share)
        run.promise(f"at most {most} messages were worked on at one moment, of {limit}", most <= limit)
        run.promise(f"{share:.1%} of {limit} places were leased, at least {SHARE_MIN:.0%}", share >= SHARE_MIN)
    run.verified.add(Verified(len(life.sent), len(life.sent) - life.missing, life.missing, 0))


BENCHMARK = Benchmark("concurrency", measure, Scale(1, 0.5), Scale(6), Scale(50))
