"""Cold keys: whatever is asked, a key far from its turn answers like any other."""

from dataclasses import replace

import pytest

from fila_proto_zmq.commands import (
    Browse,
    Browsed,
    BrowseView,
    Cancel,
    Cancelled,
    DeleteQueue,
    Enqueue,
    Explain,
    OpenView,
    Pause,
    PurgeQueue,
    Verb,
)
from fila_proto_zmq.record import record_id, seal_envelope, unpack_record
from fila_worker.core.keys import FIRST, LAST, after
from fila_worker.core.model.cold_lanes import packed, unpacked
from fila_worker.core.settings import DEFAULTS, Limits, ShardSettings
from fila_worker.core.store import StoreBatch
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.shard import ADMIN, ShardHarness
from tests.support.shard.tight_shard import CHILLY

KEYS = [f"k{number:02}" for number in range(30)]


def shard_of(limits: Limits = CHILLY, **options: int) -> ShardHarness:
    harness = ShardHarness(settings=ShardSettings(limits=limits))
    harness.create(**options)
    return harness


def offer(shard: ShardHarness, *names: str, weight: int = 0, **columns: int) -> None:
    shard.ask(Enqueue([seal_envelope(name.encode()) for name in names], list(names), weight, **columns))


def chilled(shard: ShardHarness | None = None, **options: int) -> ShardHarness:
    """A shard whose keys have a message each, and are cold but for a few."""
    shard = shard or shard_of(**options)
    for name in KEYS:
        offer(shard, name)
    cool(shard)
    return shard


def cool(shard: ShardHarness) -> None:
    """Let turns pass until no more keys cool down."""
    before = -1
    while len(shard.shard.lanes) != before:
        before = len(shard.shard.lanes)
        shard.turn()


def cold_names(shard: ShardHarness, queue: str = "q") -> set[str]:
    return {key.name for key in shard.shard.queues[queue].keys.values() if key.cold is not None}


def some_cold(shard: ShardHarness) -> str:
    return min(cold_names(shard))


def drain(shard: ShardHarness, count: int) -> list[str]:
    order = []
    while got := shard.receive(count):
        order += [each.payload.decode() for each in got]
        shard.ack(got)
    return order


# --- cooling down -----------------------------------------------------------------------------------------------------


def test_keys_beyond_the_warm_ones_are_a_few_bytes() -> None:
    shard = chilled()
    assert len(cold_names(shard)) > 20
    assert len(shard.shard.lanes) < 10
    assert all(len(key.cold or b"") < 32 for key in shard.shard.queues["q"].keys.values())


def test_few_keys_stay_warm() -> None:
    shard = shard_of(Limits(ledger_counts_max=1))
    offer(shard, *KEYS)
    cool(shard)
    assert cold_names(shard) == set()


@pytest.mark.parametrize("count", [1, 7])
def test_who_is_cold_changes_no_order(count: int) -> None:
    orders = []
    for limits in (DEFAULTS, CHILLY):
        shard = shard_of(limits)
        for weight, name in enumerate(KEYS):
            offer(shard, *[name] * 5, weight=1 + weight % 3)
        cool(shard)
        orders.append(drain(shard, count))
    assert orders[0] == orders[1]
    assert len(orders[0]) == 5 * len(KEYS)


def test_a_key_with_a_leased_or_retried_message_stays_warm() -> None:
    shard = shard_of()
    for name in KEYS:
        offer(shard, name)
    got = shard.receive(20)
    shard.settle(Verb.RETRY, got[:5], after_ms=60_000)
    cool(shard)
    assert not cold_names(shard) & {each.key for each in got}
    shard.ack(got[5:])


def test_a_key_with_throttle_keys_stays_warm() -> None:
    shard = chilled()
    name = some_cold(shard)
    shard.ask(Enqueue([seal_envelope(b"")], name, throttle_keys=[["t"]]))
    cool(shard)
    assert name not in cold_names(shard)
    assert len(shard.shard.queues["q"].keys[name].lanes) == 2


def test_a_turn_takes_a_bounded_number_of_steps() -> None:
    shard = shard_of(Limits(ledger_counts_max=1, warm_lanes_max=0, warm_small_lanes_max=30, cool_steps_min=4))
    offer(shard, *KEYS)
    shard.turn()
    shard.shard.settings = replace(shard.shard.settings, limits=replace(shard.shard.settings.limits, warm_small_lanes_max=0))
    for turns in range(1, 5):
        shard.turn()
        assert len(cold_names(shard)) == 4 * turns


def test_keys_with_a_backlog_stay_warm_for_longer() -> None:
    shard = shard_of(Limits(ledger_counts_max=1, warm_lanes_max=30, warm_small_lanes_max=10))
    offer(shard, *KEYS, *KEYS[:8])
    cool(shard)
    assert len(cold_names(shard)) == 20
    assert not cold_names(shard) & set(KEYS[:8])


def test_an_object_of_a_lane_that_was_cooled_down_is_of_no_more_use() -> None:
    shard = shard_of(Limits(ledger_counts_max=1, warm_lanes_max=0, warm_small_lanes_max=0))
    offer(shard, "a")
    lane = shard.shard.queues["q"].keys["a"].lanes[()]
    cool(shard)
    with pytest.raises(AttributeError):
        _ = lane.key


def test_the_place_behind_a_message_is_packed_as_the_next_one() -> None:
    shard = chilled()
    key = shard.shard.queues["q"].keys[some_cold(shard)]
    first = unpacked(key).floor
    key.cold = packed(7, 1, 0, after(first))
    assert int.from_bytes(unpacked(key).place, "big") == int.from_bytes(first[8:], "big") + 1
    key.cold = packed(7, 0, 1, first[:8])
    assert unpacked(key).place == bytes(12)


# --- what is asked of cold keys ---------------------------------------------------------------------------------------


def test_a_message_for_a_cold_key_comes_behind_what_it_has() -> None:
    shard = chilled()
    name = some_cold(shard)
    offer(shard, name)
    assert drain(shard, 50).count(name) == 2


def test_statistics_list_cold_keys() -> None:
    shard = shard_of()
    offer(shard, *KEYS, weight=3)
    offer(shard, *KEYS, delay_ms=60_000)
    cool(shard)
    assert len(cold_names(shard)) > 20
    rows = {row.fairness_key: row for row in shard.stats().keys}
    assert {(row.weight, row.pending, row.delayed, row.in_flight, row.paused) for row in rows.values()} == {
        (3, 1, 1, 0, False)
    }
    assert set(rows) == set(KEYS)
    assert len({row.deficit for row in rows.values()}) == 1
    assert shard.stats().info.pending == len(KEYS)


def test_the_age_of_the_oldest_message_is_known_though_its_key_is_cold() -> None:
    shard = chilled()
    shard.now_ms += 5_000
    assert shard.stats().oldest_pending_ms == 5_000


def test_a_cold_key_s_delayed_message_comes_when_it_is_due() -> None:
    shard = shard_of()
    for name in KEYS:
        offer(shard, name, delay_ms=5_000)
    cool(shard)
    assert len(cold_names(shard)) > 20
    shard.pass_time(5_000)
    assert sorted(drain(shard, 50)) == KEYS


def test_a_cold_key_s_message_expires() -> None:
    shard = shard_of()
    for name in KEYS:
        offer(shard, name, ttl_ms=5_000)
    cool(shard)
    shard.pass_time(10_000)
    assert (shard.counts(), shard.counts("q.dlq")) == ((0, 0, 0), (len(KEYS), 0, 0))


def test_a_cold_key_can_be_purged() -> None:
    shard = chilled()
    name = some_cold(shard)
    shard.ask(PurgeQueue(name))
    assert sorted(drain(shard, 50)) == sorted(set(KEYS) - {name})


def test_a_queue_of_cold_keys_can_be_purged() -> None:
    shard = chilled()
    shard.ask(PurgeQueue())
    assert shard.counts() == (0, 0, 0)


def test_a_cold_key_can_be_paused() -> None:
    shard = chilled()
    name = some_cold(shard)
    shard.ask(Pause(True, name))
    assert sorted(drain(shard, 50)) == sorted(set(KEYS) - {name})
    shard.ask(Pause(False, name))
    assert drain(shard, 50) == [name]


def test_a_cold_key_s_message_is_found_by_its_id_and_cancelled() -> None:
    shard = chilled()
    name = some_cold(shard)
    found = {
        unpack_record(record).envelope: record for _, record in shard.store.scan(FIRST, LAST, shard.store.families.messages)
    }
    reply = shard.ask(Cancel(*record_id(found[seal_envelope(name.encode())])))
    assert reply == Cancelled(True)
    assert name not in drain(shard, 50)


@pytest.mark.parametrize(("state", "count"), [(None, 30), ("pending", 30), ("leased", 0), ("delayed", 0)])
def test_cold_keys_are_browsed_key_by_key(state: str | None, count: int) -> None:
    shard = chilled()
    reply = shard.ask(Browse(100, None, None, state))
    assert isinstance(reply, Browsed)
    assert [view.fairness_key for view in reply.messages] == KEYS[:count]


@pytest.mark.parametrize("state", [None, "pending", "leased"])
def test_keys_that_cool_down_between_two_steps_of_a_browse_are_on_its_page(state: str | None) -> None:
    shard = chilled(shard_of(replace(CHILLY, turn_effort=1, step_effort=1)))
    if state == "leased":
        assert len(shard.receive(30)) == 30
    number = shard.begin(Browse(100, None, None, state), "q", ADMIN)
    shard.finish()
    reply = shard.late.pop(number)
    assert isinstance(reply, Browsed)
    assert [view.fairness_key for view in reply.messages] == KEYS
    assert all(view.lease_expires_ms > 0 for view in reply.messages) == (state == "leased")


def test_a_view_has_cold_keys() -> None:
    shard = chilled()
    shard.ask(OpenView("v", ["q"], 1000, 60_000), queue="")
    reply = shard.ask(BrowseView("v", 100))
    assert [view.fairness_key for view in reply.messages] == KEYS  # type: ignore[union-attr]


def test_why_knows_a_cold_key() -> None:
    shard = chilled()
    assert shard.ask(Explain(fairness_key=some_cold(shard))).state == "pending"  # type: ignore[union-attr]
    assert shard.ask(Explain()).state == "pending"  # type: ignore[union-attr]


def test_a_cap_holds_for_keys_that_were_cold() -> None:
    shard = chilled(max_in_flight_per_key=1)
    assert len(cold_names(shard)) > 20
    offer(shard, *KEYS)
    assert sorted(each.key for each in shard.receive(100)) == KEYS


def test_cold_dead_letters_are_redriven() -> None:
    shard = shard_of(max_attempts=1)
    for name in KEYS:
        offer(shard, name)
    while got := shard.receive(5):
        shard.nack(got)
    cool(shard)
    assert len(cold_names(shard, "q.dlq")) > 20
    assert shard.redrive().count == len(KEYS)
    assert sorted(drain(shard, 50)) == KEYS


def test_a_queue_with_cold_keys_is_deleted_with_all_of_them() -> None:
    shard = chilled()
    shard.ask(DeleteQueue(True))
    families = shard.store.families
    assert [list(shard.store.scan(FIRST, LAST, family)) for family in (families.messages, families.lanes)] == [[], []]


# --- restarts ---------------------------------------------------------------------------------------------------------


class CountingStore(MemoryStore):
    """Counts what is written."""

    changes = 0

    def commit(self, batch: StoreBatch, *, sync: bool = False) -> None:
        self.changes += len(batch)
        super().commit(batch, sync=sync)


def test_a_restart_leaves_keys_cold_and_does_not_write_them_again() -> None:
    store = CountingStore()
    shard = ShardHarness(store=store, settings=ShardSettings(limits=CHILLY))
    shard.create()
    offer(shard, *KEYS)
    offer(shard, *KEYS[:3], weight=2)
    shard.restart()
    before = store.changes
    shard.restart()
    assert store.changes - before < 10
    assert cold_names(shard) == set(KEYS)
    assert {row.fairness_key: row.weight for row in shard.stats().keys} == dict.fromkeys(KEYS, 1) | dict.fromkeys(KEYS[:3], 2)
    assert sorted(drain(shard, 7)) == sorted(KEYS + KEYS[:3])


def test_a_restart_warms_up_what_is_leased() -> None:
    shard = shard_of()
    offer(shard, *KEYS)
    got = shard.receive(4)
    shard.restart()
    assert set(KEYS) - cold_names(shard) == {each.key for each in got}
    shard.ack(got)
    assert sorted(drain(shard, 7)) == sorted(set(KEYS) - {each.key for each in got})
