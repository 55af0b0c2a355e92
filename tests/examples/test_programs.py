"""Every example runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster

ROOT = Path(__file__).parents[2]
ACCESS_LOG = ROOT / "tests" / "data" / "apache_access.log"


RUN_S_MAX = 300
"""How long a program may take on a busy machine; here it is a minute at most."""

pytestmark = pytest.mark.timeout(RUN_S_MAX + 60)


def output_of(*command: object, endpoint: str = "") -> str:
    """What a program prints; it must end well."""
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        env=os.environ | ({"FILA_ENDPOINT": endpoint} if endpoint else {}),
        capture_output=True, text=True, timeout=RUN_S_MAX, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    return result.stdout


def test_the_access_log_is_served_fairly(shared_cluster: Cluster) -> None:
    output = output_of(ROOT / "examples/access_log.py", ACCESS_LOG, endpoint=shared_cluster.endpoint)
    assert "10,000 requests in and acked · 0 left" in output
    assert "all 1,753 tenants served once before any was served twice" in output


def test_the_quick_start(shared_cluster: Cluster) -> None:
    output = output_of(ROOT / "examples/quickstart.py", endpoint=shared_cluster.endpoint)
    order = [line.split()[0] for line in output.splitlines() if line.startswith("  ")]
    assert "quiet" in order[:2]
    assert "dead letter: invoice (failed: still no paper)" in output


def test_the_asynchronous_worker(shared_cluster: Cluster) -> None:
    assert "200 jobs done, 0 left" in output_of(ROOT / "examples/async_worker.py", endpoint=shared_cluster.endpoint)


def test_a_queue_is_copied_with_pipelines(shared_cluster: Cluster) -> None:
    output = output_of(ROOT / "examples/pipelines.py", endpoint=shared_cluster.endpoint)
    assert "20,000 copied" in output
    assert "0 left, 20,000 in the copy" in output


def test_rate_limits_of_a_provider(shared_cluster: Cluster) -> None:
    output = output_of(ROOT / "examples/rate_limits.py", endpoint=shared_cluster.endpoint)
    assert "132 calls, 50 a second and 10 at once; 1 was refused" in output


def test_one_trace_through_two_queues(shared_cluster: Cluster) -> None:
    output = output_of(ROOT / "examples/tracing.py", endpoint=shared_cluster.endpoint)
    assert "13 spans, 1 trace" in output
    assert [line.split()[-1] for line in output.splitlines() if "deliver" in line] == ["ack", "nack", "ack"]


def test_a_celery_project_with_tenants(shared_cluster: Cluster) -> None:
    output = output_of(ROOT / "examples/celery_tenants.py", ACCESS_LOG, endpoint=shared_cluster.endpoint)
    assert "1,000 tasks of 220 tenants, run by one worker" in output
    assert "the first 220 run of 220" in output
