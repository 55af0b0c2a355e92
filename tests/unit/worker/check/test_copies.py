"""A copy of a replicated shard is checked as any shard, and never repaired: only the log may change it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fila_proto_zmq.commands import CreateQueue, Enqueued, QueueOptions
from fila_worker.check.directory import ShardReport, check_path, repair
from fila_worker.core.enqueue.insert import LAST_QUEUE_ID
from fila_worker.core.keys import pack_u32
from fila_worker.core.store import Families
from fila_worker.log.records import Changes
from fila_worker.storage.made import mark_of
from fila_worker.storage.replica import MARKER_BYTES_MAX, POSITION_BYTES, Replica
from tests.support.shard.shard_process import SHARDS_TOTAL
from tests.unit.worker.replication.test_replicated import ReplicatedCluster, enqueue

STATE = Families._fields.index("state")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The copy of a host that is stopped; its last marker has a body."""
    cluster = ReplicatedCluster(tmp_path)
    cluster.until(lambda: cluster.one.serves == [0, 1], cluster.one)
    cluster.one.ask(CreateQueue(QueueOptions()))
    assert isinstance(cluster.one.ask(enqueue(b"payload")), Enqueued)
    cluster.one.end()
    cluster.two.end()
    path = cluster.one.exchanges[0].copy
    assert path.is_dir()
    return path


def change(path: Path, write: Callable[[Changes], None]) -> None:
    copy = Replica(path)
    changes = Changes()
    write(changes)
    copy._store(changes, copy.position, copy.position.number, 0)
    copy._begin_flush()
    copy.close()


def kinds(path: Path) -> list[tuple[str, bool]]:
    return [(finding.kind, finding.repairable) for finding in check_path(path, 0, SHARDS_TOTAL).kept]


def test_the_copy_of_a_stopped_host_is_clean(copy: Path) -> None:
    assert not mark_of(copy).exists(), "it may be lost: it begins anew from the log"
    assert kinds(copy) == []
    found = Replica(copy)
    assert found.marker, "the test means something"
    found.close()


@pytest.mark.parametrize(
    "position", [bytes(POSITION_BYTES - 1), bytes(POSITION_BYTES + MARKER_BYTES_MAX + 1)], ids=["short", "long"]
)
def test_a_position_that_is_none_is_found(copy: Path, monkeypatch: pytest.MonkeyPatch, position: bytes) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("fila_worker.storage.replica._packed", lambda *_: position)
        open_copy = Replica(copy)
        open_copy.marker = b""
        open_copy._begin_flush()
        open_copy._wait_for_flush()
        open_copy._leave()
    assert ("state", False) in kinds(copy)


def test_a_copy_is_not_repaired(copy: Path) -> None:
    change(copy, lambda changes: changes.put(LAST_QUEUE_ID, pack_u32(0), STATE))
    findings = check_path(copy, 0, SHARDS_TOTAL)
    assert findings.repairable
    before = {file.name: file.read_bytes() for file in copy.iterdir()}
    report = repair(ShardReport(0, copy, findings), SHARDS_TOTAL)
    assert "only the log may change it: remove the directory" in (report.refused or "")
    assert {file.name: file.read_bytes() for file in copy.iterdir()} == before
    assert not mark_of(copy).exists()


def test_a_shard_that_is_no_copy_still_needs_its_mark(copy: Path) -> None:
    shard = copy.with_name("shard-0002")
    shard.mkdir()
    (shard / "x").write_bytes(b"")
    assert kinds(shard)[0] == ("directory", True)
