"""Disks that are behind: after a power cut, or restored from a copy. Numbers that left the process are never given out again."""

from collections.abc import Callable

import pytest

from fila_proto_zmq.commands import CreateQueue, DeleteQueue, Enqueue, Pause, QueueOptions, SetConfig, UpdateQueue, Verb
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.effects import ClientCall
from fila_worker.core.model.ledger import Counters
from tests.support.external.power_cut import RestoredStore, UnsyncedStore, cut_power
from tests.support.shard.linked_shards import SOURCE, TARGET, LinkedShards, fail, letters
from tests.support.shard.shard import ShardHarness


@pytest.fixture
def shard() -> ShardHarness:
    harness = ShardHarness(store=UnsyncedStore())
    harness.create()
    return harness


# --- what is synced ---------------------------------------------------------------------------------------------------


DEFINITIONS: dict[str, Callable[[ShardHarness], object]] = {
    "create": lambda shard: shard.create("another"),
    "update": lambda shard: shard.ask(UpdateQueue(QueueOptions(max_attempts=3), ["max_attempts"])),
    "pause": lambda shard: shard.ask(Pause(True, None)),
    "delete": lambda shard: shard.ask(DeleteQueue()),
    "config": lambda shard: (shard.shard.set_config(SetConfig("a", "b"), shard.now_ms), shard.turn()),
}


@pytest.mark.parametrize("change", DEFINITIONS)
def test_definitions_and_config_survive_a_power_cut(shard: ShardHarness, change: str) -> None:
    def known() -> object:
        core = shard.shard
        return core.config, {name: (queue.options, queue.paused) for name, queue in core.queues.items()}

    DEFINITIONS[change](shard)
    expected = known()
    cut_power(shard)
    assert known() == expected


def test_an_opening_is_synced_and_messages_are_not(shard: ShardHarness) -> None:
    syncs = shard.store.syncs  # type: ignore[attr-defined]
    shard.enqueue(b"x", b"y", priority=7)
    shard.ack(shard.receive(1))
    shard.nack(shard.receive(1))
    assert shard.store.syncs == syncs  # type: ignore[attr-defined]
    epoch = shard.shard.epoch
    shard.restart()
    cut_power(shard)
    assert shard.shard.epoch == epoch + 2


# --- lease ids --------------------------------------------------------------------------------------------------------


def test_a_lease_id_is_not_given_out_again_after_a_power_cut(shard: ShardHarness) -> None:
    shard.enqueue(b"A")
    shard.restart()  # A is synced with the opening
    (before,) = shard.receive(client=b"X")
    cut_power(shard)
    (after,) = shard.receive(client=b"X")
    assert after.lease != before.lease
    assert [fault.code for _, _, fault in shard.settle(Verb.ACK, [before]).faults] == ["LEASE_EXPIRED"]
    assert shard.counts() == (0, 1, 0)


def test_a_lease_id_is_not_given_out_again_by_a_restored_copy() -> None:
    store = RestoredStore()
    shard = ShardHarness(store=store)
    shard.create()
    shard.enqueue(b"A", b"B")
    copy = store.copy()
    shard.restart()
    (before,) = shard.receive(client=b"X")
    store.restore(copy)
    shard.restart()
    shard.enqueue(b"C", priority=-1)
    (urgent,) = shard.receive(client=b"X")
    assert urgent.payload == b"C"
    assert shard.settle(Verb.ACK, [before]).faults
    assert shard.counts() == (2, 1, 0)


# --- sequence numbers -------------------------------------------------------------------------------------------------


def test_numbers_are_durable_though_all_that_used_them_is_gone_in_the_same_turn(shard: ShardHarness) -> None:
    def used() -> Counters:
        return shard.shard.counters

    core = shard.shard
    core.apply(ClientCall(b"p", 1, "q", shard.now_ms), Enqueue([seal_envelope(b"x")] * 5, list("abcde")))
    core.apply(ClientCall(b"p", 2, "q", shard.now_ms), DeleteQueue())
    shard.turn()
    before = used().sequence, used().lane
    assert before[0] >= 5
    shard.restart()
    assert (used().sequence, used().lane) == before


# --- messages between shards ------------------------------------------------------------------------------------------


def pair(store: UnsyncedStore | RestoredStore) -> LinkedShards:
    """``SOURCE`` on shard 3, with this store, sends its dead letters to ``TARGET`` on shard 5."""
    linked = LinkedShards(3, 5, stores={3: store})
    linked[5].create(TARGET)
    linked[3].send(CreateQueue(QueueOptions(dead_letter=TARGET)), SOURCE)
    linked.carry()
    return linked


def test_letters_are_not_taken_for_those_that_were_numbered_before_a_power_cut() -> None:
    store = UnsyncedStore()
    linked = pair(store)
    fail(linked, b"1", b"2", b"3")
    linked.carry()
    cut_power(linked[3])
    fail(linked, b"new 1", b"new 2")
    linked.carry()
    assert letters(linked[5]) == [b"1", b"2", b"3", b"new 1", b"new 2"]
    linked.pass_time(5_000)
    assert linked[3].shard.outbox.next_due() is None


def test_letters_are_not_taken_for_those_that_were_numbered_before_a_copy_was_restored() -> None:
    store = RestoredStore()
    linked = pair(store)
    copy = store.copy()
    fail(linked, b"1", b"2", b"3")
    linked.carry()
    store.restore(copy)
    linked[3].restart()
    fail(linked, b"new 1", b"new 2")
    linked.carry()
    assert letters(linked[5]) == [b"1", b"2", b"3", b"new 1", b"new 2"]


def test_letters_that_come_back_with_a_power_cut_arrive_once() -> None:
    store = UnsyncedStore()
    linked = pair(store)
    linked.stopped.add(5)
    fail(linked, b"1", b"2", b"3")
    linked.carry()
    linked[3].create("synced")
    linked.stopped.clear()
    linked.pass_time(2_000)
    assert len(letters(linked[5])) == 3
    cut_power(linked[3])  # they are in the outbox again
    assert linked[3].shard.outbox.next_due() == 0
    fail(linked, b"new")
    linked.pass_time(5_000)
    assert letters(linked[5]) == [b"1", b"2", b"3", b"new"]
    assert linked[3].shard.outbox.next_due() is None


def test_letters_that_come_back_behind_later_ones_of_their_stream_arrive_once() -> None:
    linked = pair(UnsyncedStore())
    linked.stopped.add(5)
    fail(linked, b"1", b"2", b"3")
    linked[3].create("synced")
    linked.stopped.clear()
    linked.pass_time(2_000)
    fail(linked, b"4", b"5")
    linked.carry()
    assert len(letters(linked[5])) == 5
    cut_power(linked[3])  # the first three are in the outbox again
    fail(linked, b"new")
    linked.pass_time(5_000)
    assert letters(linked[5]) == [b"1", b"2", b"3", b"4", b"5", b"new"]
    assert linked[3].shard.outbox.next_due() is None


@pytest.mark.parametrize("refusals_max", [1000, 1])
def test_refused_letters_that_come_back_behind_later_ones_are_not_lost(refusals_max: int) -> None:
    linked = pair(UnsyncedStore())
    linked[5].limit(refusals_max=refusals_max)
    linked.stopped.add(5)
    fail(linked, b"1", b"2", b"3")
    linked[3].create("synced")
    linked.stopped.clear()
    linked[5].send(DeleteQueue(), TARGET)
    linked.pass_time(2_000)
    for later in (b"4", b"5"):
        fail(linked, later)
        linked.carry()
    assert letters(linked[3], queue=f"{SOURCE}.dlq") == [b"1", b"2", b"3", b"4", b"5"]
    cut_power(linked[3])
    linked.pass_time(5_000)
    assert letters(linked[3], queue=f"{SOURCE}.dlq") == [b"1", b"2", b"3"]
    assert linked[3].shard.outbox.next_due() is None


def test_what_is_remembered_of_streams_is_bounded() -> None:
    linked = pair(UnsyncedStore())
    linked[5].limit(past_streams_max=2)
    for _ in range(9):
        fail(linked, b"x")
        linked.pass_time(2_000)
        linked[3].restart()
    fail(linked, b"x")
    linked.pass_time(2_000)
    assert [len(streams) for streams in linked[5].shard.outbox.taken.values()] == [3]
    assert len([key for key in linked[3].store.families.state if key.startswith(b"outbox:")]) == 1
    linked[5].restart()
    assert [len(streams) for streams in linked[5].shard.outbox.taken.values()] == [3]


def test_streams_go_one_after_the_other_over_restarts() -> None:
    linked = pair(UnsyncedStore())
    linked.stopped.add(5)
    for number in range(4):
        fail(linked, b"%d" % number, b"%d" % number)
        linked.carry()
        linked[3].restart()
    linked.stopped.clear()
    linked.pass_time(20_000)
    assert letters(linked[5]) == [b"%d" % number for number in range(4) for _ in range(2)]
