"""The simulation in the normal test run: many seeds, the kept cases, the planted bugs, and that a seed is one run.

Each test runs in a process of its own, because a run depends on the hashes of texts and patches constants of the product.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("SIMULATION_SEEDS", "3000"))
PIECES = 24

BUGS = {
    "commit_after_reply": 60, "forgotten_fence": 200, "unreturned_lease": 60, "unbounded_buffer": 60, "late_dedup_entry": 300,
    "token_counted_twice": 300,
}  # fmt: skip
"""Within how many seeds each planted bug must be caught."""


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
def test_a_planted_bug_is_caught(bug: str) -> None:
    done = simulate("--bug", bug, "--seeds", str(BUGS[bug]), "--first")
    assert done.returncode == 1, f"not caught within {BUGS[bug]} seeds\n{done.stdout}{done.stderr}"
    assert "harness" not in done.stdout, done.stdout


def test_a_seed_is_one_run_to_the_byte() -> None:
    first, second = (simulate("--seed", "4", "--story").stdout for _ in range(2))
    assert first.splitlines()[:-2] == second.splitlines()[:-2]
    assert len(first.splitlines()) > 100
