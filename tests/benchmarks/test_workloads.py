"""Every benchmark runs at its tiny size on real processes, keeps a result, and has checked its messages. Nothing here depends on time."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults.load.host_load import EXCESS, EXCESS_MAX, MESSAGES, MUST_BE_ZERO, RULES
from benchmarks.harness.report.results import Result, read
from benchmarks.names import MODULES
from tests.support.cluster.cluster import environment
from tests.support.external.spark_java import quick_java
from tests.support.machine import JAVA, NETWORK, PEERS, require

ROOT = Path(__file__).parents[2]
RUN_S_MAX = 600
"""How long a benchmark may take on a busy machine; on an idle one it is some seconds."""
COUNTED_ELSEWHERE = {
    "keys",
    "throttles",
    "turns",
    "long_turns",
    "router_hop",
    "overload",
    "metrics",
    "walks",
    "tracing",
    "spark",
    "testing",
    "endurance",
}
"""Benchmarks whose messages have no numbers: they count them at the broker, or send none."""
HOSTS = {"hosts", "cuts", "restarts"}
"""Benchmarks of faults on several hosts. What must hold on any machine is judged at any size, times are not."""

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(RUN_S_MAX + 60)]


def result_of(name: str, folder: Path, *options: str, **more_environment: str) -> Result:
    """What a benchmark finds out at its tiny size."""
    command = [sys.executable, "-m", "benchmarks", name, "--size", "tiny", "--results", str(folder), *options]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(**more_environment), capture_output=True, text=True, timeout=RUN_S_MAX, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    (path,) = folder.glob("*.json")
    return read(path)


def assert_sound(result: Result, name: str) -> None:
    """A result has figures that are numbers, names what it measured, and its messages came once and undamaged."""
    assert (result.name, result.size) == (name, "tiny")
    assert result.figures
    for figure in result.figures:
        assert figure.values, figure
        assert all(math.isfinite(value) for value in figure.values), figure
    assert result.machine.cores
    if "way" in result.scale:
        assert all(facts["client"].endswith(f"way {result.scale['way']}") for facts in result.systems.values())
    assert result.verified.sound
    if name not in COUNTED_ELSEWHERE:
        assert result.verified.received >= result.verified.sent > 0
    for chart in result.charts:
        assert all(series.x and len(series.x) == len(series.y) for series in chart.series), chart


@pytest.mark.parametrize("name", sorted(MODULES.keys() - {"spark", "peers", "celery", *HOSTS}))
def test_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    """Spark and the peers need programs that may be missing: they are tested below and in ``test_peers.py``."""
    assert_sound(result_of(name, tmp_path), name)


def test_celery_runs_beside_redis(tmp_path: Path) -> None:
    require(PEERS["Redis"])
    assert_sound(result_of("celery", tmp_path), "celery")


@pytest.mark.parametrize("name", sorted(HOSTS))
def test_hosts_lose_nothing_in_the_short_form(name: str, tmp_path: Path) -> None:
    if name == "cuts":
        require(NETWORK)
    result = result_of(name, tmp_path)
    assert_sound(result, name)
    found = {(figure.table, figure.row): figure.values[0] for figure in result.figures}
    lost = [row for row in MUST_BE_ZERO if row != "calls beyond their timeout"]
    assert {row: found[MESSAGES, row] for row in lost} == dict.fromkeys(lost, 0)
    assert found[RULES, EXCESS] <= EXCESS_MAX


def test_the_benchmark_of_spark_runs(tmp_path: Path) -> None:
    require(JAVA)
    assert_sound(result_of("spark", tmp_path, SPARK_SUBMIT_OPTS=quick_java()), "spark")


def test_numbers_of_a_size_are_options(tmp_path: Path) -> None:
    result = result_of("turns", tmp_path, "--turns", "50", "--rounds", "3")
    assert result.scale == {"turns": 50, "rounds": 3}
    assert {len(figure.values) for figure in result.figures if figure.column == "median of the rounds"} == {3}
    assert result.command == "python -m benchmarks turns --size tiny --turns 50 --rounds 3"
