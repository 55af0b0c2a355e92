"""How tests run the simulation: in a process of its own, because a run depends on the hashes of texts and patches constants of the product."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SEEDS = 2_000
"""Seeds of the normal test run, in two files, so that two cores share them."""
PIECES = 20
"""Pieces of all seeds: each is a test."""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m tests.simulation`` on one core."""
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "tests.simulation", "--jobs", "1", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def check_piece(piece: int) -> None:
    """Run a piece of the seeds."""
    count = SEEDS // PIECES
    done = simulate("--start", str(piece * count), "--seeds", str(count))
    assert done.returncode == 0, done.stdout + done.stderr
