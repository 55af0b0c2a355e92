"""Backups at a target: in a folder, and through fsspec in memory and in a folder by its URL."""

import os
import socket
import stat
import time
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import count
from pathlib import Path

import msgspec
import psutil
import pytest

from fila_cluster.errors import InvalidArgumentError, OverloadedError, StorageError
from fila_cluster.run.backup.repository import (
    DEAD_S,
    WRITING,
    BackupManifest,
    Repository,
    ShardPart,
    StoredFile,
    WriterMark,
    decode,
    encode,
    new_id,
)
from fila_cluster.run.backup.target import Folder, Target, Within, target_at

NOW = datetime(2026, 5, 4, 3, 2, 1, 987_000, UTC)
unique = count()


@pytest.fixture(params=["folder", "within", "memory", "file"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    if request.param == "within":
        return Repository(Within(Folder(tmp_path / "t"), "deep/er"))
    if request.param != "folder":
        pytest.importorskip("fsspec")
    places = {"folder": str(tmp_path / "t"), "memory": f"memory://t{next(unique)}/deep", "file": f"file://{tmp_path}/t"}
    return Repository(target_at(places[request.param]))


def stored(repository: Repository, tmp_path: Path, content: bytes, name: str = "000001.sst") -> StoredFile:
    source = tmp_path / "source"
    source.write_bytes(content)
    hash_ = sha256(content).hexdigest()
    repository.put(source, hash_)
    return StoredFile(name, len(content), hash_)


def backup(repository: Repository, tmp_path: Path, *contents: bytes, minutes: int = 0) -> BackupManifest:
    """A backup of one shard with files of these contents."""
    now = NOW + timedelta(minutes=minutes)
    files = [stored(repository, tmp_path, content, f"{number:06d}.sst") for number, content in enumerate(contents)]
    parts = [ShardPart(0, 1, files)]
    manifest = BackupManifest(
        id=new_id(now), began_at=now, cut_at=now, ended_at=now, version="1", shards=1, parts=parts, files=[]
    )
    repository.add(manifest)
    return manifest


def test_backups_are_listed_by_time_and_read_again(repository: Repository, tmp_path: Path) -> None:
    assert (repository.ids(), repository.latest()) == ([], None)
    made = [backup(repository, tmp_path, b"x", minutes=minutes) for minutes in (5, 1, 3)]
    assert repository.all() == sorted(made, key=lambda each: each.cut_at)
    assert repository.latest() == made[0].id
    assert made[0].id.startswith("20260504T030701987Z-")


def test_a_backup_that_is_not_there_is_an_error_that_names_the_last_ones(repository: Repository, tmp_path: Path) -> None:
    made = backup(repository, tmp_path, b"x")
    for name in ("20200101T000000000Z-abcdef", "../backups/x", ""):
        with pytest.raises(InvalidArgumentError, match=made.id):
            repository.manifest(name)


def test_pruning_keeps_what_the_kept_ones_need_and_nothing_else(repository: Repository, tmp_path: Path) -> None:
    old = backup(repository, tmp_path, b"both", b"old only")
    new = backup(repository, tmp_path, b"both", b"new only", minutes=1)
    stored(repository, tmp_path, b"of an interrupted backup")
    assert repository.prune(1) == ([old.id], 2, len(b"old only" + b"of an interrupted backup"))
    assert repository.ids() == [new.id]
    assert repository.verify([new]) == {new.id: []}
    assert sorted(repository.stored().values()) == [len(b"both"), len(b"new only")]


def test_a_changed_and_a_missing_file_are_found(repository: Repository, tmp_path: Path) -> None:
    good, bad = (
        backup(repository, tmp_path, b"sound"),
        backup(repository, tmp_path, b"sound", b"changed", b"missing", minutes=1),
    )
    changed, missing = bad.parts[0].files[1:]
    repository.target.write(f"files/{changed.sha256[:2]}/{changed.sha256}", b"Changed")
    repository.target.delete(f"files/{missing.sha256[:2]}/{missing.sha256}")
    wrong = repository.verify([good, bad])
    assert wrong[good.id] == []
    assert len(wrong[bad.id]) == len([changed, missing])
    assert any("000001.sst) is damaged" in fault for fault in wrong[bad.id])


def test_one_writer_at_a_time(repository: Repository) -> None:
    with repository.writing():
        with pytest.raises(OverloadedError, match=f"process {os.getpid()} on {socket.gethostname()} writes"):
            repository.prune(1)
    with repository.writing():
        assert len(repository.target.sizes(WRITING)) == 1
    assert repository.target.sizes(WRITING) == {}


def mark(host: str | None = None, age_s: float = 0, **changes: float) -> bytes:
    process = psutil.Process()
    mark = WriterMark(host or socket.gethostname(), process.pid, process.create_time(), time.time() - age_s)
    for name, value in changes.items():
        setattr(mark, name, value)
    return msgspec.json.encode(mark)


@pytest.mark.parametrize(
    ("host", "age_s", "changes"),
    [(None, 0, {"pid": 2**22 + 1}), (None, 0, {"started_s": 5.0}), ("elsewhere", DEAD_S + 5, {})],
    ids=["no such process", "its id is another's now", "not renewed"],
)
def test_a_dead_writer_stops_nobody(
    repository: Repository, host: str | None, age_s: float, changes: dict[str, float]
) -> None:
    repository.target.write(f"{WRITING}/unreadable.json", b"no mark")
    repository.target.write(f"{WRITING}/other.json", mark(host, age_s, **changes))
    with repository.writing():
        pass


def test_a_writer_on_another_machine_counts_while_it_renews_its_mark(repository: Repository) -> None:
    repository.target.write(f"{WRITING}/other.json", mark("elsewhere", DEAD_S - 60))
    with pytest.raises(OverloadedError, match="on elsewhere writes"):
        repository.prune(1)


def test_files_of_a_folder_are_private_and_whole(tmp_path: Path) -> None:
    target: Target = Folder(tmp_path / "a" / "b")
    target.write("c/d", b"content")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a", tmp_path / "a/b/c", tmp_path / "a/b/c/d")] == [
        0o700, 0o700, 0o600
    ]  # fmt: skip
    with pytest.raises(StorageError, match="cannot copy"):
        target.put(tmp_path / "nothing there", "c/e")
    assert target.sizes("c") == {"c/d": 7}


EMPTY = (
    b'{"id": "m", "began_at": "2026-01-01T00:00:00Z", "cut_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:00Z", '
    b'"version": "1", "shards": 0, "parts": [], "files": []}'
)
"""A backup of nothing."""


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda text: text[:-20], "is damaged"),
        (lambda text: text.replace(b'"format": 1', b'"format": 2'), "upgrade fila-cluster"),
        (lambda text: text.replace(b"000000.sst", b"../../x"), "is damaged"),
        (lambda text: text.replace(b"000000.sst", b"/etc/passwd"), "is damaged"),
        (lambda text: text.replace(b'"shards": 1', b'"shards": 2'), "each of 2 shards"),
        (lambda text: text.replace(b'"shards": 1', b'"shards": 0'), "each of 0 shards"),
        (lambda text: EMPTY, "each of 0 shards"),
    ],
)
def test_a_manifest_that_is_not_whole_or_leads_elsewhere_is_refused(tmp_path: Path, change: object, fault: str) -> None:
    content = encode(backup(Repository(Folder(tmp_path / "t")), tmp_path, b"x"))
    with pytest.raises(StorageError, match=fault):
        decode(change(content), "m.json")  # type: ignore[operator]


@pytest.mark.parametrize("place", ["", "nosuchthing://x"])
def test_a_target_of_no_known_kind_is_refused(place: str) -> None:
    with pytest.raises(InvalidArgumentError):
        target_at(place)
