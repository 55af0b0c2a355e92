"""A worker's part in a move: a shard leaves when its work is done, and arrives once; and files say where it is."""

import os
from pathlib import Path

import pytest

from fila_proto_zmq.codec import encode_command
from fila_proto_zmq.commands import (
    AdoptShards,
    CreateQueue,
    Done,
    Enqueue,
    Enqueued,
    Fault,
    GetQueueStats,
    PrepareShard,
    PutDraining,
    QueueOptions,
    QueueStats,
    Receive,
    ReleaseShard,
    Reply,
)
from fila_proto_zmq.errors import ShardUnavailableError
from fila_proto_zmq.events import ShardReleased
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.settings import ShardSettings
from fila_worker.core.store import UnfitStoreError
from fila_worker.loop import open_host
from fila_worker.lua import compile_hooks
from fila_worker.process.departures import ARRIVALS_MS, LOOK_MS, WORK_MS_MAX, Departures
from fila_worker.process.shard_process import ShardProcess
from fila_worker.process.slots import Slot
from fila_worker.settings import WorkerSettings
from fila_worker.storage.memory import MemoryStore
from fila_worker.storage.residence import Residence, forget_moves
from fila_worker.storage.rocks import RocksStore
from tests.support.shard.shard_process import CLIENT, NAMES, SHARDS_TOTAL, HostHarness, answer_of


def ignore() -> None:
    """No loop is to be woken."""


class Worker(HostHarness):
    """A host whose shards are in a directory that workers share: their stores are those of a dictionary."""

    def __init__(self, name: str, data_dir: Path, stores: dict[int, MemoryStore], *shards: int) -> None:
        super().__init__()
        self.residence = Residence(data_dir, name, SHARDS_TOTAL)

        def make_slot(index: int) -> Slot:
            return Slot(index, SHARDS_TOTAL, ShardSettings(), compile_hooks, lambda: stores[index])

        self.departures = Departures(self.residence, make_slot)
        self.host = ShardProcess(map(make_slot, shards), SHARDS_TOTAL, self.now_ms, name, [self.departures])
        self.settle()

    def exchange(self, *frames: list[bytes]) -> list[list[bytes]]:
        self.now_ms += LOOK_MS
        return super().exchange(*frames)

    def settle(self) -> None:
        while self.host.slots.opening:
            self.exchange()

    def order(self, command: PrepareShard | ReleaseShard) -> list[Reply | Fault]:
        """Give an order of the router; what is answered within some turns."""
        sent = self.exchange([b"", *encode_command(command, 7)])
        sent += [frame for _ in range(4) for frame in self.exchange()]
        return [answer_of(command, 7, [CLIENT, *frame[1:]]) for frame in sent if not frame[0]]

    def tell(self, command: AdoptShards | PutDraining) -> None:
        self.exchange([b"", *encode_command(command, 0)])
        self.settle()


@pytest.fixture
def workers(tmp_path: Path) -> tuple[Worker, Worker]:
    stores = {index: MemoryStore() for index in range(SHARDS_TOTAL)}
    return Worker("one", tmp_path, stores, 0, 1), Worker("two", tmp_path, stores, 2)


def test_a_shard_goes_with_all_it_has(workers: tuple[Worker, Worker]) -> None:
    one, two = workers
    queue = NAMES[1]
    one.ask(CreateQueue(QueueOptions()), queue)
    assert isinstance(one.ask(Enqueue([seal_envelope(b"x", {})]), queue), Enqueued)
    epoch, offers = one.host.shards[1].epoch, one.host.offers
    assert one.order(PrepareShard(1)) == [Done()]
    assert one.host.offers == offers, "it still serves"
    assert one.order(ReleaseShard(1, "two")) == [Done()]
    assert (sorted(one.host.slots), one.host.failed, one.host.dropped) == ([0], [1], True)
    assert one.host.offers > offers
    assert ShardReleased(1, epoch, "two") in one.host.notes
    refused = one.ask(GetQueueStats(), queue)
    assert isinstance(refused, Fault)
    assert refused.details["refused"] is True
    with pytest.raises(ShardUnavailableError) as moved:
        one.host.slots.find_direct(queue)
    assert moved.value.details["moved"] is True
    two.tell(AdoptShards())
    assert two.host.shards[1].epoch > epoch
    stats = two.ask(GetQueueStats(), queue)
    assert isinstance(stats, QueueStats)
    assert stats.info.pending == 1


def test_requests_that_came_before_are_answered_and_none_after(workers: tuple[Worker, Worker]) -> None:
    one, _ = workers
    queue = NAMES[0]
    one.ask(CreateQueue(QueueOptions()), queue)
    before = [CLIENT, *encode_command(Enqueue([seal_envelope(b"x", {})]), 50, queue)]
    waits = [CLIENT, *encode_command(Receive(1, 60_000), 51, NAMES[0] + ".dlq")]
    order = [b"", *encode_command(ReleaseShard(0, "two"), 7)]
    after = [CLIENT, *encode_command(GetQueueStats(), 52, queue)]
    answered = one.exchange(before, waits, order, after)
    assert isinstance(answer_of(Enqueue([]), 50, answered[-1]), Enqueued)
    refused = answer_of(GetQueueStats(), 52, answered[0])
    assert isinstance(refused, Fault)
    assert refused.details["refused"] is True
    assert 0 in one.host.slots
    assert one.exchange() == []
    assert 0 not in one.host.slots


def test_a_shard_that_is_asked_for_again_leaves_once(workers: tuple[Worker, Worker]) -> None:
    one, _ = workers
    one.host.answers_wait = True
    assert one.order(ReleaseShard(0, "two")) == []
    one.now_ms += WORK_MS_MAX
    assert one.order(ReleaseShard(0, "two")) == [Done()], "the first request began its time"
    assert one.order(ReleaseShard(0, "two")) == [Done()], "the answer was lost"
    (refused,) = one.order(ReleaseShard(0, "three"))
    assert isinstance(refused, Fault)


def test_it_waits_for_answers_that_were_not_sent_yet_but_not_for_ever(workers: tuple[Worker, Worker]) -> None:
    one, _ = workers
    one.host.answers_wait = True
    assert one.order(ReleaseShard(0, "two")) == []
    assert one.host.next_due(one.now_ms) is not None
    one.now_ms += WORK_MS_MAX
    assert one.order(ReleaseShard(1, "two")) == [Done()]
    assert sorted(one.host.slots) == [1]


def test_a_shard_that_cannot_be_given_away_stays(workers: tuple[Worker, Worker], tmp_path: Path) -> None:
    one, _ = workers
    (tmp_path / "moved").write_text("in the way")
    (fault,) = one.order(ReleaseShard(1, "two"))
    assert isinstance(fault, Fault)
    assert (fault.code, "cannot write" in fault.text) == ("STORAGE", True)
    assert isinstance(one.ask(CreateQueue(QueueOptions()), NAMES[1]), Done)


def test_what_is_not_here_or_does_not_serve_is_refused(workers: tuple[Worker, Worker]) -> None:
    one, _ = workers
    for command in (PrepareShard(3), ReleaseShard(3, "two")):
        (fault,) = one.order(command)
        assert isinstance(fault, Fault)
        assert "shard 3 is not here" in fault.text
    alone = HostHarness(0)
    refused = alone.exchange([b"", *encode_command(PrepareShard(0), 7)])
    assert b"it shares no data directory" in refused[0][3]


def test_a_shard_is_found_without_a_word_once_its_last_host_had_the_time_to_close_it(workers: tuple[Worker, Worker]) -> None:
    one, two = workers
    one.order(ReleaseShard(1, "two"))
    two.departures.look_for_arrivals()
    assert sorted(two.host.slots) == [2]
    two.departures.look_for_arrivals()
    assert sorted(two.host.slots) == [1, 2]


def test_it_is_looked_for_once_a_second(workers: tuple[Worker, Worker]) -> None:
    one, two = workers
    one.order(ReleaseShard(1, "two"))
    for _ in range(2):
        assert sorted(two.host.slots) == [2]
        due_ms = two.host.next_due(two.now_ms)
        assert due_ms is not None
        assert due_ms <= ARRIVALS_MS
        two.now_ms += ARRIVALS_MS
        two.exchange()
    assert sorted(two.host.slots) == [1, 2]


def test_a_worker_says_that_it_is_drained(workers: tuple[Worker, Worker]) -> None:
    one, _ = workers
    offers = one.host.offers
    one.tell(PutDraining(draining=True))
    assert (one.host.draining, one.host.offers > offers) == (True, True)


def test_files_say_where_moved_shards_are(tmp_path: Path) -> None:
    one, two = Residence(tmp_path, "one", 4), Residence(tmp_path, "two", 4)
    assert (one.hosted([0, 1]), two.hosted([2])) == ([0, 1], [2])
    one.give(1, "two")
    assert (one.hosted([0, 1]), two.hosted([2])) == ([0], [1, 2])
    assert (one.is_elsewhere(1), two.is_here(1), one.host_of(0)) == (True, True, None)
    for name, content in (("shard-0009", "one"), ("shard-0003.new", "one"), ("shard-0002", "")):
        (tmp_path / "moved" / name).write_text(content)
    assert one.arrived() == [], "no such shard, a draft, and a file without its content"
    assert two.hosted([2]) == [1, 2]
    assert oct(os.stat(one.file_of(1)).st_mode)[-3:] == "600"
    forget_moves(tmp_path)
    assert one.hosted([0, 1]) == [0, 1]


def test_only_one_directory_of_one_machine_has_its_name(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "a")
    homes = {name: Residence(tmp_path / name, "one", 4).home for name in "abc"}
    assert homes["a"] == homes["c"] != homes["b"]


def test_a_worker_starts_with_what_was_moved_to_it_and_says_what_was_moved_away(tmp_path: Path) -> None:
    one = WorkerSettings(name="one", router="ipc://r", data_dir=str(tmp_path), shards=[0, 1], shards_total=2)
    two = WorkerSettings(name="two", router="ipc://r", data_dir=str(tmp_path), shards=[0], shards_total=2)
    Residence(tmp_path, "one", 2).give(1, "two")
    first, second = open_host(one, 1, ignore), open_host(two, 1, ignore)
    assert (sorted(first.slots), sorted(second.slots)) == ([0], [0, 1])
    assert [(note.event, note.fields()["worker"]) for note in first.notes] == [("shard.elsewhere", "two")]


def test_a_database_that_its_last_host_has_not_closed_yet_is_waited_for(tmp_path: Path) -> None:
    held = RocksStore(tmp_path / "shard-0001")
    Residence(tmp_path, "one", 2).give(1, "two")
    host = open_host(
        WorkerSettings(name="two", router="ipc://r", data_dir=str(tmp_path), shards=[], shards_total=2), 1, ignore
    )
    host.turn(1)
    (outage,) = host.slots.outages
    assert (outage.state, "is in use" in outage.reason) == ("waiting", True)
    held.close()
    for now_ms in range(0, 2000, 100):
        host.turn(now_ms)
    assert sorted(host.shards) == [1]
    host.close()


def test_a_shard_that_was_moved_while_this_worker_started_is_not_served_here(tmp_path: Path) -> None:
    host = open_host(
        WorkerSettings(name="one", router="ipc://r", data_dir=str(tmp_path), shards=[1], shards_total=2), 1, ignore
    )
    Residence(tmp_path, "one", 2).give(1, "two")
    with pytest.raises(UnfitStoreError, match="shard 1 was moved to two at this moment: start this worker again"):
        host.turn(1)
