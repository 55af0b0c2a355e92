"""The shards of a data directory, each checked, repaired or salvaged alone."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from fila_proto_zmq.errors import FilaError, StorageError
from fila_worker.check.findings import Finding, Findings
from fila_worker.check.reading import UNREADABLE
from fila_worker.check.shard import Progress, check_shard, repair_shard, unreadable
from fila_worker.core.recovery import IDENTITY, Identity
from fila_worker.storage.log_files import overlooked_damage
from fila_worker.storage.made import listed, mark_made, mark_of, refuse_missing, shards_there
from fila_worker.storage.offline import OfflineStore
from fila_worker.storage.replica import POSITION

_PREFIX: Final = "shard-"
_CONTRADICTIONS: Final = (*UNREADABLE, LookupError, TypeError, AssertionError, OverflowError, OSError)


@dataclass(slots=True)
class ShardReport:
    """The findings in one shard. ``repaired``: how many repairs were made before."""

    index: int
    path: Path
    findings: Findings = field(default_factory=Findings)
    here: bool = True
    """Whether the shard is kept in this directory. Another host may have it."""
    repaired: int = 0
    refused: str | None = None
    """Why it was not repaired."""

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not len(self.findings)


def shard_path(data_dir: Path, index: int) -> Path:
    """Return the directory of a shard."""
    return data_dir / f"{_PREFIX}{index:04d}"


def stored_shards(data_dir: Path) -> set[int]:
    """Return what the readable shards say of the number of shards: one number, unless directories were mixed up."""
    return {identity.shards for index in shards_there(data_dir) if (identity := _identity(shard_path(data_dir, index)))}


def _identity(path: Path) -> Identity | None:
    data = _state(path, IDENTITY)
    try:
        return None if data is None else msgspec.msgpack.decode(data, type=Identity)
    except UNREADABLE:
        return None


def _state(path: Path, key: bytes) -> bytes | None:
    """Return a value of the shard in a directory; None if it is not there, or cannot be read."""
    try:
        store = OfflineStore(path)
    except StorageError:
        return None
    try:
        return store.get(key, store.families.state)
    except StorageError:
        return None
    finally:
        store.close()


def check_directory(data_dir: Path, shards: int, progress: Progress | None = None) -> Iterator[ShardReport]:
    """Yield a report for each of ``shards``, and for directories of shards that there should not be."""
    there = {*shards_there(data_dir), *listed(data_dir)}
    for index in sorted({*range(shards), *there}):
        report = ShardReport(index, shard_path(data_dir, index))
        if index >= shards:
            report.findings.add(Finding("directory", f"{report.path} is there, and the data directory has {shards} shards"))
        elif index not in there:
            report.here = False
        else:
            report.findings = check_path(report.path, index, shards, progress)
        yield report


def check_path(path: Path, index: int, shards: int, progress: Progress | None = None, *, marked: bool = True) -> Findings:
    """Return the damage of the shard in a directory, and write nothing. ``marked``: False for a checkpoint without a mark."""
    findings = Findings()
    try:
        refuse_missing(path)
        if not path.is_dir():
            raise NotADirectoryError(f"{path} is not a directory")
        if marked and not mark_of(path).exists() and not is_copy(path):
            text = f"{mark_of(path)} is missing: if the directory were lost, the shard would begin again"
            findings.add(Finding("directory", text, opening_repairs=True))
        for damage in overlooked_damage(path):
            text = f"{damage.file} {damage.text}"
            findings.add(Finding("file", text, file=damage.file.name, opening_repairs=damage.harmless))
        _check_database(path, index, shards, findings, progress)
    except StorageError as error:
        findings.add(unreadable(error))
    except _CONTRADICTIONS as error:
        findings.add(Finding("contradiction", f"the data cannot be understood: {type(error).__name__} {error}"))
    return findings


def is_copy(path: Path) -> bool:
    """Return whether a directory has a copy of a replicated shard. If that is lost, it begins again from the log."""
    return _state(path, POSITION) is not None


def _check_database(path: Path, index: int, shards: int, findings: Findings, progress: Progress | None) -> None:
    store = OfflineStore(path)
    try:
        findings.add_all(check_shard(store, index, shards, progress))
    finally:
        store.close()


def repair(report: ShardReport, shards: int, progress: Progress | None = None) -> ShardReport:
    """Repair a shard, and return a new report. A shard with damaged files is left as it is."""
    lost = [finding for finding in report.findings.kept if finding.kind in {"damaged", "file"} and not finding.repairable]
    if lost:
        report.refused = "nothing is written beside damaged files: restore the directory from a backup, or use --salvage"
        return report
    if not report.findings.repairable:
        return report
    if is_copy(report.path):
        report.refused = (
            "it is a copy of a replicated shard, only the log may change it: remove the directory, and the copy begins again"
        )
        return report
    try:
        mark_made(report.path)
        opened = sum(finding.opening_repairs for finding in report.findings.kept)
        done = opened + repair_shard(report.path, report.index, shards, progress)
    except FilaError as error:
        report.refused = str(error)
        return report
    return ShardReport(report.index, report.path, check_path(report.path, report.index, shards, progress), repaired=done)
