"""How much code a request and an idle turn go through in a worker: as little as it was."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.inside.walks import ACK, CALLS_MAX, ENQUEUE, FILES_MAX, IDLE, Walk, walks, worker


@pytest.fixture(scope="module")
def found() -> dict[str, Walk]:
    with TemporaryDirectory(prefix="fila-walks-") as path, worker(Path(path)) as made:  # a socket's path is short
        return walks(made)


@pytest.mark.parametrize("name", FILES_MAX)
def test_a_walk_goes_through_few_files_and_calls(found: dict[str, Walk], name: str) -> None:
    walk = found[name]
    assert len(walk.files) <= FILES_MAX[name], walk.files
    assert walk.calls.total() <= CALLS_MAX[name], walk.calls


@pytest.mark.parametrize(("name", "file"), [(ENQUEUE, "enqueue/enqueue.py"), (ACK, "settle/settle.py")])
def test_a_walk_is_one_of_its_kind(found: dict[str, Walk], name: str, file: str) -> None:
    assert f"worker/fila_worker/core/{file}" in found[name].files


def test_an_idle_turn_calls_no_feature(found: dict[str, Walk]) -> None:
    assert not any(
        file.endswith(("config_copies.py", "departures.py", "checkpoints.py", "deferrals.py")) for file in found[IDLE].files
    )
