"""The commands of docs/http.md, run as they stand there on a cluster of their own, and the example in a shell."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.examples.documents import blocks
from tests.examples.test_programs import ACCESS_LOG, ROOT
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually, running
from tests.support.cluster.http import address
from tests.support.machine import CURL, require

PROGRAM = f"""#!/bin/sh
exec {sys.executable} -c 'from fila_cluster.cli import main; main()' "$@"
"""


def shape(value: Any) -> Any:
    """A value without what differs each time."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    return [shape(each) for each in value] if isinstance(value, list) else type(value)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require(CURL)
    with running(tmp_path_factory.mktemp("door") / "data", "--dashboard", "127.0.0.1:0") as cluster:
        yield cluster


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path) -> Callable[..., str]:
    """Runs commands where ``fila-cluster`` is one, and returns what they print."""
    (tmp_path / "fila-cluster").write_text(PROGRAM)
    (tmp_path / "fila-cluster").chmod(0o755)
    env = os.environ | {
        "FILA_ENDPOINT": cluster.endpoint,
        "FILA_HTTP": address(cluster),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }

    def run(*command: str) -> str:
        done = subprocess.run(
            ["bash", *command], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        return done.stdout

    return run


def test_its_commands_answer_as_it_says(cluster: Cluster, run: Callable[..., str], tmp_path: Path) -> None:
    found = blocks("http.md")
    with cluster.client() as client:
        client.create_queue("orders")
        client.set_throttle("openai", rate=50, burst=100)
        for block, following in zip(found, [*found[1:], None], strict=True):
            if block.language != "sh":
                continue
            eventually(lambda: client.queue_stats("orders").delayed == 0, "the message with a delay is ready")
            text = block.text.replace("http://127.0.0.1:8555", address(cluster)).replace("curl ", "curl -sS ")
            printed = run("-euo", "pipefail", "-c", text)
            if following is not None and following.language == "json":
                assert shape(json.loads(printed)) == shape(json.loads(following.text)), text
        assert client.queue_stats("orders").pending == 0, "the worker has done all"
        assert (tmp_path / "sizes.txt").read_text().split()


def test_the_missing_pages_of_a_log(run: Callable[..., str]) -> None:
    printed = run(str(ROOT / "examples/http_missing_pages.sh"), str(ACCESS_LOG))
    assert printed.splitlines()[:2] == [
        "213 requests of missing pages",
        "     61 /files/logstash/logstash-1.3.2-monolithic.jar",
    ]
