"""The mark by which a lost shard differs from a new one."""

from pathlib import Path

import pytest

from fila_proto_zmq.errors import StorageError
from fila_worker.core.store import DamageError
from fila_worker.storage.made import mark_made, mark_of, refuse_missing


def test_a_new_shard_has_no_mark_and_is_made(tmp_path: Path) -> None:
    refuse_missing(tmp_path / "shard-0001")


@pytest.mark.parametrize("empty", [False, True])
def test_what_was_made_and_is_gone_is_damage(tmp_path: Path, empty: bool) -> None:
    path = tmp_path / "shard-0001"
    mark_made(path)
    mark_made(path)
    if empty:
        path.mkdir()
    with pytest.raises(DamageError, match=r"shard-0001 is empty or missing.*delete .*shard-0001\.made"):
        refuse_missing(path)
    mark_of(path).unlink()
    refuse_missing(path)


def test_what_is_there_is_left_to_the_database_to_judge(tmp_path: Path) -> None:
    path = tmp_path / "shard-0001"
    path.mkdir()
    (path / "CURRENT").touch()
    mark_made(path)
    refuse_missing(path)


def test_a_mark_that_cannot_be_written_is_a_failure_of_the_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write"):
        mark_made(tmp_path / "missing" / "shard-0001")
