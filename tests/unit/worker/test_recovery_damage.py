"""Damage: records that can't be read, or contradict each other, are reported before anything is written."""

from collections.abc import Callable, Generator
from dataclasses import replace

import msgspec
import pytest

from fila_proto_zmq.commands import Enqueue, Receive, Verb
from fila_proto_zmq.errors import StorageError
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.effects import ClientCall
from fila_worker.core.keys import FIRST, LAST
from fila_worker.core.recovery import recover, recover_in_steps
from fila_worker.core.settings import Limits, ShardSettings
from fila_worker.core.shard import Shard
from fila_worker.core.store import DamageError, Families, WrongStoreError
from fila_worker.lua import compile_hooks
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.shard import SHARDS, ShardHarness


def content(store: MemoryStore) -> list[dict[bytes, bytes]]:
    return [dict(store.scan(FIRST, LAST, family)) for family in store.families]


def with_messages() -> MemoryStore:
    """The store of a shard with pending and leased messages of several keys."""
    shard = ShardHarness()
    shard.create()
    for key in "abc":
        shard.enqueue(b"1", b"2", key=key)
    shard.receive(2)
    shard.restart()
    assert isinstance(shard.store, MemoryStore)
    return shard.store


def cut(family: str) -> Callable[[MemoryStore], None]:
    """Every record of a family loses its last byte."""

    def damage(store: MemoryStore) -> None:
        records = getattr(store.families, family)
        for key in list(records):
            records[key] = records[key][:-1]

    return damage


def vanish(family: str) -> Callable[[MemoryStore], None]:
    return lambda store: getattr(store.families, family).clear()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (cut("queues"), "record of queue number"),
        (cut("lanes"), "record of lane"),
        (cut("leases"), "record of lease"),
        (cut("ledger"), "contradict"),
        (vanish("queues"), "which has no record"),
        (vanish("lanes"), "contradict"),
    ],
    ids=["queues", "lanes", "leases", "ledger", "no queues", "no lanes"],
)
def test_damaged_records_are_reported_and_nothing_is_written(damage: Callable[[MemoryStore], None], told: str) -> None:
    store = with_messages()
    damage(store)
    before = content(store)
    with pytest.raises(DamageError, match=told):
        recover(store, ShardSettings(), compile_hooks, index=3, shards=SHARDS, now_ms=1_000_000)
    assert content(store) == before


def test_a_store_of_another_shard_is_no_damage() -> None:
    with pytest.raises(WrongStoreError):
        recover(with_messages(), ShardSettings(), compile_hooks, index=4, shards=SHARDS, now_ms=1_000_000)


def test_counted_messages_that_are_not_stored_are_damage() -> None:
    store = with_messages()
    shard = recover(store, ShardSettings(), compile_hooks, index=3, shards=SHARDS, now_ms=1_000_000)
    store.families.messages.clear()
    shard.apply(ClientCall(b"c", 1, "q", 1_000_000), Receive(1, 0))
    with pytest.raises(DamageError, match="pending"):
        shard.turn(1_000_000)


def test_what_the_disk_refuses_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn's writes may be lost: its shard has to be recovered, not to go on."""
    store = with_messages()
    shard = recover(store, ShardSettings(), compile_hooks, index=3, shards=SHARDS, now_ms=1_000_000)
    monkeypatch.setattr(store, "get_many", refuse)
    with pytest.raises(StorageError):
        shard.apply(ClientCall(b"c", 1, "q", 1_000_000), Enqueue([seal_envelope(b"x")], dedup_id="d"))
    assert not shard.effects


def refuse(*_arguments: object) -> None:
    raise StorageError("RocksDB refused a read")


def test_recovery_goes_in_steps_of_a_bounded_number_of_records() -> None:
    shard = ShardHarness()
    shard.create()
    for number in range(50):
        shard.enqueue(b"x", key=f"k{number}")
    settings = replace(ShardSettings(), limits=Limits(recovery_records_max=10))
    steps = recover_in_steps(shard.store, settings, compile_hooks, index=3, shards=SHARDS, now_ms=shard.now_ms)
    families: Families = shard.store.families
    identity = dict(shard.store.scan(FIRST, LAST, families.state))
    assert sum(1 for _ in shard.store.scan(FIRST, LAST, families.lanes)) == 50
    recovered, taken = finish(steps, shard.now_ms, lambda: dict(shard.store.scan(FIRST, LAST, families.state)) == identity)
    assert taken >= 10, "lanes are read and activated, ten a step"
    assert recovered.queues["q"].pending == 50


def finish(steps: Generator[None, int | None, Shard], now_ms: int, holds: Callable[[], bool]) -> tuple[Shard, int]:
    """Take all steps at one time, with something that must hold before each but the first; the shard and how many it took."""
    next(steps)
    taken = 1
    while True:
        assert holds()
        try:
            steps.send(now_ms)
        except StopIteration as done:
            return done.value, taken
        taken += 1


def test_consumers_have_their_whole_timeout_from_the_time_at_which_their_leases_are_recovered() -> None:
    shard = ShardHarness()
    shard.create()
    shard.enqueue(b"x")
    shard.receive()
    steps = recover_in_steps(shard.store, shard.settings, compile_hooks, index=3, shards=SHARDS, now_ms=shard.now_ms)
    late_ms = shard.now_ms + 10_000
    recovered, _ = finish(steps, late_ms, lambda: True)
    assert recovered.consumers.next_loss() == late_ms + shard.settings.consumer_timeout_ms


def test_an_identity_that_cannot_be_read_is_damage() -> None:
    store = with_messages()
    store.families.state[b"identity"] = msgspec.msgpack.encode("?")
    with pytest.raises(DamageError, match="identity"):
        recover(store, ShardSettings(), compile_hooks, index=3, shards=SHARDS, now_ms=0)


# --- a message's record -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [Verb.NACK, Verb.RETRY, Verb.FAIL, Verb.DEFER, Verb.RELEASE])
def test_a_damaged_message_is_no_refusal_of_the_command_that_came_across_it(verb: Verb) -> None:
    """Some of the command is done in memory by then, and must not become durable."""
    shard = ShardHarness()
    shard.create(max_in_flight_per_key=9)
    shard.enqueue(b"0", b"1", ttl_ms=60_000)
    got = shard.receive(2)
    family = shard.store.families.messages
    last = list(family)[-1]
    family[last] = family[last][:30]
    before = content(shard.store)  # type: ignore[arg-type]
    with pytest.raises(DamageError, match="a message's record can't be read"):
        shard.settle(verb, got)
    assert content(shard.store) == before  # type: ignore[arg-type]
