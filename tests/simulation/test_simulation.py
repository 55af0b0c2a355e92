"""The simulation in the normal test run: some seeds, the kept cases, the planted bugs, and that a seed is one run.

Each test runs in a process of its own, because a run depends on the hashes of texts and patches constants of the product. More seeds:
``python -m tests.simulation --seeds 3000``.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEEDS = 60
"""Seeds of the normal test run: half a minute of one core."""
PIECES = 6


@dataclass(frozen=True)
class Caught:
    """``checker`` finds the bug within so many ``seeds`` from ``first`` on that have these ``features``."""

    checker: str
    seeds: int
    features: str = ""
    first: int = 10_000


BUGS = {
    "commit_after_reply": Caught("acked returns", 60),
    "forgotten_fence": Caught("fences", 60, first=10_100),
    "unreturned_lease": Caught("audit", 60),
    "unbounded_buffer": Caught("memory", 60, "large"),
    "late_dedup_entry": Caught("dedup", 60, "dedup"),
    "token_counted_twice": Caught("throttles", 60, "throttles", first=10_040),
}


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "tests.simulation", "--jobs", "1", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("piece", range(PIECES))
def test_a_stretch_of_seeds_breaks_no_promise(piece: int) -> None:
    count = SEEDS // PIECES
    done = simulate("--start", str(piece * count), "--seeds", str(count))
    assert done.returncode == 0, done.stdout + done.stderr


def test_kept_cases_break_no_promise() -> None:
    done = simulate("--cases")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_caught_by_its_checker(bug: str) -> None:
    caught = BUGS[bug]
    done = simulate(
        "--bug", bug, "--until", caught.checker, "--with", caught.features, "--start", str(caught.first), "--seeds", str(caught.seeds)
    )  # fmt: skip
    assert f"FAILED {caught.checker}:" in done.stdout, f"not caught within {caught.seeds} seeds\n{done.stdout}{done.stderr}"
    assert "harness" not in done.stdout, done.stdout


def test_a_seed_is_one_run_to_the_byte() -> None:
    first, second = (simulate("--seed", "4", "--story").stdout for _ in range(2))
    assert first.splitlines()[:-2] == second.splitlines()[:-2]
    assert len(first.splitlines()) > 100
