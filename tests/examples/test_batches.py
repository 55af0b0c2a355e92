"""The page about batches says what is so, and its example runs."""

import re
from pathlib import Path

import pytest

from tests.examples.test_programs import ACCESS_LOG, ROOT, output_of
from tests.support.cluster.cluster import Cluster

PAGE = ROOT / "docs/batches.md"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_the_blocks_of_the_page_run(shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FILA_ENDPOINT", shared_cluster.endpoint)
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) == 5
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)


def test_a_log_is_counted_in_pieces(shared_cluster: Cluster) -> None:
    output = output_of(ROOT / "examples/batches.py", Path(ACCESS_LOG), endpoint=shared_cluster.endpoint)
    assert "apache_access.log: 50 pieces, 49 counted, 1 damaged" in output
    assert "9,800 requests:" in output
