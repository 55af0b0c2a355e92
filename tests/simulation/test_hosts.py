"""Clusters on several hosts. Many more: ``python -m tests.simulation --with hosts,routers --seeds 10000``."""

import pytest

from tests.simulation.calling import simulate
from tests.simulation.test_simulation import check_caught

SEEDS = 16
"""Of each kind of cluster."""


@pytest.mark.whole
@pytest.mark.parametrize("features", ["hosts", "hosts,routers"])
def test_clusters_on_several_hosts_break_no_promise(features: str) -> None:
    done = simulate("--with", features, "--seeds", str(SEEDS))
    assert done.returncode == 0, done.stdout + done.stderr


def test_answers_before_the_log_has_confirmed_are_caught_on_several_hosts() -> None:
    check_caught("hasty_answer", "lost", 20, "hosts,cut_log,kill_host", 10_050)
