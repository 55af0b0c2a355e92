"""Measure the longest turn of a shard for everything that clients may ask: a table of requests, each with its longest turn.

No turn may take longer than 50 ms. The shard is driven without sockets on RocksDB and a virtual clock. A turn's time is the
CPU time of its thread, so that other processes on the machine are not in the figures.
"""

import gc
from dataclasses import dataclass

from benchmarks.harness.workload import Benchmark, Run, number
from benchmarks.inside import scenes_queues, scenes_shards
from benchmarks.inside.driver import Bench, Scene

TURN_MS_MAX = 50
SCENES: list[Scene] = [
    scenes_queues.many_keys,
    scenes_queues.consumers,
    scenes_queues.settling,
    scenes_queues.hooks,
    scenes_queues.enqueues,
    scenes_shards.throttles,
    scenes_shards.throttle_sets,
    scenes_shards.configs,
    scenes_shards.router_configs,
    scenes_shards.many_leases,
    scenes_shards.queues,
]


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    keys: int = number("Fairness keys.")
    only: str = number("Only scenes with this in their names.", "")


def measure(run: Run[Scale]) -> None:
    """Run all scenes, and judge the longest turn."""
    before = gc.get_threshold()
    gc.set_threshold(10_000, 1_000_000_000, 1_000_000_000)  # as in a worker
    try:
        bench = Bench(run.scale.keys, run.scale.only)
        bench.run(SCENES)
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    for scene, what, longest_ms, turns in bench.rows:
        row = f"{scene}: {what}"
        run.figure("The longest turn of a request", row, "longest", "ms", longest_ms)
        run.figure("The longest turn of a request", row, "turns", "", turns)
    run.promise(f"the longest turn takes {bench.longest_ms:.0f} ms, at most {TURN_MS_MAX}", bench.longest_ms <= TURN_MS_MAX)


BENCHMARK = Benchmark("long_turns", measure, Scale(400), Scale(50_000), Scale(200_000))
