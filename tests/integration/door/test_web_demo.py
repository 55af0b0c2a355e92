"""``fila-cluster demo --web``: a dashboard with a life of its own, and nothing that stays."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest
from click.testing import CliRunner

from fila_cluster import Client
from fila_cluster.cli.root import root
from fila_cluster.run.web_demo import BUSY, CLICKS, MAIL, PROVIDER, REPORTS, TENANTS
from tests.support.cluster.cluster import PATIENCE_S, command, environment, eventually, is_dead


@contextmanager
def demo(folder: Path, seconds: int) -> Iterator[tuple[subprocess.Popen[str], dict[str, str], list[psutil.Process]]]:
    """A demo with what it has said, and its processes; nothing of it may be there afterwards. ``folder``: of temporary files."""
    arguments = command("--json", "demo", "--web", "--for", f"{seconds}s")
    env = environment(TMPDIR=str(folder), FILA_AUTH__ENABLED="true")  # which is for other clusters
    with subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout
            said = json.loads(running.stdout.readline())
            children = psutil.Process(running.pid).children()
            yield running, said, children
            assert running.wait(PATIENCE_S) == 0
            assert running.communicate() == ("", "")
        finally:
            running.kill()
    assert all(map(is_dead, children))
    assert list(folder.iterdir()) == []


def test_it_is_alive_until_ctrl_c(tmp_path: Path):
    with demo(tmp_path, 600) as (running, said, children), Client(said["endpoint"], timeout=PATIENCE_S) as client:
        assert len(children) == 4
        with urlopen(f"{said['dashboard']}/queues", timeout=PATIENCE_S) as page:
            assert MAIL in page.read().decode()
        eventually(lambda: {key.fairness_key for key in client.queue_stats(MAIL).keys} >= {BUSY}, "a wave of the busy tenant")
        eventually(lambda: client.queue_stats(f"{MAIL}.dlq").pending > 0, "a failure")
        eventually(lambda: client.queue_stats(REPORTS).acked > 0, "a message of the schedule")
        eventually(lambda: client.queue_stats(CLICKS).acked > len(TENANTS), "messages of both partitions")
        assert [each.key for each in client.list_throttles()] == [PROVIDER]
        running.send_signal(signal.SIGINT)


@pytest.mark.whole
def test_it_ends_by_itself(tmp_path: Path):
    with demo(tmp_path, 1):
        pass


def test_it_has_no_other_cluster():
    done = CliRunner().invoke(root, ["--endpoint", "tcp://127.0.0.1:1", "demo", "--web"])
    assert done.exit_code == 2
    assert "--web has a cluster of its own" in done.stderr
