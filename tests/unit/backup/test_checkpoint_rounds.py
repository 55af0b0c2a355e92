"""The rounds of the process that keeps checkpoints: one shard's failure stops no other, is logged once, and is told to who waits."""

from pathlib import Path
from typing import cast

import pytest

from fila_cluster.run.backup import log_checkpoints
from fila_cluster.run.backup.log_checkpoints import CheckpointStore, Rounds, Work, bring, keep
from fila_cluster.run.backup.process import KeeperSettings
from fila_cluster.run.backup.target import Folder
from fila_process.journal import Journal
from fila_proto_zmq.events import CheckpointBrought, CheckpointKept, CheckpointTransferFailed, Event
from fila_worker.replication.log_checkpoints.exchange import Exchange, Kept, Made, Wanted


class Told:
    """A journal that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def tell(self, events: list[Event]) -> None:
        self.events += events


class Keeper:
    def __init__(self, home: Path, work: Work) -> None:
        self.home, self.journal = home, Told()
        self.target = Folder(home / "target")
        settings = KeeperSettings(data_dir=str(home / "data"), target=str(home / "target"))
        self.rounds = Rounds(settings, cast(Journal, self.journal), work)

    def made(self, shard: int, offset: int, content: bytes) -> Exchange:
        """Have a checkpoint with one table."""

        def checkpoint(path: Path) -> None:
            path.mkdir()
            (path / "000001.sst").write_bytes(content)

        exchange = Exchange(self.home / "data", shard)
        exchange.make(Made("log", shard, 4, offset, 1, 1), checkpoint)
        return exchange

    def round(self) -> list[Event]:
        self.journal.events.clear()
        self.rounds.round()
        return [*self.journal.events]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_checkpoints, "RETRY_S", 0.0)


def test_checkpoints_of_all_shards_are_kept_once_and_the_worker_is_told(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, keep)
    assert keeper.round() == []
    one, two = keeper.made(0, 10, b"one"), keeper.made(3, 20, b"two")
    kept = keeper.round()
    assert [(each.shard, each.offset, each.size_bytes, each.copied_bytes) for each in kept if isinstance(each, CheckpointKept)] == [
        (0, 10, 3, 3), (3, 20, 3, 3),
    ]  # fmt: skip
    assert (one.kept(), two.kept()) == (Kept("log", 10, -1), Kept("log", 20, -1))
    assert keeper.round() == []


def test_the_last_two_stay_and_the_log_is_needed_from_the_older_one_on(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, keep)
    for offset in (10, 20, 30):
        exchange = keeper.made(0, offset, b"%d" % offset)
        keeper.round()
        kept = exchange.kept()
        assert kept == Kept("log", offset, offset - 10 if offset > 10 else -1)
        exchange.release()
    store = CheckpointStore(keeper.target, "log", 0)
    assert store.offsets() == [20, 30]
    assert sorted(store.stored().values()) == [2, 2], "the files of the first one are gone"
    late = keeper.made(0, 15, b"of a host that leads no more")
    assert keeper.round() == []
    assert late.kept() == Kept("log", 15, 20)
    assert store.offsets() == [20, 30]


def test_a_failure_is_logged_once_and_stops_no_other_shard(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, keep)
    keeper.made(0, 10, b"one")
    (tmp_path / "data/checkpoints/shard-0000/made/000001.sst").unlink()
    (tmp_path / "data/checkpoints/shard-0000/made").rmdir()
    keeper.made(1, 10, b"two")
    first = keeper.round()
    assert [(type(each), each.shard) for each in first if isinstance(each, (CheckpointKept, CheckpointTransferFailed))] == [
        (CheckpointTransferFailed, 0), (CheckpointKept, 1),
    ]  # fmt: skip
    assert keeper.round() == [], "the same again"
    keeper.made(0, 11, b"again")
    assert [type(each) for each in keeper.round()] == [CheckpointKept]


def test_another_host_that_writes_is_no_failure(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, keep)
    exchange = keeper.made(0, 10, b"one")
    with CheckpointStore(keeper.target, "log", 0).writing():
        assert keeper.round() == []
        assert exchange.kept() is None
    assert [type(each) for each in keeper.round()] == [CheckpointKept]


def test_who_waits_is_told_why_nothing_comes_and_gets_it_when_it_is_there(tmp_path: Path) -> None:
    keeper, bringer = Keeper(tmp_path / "a", keep), Keeper(tmp_path / "b", bring)
    exchange = Exchange(tmp_path / "b/data", 2)
    exchange.want(Wanted("log", 2, 4, 50))
    assert [type(each) for each in bringer.round()] == [CheckpointTransferFailed]
    refused = exchange.refused()
    assert refused is not None
    assert refused.begin == 50
    assert "the log begins at offset 50, and there is none" in refused.reason
    keeper.made(2, 49, b"too early")
    keeper.round()
    (tmp_path / "b/target").symlink_to(tmp_path / "a/target")
    bringer.round()
    refused = exchange.refused()
    assert refused is not None
    assert "the last one is at offset 49" in refused.reason
    keeper.made(2, 50, b"in time")
    keeper.round()
    assert [type(each) for each in bringer.round()] == [CheckpointBrought]
    assert (exchange.brought_path / "000001.sst").read_bytes() == b"in time"
    assert bringer.round() == [], "it waits for the worker"


def test_a_manifest_that_leads_out_of_its_directory_is_refused(tmp_path: Path) -> None:
    keeper, bringer = Keeper(tmp_path, keep), Keeper(tmp_path, bring)
    exchange = keeper.made(2, 50, b"table")
    keeper.round()
    (manifest,) = (tmp_path / "target").rglob("*50.json")
    manifest.write_text(manifest.read_text().replace("000001.sst", "../../../escaped"))
    exchange.want(Wanted("log", 2, 4, 50))
    (failed,) = bringer.round()
    assert isinstance(failed, CheckpointTransferFailed)
    assert "is damaged: a file is called '../../../escaped'" in failed.reason
    assert not exchange.brought_path.exists()
