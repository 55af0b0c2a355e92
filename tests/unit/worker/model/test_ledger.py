"""The ledger: every lane's counts, whatever moment the process ends at."""

from itertools import pairwise

import pytest

from fila_proto_zmq.commands import Enqueue, Verb
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.keys import FIRST, LAST
from fila_worker.core.model import ledger
from fila_worker.core.settings import Limits, ShardSettings
from tests.support.shard.shard import ShardHarness, limited

EMPTY = seal_envelope(b"")


def folding(entries: int) -> ShardHarness:
    """A shard that folds its ledger after so many entries."""
    return ShardHarness(settings=limited(ledger_entries_max=entries))


def entries(shard: ShardHarness) -> int:
    return len(list(shard.store.scan(FIRST, LAST, shard.store.families.ledger)))


def lane_records(shard: ShardHarness) -> list[str]:
    items = shard.store.scan(FIRST, LAST, shard.store.families.lanes)
    return [ledger.decode_lane(data).fairness_key for _, data in items]


def counts_by_key(shard: ShardHarness, queue: str = "q") -> dict[str, tuple[int, int, int, int]]:
    keys = shard.stats(queue).keys
    return {key.fairness_key: (key.pending, key.in_flight, key.delayed, key.weight) for key in keys}


def spread(shard: ShardHarness, keys: str, **columns: object) -> None:
    """One message for each fairness key."""
    shard.ask(Enqueue([EMPTY] * len(keys), list(keys), **columns))  # type: ignore[arg-type]


@pytest.mark.parametrize("lanes_a_step", [1, 2, 1000])
@pytest.mark.parametrize("fold_every", [1, 2, 3, 5, 8, 13, 10_000])
def test_counts_are_right_after_a_restart_at_any_point(fold_every: int, lanes_a_step: int) -> None:
    limits = Limits(ledger_entries_max=fold_every, ledger_fold_lanes_min=lanes_a_step)
    shard = ShardHarness(settings=ShardSettings(consumer_timeout_ms=10**9, limits=limits))
    shard.create(max_attempts=3)
    steps = [
        lambda: spread(shard, "aab", weight=2),
        lambda: spread(shard, "c", delay_ms=3_000),
        lambda: shard.receive(2),
        lambda: shard.ack(shard.receive(1)),
        lambda: spread(shard, "abc", priority=-4),
        lambda: shard.nack(shard.receive(2)),
        lambda: shard.settle(Verb.FAIL, shard.receive(1)),
        lambda: shard.settle(Verb.RETRY, shard.receive(1), after_ms=2_000),
        lambda: shard.settle(Verb.RELEASE, shard.receive(2)),
        lambda: shard.pass_time(2_500),
        shard.redrive,
        lambda: shard.pass_time(28_000),
        lambda: shard.ack(shard.receive(9)),
    ]
    for _ in range(2):
        for step in steps:
            step()
            before = counts_by_key(shard), counts_by_key(shard, "q.dlq")
            shard.restart()
            after = counts_by_key(shard), counts_by_key(shard, "q.dlq")
            for kept, recovered in zip(before, after, strict=True):
                busy = {key: counts for key, counts in kept.items() if any(counts[:3])}
                assert {key: counts for key, counts in recovered.items() if any(counts[:3])} == busy


def test_each_turn_writes_one_entry_and_a_fold_replaces_them_all() -> None:
    shard = folding(5)
    shard.create()
    sizes = []
    for _ in range(12):
        spread(shard, "ab")
        sizes.append(entries(shard))
    assert max(sizes) <= 6
    assert sizes.count(1) >= 2


def test_many_changed_lanes_make_a_fold_due_too() -> None:
    shard = ShardHarness(settings=limited(ledger_counts_max=10))
    shard.create()
    sizes = []
    for _ in range(8):
        spread(shard, "abcd")
        sizes.append(entries(shard))
    assert max(sizes) <= 4


def test_a_fold_goes_in_steps_and_keeps_its_entries_until_the_last() -> None:
    shard = ShardHarness(settings=limited(ledger_counts_max=12, ledger_fold_lanes_min=4))
    shard.create()
    spread(shard, "abcdefghijklm")
    shard.enqueue(b"", key="a")
    left = []
    while shard.shard.ledger.folding:
        left.append(len(shard.shard.ledger.unfolded()))
        assert entries(shard) > 1
        shard.enqueue(b"", key="a")
    assert len(left) == 3, "4 of 13 lanes a turn"
    assert entries(shard) <= 4
    shard.restart()
    assert shard.counts() == (13 + 4, 0, 0)


def test_a_step_of_a_fold_is_bounded_and_later_ones_make_up_for_it() -> None:
    shard = ShardHarness(settings=limited(ledger_counts_max=12, ledger_fold_lanes_min=2, ledger_fold_lanes_max=3))
    shard.create()
    spread(shard, "abcdefghijkl")
    shard.enqueue(b"", key="a")
    left = [len(shard.shard.ledger._folding)]
    spread(shard, "mnopqr")
    while shard.shard.ledger.folding:
        left.append(len(shard.shard.ledger._folding))
        shard.enqueue(b"", key="m")
    assert [one - other for one, other in pairwise([12, *left, 0])] == [2, 3, 3, 2, 2]
    shard.restart()
    assert shard.counts() == (12 + 1 + 6 + 3, 0, 0)


@pytest.mark.parametrize("later", range(6))
def test_what_changes_during_a_fold_is_right_after_a_restart(later: int) -> None:
    shard = ShardHarness(settings=limited(ledger_counts_max=8, ledger_fold_lanes_min=1))
    shard.create()
    spread(shard, "abcdefgh")
    for name in "ahcafd"[:later]:
        shard.enqueue(b"", key=name)
    shard.ack(shard.receive(3))
    before = counts_by_key(shard)
    shard.restart()
    assert counts_by_key(shard) == {key: counts for key, counts in before.items() if any(counts[:3])}
    assert len(shard.receive(99)) == 8 + later - 3


def test_a_key_that_falls_idle_and_changes_again_during_a_fold_is_forgotten_once(forgetful: ShardHarness) -> None:
    forgetful.limit(ledger_counts_max=6, ledger_fold_lanes_min=1)
    for _ in range(12):
        spread(forgetful, "abcdef")
        forgetful.ack(forgetful.receive(6))
    for _ in range(40):
        forgetful.enqueue(b"", key="z")
        forgetful.ack(forgetful.receive(1))
    assert len(forgetful.stats().keys) <= 3
    forgetful.restart()
    assert forgetful.counts() == (0, 0, 0)


def test_a_turn_that_changes_nothing_writes_nothing(shard: ShardHarness) -> None:
    commits = shard.store.committed  # type: ignore[attr-defined]
    for _ in range(3):
        shard.stats()
        shard.receive()
        shard.pass_time(1)
    assert shard.store.committed == commits  # type: ignore[attr-defined]


def test_idle_lanes_leave_the_disk_at_a_fold() -> None:
    shard = folding(2)
    shard.create()
    spread(shard, "abc")
    shard.ack(shard.receive(9))
    for _ in range(4):
        spread(shard, "d")
    assert lane_records(shard) == ["d"]


def test_a_lane_that_was_idle_at_a_fold_is_recorded_again() -> None:
    shard = folding(1)
    shard.create()
    for _ in range(3):
        spread(shard, "ab")
        shard.ack(shard.receive(9))
        shard.turn()
    spread(shard, "ab")
    shard.restart()
    assert shard.counts() == (2, 0, 0)
    assert len(shard.receive(9)) == 2


def test_weights_survive_in_entries_and_in_records() -> None:
    for fold_every in (1, 1000):
        shard = folding(fold_every)
        shard.create()
        spread(shard, "a", weight=3)
        spread(shard, "a", weight=7)
        shard.restart()
        assert counts_by_key(shard) == {"a": (2, 0, 0, 7)}


def test_a_more_urgent_message_than_all_is_found_after_folds_and_restarts() -> None:
    shard = folding(1)
    shard.create()
    for priority in (0, -1, -2, -3):
        shard.enqueue(b"", priority=priority)
        shard.ack(shard.receive(1)) if priority == -2 else shard.turn()
        shard.restart()
    assert [each.record.priority for each in shard.receive(9)] == [-3, -1, 0]


def test_a_delayed_message_that_comes_before_all_is_found_after_folds_and_restarts() -> None:
    shard = folding(1)
    shard.create()
    shard.enqueue(b"first", delay_ms=1_000)
    shard.enqueue(b"second")
    shard.enqueue(b"third")
    shard.pass_time(1_000)
    shard.restart()
    assert [each.payload for each in shard.receive(9)] == [b"first", b"second", b"third"]


def test_a_dead_letter_that_comes_before_all_is_found_after_folds_and_restarts() -> None:
    shard = folding(1)
    shard.create()
    shard.enqueue(b"first", b"second")
    first, second = shard.receive(2)
    shard.settle(Verb.FAIL, [second])
    shard.turn()
    shard.settle(Verb.FAIL, [first])
    shard.restart()
    assert [each.payload for each in shard.receive(9, "q.dlq")] == [b"first", b"second"]


# --- many keys --------------------------------------------------------------------------------------------------------


@pytest.fixture
def forgetful() -> ShardHarness:
    """A shard that remembers two idle fairness keys of a queue."""
    shard = ShardHarness(settings=limited(idle_lanes_max=2))
    shard.create()
    return shard


def test_idle_keys_beyond_a_number_are_forgotten(forgetful: ShardHarness) -> None:
    forgetful.limit(ledger_entries_max=1)
    spread(forgetful, "abcdef")
    forgetful.ack(forgetful.receive(6))
    forgetful.turn()
    assert len(forgetful.stats().keys) == 2
    assert len(forgetful.shard.lanes) == 2


def test_the_oldest_idle_key_is_forgotten_first(forgetful: ShardHarness) -> None:
    forgetful.limit(ledger_entries_max=1)
    for key in "abcab":
        spread(forgetful, key)
        forgetful.ack(forgetful.receive(1))
        forgetful.turn()
    assert sorted(key.fairness_key for key in forgetful.stats().keys) == ["a", "b"]


def test_the_queues_of_a_shard_share_what_it_remembers() -> None:
    shard = ShardHarness(settings=limited(idle_lanes_max=10, idle_lanes_of_shard_max=12, ledger_entries_max=1))
    names = [f"q{number}" for number in range(3)]
    for name in names:
        shard.create(name)
    for _ in range(2):
        for name in names:
            shard.ask(Enqueue([EMPTY] * 8, list("abcdefgh")), name)
            shard.ack(shard.receive(8, name), name)
            shard.turn()
    assert len(shard.shard.queues.by_id) == 6  # with their dead letter queues
    assert [len(shard.stats(name).keys) for name in names] == [2, 2, 2]
    assert len(shard.shard.lanes) == 6


def test_busy_keys_are_never_forgotten(forgetful: ShardHarness) -> None:
    forgetful.limit(ledger_entries_max=1)
    spread(forgetful, "abc")
    spread(forgetful, "def", delay_ms=1_000)
    forgetful.receive(1)
    forgetful.turn()
    assert sorted(counts_by_key(forgetful)) == list("abcdef")


@pytest.mark.parametrize("later", ["ghijkl", "abcdef", "ab"])
def test_keys_that_fall_idle_in_the_very_turn_of_a_fold_are_forgotten_once(forgetful: ShardHarness, later: str) -> None:
    spread(forgetful, "abcdef")
    got = forgetful.receive(6)
    forgetful.limit(ledger_entries_max=1)
    forgetful.ack(got)
    spread(forgetful, later)
    forgetful.turn()
    assert forgetful.counts() == (len(later), 0, 0)
    forgetful.restart()
    assert len(forgetful.receive(9)) == len(later)


@pytest.mark.parametrize("fold_every", [1, 2, 3, 4, 5])
def test_keys_may_come_and_go_for_ever(forgetful: ShardHarness, fold_every: int) -> None:
    forgetful.limit(ledger_entries_max=fold_every)
    for number in range(30):
        spread(forgetful, "abcdefghij"[number % 5 :][:5])
        if number % 2:
            forgetful.ack(forgetful.receive(9))
        if number % 7 == 6:
            forgetful.restart()
    pending = forgetful.counts()[0]
    assert len(forgetful.receive(99)) == pending
