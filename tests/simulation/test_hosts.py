"""Clusters on several hosts in the normal test run. Many more: ``python -m tests.simulation --with hosts --seeds 10000``."""

import pytest

from tests.simulation.calling import simulate
from tests.simulation.test_simulation import check_caught

PIECE, SEEDS = 13, 26
"""Seeds of a test, and of all tests here."""


@pytest.mark.parametrize("first", range(0, SEEDS, PIECE))
def test_clusters_on_several_hosts_break_no_promise(first: int) -> None:
    done = simulate("--with", "hosts", "--start", str(first), "--seeds", str(PIECE))
    assert done.returncode == 0, done.stdout + done.stderr


def test_answers_before_the_log_has_confirmed_are_caught_on_several_hosts() -> None:
    check_caught("hasty_answer", "lost", 20, "hosts,cut_log,kill_host", 10_000)
