"""``python -m tests.simulation``: run seeds, replay one, shrink what fails."""

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.batch import Summary

HASH_SEED = "0"
"""Sets of texts are walked in the order of their hashes: a run is the same only with the same hashes."""

PROGRESS_SEEDS = 1000
"""After how many seeds a line tells how far it is."""


def main() -> int:
    """Run; the exit code is 1 if a seed failed."""
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    arguments = _parsed()
    if arguments.cases:
        return _cases()
    if arguments.bugs:
        return _bugs()
    if arguments.seed is not None:
        return _one(arguments)
    return _many(arguments)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Simulate a cluster from seeds.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--story", action="store_true", help="print what happened")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seconds", type=float, help="begin no seed after this time")
    parser.add_argument("--shrink", action="store_true", help="leave out of a failing seed what its failure does not need")
    parser.add_argument("--crossings", action="store_true", help="print how often the boundaries of the limits were crossed")
    parser.add_argument("--steps", action="store_true", help="print the steps of a seed")
    parser.add_argument("--bug", help="plant this bug first (see planted.py)")
    parser.add_argument("--bugs", action="store_true", help="list the bugs that can be planted")
    parser.add_argument(
        "--with", dest="always", default="", help="features and faults that all seeds have, with commas (see options.py)"
    )
    parser.add_argument("--brief", action="store_true", help="one line for each failing seed")
    parser.add_argument("--first", action="store_true", help="end with the first failing seed")
    parser.add_argument(
        "--until",
        metavar="CHECKER",
        help="end with the first seed that fails this checker, and show only that one's findings; with --shrink: keep this failure",
    )
    parser.add_argument("--cases", action="store_true", help="replay the kept cases")
    parser.add_argument("--keep", metavar="NAME", help="with --seed: keep the (shrunk) failing run as a case")
    arguments = parser.parse_args()
    arguments.always = frozenset(filter(None, arguments.always.split(",")))
    return arguments


def _one(arguments: argparse.Namespace) -> int:
    from tests.simulation import run, shrink  # noqa: PLC0415  # once the hashes are settled
    from tests.simulation.cases import named_cases  # noqa: PLC0415  # once the hashes are settled
    from tests.simulation.faults import planted  # noqa: PLC0415  # once the hashes are settled

    began = time.perf_counter()
    with planted.planted(arguments.bug):
        result = run.run(arguments.seed, always=arguments.always)
        if arguments.shrink and result.failures:
            result = shrink.shrunk(result, arguments.until)
    if arguments.story:
        print("\n".join(result.story))
    if arguments.keep:
        checker, what = next(each for each in result.failures if arguments.until in (None, each[0]))
        about = checker if arguments.bug else f"seed {arguments.seed}, {checker}: {what}"
        print(named_cases.keep(result, arguments.keep, about, arguments.bug))
    print(result.options)
    print(f"seed {arguments.seed}: {result.counts}, {time.perf_counter() - began:.3f} s, digest {result.digest}")
    if arguments.shrink or arguments.steps:
        print("\n".join(map(str, result.steps)))
    for checker, what in result.failures:
        print(f"FAILED {checker}: {what}")
    return int(bool(result.failures))


def _tell_crossings(summary: "Summary") -> None:
    from tests.simulation.crossings import BOUNDARIES  # noqa: PLC0415

    print("   times  in runs  boundary")
    for what in BOUNDARIES:
        print(f"{summary.crossings[what]:8}  {summary.crossed[what]:7}  {what}")


def _bugs() -> int:
    from tests.simulation.faults import planted  # noqa: PLC0415

    print(*planted.BUGS, sep="\n")
    return 0


def _cases() -> int:
    from tests.simulation.cases import named_cases  # noqa: PLC0415

    failed = 0
    for name in named_cases.names():
        failures = named_cases.failures(name)
        failed += bool(failures)
        print(name, *(f"  FAILED {checker}: {what}" for checker, what in failures), sep="\n")
    return int(failed > 0)


def _many(arguments: argparse.Namespace) -> int:
    from tests.simulation.batch import Summary, outcomes  # noqa: PLC0415

    began = time.perf_counter()
    summary = Summary()
    seeds = iter(range(arguments.start, arguments.start + arguments.seeds))
    running = outcomes(seeds, arguments.jobs, arguments.seconds, arguments.bug, arguments.always, count=arguments.crossings)
    for outcome in running:
        summary.add(outcome)
        shown = [failure for failure in outcome.failures if arguments.until in (None, failure[0], "harness")]
        for checker, what in shown[: 1 if arguments.brief else 3]:
            print(f"seed {outcome.seed} FAILED {checker}: {what}", flush=True)
        if summary.runs % PROGRESS_SEEDS == 0:
            print(f"{summary.runs} of {arguments.seeds} seeds, {summary.failed} failed", file=sys.stderr, flush=True)
        if outcome.failures and (arguments.first or arguments.until in {checker for checker, _ in outcome.failures}):
            break
    for checker, (seed, runs) in sorted(summary.first.items(), key=lambda item: item[1][1]):
        print(f"{checker}: {summary.found[checker]} seeds, first {seed} after {runs} runs")
    if arguments.crossings:
        _tell_crossings(summary)
    per_seed_ms = 1000 * summary.seconds / max(1, summary.runs)
    print(
        f"{summary.runs} seeds from {arguments.start} on, {summary.failed} failed, {time.perf_counter() - began:.0f} s, "
        f"{summary.seconds:.0f} s of CPU, {per_seed_ms:.0f} ms a seed"
    )
    return int(bool(summary.found))


if __name__ == "__main__":
    sys.exit(main())
