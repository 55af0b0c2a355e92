"""The concurrency of throttle keys: at no moment are more messages leased than a limit allows, on all shards together."""

from collections import Counter
from collections.abc import Callable

import pytest

from fila_proto_zmq.commands import DeleteQueue, GrantPlaces, Receive, ReportPlaces, Verb
from tests.support.shard.linked_shards import once
from tests.support.shard.placed_shards import PlacedShards
from tests.support.shard.shard import ADMIN, Got


def placed(most: int, *shards: int, count: int = 10) -> PlacedShards:
    """A key ``k`` with a limit, and messages and a consumer on some shards."""
    cluster = PlacedShards()
    cluster.limit("k", most)
    for shard in shards:
        cluster.enqueue(shard, count, "k")
        cluster.consume(shard)
    return cluster


def frames(cluster: PlacedShards) -> int:
    return sum(isinstance(command, ReportPlaces | GrantPlaces) for command in cluster.seen)


# --- what counts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 1, 2, 7, 29])
def test_at_most_so_many_are_leased_over_all_shards(most: int) -> None:
    cluster = placed(most, 0, 1, 2)
    assert cluster.leased("k") == most


def test_other_messages_do_not_wait() -> None:
    cluster = placed(0, 1)
    cluster.enqueue(1, 3)
    cluster.enqueue(1, 2, "other")
    assert len(cluster.taken(1)) == 5


def test_another_throttle_key_of_the_same_fairness_key_does_not_wait() -> None:
    cluster = placed(1, 1)
    cluster.limit("other", 2)
    cluster.enqueue(1, 5, "other")
    assert Counter(got.throttle_keys for got in cluster.taken(1)) == {("k",): 1, ("other",): 2}


def test_what_is_delivered_at_most_once_needs_no_place() -> None:
    cluster = placed(1)
    cluster[1].create("once", delivery="at_most_once")  # type: ignore[arg-type]
    cluster.enqueue(1, 5, "k", queue="once")
    cluster.consume(1, queue="once")
    assert len(cluster.taken(1)) == 5


def test_a_dead_letter_needs_no_place() -> None:
    cluster = placed(1, 1)
    cluster[1].settle(Verb.FAIL, cluster.taken(1))
    cluster.carry()
    assert len(cluster.taken(1)) == 1
    assert len(cluster[1].receive(5, "q.dlq", client=b"reader")) == 1


ENDINGS: dict[str, Callable[[PlacedShards, list[Got]], object]] = {
    "ack": lambda cluster, got: cluster[1].ack(got),
    "nack": lambda cluster, got: cluster[1].nack(got),
    "fail": lambda cluster, got: cluster[1].settle(Verb.FAIL, got),
    "release": lambda cluster, got: cluster[1].settle(Verb.RELEASE, got),
    "retry": lambda cluster, got: cluster[1].settle(Verb.RETRY, got, after_ms=60_000),
    "goodbye": lambda cluster, got: cluster[1].goodbye(b"consumer 1"),
    "expiry": lambda cluster, got: (cluster.pass_time(9_000), cluster[2].heartbeat(b"waits"), cluster.pass_time(7_000)),
    "delete": lambda cluster, got: cluster[1].ask(DeleteQueue(force=True), "q", ADMIN),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_however_a_lease_ends_its_place_goes_to_a_message_on_another_shard(ending: str) -> None:
    cluster = placed(2, 1)
    got = cluster.taken(1)
    cluster[1].heartbeat(b"consumer 1")
    cluster.enqueue(2, 5, "k")
    cluster[2].begin(Receive(9, 3_600_000), client=b"waits")
    cluster.carry()
    assert (len(got), cluster[2].counts()) == (2, (5, 0, 0))
    ENDINGS[ending](cluster, got)
    cluster.carry()
    assert cluster[2].counts()[1] >= 1
    assert cluster.leased("k") <= 2


def test_a_receive_gets_what_is_free_at_once_and_waits_for_the_rest() -> None:
    cluster = placed(3)
    cluster.enqueue(1, 9, "k")
    number = cluster[1].begin(Receive(9, 0), client=b"c")
    cluster.carry()
    assert len(cluster[1].late.pop(number).batches) == 1
    assert cluster.leased("k") == 3
    number = cluster[1].begin(Receive(9, 0), client=b"c")
    cluster.carry()
    cluster[1].pass_time(0)
    assert cluster[1].late.pop(number).batches == []


# --- several keys -----------------------------------------------------------------------------------------------------


def test_a_message_takes_the_places_of_all_its_keys_or_none() -> None:
    cluster = placed(5)
    cluster.limit("tenant", 1)
    cluster.enqueue(1, 9, "k", "tenant")
    cluster.consume(1)
    assert (cluster.leased("k"), cluster.leased("tenant")) == (1, 1)
    cluster.enqueue(2, 9, "k")
    cluster.consume(2)
    assert (cluster.leased("k"), cluster.leased("tenant")) == (5, 1)


def test_two_messages_that_need_each_others_key_both_come() -> None:
    cluster = placed(1)
    cluster.limit("j", 1)
    for shard in (1, 2):
        cluster.enqueue(shard, 5, "j", "k")
        cluster.consume(shard)
    seen = Counter[int]()
    for _ in range(10):
        for shard in (1, 2):
            got = cluster.taken(shard)
            seen[shard] += len(got)
            cluster.ack(shard, got)
    assert seen == {1: 5, 2: 5}


# --- sharing ----------------------------------------------------------------------------------------------------------


def test_a_shard_that_is_alone_uses_its_places_again_without_asking() -> None:
    cluster = placed(4, 1, count=100)
    before = frames(cluster)
    for _ in range(20):
        cluster.ack(1, cluster.taken(1))
    assert (len(cluster.taken(1)), frames(cluster)) == (4, before)


def test_a_cluster_at_rest_sends_nothing() -> None:
    cluster = placed(4, 0, 1)
    cluster.pass_time(10_000)
    before = len(cluster.seen)
    for shard in (0, 1):
        cluster[shard].heartbeat(b"consumer %d" % shard)
    cluster.pass_time(10_000)
    assert len(cluster.seen) == before


@pytest.mark.parametrize("most", [1, 3, 8])
def test_keys_share_by_weight_on_one_shard(most: int) -> None:
    cluster = placed(most)
    for key, weight in (("light", 1), ("heavy", 3)):
        cluster.enqueue(1, 300, "k", fairness_key=key, weight=weight)
    cluster.consume(1)
    seen = Counter[str]()
    while sum(seen.values()) < 200:
        got = cluster.taken(1)
        seen.update(each.key for each in got)
        cluster.ack(1, got)
    assert 2.5 <= seen["heavy"] / seen["light"] <= 3.5


def test_keys_share_by_weight_over_shards() -> None:
    cluster = placed(4)
    for shard, weight in ((1, 1), (2, 3)):
        cluster.enqueue(shard, 300, "k", weight=weight)
        cluster.consume(shard)
    seen = Counter[int]()
    while sum(seen.values()) < 200:
        for shard in (1, 2):
            got = cluster.taken(shard)
            seen[shard] += len(got)
            cluster.ack(shard, got)
    assert 2 <= seen[2] / seen[1] <= 4


def test_a_backlog_that_waits_costs_a_turn_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = placed(1)
    for number in range(300):
        cluster.enqueue(1, 1, "k", fairness_key=str(number))
    cluster.consume(1)
    places, asked = cluster[1].shard.places, list[object]()
    room = places.room
    monkeypatch.setattr(places, "room", lambda *arguments: asked.append(arguments) or room(*arguments))
    for _ in range(10):
        cluster.ack(1, cluster.taken(1))
    assert len(asked) <= 30


def test_a_lane_that_is_alone_gets_its_places_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = placed(100)
    cluster.enqueue(1, 90, "k")
    places, given = cluster[1].shard.places, list[object]()
    give = places._give
    monkeypatch.setattr(places, "_give", lambda *arguments: given.append(arguments) or give(*arguments))
    cluster.consume(1)
    assert (cluster.leased("k"), len(given)) == (90, 1)


# --- limits that change -----------------------------------------------------------------------------------------------


def test_a_raised_limit_holds_at_once() -> None:
    cluster = placed(1, 1, 2)
    cluster.limit("k", 6)
    assert cluster.leased("k") == 6
    cluster.limit("k", None)
    assert cluster.leased("k") == 20


def test_a_lowered_limit_takes_back_no_lease_and_lets_none_begin_before_there_is_room() -> None:
    cluster = placed(6, 1, 2)
    got = {shard: cluster.taken(shard) for shard in (1, 2)}
    cluster.limit("k", 2)
    assert cluster.leased("k") == 6
    for shard in (1, 2):
        for each in got[shard]:
            before = cluster.leased("k")
            cluster.ack(shard, [each])
            assert cluster.leased("k") == max(2, before - 1)


def test_a_new_limit_counts_what_is_leased() -> None:
    cluster = PlacedShards()
    for shard in (1, 2):
        cluster.enqueue(shard, 10, "k")
        cluster.consume(shard, prefetch=3)
    cluster.limit("k", 4)
    got = cluster.taken(1)
    for left in (5, 4, 4):
        cluster.ack(1, [got.pop()])
        assert cluster.leased("k") == left


def test_a_limit_that_is_deleted_and_set_again_counts_what_was_leased_without_it() -> None:
    cluster = placed(2, 1)
    cluster.limit("k", None)
    assert cluster.leased("k") == 10
    cluster.limit("k", 3)
    cluster.enqueue(2, 5, "k")
    cluster.consume(2)
    got = cluster.taken(1)
    assert cluster.leased("k") == 10
    for left in (9, 8, 7, 6, 5, 4, 3, 3):
        cluster.ack(1, [got.pop()])
        assert cluster.leased("k") == left


def test_a_shard_with_more_places_than_the_limit_uses_none_again_also_before_the_bank_says_so() -> None:
    cluster = placed(6, 1)
    cluster.copies = lambda command: 0 if isinstance(command, GrantPlaces) else 1
    cluster.limit("k", 4)
    got = cluster.taken(1)
    for left in (5, 4):
        cluster.ack(1, [got.pop()])
        assert cluster.leased("k") == left


def test_a_shard_that_was_restarted_uses_none_again_before_the_bank_says_that_it_may() -> None:
    cluster = placed(6, 1)
    cluster.copies = lambda command: 0 if isinstance(command, GrantPlaces) else 1
    cluster.limit("k", 4)
    got = cluster.taken(1)
    cluster[1].restart()
    cluster.consume(1)
    for left in (5, 4, 3):
        cluster.ack(1, [got.pop()])
        assert cluster.leased("k") == left
    cluster.copies = once
    cluster.pass_time(1000)
    assert cluster.leased("k") == 4


def test_a_new_limit_lets_no_lease_begin_before_all_shards_have_told_theirs() -> None:
    cluster = PlacedShards()
    for shard in (1, 2):
        cluster.enqueue(shard, 10, "k")
        cluster.consume(shard, prefetch=3)
    cluster.stopped.add(2)
    cluster.limit("k", 4, shards=(0, 1))
    cluster.ack(1, cluster.taken(1)[:1])
    assert cluster.leased("k") == 5


def test_as_many_places_as_the_limit_are_not_used_again_before_all_shards_have_told_theirs() -> None:
    cluster = PlacedShards()
    cluster.enqueue(1, 10, "k")
    cluster.consume(1, prefetch=6)
    cluster.stopped.add(2)
    cluster.limit("k", 4, shards=(0, 1))
    got = cluster.taken(1)
    for left in (5, 4, 3, 2):
        cluster.ack(1, [got.pop()])
        assert cluster.leased("k") == left


def test_messages_wait_for_a_limit_that_is_set_again_as_for_the_first_one() -> None:
    cluster = placed(1, 1, count=2)
    for _ in range(2):
        cluster.ack(1, cluster.taken(1))
    cluster.limit("k", None)
    cluster.limit("k", 1)
    cluster.enqueue(1, 3, "k")
    for _ in range(3):
        cluster.ack(1, cluster.taken(1))
    assert cluster[1].counts() == (0, 0, 0)


def test_a_new_limit_waits_for_a_shard_that_is_away() -> None:
    cluster = PlacedShards()
    cluster.enqueue(2, 10, "k")
    cluster.consume(2, prefetch=3)
    cluster.stopped.add(2)
    cluster.limit("k", 4, shards=(0, 1))
    cluster.enqueue(1, 10, "k")
    cluster.consume(1)
    assert cluster.leased("k") == 3
    cluster.stopped.clear()
    cluster.tell({"throttle:k:concurrency": "4"}, [2])
    for shard in (1, 2):
        cluster[shard].heartbeat(b"consumer %d" % shard)
    cluster.pass_time(3000)
    assert cluster.leased("k") == 4


def test_an_opening_waits_for_a_shard_whose_config_is_behind() -> None:
    cluster = PlacedShards()
    cluster.enqueue(2, 10, "k")
    cluster.limit("k", 4, shards=(0, 1))
    cluster.enqueue(1, 10, "k")
    cluster.consume(1)
    cluster.consume(2, prefetch=6)  # without a limit there
    assert cluster.leased("k") == 6
    cluster.pass_time(1000)
    assert not cluster[2].shard.to_be_registered
    cluster.pass_time(3000)
    assert cluster[2].shard.to_be_registered, "the frame with its config may be lost"
    cluster.tell({"throttle:k:concurrency": "4"}, [2])
    cluster.pass_time(3000)
    assert cluster.leased("k") == 6
    cluster.ack(2, cluster.taken(2)[:4])
    assert cluster.leased("k") == 4


# --- crashes and lost frames ------------------------------------------------------------------------------------------


def test_the_leases_of_a_lost_worker_keep_their_places_until_it_has_ended_them() -> None:
    cluster = placed(3, 1)
    cluster.stopped.add(1)
    cluster.enqueue(2, 5, "k")
    cluster.consume(2)
    assert cluster[2].counts() == (5, 0, 0)
    cluster[1].restart()
    cluster.stopped.clear()
    cluster.pass_time(0)
    assert cluster.leased("k") == 3
    cluster[2].heartbeat(b"consumer 2")
    cluster.pass_time(14_000)
    cluster[2].heartbeat(b"consumer 2")
    cluster.pass_time(3_000)  # its consumer is lost by now
    assert cluster[2].counts() == (2, 3, 0)


def test_a_new_bank_grants_nothing_that_the_old_one_has_granted() -> None:
    cluster = placed(3, 1)
    cluster[0].restart()
    cluster.enqueue(2, 5, "k")
    cluster.consume(2)
    cluster.pass_time(1000)
    assert cluster.leased("k") == 3
    cluster.ack(1, cluster.taken(1)[:2])
    assert (cluster.leased("k"), cluster[2].counts()[1] > 0) == (3, True)


def test_a_bank_that_has_lost_everything_hears_again_what_is_wanted_and_leased() -> None:
    cluster = placed(3, 1)
    cluster.enqueue(2, 5, "k")
    cluster.consume(2)
    station = cluster[0]
    for name, _ in list(station.store.scan(b"place ", b"place z", station.store.families.state)):
        batch = station.store.new_batch()
        batch.delete(name, station.store.families.state)
        station.store.commit(batch)  # as a power cut may undo it
    station.restart()
    cluster.pass_time(1000)
    cluster.ack(1, cluster.taken(1)[:2])
    assert (cluster.leased("k"), cluster[2].counts()[1] > 0) == (3, True)


@pytest.mark.parametrize("lost", [GrantPlaces, ReportPlaces])
def test_a_lost_frame_delays_and_loses_nothing(lost: type) -> None:
    cluster = PlacedShards()
    cluster.limit("k", 2)
    cluster.copies = lambda command: 0 if isinstance(command, lost) else 1
    cluster.enqueue(1, 5, "k")
    cluster.consume(1)
    assert cluster.leased("k") == 0
    cluster.copies = lambda command: 1
    cluster.pass_time(1000)
    assert cluster.leased("k") == 2


def test_frames_that_come_twice_count_once() -> None:
    cluster = PlacedShards()
    cluster.limit("k", 3)
    cluster.copies = lambda command: 2
    for shard in (0, 1, 2):
        cluster.enqueue(shard, 9, "k")
        cluster.consume(shard)
    for _ in range(5):
        for shard in (0, 1, 2):
            cluster.ack(shard, cluster.taken(shard))
            assert cluster.leased("k") <= 3


def test_a_grant_for_an_account_that_is_gone_goes_back() -> None:
    cluster = placed(2)
    late: list[GrantPlaces] = []

    def keep(command: object) -> int:
        if isinstance(command, GrantPlaces) and command.to_shard == 1 and any(each.taken for each in command.accounts):
            late.append(command)
            return 0
        return 1

    cluster.enqueue(1, 1, "k")
    cluster.copies = keep
    cluster.consume(1)
    assert late
    cluster[1].restart()
    cluster.copies = lambda command: 1
    for command in late:
        cluster.deliver(command)
    cluster.pass_time(1000)
    assert cluster.bank.keys["k"].outstanding == cluster.leased("k")


def test_a_frame_that_is_lost_before_one_that_comes_is_said_again() -> None:
    cluster = placed(3, 1, count=3)
    cluster.limit("other", 1)
    cluster.copies = lambda command: 0 if isinstance(command, ReportPlaces) else 1
    cluster.ack(1, cluster.taken(1))  # all places go back, in a frame that is lost
    cluster.copies = lambda command: 1
    cluster.enqueue(1, 1, "other")  # wanted in another one, which comes
    assert cluster.leased("other") == 1
    cluster.enqueue(2, 5, "k")
    cluster.consume(2)
    cluster.pass_time(2_000)
    assert cluster.leased("k") == 3


def test_a_want_comes_with_its_accounts_however_small_frames_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bank drops an account without places and wants, and can't grant to a shard that has none."""
    monkeypatch.setattr("fila_worker.core.places.dispatch.ITEMS_MAX", 1)
    cluster = PlacedShards()
    cluster.limit("a", 2)
    cluster.limit("b", 2)
    for shard in (1, 2):
        cluster.enqueue(shard, 3, "a", "b")
        cluster.consume(shard)
    for _ in range(6):
        for shard in (1, 2):
            cluster.ack(shard, cluster.taken(shard))
        cluster.pass_time(100)
    assert [cluster[shard].counts() for shard in (1, 2)] == [(0, 0, 0)] * 2
