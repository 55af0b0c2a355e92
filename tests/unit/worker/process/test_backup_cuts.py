"""A worker's checkpoints: each step may be repeated, what is not renewed ends, and a shard that was opened again is noticed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fila_proto_zmq.commands import BackupParts, BeginBackup, CutBackup, Fault, KeepBackup, ShardCut
from fila_worker.core.recovery import recover
from fila_worker.core.settings import ShardSettings
from fila_worker.core.shard import Shard
from fila_worker.lua import compile_hooks
from fila_worker.process.backup_cuts import KEEP_MS_MAX, REST_MS, BackupCuts
from fila_worker.process.shard_process import ShardProcess
from fila_worker.process.slots import Slot
from fila_worker.storage.rocks import RocksStore
from tests.support.cluster.cluster import eventually
from tests.support.shard.shard_process import SHARDS_TOTAL, HostHarness

BACKUP = "backup-1"
HERE = (0, 2)


def opened(store: RocksStore, index: int) -> Shard:
    return recover(store, ShardSettings(), compile_hooks, index=index, shards=SHARDS_TOTAL, now_ms=0)


class Worker(HostHarness):
    """A host of two shards on a disk."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__()
        self.data_dir = data_dir
        self.stores = {index: RocksStore(data_dir / f"shard-{index:04d}") for index in HERE}
        checkpoints = BackupCuts(data_dir, "here", HERE, self.now_ms)
        slots = [Slot.of(opened(store, index)) for index, store in self.stores.items()]
        self.host = ShardProcess(slots, SHARDS_TOTAL, self.now_ms, features=[checkpoints])

    def step(self, command: BeginBackup | CutBackup | KeepBackup) -> list[ShardCut]:
        answer = self.ask(command, "")
        assert isinstance(answer, BackupParts), answer
        assert answer.hosts == ["here"]
        return answer.shards

    def fault(self, command: BeginBackup | CutBackup | KeepBackup) -> str:
        answer = self.ask(command, "")
        assert isinstance(answer, Fault)
        return f"{answer.code}: {answer.text}"

    def begun(self, backup: str = BACKUP) -> list[ShardCut]:
        eventually(lambda: all(part.ready for part in self.step(BeginBackup(backup))), "all shards ready")
        return self.step(BeginBackup(backup))

    def cut(self) -> list[ShardCut]:
        self.begun()
        self.step(CutBackup(BACKUP))
        eventually(lambda: all(part.path for part in self.step(CutBackup(BACKUP))), "all shards cut")
        return self.step(CutBackup(BACKUP))

    def resting(self) -> list[bool]:
        return [shard.transfers_rest(self.now_ms) for shard in self.host.shards.values()]

    def kept(self) -> list[str]:
        folder = self.data_dir / "checkpoints"
        return sorted(str(Path(at, name).relative_to(self.data_dir)) for at, names, _ in os.walk(folder) for name in names)

    def reopen(self, index: int) -> None:
        """Let a shard fail and come back."""
        slot = self.host.slots[index]
        slot.enter(opened(self.stores[index], index))
        assert slot.shard is not None
        self.host.shards[index] = slot.shard


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path)
    yield worker
    worker.host.close()


def test_a_backup_from_its_begin_to_its_end(worker: Worker) -> None:
    assert [(part.shard, part.epoch, part.rested, part.path) for part in worker.begun()] == [
        (0, 1, True, ""),
        (2, 1, True, ""),
    ]
    assert worker.resting() == [True, True]
    parts = worker.cut()
    assert [part.path for part in parts] == [f"{worker.data_dir}/checkpoints/{BACKUP}/shard-{index:04d}" for index in HERE]
    assert all(part.rested and part.size_bytes > 0 for part in parts)
    assert worker.step(KeepBackup(BACKUP, 1000)) == parts
    assert worker.resting() == [False, False]
    assert worker.step(CutBackup(BACKUP)) == parts, "a repeated frame that was late"
    assert worker.step(KeepBackup(BACKUP, 0)) == []
    assert worker.step(KeepBackup(BACKUP, 0)) == []
    eventually(lambda: not (worker.data_dir / "checkpoints").exists(), "nothing left")


def test_a_checkpoint_has_what_was_committed_and_opens(worker: Worker) -> None:
    store = worker.stores[2]
    batch = store.new_batch()
    batch.put(b"key-of-mine", b"value", store.families.state)
    store.commit(batch)
    copy = RocksStore(Path(worker.cut()[1].path))
    assert copy.get(b"key-of-mine", copy.families.state) == b"value"
    copy.close()


def test_what_is_not_renewed_ends(worker: Worker) -> None:
    worker.cut()
    worker.step(KeepBackup(BACKUP, KEEP_MS_MAX))
    worker.now_ms += KEEP_MS_MAX - 1
    worker.exchange()
    assert len(worker.kept()) == 1 + len(HERE)
    worker.now_ms += 1
    worker.exchange()
    eventually(lambda: worker.kept() == [], "no checkpoints")
    assert "is not open at this worker" in worker.fault(KeepBackup(BACKUP, 1))


def test_transfers_go_on_by_themselves_and_the_backup_is_over(worker: Worker) -> None:
    worker.begun()
    worker.now_ms += REST_MS
    assert worker.resting() == [False, False]
    worker.exchange()
    assert "SHARD_UNAVAILABLE" in worker.fault(CutBackup(BACKUP))
    worker.begun("backup-2")


@pytest.mark.parametrize("cut", [False, True])
def test_a_shard_that_was_opened_again_is_not_in_the_cut(worker: Worker, cut: bool) -> None:
    worker.cut() if cut else worker.begun()
    worker.reopen(2)
    parts = worker.step(CutBackup(BACKUP))
    assert [part.rested for part in parts] == [True, False]
    assert [part.rested for part in worker.step(KeepBackup(BACKUP, 1000))] == [True, False]


def test_one_backup_at_a_time(worker: Worker) -> None:
    worker.begun()
    assert f"OVERLOADED: backup {BACKUP} is under way" in worker.fault(BeginBackup("backup-2"))
    worker.step(KeepBackup(BACKUP, 0))
    worker.begun("backup-2")


@pytest.mark.parametrize("name", ["", "short", "../../../etc", "a" * 65, "backup/1", "bäckup-12"])
def test_a_name_cannot_lead_elsewhere(worker: Worker, name: str) -> None:
    assert "is not a name of a backup" in worker.fault(BeginBackup(name))


@pytest.mark.parametrize("for_ms", [-1, KEEP_MS_MAX + 1])
def test_checkpoints_are_kept_for_a_bounded_time(worker: Worker, for_ms: int) -> None:
    worker.begun()
    assert f"for_ms is {for_ms}" in worker.fault(KeepBackup(BACKUP, for_ms))


def test_a_disk_that_refuses_is_an_error_of_the_backup_only(worker: Worker) -> None:
    worker.begun()
    (worker.data_dir / "checkpoints").write_bytes(b"a file where the folder should be")
    worker.step(CutBackup(BACKUP))
    eventually(lambda: isinstance(worker.ask(CutBackup(BACKUP), ""), Fault), "the failure")
    assert "STORAGE: no checkpoint of shard" in worker.fault(CutBackup(BACKUP))
    assert list(worker.host.shards) == list(HERE)


def test_a_worker_that_was_killed_keeps_its_checkpoints_for_the_client_that_copies_them(tmp_path: Path) -> None:
    others = ("aaaa-old/shard-0000", f"{BACKUP}/shard-0001")
    for name in (*others, f"{BACKUP}/shard-0000", f"{BACKUP}/shard-0002", "unmade/shard-0002.tmp"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    worker = Worker(tmp_path)
    all_three = [f"checkpoints/{BACKUP}", *(f"checkpoints/{BACKUP}/shard-000{index}" for index in (0, 1, 2))]
    eventually(lambda: worker.kept() == all_three, "its own last ones, and another worker's")
    assert [part.rested for part in worker.step(KeepBackup(BACKUP, 5))] == [False, False], "it can be no part of a new cut"
    worker.now_ms += 5
    worker.exchange()
    eventually(lambda: worker.kept() == [all_three[0], all_three[2]], "the other worker's")
    worker.begun("backup-2")
    worker.host.close()


def test_a_host_without_a_disk_refuses() -> None:
    answer = HostHarness().ask(BeginBackup(BACKUP), "")
    assert isinstance(answer, Fault)
    assert "makes no backups" in answer.text
