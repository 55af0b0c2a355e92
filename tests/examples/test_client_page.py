"""The blocks of docs/client.md run, in their order."""

import pytest

from tests.examples.documents import blocks
from tests.support.cluster.cluster import Cluster


def test_the_blocks_of_the_page_run(shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FILA_ENDPOINT", shared_cluster.endpoint)
    names: dict[str, object] = {}
    for block in blocks("client.md"):
        assert block.language == "python"
        exec(compile(block.text, "docs/client.md", "exec"), names)
