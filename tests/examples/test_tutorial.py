"""The six steps of the tutorial, as a reader does them: each program is saved and run, and each command prints what the page shows."""

import os
import sys
from collections.abc import Iterator

import pytest

from tests.examples.documents import DOCS, Reader, blocks
from tests.support.cluster.cluster import running
from tests.support.cluster.http import address
from tests.support.kit import PLUGIN
from tests.support.machine import CURL, require

STEPS = sorted(page.relative_to(DOCS).as_posix() for page in (DOCS / "tutorial").glob("*.md"))
PROGRAMS = {
    "fila-cluster": "-c 'from fila_cluster.cli import main; main()'",
    "python": "-W error",
    "pytest": f"-m pytest -p no:cacheprovider {' '.join(PLUGIN)}",
}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    require(CURL)
    folder = tmp_path_factory.mktemp("tutorial")
    for name, arguments in PROGRAMS.items():
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        program.chmod(0o755)
    with running(folder / "data", "--dashboard", "127.0.0.1:0", workers=2) as cluster:
        path = f"{folder}/bin:{os.environ['PATH']}"
        reader = Reader(folder, endpoint=cluster.endpoint, dashboard=address(cluster), path=path)
        yield reader
        reader.leave()


@pytest.mark.parametrize("step", STEPS)
def test_a_step(reader: Reader, step: str) -> None:
    """In their order: the fifth tests a module of the fourth."""
    for block in blocks(step):
        reader.follow(block)


def test_no_block_is_left_out() -> None:
    assert {block.language for step in STEPS for block in blocks(step)} == {"python", "console", "text"}
    assert sum(len(blocks(step)) for step in STEPS) == sum((DOCS / step).read_text().count("\n```") for step in STEPS) / 2
