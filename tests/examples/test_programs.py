"""Every example runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster.cluster import Cluster

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


def test_handlers_of_an_access_log(shared_cluster: Cluster) -> None:
    output = output_of(ROOT / "examples/handlers.py", ACCESS_LOG, endpoint=shared_cluster.endpoint)
    assert "9,331 requests: 8,958 2xx, 163 3xx, 209 4xx, 1 5xx" in output
    assert "205 reports of missing pages, each at its second attempt" in output
    assert "669 dead letters, such as: the payload is no Request: Expected `int`, got `str` - at `$.size`" in output


def test_a_report_for_each_due_time(shared_cluster: Cluster) -> None:
    output = output_of(ROOT / "examples/schedules.py", ACCESS_LOG, endpoint=shared_cluster.endpoint)
    assert "3 reports for 3 due times; 0 skipped, 0 failed" in output


def test_rate_limits_of_a_provider(shared_cluster: Cluster) -> None:
    output = output_of(ROOT / "examples/rate_limits.py", endpoint=shared_cluster.endpoint)
    assert "132 calls, 50 a second and 10 at once; 1 was refused" in output


def test_limits_of_tenants_that_change(shared_cluster: Cluster, tmp_path: Path) -> None:
    picture = tmp_path / "limits.png"
    output = output_of(ROOT / "examples/tenant_limits.py", "--picture", picture, endpoint=shared_cluster.endpoint)
    assert output.splitlines()[:2] == [
        "the pattern's 4 for each: at most 4 of acme and 4 of globex",
        "concurrency 12: at most 12 of acme and 4 of globex",
    ]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.whole
def test_an_outbox_whose_relay_is_killed(shared_cluster: Cluster) -> None:
    output = output_of(ROOT / "examples/outbox.py", ACCESS_LOG, endpoint=shared_cluster.endpoint)
    assert "9,000 requests" in output
    assert "the relay killed 3 times" in output
    assert "9,000 announcements: 0 missing, 0 twice, 0 of requests that were not booked" in output


def test_the_last_visits_of_each_day(shared_cluster: Cluster) -> None:
    output = output_of(ROOT / "examples/last_visits.py", ACCESS_LOG, shared_cluster.endpoint)
    days = [[int(number.replace(",", "")) for number in re.findall(r" ([\d,]+) ", line)] for line in output.splitlines()]
    assert len(days) == 4
    assert all(visitors == right > 300 for visitors, right in days), output


def test_one_trace_through_two_queues(shared_cluster: Cluster) -> None:
    output = output_of(ROOT / "examples/tracing.py", endpoint=shared_cluster.endpoint)
    assert "13 spans, 1 trace" in output
    assert [line.split()[-1] for line in output.splitlines() if "deliver" in line] == ["ack", "nack", "ack"]


def test_a_celery_project_with_tenants(shared_cluster: Cluster) -> None:
    output = output_of(ROOT / "examples/tasks/celery_tenants.py", ACCESS_LOG, endpoint=shared_cluster.endpoint)
    assert "1,000 tasks of 220 tenants, run by one worker" in output
    assert "the first 220 run of 220" in output


def test_a_dramatiq_project_of_many_tenants(shared_cluster: Cluster) -> None:
    output = output_of(ROOT / "examples/tasks/dramatiq_access_log.py", ACCESS_LOG, endpoint=shared_cluster.endpoint)
    assert "2,000 requests of 409 addresses" in output
    assert "408 of the 408 others were served before its second one" in output
    assert "dead letter after 2 attempts: IndexError: list index out of range" in output


def test_a_django_project_in_one_file(shared_cluster: Cluster) -> None:
    output = output_of(ROOT / "examples/tasks/django_project.py", ACCESS_LOG, endpoint=shared_cluster.endpoint)
    assert "301 tasks of 81 visitors are with the broker; the one that was rolled back is not" in output
    assert "FAILED: IndexError: list index out of range" in output
    assert "its dead letter after 1 attempt: ['not-a-request']" in output


def test_sections_of_a_site_get_queues_by_a_template(shared_cluster: Cluster) -> None:
    output = output_of(ROOT / "examples/queue_templates.py", ACCESS_LOG, endpoint=shared_cluster.endpoint)
    assert output.splitlines()[:2] == ["9,999 requests made 38 queues", "  visits-presentations      2,305 pending"]
