"""Many seeds on several cores."""

import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context

from tests.simulation.faults import planted
from tests.simulation.run import run


@dataclass
class Outcome:
    """What became of a seed. A run that could not be finished is a failure of ``harness``."""

    seed: int
    digest: str
    counts: dict[str, int]
    failures: list[tuple[str, str]]
    seconds: float
    crossings: Counter[str] = field(default_factory=Counter)


@dataclass
class Summary:
    """What became of many. ``first``: by checker, the first seed that it failed, and how many runs had ended by then."""

    runs: int = 0
    failed: int = 0
    seconds: float = 0.0
    found: Counter[str] = field(default_factory=Counter)
    first: dict[str, tuple[int, int]] = field(default_factory=dict)
    crossings: Counter[str] = field(default_factory=Counter)
    crossed: Counter[str] = field(default_factory=Counter)
    """In how many runs."""

    def add(self, outcome: Outcome) -> None:
        """Count one."""
        self.runs += 1
        self.failed += bool(outcome.failures)
        self.seconds += outcome.seconds
        self.crossings += outcome.crossings
        self.crossed.update(what for what, count in outcome.crossings.items() if count)
        for checker in {checker for checker, _ in outcome.failures}:
            self.found[checker] += 1
            self.first.setdefault(checker, (outcome.seed, self.runs))


def run_seed(seed: int, bug: str | None = None, always: frozenset[str] = frozenset(), count: bool = False) -> Outcome:
    """Live through one seed, perhaps with a planted bug."""
    began = time.process_time()
    try:
        with planted.planted(bug):
            result = run(seed, always=always, count=count)
    except Exception as error:  # of the simulation itself: told like a failure, with where it was
        where = "\n".join(traceback.format_exc().strip().splitlines()[-8:])
        return Outcome(seed, "", {}, [("harness", f"{error!r}\n{where}")], time.process_time() - began)
    return Outcome(seed, result.digest, result.counts, result.failures, time.process_time() - began, result.crossings)


def outcomes(
    seeds: Iterator[int],
    jobs: int,
    seconds: float | None,
    bug: str | None = None,
    always: frozenset[str] = frozenset(),
    *,
    count: bool = False,
) -> Iterator[Outcome]:
    """Run seeds on ``jobs`` processes, in about their order; none is begun after ``seconds``. One job needs no process of its own."""
    give_up_at = None if seconds is None else time.perf_counter() + seconds
    if jobs == 1:
        for seed in seeds:
            if give_up_at is not None and time.perf_counter() >= give_up_at:
                return
            yield run_seed(seed, bug, always, count)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=400) as pool:
        running: set[Future[Outcome]] = set()
        while True:
            while len(running) < 3 * jobs and (give_up_at is None or time.perf_counter() < give_up_at):
                seed = next(seeds, None)
                if seed is None:
                    break
                running.add(pool.submit(run_seed, seed, bug, always, count))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
