"""The commands of docs/http.md, run as they stand there on a cluster of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.examples.documents import blocks
from tests.support.cluster import PATIENCE_S, running
from tests.support.http import address
from tests.support.machine import CURL, require

PROGRAM = f"""#!/bin/sh
exec {sys.executable} -c 'from fila_cluster.cli import main; main()' "$@"
"""


def shape(value: Any) -> Any:
    """A value without what differs each time."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    return [shape(each) for each in value] if isinstance(value, list) else type(value)


def test_its_commands_answer_as_it_says(tmp_path: Path) -> None:
    require(CURL)
    (tmp_path / "fila-cluster").write_text(PROGRAM)
    (tmp_path / "fila-cluster").chmod(0o755)
    found = blocks("http.md")
    with running(tmp_path / "data", "--dashboard", "127.0.0.1:0") as cluster, cluster.client() as client:
        client.create_queue("orders")
        env = os.environ | {"FILA_ENDPOINT": cluster.endpoint, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        for block, following in zip(found, [*found[1:], None], strict=True):
            if block.language != "sh":
                continue
            text = block.text.replace("http://127.0.0.1:8555", address(cluster)).replace("curl ", "curl -sS ")
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, ""), text
            if following is not None and following.language == "json":
                assert shape(json.loads(done.stdout)) == shape(json.loads(following.text)), text
        assert client.queue_stats("orders").pending == 0, "the worker has done all"
        assert (tmp_path / "sizes.txt").read_text().split()
