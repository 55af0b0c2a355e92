"""What a shard notes for its operator: what changed queues and consumers, once it is durable, and nothing of any message."""

import pytest

from fila_proto_zmq.commands import (
    CreateQueue,
    DeleteQueue,
    Enqueue,
    Goodbye,
    Heartbeat,
    MoveMessages,
    Pause,
    PurgeQueue,
    PutConfig,
    QueueOptions,
    Redrive,
    SetConfig,
    StoreMetrics,
    Verb,
)
from fila_proto_zmq.errors import InvalidConfigError, LuaCompilationError, StorageError
from fila_proto_zmq.events import (
    BreakerClosed,
    BreakerOpened,
    ClientLeft,
    ConfigDeleted,
    ConfigSet,
    ConsumerLost,
    Event,
    HookMissing,
    HookRefused,
    QueueCreated,
    QueueDeleted,
    QueueMoved,
    QueuePaused,
    QueuePurged,
    QueueRedriven,
    QueueResumed,
    QueueUpdated,
    StorageRecovered,
    StorageStalled,
)
from fila_proto_zmq.ids import client_name
from fila_worker.core.effects import ClientCall
from fila_worker.core.settings import ShardSettings
from fila_worker.core.store import StoreBatch
from fila_worker.process.shard_process import ShardProcess
from fila_worker.process.slots import Slot
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.hooked import hooked, on_enqueue, on_failure, send, update
from tests.support.shard.linked_shards import name_on
from tests.support.shard.shard import SHARDS, ShardHarness

CANARY = "canary"


def notes(shard: ShardHarness) -> list[Event]:
    """What was noted since this was last asked."""
    taken, shard.shard.notes = shard.shard.notes, []
    return taken


@pytest.fixture
def quiet(shard: ShardHarness) -> ShardHarness:
    """A shard with a queue ``q``, whose notes are all kept."""
    assert notes(shard) == [QueueCreated("q", 3)]
    return shard


# --- queues -----------------------------------------------------------------------------------------------------------


def test_a_queue_that_is_changed_paused_and_deleted(quiet: ShardHarness) -> None:
    update(quiet, max_attempts=3, default_ttl_ms=1000)
    quiet.ask(Pause(True))
    quiet.ask(Pause(True, "acme"))
    quiet.ask(Pause(False, "acme"))
    quiet.ask(Pause(False))
    quiet.enqueue(b"", b"")
    quiet.ask(DeleteQueue())
    assert notes(quiet) == [
        QueueUpdated("q", 3, ["default_ttl_ms", "max_attempts"]),
        QueuePaused("q", 3, None),
        QueuePaused("q", 3, "acme"),
        QueueResumed("q", 3, "acme"),
        QueueResumed("q", 3, None),
        QueueDeleted("q", 3, 2, idle=False),
    ]


def test_what_is_refused_changes_nothing_and_is_not_noted(quiet: ShardHarness) -> None:
    for command, queue in ((CreateQueue(QueueOptions()), "q"), (DeleteQueue(), "none"), (Pause(), "none"), (Redrive(0), "q")):
        quiet.send(command, queue)
    assert notes(quiet) == []


def test_a_queue_that_deletes_itself_says_so(quiet: ShardHarness) -> None:
    quiet.create("brief", idle_expiry_ms=1000)
    quiet.pass_time(5000)
    assert notes(quiet) == [QueueCreated("brief", 3), QueueDeleted("brief", 3, 0, idle=True)]


def test_a_purge_says_how_many(quiet: ShardHarness) -> None:
    quiet.enqueue(b"", b"", b"", key="acme")
    quiet.enqueue(b"", key="other")
    quiet.ask(PurgeQueue("acme"))
    quiet.ask(PurgeQueue())
    assert notes(quiet) == [QueuePurged("q", 3, "acme", 3, 0), QueuePurged("q", 3, None, 1, 0)]


def test_a_purge_in_steps_says_what_is_left(quiet: ShardHarness) -> None:
    quiet.limit(purge_messages_max=1)
    quiet.enqueue(b"", key="acme")
    quiet.ask(Enqueue([b"\0\0\0\0"], "acme", throttle_keys=[["t"]]))
    quiet.ask(PurgeQueue("acme"))
    quiet.ask(PurgeQueue("acme"))
    assert notes(quiet) == [QueuePurged("q", 3, "acme", 1, 1), QueuePurged("q", 3, "acme", 1, 0)]


def test_a_redrive_says_how_many_and_one_that_moved_nothing_is_none(quiet: ShardHarness) -> None:
    quiet.enqueue(b"", b"", key="acme")
    quiet.settle(Verb.FAIL, quiet.receive(2))
    quiet.ask(Redrive(1), "q.dlq")
    quiet.ask(Redrive(0, "acme"), "q.dlq")
    quiet.ask(Redrive(0), "q.dlq")
    assert notes(quiet) == [QueueRedriven("q.dlq", 3, None, 1, 1), QueueRedriven("q.dlq", 3, "acme", 1, 0)]


def test_a_move_says_how_many_went_where(quiet: ShardHarness) -> None:
    target = name_on(quiet.index, "aside")
    quiet.create(target)
    quiet.enqueue(b"", b"", key="acme")
    quiet.ask(MoveMessages(target, 1, "acme"))
    quiet.ask(MoveMessages(target, 0, "nobody"))
    assert notes(quiet)[-1:] == [QueueMoved("q", 3, target, "acme", 1, 1)]


# --- hooks ------------------------------------------------------------------------------------------------------------


def test_a_script_that_does_not_compile_is_noted_without_its_text(quiet: ShardHarness) -> None:
    with pytest.raises(LuaCompilationError, match=CANARY):
        quiet.create("bad", on_enqueue=f"{CANARY} {CANARY}")  # type: ignore[arg-type]
    with pytest.raises(LuaCompilationError):
        update(quiet, on_failure=CANARY)
    assert notes(quiet) == [HookRefused("bad", 3), HookRefused("q", 3)]


def test_a_queue_whose_hooks_compile_no_more_comes_back_and_says_so() -> None:
    shard = hooked(on_enqueue=on_enqueue("return {}"))

    def stricter(*_: object, **__: object) -> None:
        raise LuaCompilationError(f"{CANARY} is not allowed any more")

    shard.compile_hooks = stricter  # type: ignore[assignment]
    shard.restart()
    assert notes(shard) == [HookMissing("q", 3)]


def test_a_breaker_says_when_it_opens_and_when_it_closes_not_when_a_trial_fails() -> None:
    cooldown_ms = ShardSettings().lua_breaker_cooldown_ms
    shard = hooked(on_enqueue=on_enqueue(f"if msg.headers.bad then error('{CANARY}') end return {{}}"))
    notes(shard)
    send(shard, *[{"bad": CANARY}] * 5)
    opened = [BreakerOpened("q", 3, 3, cooldown_ms)]
    assert notes(shard) == opened
    send(shard, {})  # bypassed
    shard.pass_time(cooldown_ms)
    send(shard, {"bad": "1"})
    shard.pass_time(cooldown_ms)
    assert notes(shard) == []
    send(shard, {}, {})
    assert notes(shard) == [BreakerClosed("q", 3)]


def test_failures_that_do_not_open_it_are_no_news() -> None:
    shard = hooked(on_failure=on_failure("error('x')"))
    notes(shard)
    send(shard, {}, {})
    shard.nack(shard.receive(2))
    assert notes(shard) == []


# --- the runtime config -----------------------------------------------------------------------------------------------


def test_the_config_s_keys_are_noted_and_their_values_are_not(quiet: ShardHarness) -> None:
    quiet.shard.set_config(SetConfig("token", CANARY), quiet.now_ms)
    quiet.shard.set_config(SetConfig("token", None), quiet.now_ms)
    quiet.shard.set_config(SetConfig("token", None), quiet.now_ms)  # it is gone already
    with pytest.raises(InvalidConfigError):
        quiet.shard.set_config(SetConfig("throttle:x:rate", CANARY), quiet.now_ms)
    assert notes(quiet) == [ConfigSet("token", 1), ConfigDeleted("token", 2)]


def test_a_change_that_another_shard_judged_is_not_noted_again(quiet: ShardHarness) -> None:
    quiet.shard.put_config(PutConfig(7, {"a": "1"}), quiet.now_ms)
    assert notes(quiet) == []


# --- consumers --------------------------------------------------------------------------------------------------------


def test_a_lost_consumer_s_messages_are_counted(quiet: ShardHarness) -> None:
    quiet.enqueue(b"", b"", b"")
    quiet.subscribe(2)
    quiet.pass_time(quiet.settings.consumer_timeout_ms)
    assert notes(quiet) == [ConsumerLost(client_name(b"c1"), 3, 2, quiet.settings.consumer_timeout_ms)]


def test_a_consumer_that_has_nothing_left_is_forgotten_without_a_word(quiet: ShardHarness) -> None:
    quiet.enqueue(b"")
    quiet.ack(quiet.receive())
    quiet.pass_time(10 * quiet.settings.consumer_timeout_ms)
    assert notes(quiet) == []


def test_a_client_that_leaves_is_no_loss(quiet: ShardHarness) -> None:
    quiet.enqueue(b"", b"")
    quiet.receive(2)
    quiet.ask(Goodbye())
    quiet.ask(Goodbye())
    assert notes(quiet) == [ClientLeft(client_name(b"c1"), 3, 2)]


def test_messages_are_never_noted(quiet: ShardHarness) -> None:
    quiet.enqueue(*[b"x"] * 10)
    got = quiet.receive(6)
    quiet.ack(got[:2])
    quiet.nack(got[2:4], CANARY)
    quiet.settle(Verb.FAIL, got[4:])
    quiet.receive(4)
    for _ in range(4):
        quiet.ask(Heartbeat())
        quiet.pass_time(10_000)  # leases expire
    assert quiet.stats().expired == 4
    assert notes(quiet) == []


# --- storage ----------------------------------------------------------------------------------------------------------


class SlowStore(MemoryStore):
    """Reports the stall that a test gives it; a disk that really stalls takes minutes to make."""

    slow = False
    broken = False

    def metrics(self) -> StoreMetrics:
        metrics = super().metrics()
        metrics.stalled = self.slow
        return metrics

    def commit(self, batch: StoreBatch, *, sync: bool = False) -> None:
        if self.broken:
            raise StorageError("disk full")
        super().commit(batch, sync=sync)


def test_slow_storage_is_noted_once_until_it_is_fast_again() -> None:
    store = SlowStore()
    shard = ShardHarness(store)
    host = ShardProcess([Slot.of(shard.shard)], SHARDS)
    for slow in (False, True, True, False, False):
        store.slow = slow
        host.metrics.measured(1 << 40)
        host.turn(shard.now_ms)
    assert host.notes == [StorageStalled(3), StorageRecovered(3)]


def test_what_was_not_committed_is_not_noted() -> None:
    store = SlowStore()
    shard = ShardHarness(store)
    host = ShardProcess([Slot.of(shard.shard)], SHARDS)
    store.broken = True
    shard.shard.apply(ClientCall(b"c1", 1, "q", shard.now_ms), CreateQueue(QueueOptions()))
    host.turn(shard.now_ms)
    assert [note.event for note in host.notes] == ["storage.failed"]
