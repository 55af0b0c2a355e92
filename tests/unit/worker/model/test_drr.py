"""The ring: whose turn it is."""

from collections import Counter
from unittest.mock import patch

import pytest

from fila_proto_zmq.commands import Enqueue, QueueOptions
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.model.drr import Line, Ring
from fila_worker.core.model.fairness_keys import FairnessKey
from fila_worker.core.model.queues import Queue
from fila_worker.core.settings import Limits
from tests.support.shard.shard import ShardHarness


class CountedKey(FairnessKey):
    """A key that has so many messages, and no lanes."""

    left = 0

    @property
    def pending(self) -> int:
        return self.left


class Backlog:
    """A ring whose keys have so many messages each, served one at a time as deliveries are."""

    def __init__(self, **limits: int) -> None:
        self.ring = Ring(Limits(**limits))
        self.keys: dict[str, CountedKey] = {}
        self._queue = Queue(1, "q", QueueOptions())

    def add(self, name: str, count: int, weight: int = 1) -> None:
        key = self.keys.setdefault(name, CountedKey(name, self._queue))
        key.weight = weight
        key.left += count
        if not key.active:
            self.ring.join(key)

    def drop(self, name: str) -> None:
        self.keys[name].left = 0
        self.ring.leave(self.keys[name])

    def has(self, name: str) -> bool:
        return name in self.keys and self.keys[name].left > 0

    def serve(self, count: int) -> str:
        served = ""
        while len(served) < count and (key := self.ring.current or self.ring.begin_turn()):
            served += key.name
            assert isinstance(key, CountedKey)
            key.left -= 1
            key.credit -= 1000
            key.spent += 1000
            if not key.left:
                self.ring.leave(key)
            elif key.credit <= 0:
                self.ring.end_turn(key)
        return served


@pytest.fixture
def backlog() -> Backlog:
    return Backlog()


def test_keys_take_turns(backlog: Backlog) -> None:
    for name in "abc":
        backlog.add(name, 4)
    assert backlog.serve(9) == "abcabcabc"


def test_a_turn_is_as_long_as_the_weight(backlog: Backlog) -> None:
    backlog.add("a", 9, weight=1)
    backlog.add("b", 9, weight=3)
    assert backlog.serve(8) == "abbbabbb"


def test_a_turn_may_be_served_in_pieces(backlog: Backlog) -> None:
    backlog.add("a", 9, weight=3)
    backlog.add("b", 9, weight=2)
    assert [backlog.serve(2), backlog.serve(2), backlog.serve(2)] == ["aa", "ab", "ba"]


def test_a_key_that_runs_dry_leaves_and_takes_no_credit_along(backlog: Backlog) -> None:
    backlog.add("a", 2, weight=5)
    backlog.add("b", 9)
    assert backlog.serve(3) == "aab"
    assert not backlog.keys["a"].active
    backlog.add("a", 9, weight=5)
    assert backlog.serve(7) == "aaaaaba"


def test_a_fresh_key_comes_before_the_busy_ones(backlog: Backlog) -> None:
    for name in "abcd":
        backlog.add(name, 9)
    backlog.serve(5)
    backlog.add("x", 9)
    assert backlog.serve(4) == "xbcd"


def test_a_fresh_key_waits_for_the_rest_of_the_turn_in_progress(backlog: Backlog) -> None:
    backlog.add("a", 99, weight=5)
    backlog.add("b", 99, weight=5)
    backlog.serve(12)
    backlog.add("x", 1)
    assert backlog.serve(6) == "aaaxbb"


def test_keys_that_come_together_are_served_in_their_order(backlog: Backlog) -> None:
    backlog.add("a", 99)
    backlog.serve(2)
    for name in "xyz":
        backlog.add(name, 2)
    assert backlog.serve(4) == "xyza"


def test_a_key_that_was_never_served_does_not_wait_for_a_busy_one_because_of_another_fresh_key(backlog: Backlog) -> None:
    backlog.add("a", 99, weight=5)
    backlog.serve(5)
    backlog.add("x", 99, weight=4)
    assert backlog.serve(1) == "x"
    backlog.add("y", 1)
    assert backlog.serve(4) == "xxxy"


def test_a_key_that_empties_and_refills_in_step_leaves_the_others_their_turns(backlog: Backlog) -> None:
    backlog.add("a", 99)
    served = ""
    for _ in range(20):
        if not backlog.has("x"):
            backlog.add("x", 1)
        served += backlog.serve(1)
    assert served.count("a") >= 9


def test_two_keys_that_refill_in_step_leave_a_third_its_turns(backlog: Backlog) -> None:
    backlog.add("a", 99)
    served = ""
    for _ in range(30):
        for name in "xy":
            if not backlog.has(name):
                backlog.add(name, 1)
        served += backlog.serve(1)
    assert served.count("a") >= 9


def test_an_endless_stream_of_new_keys_leaves_the_busy_ones_a_turn_now_and_then(backlog: Backlog) -> None:
    backlog.add("a", 99)
    served = ""
    for number in range(4000):
        backlog.add(chr(1000 + number), 1)
        served += backlog.serve(1)
    assert served[10:].count("a") >= 3


def test_a_new_key_waits_for_no_round_of_busy_ones_however_long(backlog: Backlog) -> None:
    busy = [chr(10_000 + number) for number in range(Limits().busy_wait_turns_max * 2)]
    for name in busy:
        backlog.add(name, 9)
    backlog.serve(len(busy) + 1)
    for name in "xyz":
        backlog.add(name, 9)
    assert backlog.serve(4) == "xyz" + busy[1]


def test_an_endless_stream_of_new_keys_leaves_each_of_many_busy_ones_its_turns(backlog: Backlog) -> None:
    busy = [chr(10_000 + number) for number in range(20)]
    for name in busy:
        backlog.add(name, 99)
    served = backlog.serve(len(busy))
    for number in range(5000):
        backlog.add(chr(20_000 + number), 1)
        served += backlog.serve(1)
    assert all(served.count(name) >= 2 for name in busy)


def test_a_key_may_leave_from_anywhere(backlog: Backlog) -> None:
    for name in "abc":
        backlog.add(name, 9)
    backlog.serve(2)
    backlog.add("x", 9)
    for name in "xba":
        backlog.drop(name)
    assert [key.name for key in backlog.ring.active_keys()] == ["c"]
    assert (len(backlog.ring), backlog.serve(3)) == (1, "ccc")


def test_a_fresh_key_that_leaves_costs_the_others_nothing(backlog: Backlog) -> None:
    backlog.add("a", 99)
    backlog.serve(1)
    for name in "xyz":
        backlog.add(name, 9)
    assert backlog.serve(1) == "x"
    backlog.drop("y")
    assert backlog.serve(3) == "zax"


def test_an_empty_ring_has_no_turn(backlog: Backlog) -> None:
    assert backlog.ring.begin_turn() is None
    backlog.add("a", 1)
    backlog.serve(1)
    assert backlog.ring.begin_turn() is None


def test_the_active_keys_are_listed_from_the_one_in_turn(backlog: Backlog) -> None:
    for name in "abc":
        backlog.add(name, 9, weight=2)
    backlog.serve(3)
    backlog.add("x", 1)
    assert [key.name for key in backlog.ring.active_keys()] == ["b", "c", "x", "a"]


def test_a_deficit_is_what_is_left_of_the_round(backlog: Backlog) -> None:
    backlog.add("a", 99, weight=2)
    key = backlog.keys["a"]
    assert key.deficit(quantum=10) == 20
    key.spent += 7000
    assert key.deficit(quantum=10) == 13
    key.spent += 15_000
    assert key.deficit(quantum=10) == 18
    backlog.drop("a")
    assert key.deficit(quantum=10) == 0


# --- what the ring has beyond FQ-CoDel's two lists ----------------------------------------------------------------------


def test_a_key_that_comes_back_after_its_turn_waits_for_one_busy_turn_and_not_for_a_round(backlog: Backlog) -> None:
    """The case for ``again``. FQ-CoDel keeps an emptied flow among the old ones: here that would be a wait for 20 turns."""
    busy = [chr(10_000 + number) for number in range(20)]
    for name in busy:
        backlog.add(name, 99)
    backlog.serve(20)
    served = ""
    for _ in range(10):
        backlog.add("x", 1)
        served += backlog.serve(2)
    assert served[::2] == "x" * 10
    assert served[1::2] == "".join(busy[:10]), "and it is not new again before a busy key had a turn"


def test_a_key_that_comes_back_does_not_wait_for_a_busy_one_that_left(backlog: Backlog) -> None:
    """Also while other new keys come all the time."""
    backlog.add("a", 9)
    backlog.serve(1)
    backlog.add("x", 1)
    assert backlog.serve(1) == "x"
    backlog.add("x", 1)
    backlog.add("0", 1)
    backlog.drop("a")
    served = ""
    for number in range(10):
        backlog.add(f"{number + 1}"[-1], 1)
        served += backlog.serve(1)
    assert "x" in served


@pytest.mark.parametrize("first", ["waits", "had its turn"])
def test_a_new_key_comes_before_a_crowd_that_had_no_turn_without_a_walk_over_it(backlog: Backlog, first: str) -> None:
    """The case for both ends of ``fresh``: after a restart, or when the first consumer comes, all keys are new."""
    for number in range(2000):
        backlog.add(chr(10_000 + number), 9)
    backlog.serve(1)
    for name in "xyz":
        backlog.add(name, 1)
    if first == "waits":
        backlog.add(chr(10_000), 9)
    with patch.object(Line, "remove", autospec=True, side_effect=Line.remove) as moved:
        assert sorted(backlog.serve(3)) == ["x", "y", "z"]
    assert moved.call_count <= 3
    assert backlog.serve(2) == chr(10_001) + chr(10_002)


def test_new_keys_that_overtake_each_other_leave_a_busy_one_its_turns() -> None:
    """Each has a backlog, and is gone after its first turn; there is never a moment without any."""
    backlog = Backlog(fresh_turns_max=3, busy_wait_turns_max=10)
    backlog.add("a", 999)
    served = backlog.serve(1)
    for number in range(0, 300, 3):
        for names, count in ((chr(10_000 + number) + chr(10_001 + number), 1), (chr(10_002 + number), 2)):
            for name in names:
                backlog.add(name, 2)
            new = backlog.serve(count)
            for name in set(new) - {"a"}:
                backlog.drop(name)
            served += new
    assert served.count("a") > 5


def test_a_key_that_left_in_the_middle_of_the_busy_ones_leaves_nothing_behind(backlog: Backlog) -> None:
    for name in "abc":
        backlog.add(name, 9)
    backlog.serve(3)
    for _ in range(1000):
        backlog.drop("b")
        backlog.add("b", 9)
    assert sorted(key.name for key in backlog.ring.active_keys()) == ["a", "b", "c"]
    assert Counter(backlog.serve(9)) == {"a": 3, "b": 3, "c": 3}


# --- in a shard -------------------------------------------------------------------------------------------------------


def keys_served(shard: ShardHarness, count: int) -> str:
    got = shard.receive(count)
    shard.ack(got)
    return "".join(each.key for each in got)


def test_a_quiet_tenant_is_served_once_before_a_busy_one_twice(shard: ShardHarness) -> None:
    shard.enqueue(*[b""] * 50, key="a")
    for name in "bcd":
        shard.enqueue(b"", key=name)
    assert keys_served(shard, 4) == "abcd"


def test_a_new_key_comes_before_a_backlog_that_had_no_turn_yet(shard: ShardHarness) -> None:
    for name in "abcd":
        shard.enqueue(*[b""] * 9, key=name, weight=2)
    assert keys_served(shard, 3) == "aab"
    shard.enqueue(b"", b"", key="x")
    assert keys_served(shard, 8) == "bxccddaa"


def test_a_new_key_comes_before_the_backlog_that_a_restart_found(shard: ShardHarness) -> None:
    for name in "abcd":
        shard.enqueue(*[b""] * 9, key=name, weight=2)
    keys_served(shard, 8)
    shard.restart()
    in_turn = keys_served(shard, 1)
    shard.enqueue(b"", key="x")
    assert keys_served(shard, 2) == in_turn + "x"


def test_new_keys_with_a_message_each_are_served_in_their_order(shard: ShardHarness) -> None:
    for name in "abc":
        shard.enqueue(b"", key=name)
    assert keys_served(shard, 1) == "a"
    shard.enqueue(b"", key="x")
    assert keys_served(shard, 3) == "bcx"


def test_a_backlog_that_had_no_turn_yet_gets_one_however_many_new_keys_come() -> None:
    shard = ShardHarness(checked=False)
    shard.create()
    for name in "abc":
        shard.enqueue(*[b""] * 99, key=name)
    served = keys_served(shard, 1)
    for number in range(2500):
        shard.enqueue(b"", key=f"<{number}>")
        served += keys_served(shard, 1)
    assert {"b", "c"} <= set(served)


def test_the_latest_weight_holds_for_the_whole_backlog(shard: ShardHarness) -> None:
    shard.enqueue(*[b""] * 20, key="a")
    shard.enqueue(*[b""] * 20, key="b")
    assert keys_served(shard, 4) == "abab"
    shard.enqueue(b"", key="b", weight=3)
    assert keys_served(shard, 8) == "abbbabbb"


def test_a_message_without_a_weight_leaves_it(shard: ShardHarness) -> None:
    shard.enqueue(*[b""] * 20, key="a", weight=2)
    shard.enqueue(*[b""] * 20, key="b")
    shard.enqueue(b"", key="a")
    assert keys_served(shard, 6) == "aabaab"


@pytest.mark.parametrize("weight", [-1, -(2**31)])
def test_a_weight_below_one_counts_as_one(shard: ShardHarness, weight: int) -> None:
    shard.enqueue(*[b""] * 9, key="a", weight=3)
    shard.enqueue(b"", key="a", weight=weight)
    shard.enqueue(*[b""] * 9, key="b", weight=3)
    assert keys_served(shard, 4) == "abbb"


def test_a_weight_survives_a_restart_with_its_backlog(shard: ShardHarness) -> None:
    shard.enqueue(*[b""] * 20, key="a", weight=3)
    shard.enqueue(*[b""] * 20, key="b")
    shard.restart()
    assert sorted(keys_served(shard, 8)) == list("aaaaaabb")


def test_a_delivery_has_the_keys_and_weights_of_its_messages(shard: ShardHarness) -> None:
    shard.ask(Enqueue([seal_envelope(b"")] * 4, ["a", "a", "b", "b"], [2, 2, 1, 1]))
    assert [(each.key, each.weight) for each in shard.receive(4)] == [("a", 2), ("a", 2), ("b", 1), ("b", 1)]


def test_stats_show_each_keys_share(shard: ShardHarness) -> None:
    shard.enqueue(*[b""] * 5, key="a", weight=2)
    shard.enqueue(b"", key="b", delay_ms=10)
    shard.receive(2)
    keys = {key.fairness_key: key for key in shard.stats().keys}
    a, b = keys["a"], keys["b"]
    assert (a.weight, a.pending, a.in_flight, a.delivered, a.deficit) == (2, 3, 2, 2, 1998)
    assert (b.weight, b.pending, b.delayed, b.deficit) == (1, 0, 1, 0)
