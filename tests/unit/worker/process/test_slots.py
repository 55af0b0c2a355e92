"""A shard that fails hurts itself only: it is recovered in place, a command to blame is refused, what does not heal is quarantined."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from fila_proto_zmq.codec import decode_body, encode_command
from fila_proto_zmq.commands import (
    CreateQueue,
    Delivered,
    Enqueue,
    Fault,
    GetQueueStats,
    ListQueues,
    ListSchedules,
    ListThrottles,
    Purged,
    PurgeQueue,
    QueueList,
    QueueOptions,
    QueueStats,
    Receive,
    Registered,
)
from fila_proto_zmq.errors import StorageError
from fila_proto_zmq.events import CommandRefused, ShardFailed, ShardOpened, ShardQuarantined, StorageFailed
from fila_proto_zmq.record import seal_envelope
from fila_worker.core import shard
from fila_worker.core import shard as shard_module
from fila_worker.core.keys import FIRST, LAST
from fila_worker.core.settings import ShardSettings
from fila_worker.core.store import DamageError, InUseError
from fila_worker.lua import compile_hooks
from fila_worker.process.failures import ShardFailures
from fila_worker.process.shard_process import ShardProcess
from fila_worker.process.slots import Patience, Slot
from fila_worker.process.suspects import Suspects, name_of
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.shard_process import CLIENT, NAMES, SHARDS_TOTAL, HostHarness

HURT, SOUND = NAMES[2], NAMES[3]


class Poisoned:
    """A verb that breaks its shard for one queue."""

    def __init__(self, verb: Callable[..., Any], queue: str) -> None:
        self._verb = verb
        self.queue = queue
        self.calls = 0

    def __call__(self, shard: Any, call: Any, command: Any) -> Any:
        if call.queue == self.queue:
            self.calls += 1
            raise RuntimeError("a defect")
        return self._verb(shard, call, command)


@pytest.fixture
def host() -> HostHarness:
    harness = HostHarness()
    for name in (HURT, SOUND):
        harness.ask(CreateQueue(QueueOptions()), name)
        harness.ask(Enqueue([seal_envelope(b"kept")]), name)
    return harness


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Poisoned:
    verb = Poisoned(shard.VERBS[PurgeQueue], HURT)
    monkeypatch.setitem(shard.VERBS, PurgeQueue, verb)
    return verb


def purge(host: HostHarness, queue: str = HURT) -> list[list[bytes]]:
    """What comes out after a purge, in its turn and in the next ones, in which a shard may recover."""
    host.requests += 1
    frame = [CLIENT, *encode_command(PurgeQueue(), host.requests, queue)]
    sent = host.exchange(frame)
    return sent + settle(host)


def settle(host: HostHarness) -> list[list[bytes]]:
    """Turns until no shard has a step to take, and the router's word that it knows."""
    sent: list[list[bytes]] = []
    for _ in range(100):
        if host.host.slots.opening and host.host.next_due(host.now_ms) == 0:
            sent += host.exchange()
    host.host.registered(Registered(host.host.config.version), host.now_ms)
    return sent


def notes(host: HostHarness, kind: type) -> list[Any]:
    return [note for note in host.host.notes if isinstance(note, kind)]


def pending(host: HostHarness, queue: str) -> int:
    stats = host.ask(GetQueueStats(), queue)
    assert isinstance(stats, QueueStats), stats
    return stats.info.pending


def refusal(host: HostHarness, queue: str = HURT) -> Fault:
    fault = host.ask(GetQueueStats(), queue)
    assert isinstance(fault, Fault)
    return fault


def test_a_shard_that_fails_is_recovered_in_place_and_the_others_go_on(host: HostHarness, poisoned: Poisoned) -> None:
    offers, epoch = host.host.offers, host.host.shards[2].epoch
    host.requests += 1
    host.host.accept([CLIENT, *encode_command(PurgeQueue(), host.requests, HURT)], host.now_ms)
    assert 2 not in host.host.shards
    assert host.host.offers > offers
    assert pending(host, SOUND) == 1, "in the very turn"
    settle(host)
    assert host.host.shards[2].epoch > epoch
    assert pending(host, HURT) == 1
    (told,) = notes(host, ShardFailed)
    assert (told.shard, told.error, bool(told.trace)) == (2, "RuntimeError", True)
    assert [note.shard for note in notes(host, ShardOpened)] == [2]


def test_what_was_sent_to_its_earlier_life_is_left_to_the_router_to_answer(host: HostHarness, poisoned: Poisoned) -> None:
    stats = [CLIENT, *encode_command(GetQueueStats(), 90, HURT)]
    bad = [CLIENT, *encode_command(PurgeQueue(), 91, HURT)]
    assert host.exchange(stats, bad, stats) == [], "the first one's answer was not committed"
    before = host.host.offers - 1
    for _ in range(20):
        assert host.exchange(stats) == []
    assert 2 in host.host.shards, "recovered by now"
    host.host.registered(Registered(), host.now_ms, before)
    assert host.exchange(stats) == []
    host.host.registered(Registered(), host.now_ms, host.host.offers)
    assert len(host.exchange(stats)) == 1


def test_no_list_lacks_a_shard_before_the_router_knows_that_it_was_lost(host: HostHarness, poisoned: Poisoned) -> None:
    lists = [ListQueues(), ListSchedules(), ListThrottles()]
    host.exchange([CLIENT, *encode_command(PurgeQueue(), 90, HURT)])
    refusals = [host.ask(command, "") for command in lists]
    assert [(each.code, each.details["shard"]) for each in refusals if isinstance(each, Fault)] == 3 * [
        ("SHARD_UNAVAILABLE", 2)
    ]
    partial = host.ask(ListQueues(partial=True), "")
    assert isinstance(partial, QueueList)
    assert 2 not in partial.shards
    settle(host)
    assert not [each for each in (host.ask(command, "") for command in lists) if isinstance(each, Fault)]


def test_a_command_that_fails_twice_is_refused_from_then_on(host: HostHarness, poisoned: Poisoned) -> None:
    assert purge(host) == purge(host) == []
    (answer,) = purge(host)
    fault = decode_body(Fault, answer[3])
    (told,) = notes(host, CommandRefused)
    assert (told.shard, told.command, told.queue) == (2, "PurgeQueue", HURT)
    assert (fault.code, fault.details["failure"]) == ("INTERNAL", told.failure)
    assert told.failure in fault.text
    for _ in range(10):
        purge(host)
    assert poisoned.calls == 2
    assert pending(host, HURT) == 1
    assert host.ask(PurgeQueue(), SOUND) == Purged(1, 0), "of another queue it is another command"


def test_a_refused_command_is_tried_once_more_after_a_while(host: HostHarness, poisoned: Poisoned) -> None:
    purge(host), purge(host)
    host.now_ms += 600_000
    poisoned.queue = "none"
    assert host.ask(PurgeQueue(), HURT) == Purged(1, 0)


def test_commands_that_shared_a_failing_turn_are_cleared_one_by_one(
    host: HostHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not known which of three commands breaks the commit: each gets a turn of its own, and the one to blame is found."""
    turn = shard_module.Shard.turn

    def breaks(shard: shard_module.Shard, now_ms: int) -> Any:
        if any(len(lane.throttle_keys) for lane in shard.lanes.values()):
            raise RuntimeError("a defect")
        return turn(shard, now_ms)

    monkeypatch.setattr(shard_module.Shard, "turn", breaks)
    good = [[CLIENT, *encode_command(Enqueue([seal_envelope(b"%d" % n)]), 90 + n, HURT)] for n in (1, 2)]
    bad = [CLIENT, *encode_command(Enqueue([seal_envelope(b"bad")], throttle_keys=[["t"]]), 99, HURT)]
    assert host.exchange(good[0], bad, good[1]) == []
    settle(host)
    sent = host.exchange(good[0], bad, good[1])
    assert [frame[1][-1] for frame in sent] == [91], "committed before the bad one had its turn"
    settle(host)
    (fault,) = host.exchange(bad)
    assert decode_body(Fault, fault[3]).code == "INTERNAL"
    assert len(host.exchange(good[1])) == 1
    assert pending(host, HURT) == 3


@pytest.fixture
def slowly_poisoned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Purges break the shards of these queues in a later turn than the one in which they came."""
    queues = [HURT]

    def verb(shard: Any, call: Any, command: Any) -> Any:
        for _ in range(8):
            yield 1_000_000
        if call.queue in queues:
            raise RuntimeError("a defect")
        return Purged(0, 0)

    monkeypatch.setitem(shard.VERBS, PurgeQueue, verb)
    return queues


def innocent(number: int) -> list[bytes]:
    return [CLIENT, *encode_command(Enqueue([seal_envelope(b"%d" % number)]), 1000 + number, HURT)]


def test_a_command_that_fails_in_a_later_turn_is_refused_and_no_other_is_blamed(
    host: HostHarness, slowly_poisoned: list[str]
) -> None:
    for attempt in range(2):
        sent = host.exchange([CLIENT, *encode_command(PurgeQueue(), 90, HURT)])
        turns = 0
        while len(notes(host, ShardFailed)) == attempt:
            assert sent == []
            sent = host.exchange(innocent(turns)) and []
            turns += 1
        assert turns > 1
        settle(host)
    (answer,) = host.exchange([CLIENT, *encode_command(PurgeQueue(), 90, HURT)])
    fault = decode_body(Fault, answer[3])
    (told,) = notes(host, CommandRefused)
    assert (fault.code, fault.details["failure"]) == ("INTERNAL", told.failure)
    assert not notes(host, ShardQuarantined)
    assert len(host.exchange(innocent(0))) == 1, "what shared its last turn is carried out with others"


def test_a_suspect_is_acquitted_with_its_last_step(host: HostHarness, slowly_poisoned: list[str]) -> None:
    purge(host)
    while not notes(host, ShardFailed):
        host.exchange()
    settle(host)
    slowly_poisoned.clear()
    host.exchange([CLIENT, *encode_command(PurgeQueue(), 90, HURT)])
    assert host.host.failures.suspects.files, "it may yet fail"
    sent: list[list[bytes]] = []
    while not sent:
        sent = host.exchange()
    assert not host.host.failures.suspects.files


def test_a_shard_is_not_quarantined_for_commands_that_fail_in_steps(host: HostHarness, slowly_poisoned: list[str]) -> None:
    """Each is accused once and convicted once; the failures of a minute are forgiven with that."""
    for _ in range(10):
        purge(host)
        for _ in range(10):
            host.exchange()
        settle(host)
    assert len(notes(host, ShardFailed)) == 2
    assert pending(host, HURT) == 1


def test_a_shard_that_fails_again_and_again_by_itself_is_quarantined(
    host: HostHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = shard_module.Shard.turn

    def breaks(shard: shard_module.Shard, now_ms: int) -> Any:
        if shard.index == 2:
            raise KeyError("a defect")
        return turn(shard, now_ms)

    monkeypatch.setattr(shard_module.Shard, "turn", breaks)
    for _ in range(30):
        host.exchange()
    host.host.registered(Registered(), host.now_ms)
    assert len(notes(host, ShardFailed)) == 3
    (told,) = notes(host, ShardQuarantined)
    (outage,) = host.host.slots.outages
    assert (outage.shard, outage.state) == (2, "quarantined")
    assert told.failure in outage.reason
    fault = refusal(host)
    assert (fault.code, fault.details["state"], fault.details["refused"]) == ("SHARD_UNAVAILABLE", "quarantined", True)
    assert pending(host, SOUND) == 1
    assert host.host.next_due(host.now_ms) is None


def test_failures_far_apart_do_not_quarantine(host: HostHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(6):
        with monkeypatch.context() as patch:
            patch.setattr(host.host.shards[2], "turn", broken)
            host.exchange()
        settle(host)
        host.now_ms += 30_000
    assert len(notes(host, ShardFailed)) == 6
    assert host.host.slots.outages == []


def test_damage_quarantines_at_once_closes_the_store_and_writes_nothing(
    host: HostHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = host.host.shards[2].store
    closed: list[bool] = []
    monkeypatch.setattr(store, "close", lambda: closed.append(True))
    before = [dict(store.scan(FIRST, LAST, family)) for family in store.families]
    monkeypatch.setattr(store, "get_many", lambda keys, family: damaged())
    host.exchange([CLIENT, *encode_command(Enqueue([seal_envelope(b"x")], dedup_id="d"), 90, HURT)])
    host.host.registered(Registered(), host.now_ms)
    assert closed == [True]
    assert [dict(store.scan(FIRST, LAST, family)) for family in store.families] == before
    assert refusal(host).details["reason"] == "/data/shard-0002/000004.log is damaged"
    assert isinstance(host.ask(Receive(1, 0), SOUND), Delivered)


def test_a_full_disk_is_waited_for_with_growing_pauses(host: HostHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    store = host.host.shards[2].store
    tries: list[int] = []

    def full(batch: object, **_options: bool) -> None:
        tries.append(host.now_ms)
        raise StorageError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store, "commit", full)
        assert host.exchange([CLIENT, *encode_command(Enqueue([seal_envelope(b"x")]), 90, HURT)]) == []
        host.host.registered(Registered(), host.now_ms)
        assert "No space left" in refusal(host).text
        for _ in range(3000):
            host.now_ms += 10
            host.exchange()
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert pauses == sorted(pauses)
    assert (pauses[0] <= 250, 5000 <= pauses[-1] <= 5300) == (True, True)
    assert len(notes(host, StorageFailed)) == 1, "told once"
    assert [outage.state for outage in host.host.slots.outages] == ["waiting"]
    host.now_ms += 5_000
    settle(host)
    assert pending(host, HURT) == 1
    assert not notes(host, ShardQuarantined)


def broken(now_ms: int) -> None:
    raise IndexError(now_ms)


def opening(index: int, open_store: Callable[[], MemoryStore]) -> Slot:
    return Slot(index, SHARDS_TOTAL, ShardSettings(), compile_hooks, open_store)


def damaged() -> MemoryStore:
    raise DamageError("/data/shard-0002/000004.log is damaged")


def test_a_shard_that_opens_knows_the_room_on_the_disk() -> None:
    """Else it takes messages in until the next look, on a full disk, too."""
    host = ShardProcess([opening(0, MemoryStore)], SHARDS_TOTAL, 1)
    host.metrics.measured(12_345)
    while not host.shards:
        host.turn(1_000)
    assert host.shards[0].free_disk_bytes == 12_345


def test_shards_are_opened_turn_by_turn_and_a_damaged_one_does_not_keep_the_others() -> None:
    host = HostHarness(0)
    host.host = ShardProcess([opening(0, MemoryStore), opening(2, damaged)], SHARDS_TOTAL, 1)
    assert [outage.state for outage in host.host.slots.outages] == ["opening", "opening"]
    assert refusal(host).details["state"] == "opening"
    settle(host)
    assert list(host.host.shards) == [0]
    assert refusal(host).details["reason"] == "/data/shard-0002/000004.log is damaged"


def test_a_store_that_another_process_has_ends_the_start() -> None:
    def in_use() -> MemoryStore:
        raise InUseError("in use")

    host = ShardProcess([opening(0, in_use)], SHARDS_TOTAL, 1)
    with pytest.raises(InUseError):
        host.turn(1)


def test_how_often_a_shard_may_fail_is_a_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    host = ShardProcess([opening(0, MemoryStore)], SHARDS_TOTAL, 1, failures=ShardFailures(Patience(failures_max=1)))
    for _ in range(20):
        host.turn(1)
    monkeypatch.setattr(host.shards[0], "turn", broken)
    host.turn(1)
    assert [outage.state for outage in host.slots.outages] == ["quarantined"]


def test_only_so_many_suspects_are_remembered() -> None:
    suspects = Suspects(suspects_max=3)
    names = [name_of(PurgeQueue(f"{number}"), "q") for number in range(5)]
    for name in names:
        suspects.accuse(name, "f")
    assert [name in suspects for name in names] == [False, False, True, True, True]
    assert name_of(PurgeQueue("1"), "q") == names[1] not in {name_of(PurgeQueue("1"), "r"), name_of(Receive(1), "q")}
