"""The blocks of Python on these pages run, in their order, against a cluster."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster.cluster import Cluster

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["templates.md", "messages.md", "large-queues.md", "fairness.md", "leases.md"])
def test_the_blocks_of_a_page(shared_cluster: Cluster, page: str) -> None:
    blocks = BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    assert blocks
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks)],
        env=os.environ | {"FILA_ENDPOINT": shared_cluster.endpoint},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
