"""Checkpoints of shards on a replicated log, in hosts: when they are made, when the log is trimmed, and how a copy begins from one."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fila_cluster.errors import OverloadedError, StorageError
from fila_cluster.run.backup.log_checkpoints import CheckpointStore, bring, keep
from fila_cluster.run.backup.target import Folder
from fila_proto_zmq.commands import CreateQueue, Enqueued, QueueOptions
from fila_proto_zmq.events import CheckpointFailed, CopyBeginning
from fila_worker.log.placement import PlacementLimits
from fila_worker.log.records import Changes, LogRecord, RecordKind, encode
from fila_worker.replication.log_checkpoints.cutting import CUT_MS_MAX
from fila_worker.replication.log_checkpoints.exchange import Kept, Refused
from fila_worker.replication.replicated import ReplicatedSlot
from fila_worker.settings import CheckpointSettings
from fila_worker.storage.replica import Replica
from tests.support.cluster.cluster import eventually
from tests.support.hosts.copies import contents, stamped
from tests.unit.worker.replication.test_replicated import LOG, Machine, ReplicatedCluster, enqueue, pending

SETTINGS = CheckpointSettings(bytes=20_000, every_ms=60_000, idle_records=100)
SHARD = 0


class World(ReplicatedCluster):
    """Two machines, the first of which leads, a target, and further machines."""

    placement = PlacementLimits(settle_ms=1_000_000_000)
    """Shards stay where they are, however much time passes."""

    def __init__(self, tmp_path: Path, settings: CheckpointSettings | None = SETTINGS) -> None:
        self.machines: list[Machine] = []
        super().__init__(tmp_path, settings)
        self.machines += [self.one, self.two]
        self.home = tmp_path
        self.target = Folder(tmp_path / "target")
        self.until(lambda: self.one.serves == [0, 1], self.one)
        self.pass_ms(1000)
        self.one.ask(CreateQueue(QueueOptions()))

    def pass_ms(self, span_ms: int, *machines: Machine) -> None:
        super().pass_ms(span_ms, *machines or self.machines)

    def until(self, what: Callable[[], bool], *machines: Machine) -> int:
        """Let time pass until something holds. Disks have a time of their own, so that it may be much."""
        began_ms = self.now_ms

        def passed() -> bool:
            for _ in range(10):
                if what():
                    return True
                self.pass_ms(20, *machines)
            return False

        eventually(passed, "it takes too long")
        return self.now_ms - began_ms

    def fresh(self, name: str) -> Machine:
        """A machine with an empty disk."""
        self.machines.append(Machine(self, name, self.home / name))
        return self.machines[-1]

    def grow(self, machine: Machine, size: int = 30_000) -> None:
        """Let the log grow, and time pass for its followers."""
        assert isinstance(machine.ask(enqueue(bytes(size))), Enqueued)

    def checkpoint(self, machine: Machine) -> None:
        """Have a checkpoint of the shard made, carried to the target, and released."""
        exchange = machine.exchanges[SHARD]
        self.grow(machine)
        self.until(lambda: exchange.made() is not None)
        assert keep(exchange, self.target) is not None
        self.until(lambda: exchange.made() is None)

    def until_asked(self, machine: Machine) -> None:
        """Wait until a machine has asked for a checkpoint."""
        self.until(lambda: state_of(machine)[0] == "beginning" and machine.exchanges[SHARD].wanted() is not None)

    def until_equal(self, *machines: Machine) -> None:
        """Wait until the copies of some machines are open, and have the same."""

        def equal() -> bool:
            if not all(slot_of(machine).member for machine in machines):
                return False
            first, *others = [contents(copy_of(machine)) for machine in machines]
            return all(other == first for other in others)

        self.until(equal)

    def offsets(self) -> list[int]:
        return CheckpointStore(self.target, LOG, SHARD).offsets()

    def close(self) -> None:
        for machine in self.machines:
            machine.host.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def slot_of(machine: Machine) -> ReplicatedSlot:
    slot = machine.host.slots[SHARD]
    assert isinstance(slot, ReplicatedSlot)
    return slot


def copy_of(machine: Machine) -> Replica:
    member = slot_of(machine).member
    assert member is not None
    assert isinstance(member.copy, Replica)
    return member.copy


def state_of(machine: Machine) -> tuple[str, str]:
    outage = slot_of(machine).outage
    return ("serves", "") if outage is None else (outage.state, outage.reason)


# --- the leader -------------------------------------------------------------------------------------------------------


def test_the_log_begins_at_the_checkpoint_before_the_last_one(world: World) -> None:
    world.checkpoint(world.one)
    assert (world.logs[SHARD].begin, len(world.offsets())) == (0, 1), "one checkpoint may be damaged"
    for _ in range(3):
        world.checkpoint(world.one)
        before, last = world.offsets()
        assert world.logs[SHARD].begin == before < last < world.logs[SHARD].end
    assert not world.two.exchanges[SHARD].made_path.exists(), "only the leader makes them"
    assert world.logs[1].begin == 0, "nothing has changed there"


def test_a_checkpoint_waits_until_all_is_confirmed_and_has_nothing_else(world: World) -> None:
    exchange, copy = world.one.exchanges[SHARD], copy_of(world.one)
    world.grow(world.one, 19_000)
    world.one.partitions[SHARD].held = True
    world.one.say(enqueue(bytes(2_000)))
    world.pass_ms(1000, world.one)
    assert copy.committed > copy.confirmed
    assert exchange.made() is None
    appender = world.one.partitions[SHARD].appenders[-1]
    appender.arrive(appender.on_the_way)
    appender.report(appender.unreported)
    world.one.partitions[SHARD].held = False
    world.until(lambda: exchange.made() is not None)
    made = exchange.made()
    assert made is not None
    other = Replica(exchange.made_path)
    assert (other.position.offset, other.position.epoch, other.position.number) == (made.offset, made.epoch, made.number)
    assert other.whole
    other.close()


def test_a_shard_under_load_is_cut_and_goes_on(world: World) -> None:
    exchange, partition = world.one.exchanges[SHARD], world.one.partitions[SHARD]
    partition.held = True
    requests = []

    def made_while_it_works() -> bool:
        for _ in range(10):  # something is unconfirmed after each turn, unless the shard pauses
            requests.append(world.one.say(enqueue(bytes(1000))))
            world.now_ms += 20
            if (appender := partition.appenders[-1]).on_the_way > 1 or slot_of(world.one).pauses:
                appender.arrive(max(1, appender.on_the_way - 1) if appender.on_the_way else 0)
                appender.report(appender.unreported)
        return exchange.made() is not None

    eventually(made_while_it_works, "a checkpoint")
    partition.held = False
    world.pass_ms(2000)
    answers = [world.one.answers.get(request) for request in requests]
    assert sum(isinstance(answer, Enqueued) for answer in answers) >= 20
    assert all(isinstance(answer, Enqueued) or getattr(answer, "code", "") == "OVERLOADED" for answer in answers)


def test_a_log_that_does_not_confirm_stops_no_shard_for_a_checkpoint(world: World) -> None:
    cutting, copy = slot_of(world.one)._cutting, copy_of(world.one)
    assert cutting is not None
    world.grow(world.one)
    world.until(lambda: cutting._is_busy, world.one)
    world.one.partitions[SHARD].held = True
    copy.commit(Changes())
    now_ms = world.now_ms
    eventually(lambda: not copy.flushing, "the flush before it")
    cutting.step(now_ms, serves=True)
    assert cutting.pauses
    cutting.step(now_ms + CUT_MS_MAX, serves=True)
    assert not cutting.pauses
    assert world.one.exchanges[SHARD].made() is None


@pytest.mark.whole
def test_time_and_beats_make_a_checkpoint_due_too(world: World) -> None:
    exchange = world.one.exchanges[SHARD]
    world.pass_ms(50_000)
    assert exchange.made() is None
    world.until(lambda: exchange.made() is not None)
    assert keep(exchange, world.target) is not None
    world.until(lambda: exchange.made() is None)
    world.pass_ms(65_000)
    assert exchange.made() is None, "nothing has changed, and there were few beats"
    world.until(lambda: exchange.made() is not None)


def test_one_shard_at_a_time_and_one_checkpoint_of_it(world: World) -> None:
    one, other = slot_of(world.one), world.one.host.slots[1]
    assert isinstance(other, ReplicatedSlot)
    world.grow(world.one)
    world.one._one_at_a_time.acquire()
    world.pass_ms(3000)
    assert world.one.exchanges[SHARD].made() is None
    world.one._one_at_a_time.release()
    world.until(lambda: world.one.exchanges[SHARD].made() is not None)
    first = world.one.exchanges[SHARD].made()
    world.grow(world.one)
    world.pass_ms(5000)
    assert world.one.exchanges[SHARD].made() == first
    assert not one.pauses
    assert world.one._one_at_a_time.acquire(blocking=False), "it is free"
    world.one._one_at_a_time.release()


@pytest.mark.parametrize("closed", [False, True], ids=["deposed", "closed"])
def test_a_shard_that_serves_no_more_while_it_is_cut_lets_the_others_go_on(world: World, *, closed: bool) -> None:
    cutting = slot_of(world.one)._cutting
    assert cutting is not None
    world.grow(world.one)
    world.until(lambda: cutting._is_busy, world.one)
    assert not world.one._one_at_a_time.acquire(blocking=False)
    if closed:
        cutting.close()
    else:
        cutting.step(world.now_ms, serves=False)
    assert not cutting.pauses
    assert world.one._one_at_a_time.acquire(blocking=False)
    world.one._one_at_a_time.release()


def test_a_disk_that_refuses_a_checkpoint_stops_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:

        def refuse(self: Replica, path: Path) -> None:
            raise StorageError("no space")

        patched.setattr(Replica, "checkpoint", refuse)
        world.grow(world.one)
        world.until(lambda: any(isinstance(note, CheckpointFailed) for note in world.one.host.notes))
        notes = [note for note in world.one.host.notes if isinstance(note, CheckpointFailed)]
        assert [(note.shard, note.reason) for note in notes] == [(SHARD, "no space")]
    world.until(lambda: world.one.exchanges[SHARD].made() is not None)


def test_what_the_target_has_of_another_log_trims_nothing(world: World) -> None:
    exchange = world.one.exchanges[SHARD]
    world.grow(world.one)
    world.until(lambda: exchange.made() is not None)
    exchange.keep(Kept("another", 10**6, 10**6))
    world.pass_ms(3000)
    assert (world.logs[SHARD].begin, exchange.made() is None) == (0, False)
    made = exchange.made()
    assert made is not None
    exchange.keep(Kept(LOG, 10**6, 10**6))
    world.pass_ms(3000)
    assert world.logs[SHARD].begin == made.offset, "at most what its own checkpoint does not need"


def test_a_host_that_leads_no_more_releases_its_checkpoint_when_it_is_kept(world: World) -> None:
    exchange = world.one.exchanges[SHARD]
    world.grow(world.one)
    world.until(lambda: exchange.made() is not None)
    world.one.host.retire()
    world.until(lambda: world.two.serves == [0, 1])
    assert keep(exchange, world.target) is not None
    world.pass_ms(2000)
    assert exchange.made() is None


# --- a copy that begins -----------------------------------------------------------------------------------------------


def test_a_host_with_an_empty_disk_begins_from_a_checkpoint_and_leads(world: World) -> None:
    for _ in range(3):
        world.checkpoint(world.one)
    world.grow(world.one)
    fresh = world.fresh("three")
    world.until_asked(fresh)
    assert "it waits for a checkpoint" in state_of(fresh)[1]
    assert not fresh.host.slots.opening, "the process has started"
    assert [note.shard for note in fresh.host.notes if isinstance(note, CopyBeginning)] == [SHARD]
    brought = bring(fresh.exchanges[SHARD], world.target)
    assert brought is not None
    assert brought.offset == world.offsets()[-1]
    assert bring(fresh.exchanges[SHARD], world.target) is None, "once"
    offers = fresh.host.offers
    world.until(lambda: state_of(fresh)[0] == "following")
    assert fresh.host.offers > offers, "the routers hear of it"
    world.until_equal(fresh, world.two)
    world.one.end()
    world.two.end()
    world.until(lambda: fresh.serves == [0, 1], fresh)
    assert pending(fresh) == 4


def test_a_follower_that_was_away_for_too_long_begins_from_a_checkpoint(world: World) -> None:
    world.two.end()
    world.machines.remove(world.two)
    for _ in range(3):
        world.checkpoint(world.one)
    world.two.start()
    world.machines.append(world.two)
    world.until_asked(world.two)
    assert (world.two.home / "shard-0000" / "CURRENT").exists(), "the old copy stays until the new one is there"
    assert bring(world.two.exchanges[SHARD], world.target) is not None
    world.until(lambda: state_of(world.two)[0] == "following")
    world.until_equal(world.one, world.two)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(world: World) -> None:
    for _ in range(3):
        world.checkpoint(world.one)
    store = CheckpointStore(world.target, LOG, SHARD)
    old, new = map(store.at, store.offsets())
    own = next(file for file in new.files if file.sha256 not in {each.sha256 for each in old.files} and file.size_bytes)
    (path,) = (world.home / "target").rglob(own.sha256)
    path.chmod(0o600)
    path.write_bytes(bytes(own.size_bytes))
    fresh = world.fresh("three")
    world.until_asked(fresh)
    brought = bring(fresh.exchanges[SHARD], world.target)
    assert brought is not None
    assert brought.offset == old.offset
    world.until_equal(fresh, world.one)


def test_without_a_checkpoint_at_the_target_the_outage_says_what_to_do(world: World) -> None:
    world.checkpoint(world.one)
    world.checkpoint(world.one)
    shutil.rmtree(world.home / "target")
    fresh = world.fresh("three")
    world.until_asked(fresh)
    with pytest.raises(StorageError, match=r"has no checkpoint of shard 0 .* there is none; let a host") as refused:
        bring(fresh.exchanges[SHARD], world.target)
    wanted = fresh.exchanges[SHARD].wanted()
    assert wanted is not None
    assert wanted.begin == world.logs[SHARD].begin
    fresh.exchanges[SHARD].refuse(Refused(wanted.begin, str(refused.value)))
    world.until(lambda: state_of(fresh) == ("beginning", str(refused.value)))
    world.checkpoint(world.one)
    assert bring(fresh.exchanges[SHARD], world.target) is not None
    world.until(lambda: state_of(fresh)[0] == "following")


def test_without_a_target_a_new_host_follows_a_whole_log_and_else_says_what_to_do(tmp_path: Path) -> None:
    world = World(tmp_path, None)
    world.grow(world.one)
    fresh = world.fresh("three")
    world.until_equal(fresh, world.one)
    world.pass_ms(120_000, world.one)
    assert not (world.one.home / "checkpoints").exists()
    world.logs[SHARD].trim(world.logs[SHARD].end - 1)
    late = world.fresh("four")
    world.until(lambda: state_of(late)[0] == "beginning")
    assert "[replication] checkpoint" in state_of(late)[1]
    world.close()


def test_a_copy_that_has_what_the_log_has_not_is_dropped_and_begins_anew(world: World) -> None:
    world.grow(world.one)
    world.pass_ms(500)
    position = copy_of(world.two).position
    world.two.end()
    path = world.two.exchanges[SHARD].copy
    copy = Replica(path)
    copy._store(stamped(7), position, position.number + 9, 100)
    copy._begin_flush()  # as RocksDB does by itself when a disk has room again
    copy._wait_for_flush()
    copy._leave()
    world.grow(world.one)
    world.one.host.retire()
    world.two.start()
    world.until(lambda: world.two.serves == [0, 1])
    assert contents(copy_of(world.two)) == contents(copy_of(world.one))
    assert pending(world.two) == 2


def test_a_log_that_has_lost_records_is_left_to_people(world: World) -> None:
    world.grow(world.one)
    world.pass_ms(500, *world.machines)
    position = copy_of(world.two).position
    world.one.end()
    world.two.end()
    log = world.logs[SHARD]
    log.cut(position.offset - 1)
    for _ in range(4):
        log.put(encode(LogRecord(RecordKind.MARKER, 0, 0)))
    before = sorted(path.name for path in world.two.exchanges[SHARD].copy.iterdir())
    world.two.start()
    world.pass_ms(2000, world.two)
    state, reason = state_of(world.two)
    assert state == "quarantined"
    assert "keep their copies" in reason
    assert world.two.exchanges[SHARD].wanted() is None
    assert {name for name in before if name.endswith(".sst")} <= {
        path.name for path in world.two.exchanges[SHARD].copy.iterdir()
    }
    world.one.start()


# --- the target -------------------------------------------------------------------------------------------------------


def test_two_hosts_do_not_write_the_same_shard_at_once(world: World) -> None:
    exchange = world.one.exchanges[SHARD]
    world.grow(world.one)
    world.until(lambda: exchange.made() is not None)
    with CheckpointStore(world.target, LOG, SHARD).writing(), pytest.raises(OverloadedError):
        keep(exchange, world.target)
    with CheckpointStore(world.target, LOG, 1).writing():
        assert keep(exchange, world.target) is not None, "another shard is nothing to it"


def test_a_keeper_that_was_killed_before_its_note_copies_nothing_again(world: World) -> None:
    exchange = world.one.exchanges[SHARD]
    world.grow(world.one)
    world.until(lambda: exchange.made() is not None)
    assert keep(exchange, world.target) is not None
    (world.one.home / "checkpoints/shard-0000/kept.json").unlink()
    assert keep(exchange, world.target) is None
    assert exchange.kept() is not None
    assert len(world.offsets()) == 1


def test_tables_that_have_not_changed_are_not_copied_again(world: World) -> None:
    world.grow(world.one, 500_000)
    exchange = world.one.exchanges[SHARD]
    world.until(lambda: exchange.made() is not None)
    first = keep(exchange, world.target)
    world.until(lambda: exchange.made() is None)
    world.grow(world.one)
    world.until(lambda: exchange.made() is not None)
    second = keep(exchange, world.target)
    assert first is not None
    assert second is not None
    assert first.copied_bytes >= 500_000
    assert second.size_bytes >= 500_000 > second.copied_bytes
