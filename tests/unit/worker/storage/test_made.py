"""The mark by which a lost shard differs from a new one."""

from pathlib import Path

import pytest

from fila_proto_zmq.errors import StorageError
from fila_worker.core.store import DamageError
from fila_worker.storage.made import listed, mark_made, mark_of, refuse_missing


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


def test_what_is_listed_and_is_gone_with_its_mark_is_damage(tmp_path: Path) -> None:
    path, identity = tmp_path / "shard-0001", tmp_path / "fila.json"
    identity.write_text('{"format": 1, "shards": 2, "made": []}')
    refuse_missing(path)
    mark_made(path)
    mark_of(path).unlink()
    with pytest.raises(DamageError, match=r'shard-0001 is empty or missing.* messages, take 1 from "made" in .*fila\.json$'):
        refuse_missing(path)
    mark_of(path).touch()
    with pytest.raises(DamageError, match=r'messages, delete .*shard-0001\.made and take 1 from "made"'):
        refuse_missing(path)
    refuse_missing(tmp_path / "shard-0000")
    mark_of(path).unlink()
    identity.write_text('{"format": 1, "shards": 2, "made": []}')
    refuse_missing(path)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"format": 1, "shards": 2}', '{"format": 1, "made": 3}'])
def test_an_identity_that_has_no_list_is_left_to_others(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "fila.json").write_text(content)
    mark_made(tmp_path / "shard-0001")
    assert listed(tmp_path) == ([1] if content is not None and "made" in content else [])


def test_what_is_there_is_left_to_the_database_to_judge(tmp_path: Path) -> None:
    path = tmp_path / "shard-0001"
    path.mkdir()
    (path / "CURRENT").touch()
    mark_made(path)
    refuse_missing(path)


def test_a_mark_that_cannot_be_written_is_a_failure_of_the_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write"):
        mark_made(tmp_path / "missing" / "shard-0001")
