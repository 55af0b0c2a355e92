"""How tests run the simulation: in a process of its own, because a run depends on the hashes of texts and patches constants of the product."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SEEDS = 300
"""Seeds of ``make test-all``."""
COUNTED = 150
"""The first of them count which boundaries they cross, in ``test_simulation.py``; the others are in ``test_seeds.py``."""
PIECE = 75
"""So many of the others are a test."""
STRETCHES = range(COUNTED, SEEDS, PIECE)
"""Their first seeds."""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m tests.simulation`` on one core."""
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "tests.simulation", "--jobs", "1", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def check_stretch(first: int) -> None:
    """Run the seeds of a stretch."""
    done = simulate("--start", str(first), "--seeds", str(PIECE))
    assert done.returncode == 0, done.stdout + done.stderr
