"""Effects are held until the commits that they depend on are confirmed, and not longer."""

from dataclasses import replace
from typing import Any

import pytest

from fila_proto_zmq.codec import decode_body, encode_command
from fila_proto_zmq.commands import (
    Command,
    ConfigChange,
    CreateQueue,
    DeleteQueue,
    Enqueue,
    Enqueued,
    Fault,
    GetConfig,
    GetHosts,
    GetMetrics,
    GetQueueStats,
    HostList,
    ListQueues,
    Metrics,
    PutConfig,
    QueueOptions,
    Reply,
    SetConfig,
)
from fila_proto_zmq.errors import StorageError
from fila_proto_zmq.frames import ERROR, unpack_header
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.recovery import recover
from fila_worker.core.settings import ShardSettings
from fila_worker.core.store import StoreBatch
from fila_worker.process.held import LOG_SLOW_MS
from fila_worker.process.shard_process import LOG_FULL_MS, ShardProcess
from fila_worker.process.slots import Slot
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.shard_process import CLIENT, NAMES, SHARDS_TOTAL, compile_hooks

SMALL = ShardSettings(limits=replace(ShardSettings().limits, unconfirmed_bytes_max=10))


class SlowStore(MemoryStore):
    """Confirms what a test tells it to."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self._confirmed = 0
        self.size = 0
        self.broken: StorageError | None = None

    def commit(self, batch: StoreBatch, *, sync: bool = False) -> None:
        super().commit(batch, sync=sync)
        if not self.slow:
            self._confirmed = self.committed

    def confirm(self, count: int = 1_000_000) -> None:
        self._confirmed = min(self.committed, self._confirmed + count)

    @property
    def confirmed(self) -> int:
        return self._confirmed

    @property
    def unconfirmed_bytes(self) -> int:
        return self.size

    @property
    def failure(self) -> StorageError | None:  # type: ignore[override]
        return self.broken


class Bench:
    """A host of shards 0 and 1, whose logs are slow from now on, and whose frames are kept by request."""

    def __init__(self, settings: ShardSettings = ShardSettings()) -> None:  # noqa: B008  # it is frozen
        self.now_ms = 1_000_000
        self.stores = [SlowStore(), SlowStore()]
        shards = [
            recover(store, settings, compile_hooks, index=index, shards=SHARDS_TOTAL, now_ms=0)
            for index, store in enumerate(self.stores)
        ]
        self.host = ShardProcess(map(Slot.of, shards), SHARDS_TOTAL, self.now_ms)
        self.answers: dict[int, Reply | Fault] = {}
        self._commands: dict[int, Command] = {}
        for request, name in ((1, NAMES[0]), (2, NAMES[1])):
            self.say(CreateQueue(QueueOptions()), name, request)
        for store in self.stores:
            store.slow = True

    def say(self, *frame: Any) -> None:
        """Have the host carry out ``command, queue, request`` in a turn of its own."""
        command, queue, request = frame
        self._commands[request] = command
        self.host.begin_turn(self.now_ms)
        self.host.accept([CLIENT, *encode_command(command, request, queue)], self.now_ms)
        self.take_in()

    def turn(self, passed_ms: int = 0) -> None:
        self.now_ms += passed_ms
        self.host.begin_turn(self.now_ms)
        self.take_in()

    def take_in(self) -> None:
        for effect in self.host.turn(self.now_ms):
            raw, _, body = effect.frames()
            header = unpack_header(raw)
            kind = Fault if header.flags & ERROR else self._commands[header.request].reply

            self.answers[header.request] = decode_body(kind, body)

    def enqueue(self, request: int, shard: int = 0) -> None:
        self.say(Enqueue([seal_envelope(b"x", {})]), NAMES[shard], request)

    def new(self) -> list[int]:
        """The requests that were answered, without those of the beginning."""
        return [request for request in self.answers if request > 2]


def test_an_answer_waits_for_its_commit_and_the_other_shards_for_nothing() -> None:
    bench = Bench()
    bench.enqueue(10)
    bench.stores[1].slow = False
    bench.enqueue(11, shard=1)
    assert bench.new() == [11]
    bench.stores[0].confirm()
    bench.turn()
    assert bench.new() == [11, 10]
    assert isinstance(bench.answers[10], Enqueued)


def test_a_log_is_looked_at_while_it_has_something_to_confirm() -> None:
    bench = Bench()
    slots = bench.host.slots
    assert [slots[shard].watches_log for shard in (0, 1)] == [False, False]
    bench.enqueue(10)
    assert [slots[shard].watches_log for shard in (0, 1)] == [True, False]
    bench.turn()
    assert slots[0].watches_log
    bench.stores[0].confirm()
    bench.turn()
    assert bench.new() == [10]
    assert not slots[0].watches_log


def test_answers_go_in_the_order_of_their_commits() -> None:
    bench = Bench()
    for request in (10, 11, 12):
        bench.enqueue(request)
    bench.stores[0].confirm(2)
    bench.turn()
    assert bench.new() == [10, 11]


def test_what_was_only_read_waits_for_what_it_may_show() -> None:
    bench = Bench()
    bench.enqueue(10)
    bench.say(GetQueueStats(), NAMES[0], 11)
    bench.say(ListQueues(), "", 12)
    assert bench.new() == []
    bench.stores[0].confirm()
    bench.turn()
    assert sorted(bench.new()) == [10, 11, 12]


def test_an_answer_that_needs_no_commit_goes_at_once_when_none_waits() -> None:
    bench = Bench()
    bench.say(GetQueueStats(), NAMES[0], 10)
    assert bench.new() == [10]


def test_figures_wait_for_nothing() -> None:
    bench = Bench()
    bench.enqueue(10)
    bench.say(GetMetrics(), "", 11)
    assert bench.new() == [11]


def test_a_host_without_a_replicated_log_has_no_copies() -> None:
    bench = Bench()
    bench.enqueue(10)
    for request, command in ((11, GetHosts()), (12, GetMetrics())):
        bench.say(command, "", request)
    hosts, metrics = bench.answers[11], bench.answers[12]
    assert isinstance(hosts, HostList)
    assert isinstance(metrics, Metrics)
    assert (hosts.workers, metrics.workers[0].host) == ([], None)


def test_a_change_of_the_config_is_answered_once_its_owner_has_confirmed_it() -> None:
    bench = Bench()
    bench.say(SetConfig("a", "1"), "", 10)
    assert bench.new() == []
    bench.stores[0].confirm()
    bench.turn()
    assert bench.new() == [10]


def test_a_log_that_fails_takes_its_shard_and_what_was_held_with_it() -> None:
    bench = Bench()
    bench.enqueue(10)
    bench.say(SetConfig("a", "1"), "", 11)
    bench.say(ListQueues(), "", 12)
    bench.stores[0].broken = StorageError("the log is gone")
    bench.turn()
    listed = bench.answers[12]
    assert isinstance(listed, Fault), "it waits for the other shards only, and would show what may be lost"
    assert (listed.code, listed.details["shard"], bench.new()) == ("SHARD_UNAVAILABLE", 0, [12])
    assert [(outage.shard, outage.state) for outage in bench.host.slots.outages] == [(0, "waiting")]
    assert bench.host.failed == [0]
    assert not bench.host.holds_effects
    bench.stores[0].broken = None
    for _ in range(60):
        bench.turn(100)
        bench.stores[0].confirm()
    assert sorted(bench.host.shards) == [0, 1]
    assert bench.new() == [12]


def test_no_lease_ends_while_its_holder_cannot_be_answered() -> None:
    bench = Bench()
    bench.enqueue(10)
    bench.turn(LOG_SLOW_MS)
    assert not bench.host.shards[0].behind
    bench.turn(1)
    assert (bench.host.shards[0].behind, bench.host.shards[1].behind) == (True, False)
    bench.stores[0].confirm()
    bench.turn()
    bench.turn()
    assert not bench.host.shards[0].behind


@pytest.mark.parametrize("other", [False, True])
def test_a_log_with_too_much_to_confirm_stops_reading_for_a_moment_and_then_its_shard_alone(*, other: bool) -> None:
    bench = Bench(SMALL)
    bench.enqueue(10)
    bench.stores[0].size = 11
    bench.turn()
    assert (bench.host.log_is_full, bench.host.full) == (True, True)
    bench.turn(LOG_FULL_MS)
    assert (bench.host.log_is_full, bench.host.full) == (False, False)
    bench.enqueue(11, shard=int(other))
    if other:
        bench.stores[1].confirm()
        bench.turn()
        assert isinstance(bench.answers[11], Enqueued)
    else:
        refused = bench.answers[11]
        assert isinstance(refused, Fault)
        assert (refused.code, refused.details["refused"]) == ("OVERLOADED", True)
    bench.stores[0].size = 10
    bench.enqueue(12)
    bench.stores[0].confirm()
    bench.turn()
    assert isinstance(bench.answers[12], Enqueued)


def test_a_shard_serves_once_its_epoch_is_confirmed() -> None:
    store = SlowStore()
    store.slow = True
    slot = Slot(0, SHARDS_TOTAL, ShardSettings(), compile_hooks, lambda: store)
    host = ShardProcess([slot], SHARDS_TOTAL, 0)
    for now_ms in range(20):
        host.turn(now_ms)
    assert (sorted(host.shards), host.next_due(20)) == ([], None)
    store.confirm()
    host.turn(20)
    assert sorted(host.shards) == [0]


def test_a_list_shows_no_queue_that_was_lost_with_its_shard() -> None:
    bench = Bench()
    bench.say(DeleteQueue(), NAMES[1], 10)
    bench.say(ListQueues(), "", 11)
    bench.say(SetConfig("a", "1"), "", 12)
    bench.say(GetConfig("a"), "", 13)
    bench.stores[1].broken = StorageError("gone")
    bench.turn()
    bench.stores[0].confirm()
    bench.turn()
    kinds = {request: type(bench.answers[request]) for request in bench.new()}
    assert kinds == {11: Fault, 12: ConfigChange, 13: Fault}


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_said_of_the_log_of_a_shard_that_was_dropped_meanwhile(fails: bool) -> None:
    bench = Bench()
    bench.enqueue(10, shard=1)
    command = PutConfig(1, {"a": "1"})
    bench._commands[11] = command
    bench.host.accept([b"", *encode_command(command, 11)], bench.now_ms)
    bench.turn()
    bench.stores[0].confirm()
    if fails:
        bench.stores[1].broken = StorageError("gone")
    else:
        bench.stores[1].confirm()
    bench.turn()
    bench.turn()
    assert (11 in bench.answers) is not fails


def test_a_change_of_the_config_is_unsettled_until_its_log_has_it() -> None:
    bench = Bench()
    bench.enqueue(10)
    assert not bench.host.config.unsettled
    bench.say(SetConfig("a", "1"), "", 11)
    assert bench.host.config.unsettled
    bench.stores[0].confirm(1)
    assert bench.host.config.unsettled, "the enqueue came first"
    bench.stores[0].confirm(1)
    assert not bench.host.config.unsettled


def test_a_config_that_is_set_to_what_it_is_waits_for_nothing() -> None:
    bench = Bench()
    bench.say(SetConfig("a", None), "", 10)
    bench.turn()
    assert not bench.host.config.unsettled, "no commit comes"
