"""The code on the page about handlers runs, on a real cluster."""

import re
from pathlib import Path

import pytest

from tests.support.cluster.cluster import Cluster

PAGE = Path(__file__).parents[2] / "docs/handlers.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
QUEUES = ("orders", "mail", "payments", "signups")


def test_the_page_runs(shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FILA_ENDPOINT", shared_cluster.endpoint)
    text = PAGE.read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    assert len(blocks) == text.count("```python") == 5
    with shared_cluster.client() as client:
        for queue in QUEUES:
            client.create_queue(queue)
        module: dict[str, object] = {"__name__": "shop"}
        try:
            for block in blocks:
                exec(compile(block, str(PAGE), "exec"), module)
        finally:
            for queue in QUEUES:
                client.delete_queue(queue, force=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "connect"
    assert lines[-1] == "disconnect"
    assert {"charge acme 19.99, attempt 1", "commit ['Ada']"} <= set(lines)
    assert sum("ended after less than 1 s" in line for line in lines) == 4
