"""The blocks of docs/schedules.md run."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from fila_cluster.cli.root import root
from tests.support.cluster.cluster import Cluster

PAGE = (Path(__file__).parents[2] / "docs/schedules.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_python_blocks_run(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FILA_ENDPOINT", cluster.endpoint)
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(block, names)
    assert "nightly 0 3 * * * Europe/Lisbon 20" in capsys.readouterr().out


def test_the_commands_work(cluster: Cluster) -> None:
    with cluster.client() as client:
        client.create_queue("reports")
    for block in blocks("console"):
        for line in block.splitlines():
            words = shlex.split(line.removeprefix("$ fila-cluster "))
            done = CliRunner().invoke(root, ["--endpoint", cluster.endpoint, *words])
            assert done.exit_code == 0, (line, done.output)
