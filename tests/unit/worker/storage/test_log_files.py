"""The structure of RocksDB's logs and manifests: what it overlooks is seen, and sound records are read around damage."""

import shutil
from pathlib import Path

import pytest

from fila_worker.core.store import Families
from fila_worker.storage.log_files import (
    changes_of,
    logs_of,
    manifest_of,
    overlooked_damage,
    read_manifest,
    records,
    rescued,
)
from fila_worker.storage.rocks import RocksStore
from tests.support.cluster.cluster import eventually


def write(store: RocksStore, begin: int, end: int, size: int = 3000) -> None:
    for number in range(begin, end):
        batch = store.new_batch()
        batch.put(b"%06d" % number, b"%06d" % number + bytes(size), store.families.messages)
        batch.put(b"%06d" % number, b"", store.families.leases)
        store.commit(batch)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A database that was closed, opened again, and killed: tables, and a log of some blocks."""
    live = tmp_path / "live"
    store = RocksStore(live)
    write(store, 0, 10)
    store.close()
    store = RocksStore(live)
    write(store, 10, 60)
    path = tmp_path / "killed"
    shutil.copytree(live, path)
    store.close()
    return path


def manifest_in(path: Path) -> Path:
    found = manifest_of(path)
    assert found is not None
    return found


def log_of(path: Path) -> Path:
    return logs_of(path, read_manifest(manifest_in(path)).first_log)[-1]


def test_a_sound_database_has_no_damage(killed: Path) -> None:
    manifest = read_manifest(manifest_in(killed))
    assert {*manifest.families.values()} == {*Families._fields}
    assert {f"{number:06d}.sst" for number in manifest.tables} == {table.name for table in killed.glob("*.sst")}
    assert list(overlooked_damage(killed)) == []


def test_a_log_that_is_cut_in_a_record_is_harmless_if_it_is_the_last(killed: Path) -> None:
    log = log_of(killed)
    log.write_bytes(log.read_bytes()[:-1])
    (damage,) = overlooked_damage(killed)
    assert (damage.file, damage.harmless) == (log, True)
    shutil.copy(log, log.with_name("999999.log"))
    assert not all(each.harmless for each in overlooked_damage(killed))


def test_a_length_that_points_behind_the_end_is_seen_and_what_is_behind_it_is_read(killed: Path) -> None:
    log = log_of(killed)
    whole = list(records(log))
    content = bytearray(log.read_bytes())
    head = content.rindex(b"\x01" + whole[-2][:12])  # its type, its number, its size
    content[head - 1] ^= 0x40
    log.write_bytes(content)
    assert [(damage.file, damage.harmless) for damage in overlooked_damage(killed)] == [(log, False)]
    assert list(rescued(log)) == [*whole[:-2], whole[-1]]


def test_a_log_that_is_missing_is_seen(killed: Path) -> None:
    log_of(killed).unlink()
    assert [damage.harmless for damage in overlooked_damage(killed)] == [False]


def test_changes_that_are_missing_between_tables_and_logs_are_seen(killed: Path) -> None:
    log = log_of(killed)
    content = log.read_bytes()
    log.write_bytes(content[32 * 1024 :])
    assert [damage.harmless for damage in overlooked_damage(killed)] == [False]


def test_a_manifest_that_lost_its_end_is_seen(killed: Path) -> None:
    manifest = manifest_in(killed)
    content = manifest.read_bytes()
    manifest.write_bytes(content[:-2])
    assert any(damage.file == manifest for damage in overlooked_damage(killed))


def test_a_close_leaves_no_table_that_was_being_rewritten(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    held = store.families  # as a worker does: RocksDB itself is never closed then
    write(store, 0, 10)
    rewritten = tmp_path / "999999.sst"
    rewritten.write_bytes(b"the half of a table")
    store.close()
    assert not rewritten.exists()
    assert list(overlooked_damage(tmp_path)) == []
    assert {int(table.stem) for table in tmp_path.glob("*.sst")} == read_manifest(manifest_in(tmp_path)).tables
    del held


def test_a_rewritten_table_that_is_not_removed_yet_is_no_damage_and_one_that_no_manifest_names_is(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)

    def rewritten() -> bool:
        write(store, 0, 10)
        store.tidy()
        manifest = read_manifest(manifest_in(tmp_path))
        return bool(manifest.removed - manifest.tables)

    eventually(rewritten, "rewritten tables")
    store.close()
    manifest = read_manifest(manifest_in(tmp_path))
    removed = max(manifest.removed - manifest.tables)
    left = tmp_path / f"{removed:06d}.sst"
    left.write_bytes(b"a table")
    for log in tmp_path.glob("*.log"):
        log.write_bytes(b"")
    assert list(overlooked_damage(tmp_path)) == []
    left.rename(tmp_path / "999999.sst")
    assert [damage.file.name for damage in overlooked_damage(tmp_path)] == ["999999.sst"]


@pytest.mark.parametrize("at", [20, 40_000, 100_000])
def test_sound_records_are_read_around_a_damaged_one(killed: Path, at: int) -> None:
    log = log_of(killed)
    whole = [bytes(record) for record in records(log)]
    assert list(rescued(log)) == whole
    content = bytearray(log.read_bytes())
    content[at] ^= 1
    log.write_bytes(content)
    found = list(rescued(log))
    assert len(whole) - 2 <= len(found) < len(whole)
    assert set(found) <= set(whole)


def test_a_batch_is_read_as_it_was_written(killed: Path) -> None:
    names = read_manifest(manifest_in(killed)).families
    changes = [change for record in records(log_of(killed)) for change in changes_of(record)]
    assert [(names[change.family], change.key) for change in changes[-2:]] == [("messages", b"000059"), ("leases", b"000059")]
    assert changes[-2].value == b"000059" + bytes(3000)
