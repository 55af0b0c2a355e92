"""Recovery: the shard after a crash is the shard before it, as far as it was confirmed."""

import msgspec
import pytest

from fila_proto_zmq.commands import Enqueue, Extend, Settle, Subscribe, Verb
from fila_proto_zmq.errors import StorageError
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.effects import ClientCall
from fila_worker.core.recovery import EPOCHS_SKIPPED, FORMAT, begin_anew, recover, recover_in_steps
from fila_worker.core.settings import Limits, ShardSettings
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.shard import SHARDS, ShardHarness, compile_lua, fences


def payloads(got: list) -> list[bytes]:
    return [each.payload for each in got]


def keys_in_order(shard: ShardHarness, count: int) -> list[bytes]:
    got = shard.receive(count)
    shard.ack(got)
    return payloads(got)


# --- what was told ----------------------------------------------------------------------------------------------------


def test_an_empty_store_is_a_new_shard() -> None:
    shard = ShardHarness()
    assert (shard.shard.epoch, shard.shard.queues) == (1, {})


def test_pending_messages_are_there(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1", key="a")
    shard.enqueue(b"2", key="b", priority=3)
    shard.restart()
    assert shard.counts() == (3, 0, 0)
    assert sorted(keys_in_order(shard, 9)) == [b"0", b"1", b"2"]


def test_nothing_of_an_uncommitted_turn_is_there(shard: ShardHarness) -> None:
    shard.enqueue(b"committed")
    got = shard.receive()
    shard.shard.apply(ClientCall(b"c1", 90, "q", shard.now_ms), Enqueue([seal_envelope(b"lost")]))
    shard.shard.apply(ClientCall(b"c1", 91, "q", shard.now_ms), Settle(Verb.ACK, fences(got)))
    shard.restart()
    assert shard.counts() == (0, 1, 0)
    shard.ack(got)


def test_an_acked_message_does_not_return(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1", b"2")
    shard.ack(shard.receive(2))
    shard.restart()
    assert keys_in_order(shard, 9) == [b"2"]


def test_restarting_again_and_again_changes_nothing(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    shard.enqueue(b"", delay_ms=100_000)
    shard.receive(1)
    for _ in range(5):
        shard.restart()
        assert shard.counts() == (1, 1, 1)


# --- leases -----------------------------------------------------------------------------------------------------------


def test_leases_are_still_held_and_can_be_settled(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1", b"2")
    got = shard.receive(2)
    shard.restart()
    assert shard.counts() == (1, 2, 0)
    assert payloads(shard.receive(9, client=b"c2")) == [b"2"]
    shard.ack(got)
    assert shard.counts() == (0, 1, 0)


def test_a_lease_ends_when_it_was_to_end(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    shard.receive()
    shard.now_ms += 12_000
    shard.restart()
    shard.pass_time(12_000)
    shard.heartbeat()
    shard.pass_time(5_999)
    assert shard.counts() == (0, 1, 0)
    shard.pass_time(1)
    assert [(each.attempts, each.error) for each in shard.receive()] == [(1, "lease expired")]


def test_a_lease_that_ended_meanwhile_expires_at_once(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    got = shard.receive()
    shard.now_ms += 60_000
    shard.restart()
    assert [fault.code for _, _, fault in shard.settle(Verb.ACK, got).faults] == ["LEASE_EXPIRED"]
    assert [each.attempts for each in shard.receive()] == [1]


def test_consumers_get_their_whole_timeout_to_come_back(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    shard.receive()
    shard.now_ms += 14_000
    shard.restart()
    shard.pass_time(14_999)
    assert shard.counts() == (0, 1, 0)
    shard.pass_time(1)
    assert [(each.attempts, each.error) for each in shard.receive()] == [(1, "consumer lost")]


@pytest.mark.parametrize("verb", list(Verb))
def test_a_lease_that_was_settled_in_part_is_held_in_part(shard: ShardHarness, verb: Verb) -> None:
    shard.enqueue(b"0", b"1", b"2", b"3")
    got = shard.receive(4)
    shard.settle(verb, [got[0], got[2]])
    counts = shard.counts()
    shard.restart()
    assert (shard.counts(), counts[1]) == (counts, 2)
    assert shard.settle(verb, [got[0], got[2]]).faults == []
    shard.ack([got[1], got[3]])
    assert shard.counts()[1] == 0


def test_what_was_given_back_and_leased_again_is_held_by_its_second_holder_only(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    first = shard.receive(2)
    shard.nack(first[:1], "boom")
    second = shard.receive(1, client=b"c2")
    shard.restart()
    assert shard.counts() == (0, 2, 0)
    assert shard.settle(Verb.NACK, first[:1]).faults == []
    assert shard.counts() == (0, 2, 0)
    shard.ack(second)
    shard.ack(first[1:])
    assert shard.counts() == (0, 0, 0)


def test_what_was_taken_from_a_holder_stays_taken(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    got = shard.receive(2)
    shard.ask(Extend(fences(got[:1]), 5_000))
    shard.pass_time(5_000)
    shard.restart()
    refused = shard.settle(Verb.ACK, got).faults
    assert [(index, fault.code) for _, index, fault in refused] == [(0, "LEASE_EXPIRED")]
    assert shard.counts() == (1, 0, 0)


def test_a_redriven_message_is_not_leased_by_its_former_lease(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    got = shard.receive(2)
    shard.settle(Verb.FAIL, got[:1])
    shard.redrive()
    shard.restart()
    assert shard.counts() == (1, 1, 0)
    assert payloads(shard.receive(9)) == [b"0"]


def test_a_subscription_finds_its_leases_again(shard: ShardHarness) -> None:
    shard.enqueue(*[b"%d" % number for number in range(6)])
    shard.subscribe(4)
    got = shard.take_pushed()
    shard.restart()
    shard.subscribe(4)
    assert shard.take_pushed() == []
    shard.ack(got[:3])
    assert payloads(shard.take_pushed()) == [b"4", b"5"]


def test_a_subscription_that_comes_back_renews_its_leases(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    shard.subscribe(1)
    (got,) = shard.take_pushed()
    shard.now_ms += 14_000
    shard.restart()
    shard.ask(Subscribe(1, 1, [got.lease]))
    shard.pass_time(14_000)
    shard.heartbeat()
    shard.pass_time(14_000)
    assert shard.counts() == (0, 1, 0)
    shard.ack([got])


def test_fences_are_never_given_out_twice(shard: ShardHarness) -> None:
    seen = set()
    for _ in range(5):
        shard.enqueue(b"0", b"1")
        for _ in range(2):
            seen |= {each.lease for each in shard.receive(1)}
        shard.restart()
    assert len(seen) == 10


def test_goodbye_gives_recovered_leases_back(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    shard.receive(2)
    shard.restart()
    shard.goodbye()
    assert shard.counts() == (2, 0, 0)


# --- much -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer_bytes", [1, 500, 10**6])
def test_a_half_consumed_backlog_goes_on_in_order(buffer_bytes: int) -> None:
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=buffer_bytes))
    shard.create()
    expected = [b"%03d" % number for number in range(150)]
    shard.enqueue(*expected)
    seen: list[bytes] = []
    while len(seen) < 150:
        held = shard.receive(11)
        shard.ack(held[::2])
        shard.settle(Verb.RELEASE, held[1::2])
        seen += payloads(held[::2])
        shard.restart()
    assert sorted(seen) == expected


# --- the wrong disk ---------------------------------------------------------------------------------------------------


def opened(store: MemoryStore, index: int = 3, shards: int = 8) -> int:
    return recover(store, ShardSettings(), compile_lua, index=index, shards=shards, now_ms=0).epoch


def test_every_opening_has_a_higher_epoch() -> None:
    store = MemoryStore()
    assert [opened(store) for _ in range(3)] == [1, 2, 3]


def test_a_restored_copy_has_epochs_that_the_original_did_not_reach() -> None:
    shard = ShardHarness()
    epoch = begin_anew(shard.store, shard.index, SHARDS)
    shard.restart()
    assert shard.shard.epoch == epoch > EPOCHS_SKIPPED
    with pytest.raises(StorageError, match="is empty"):
        begin_anew(MemoryStore(), 0, SHARDS)


@pytest.mark.parametrize(("index", "shards"), [(4, 8), (3, 4), (3, 9), (0, 1)])
def test_the_data_of_another_shard_is_refused_and_left_alone(index: int, shards: int) -> None:
    store = MemoryStore()
    opened(store)
    with pytest.raises(StorageError, match=f"shard 3 of 8, not of shard {index} of {shards}"):
        opened(store, index, shards)
    assert opened(store) == 2


def test_data_of_a_later_version_is_refused() -> None:
    store = MemoryStore()
    batch = store.new_batch()
    batch.put(b"identity", msgspec.msgpack.encode([FORMAT + 1, 3, 8, 1]), store.families.state)
    store.commit(batch)
    with pytest.raises(StorageError, match=rf"format {FORMAT + 1}.*upgrade"):
        opened(store)


def test_data_of_a_preview_is_refused() -> None:
    store = MemoryStore()
    batch = store.new_batch()
    batch.put(b"identity", msgspec.msgpack.encode([FORMAT - 1, 3, 8, 1]), store.families.state)
    store.commit(batch)
    with pytest.raises(StorageError, match=r"preview.*another data directory"):
        opened(store)


def test_a_damaged_identity_is_a_storage_error() -> None:
    store = MemoryStore()
    batch = store.new_batch()
    batch.put(b"identity", b"\xc1", store.families.state)
    store.commit(batch)
    with pytest.raises(StorageError):
        opened(store)


# --- in steps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [None, 1])
def test_what_there_is_is_read_in_steps_of_some_records(cap: int | None) -> None:
    """Each walk over all keys, or over all entries of the ledger, takes steps of its own."""
    shard = ShardHarness(settings=ShardSettings(limits=Limits(recovery_records_max=4)))
    shard.create(max_in_flight_per_key=cap)
    for number in range(40):
        shard.enqueue(b"", key=f"key-{number}")
    recovery = recover_in_steps(shard.store, shard.settings, compile_lua, index=3, shards=SHARDS, now_ms=shard.now_ms)
    steps = sum(1 for _ in recovery)
    walks = ["ledger", "lanes", "lanes that are late", "keys"] + (["keys with a cap"] if cap else [])
    assert steps >= len(walks) * 40 // 4


def test_caps_hold_after_a_recovery_in_steps() -> None:
    shard = ShardHarness(settings=ShardSettings(limits=Limits(recovery_records_max=2)))
    shard.create(max_in_flight_per_key=1)
    for number in range(7):
        shard.enqueue(b"%d" % number, b"behind", key=f"key-{number}")
    first = shard.receive(9)
    assert sorted(payloads(first)) == [b"%d" % number for number in range(7)]
    shard.ack(first[:3])
    shard.restart()
    assert payloads(shard.receive(9)) == [b"behind"] * 3
