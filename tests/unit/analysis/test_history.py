"""Half an hour of a cluster, sample by sample."""

import math

import pytest

from fila_cluster.ops.analysis.history import (
    CONSUMERS,
    LEVELS,
    LOOKS,
    SERIES,
    TICK_S,
    TICKS,
    History,
    LastMinuteShare,
    short_of_weight,
)
from fila_proto_zmq.commands import OTHER_KEYS, KeyMetrics, Metrics, QueueMetrics
from tests.unit.analysis import looks


def queue(name: str = "orders", *, pending: int = 0, delivered: int = 0, oldest_ms: int = 0, **more: object) -> QueueMetrics:
    return looks.queue(name, pending=pending, oldest_ms=oldest_ms, **({"known_keys": 0, "delivered": delivered} | more))


def look(*queues: QueueMetrics, started_ms: int = 1) -> Metrics:
    return looks.look(looks.worker("worker-0", looks.shard(0, *queues), started_ms=started_ms))


def told(history: History, *seen: Metrics | None, start_s: float = 1000.0) -> History:
    for number, metrics in enumerate(seen):
        history.record(start_s + number * TICK_S, metrics)
    return history


def known(numbers: list[float]) -> list[float | None]:
    return [None if math.isnan(number) else number for number in numbers]


def test_levels_are_known_at_once_and_flows_from_the_second_sample() -> None:
    history = told(History(), look(queue(pending=3, delivered=10)), look(queue(pending=5, delivered=60)))
    assert history.times() == [1000.0, 1005.0]
    series = history.of_queue("orders")
    assert set(series) == {*SERIES, CONSUMERS}
    assert series["pending"] == [3, 5]
    assert known(series["delivered"]) == [None, 10.0]


def test_an_outage_is_a_gap_in_everything() -> None:
    history = told(History(), look(queue(pending=3)), None, look(queue(pending=4)), look(queue(pending=4, delivered=5)))
    assert known(history.of_queue("orders")["pending"]) == [3, None, 4, 4]
    assert known(history.of_all()["pending"]) == [3, None, 4, 4]
    assert known(history.of_queue("orders")["delivered"]) == [None, None, None, 1.0]


def test_a_restarted_worker_has_no_rate_and_no_share_until_its_second_look() -> None:
    keys = [KeyMetrics("acme", 1, 1, 500, 1.0)]
    fresh = [KeyMetrics("acme", 1, 1, 3, 1.0)]
    history = told(
        History(),
        look(queue(delivered=490, keys=keys, known_keys=1)),
        look(queue(delivered=500, keys=keys, known_keys=1)),
        look(queue(delivered=3, keys=fresh, known_keys=1), started_ms=2),
    )
    assert known(history.of_queue("orders")["delivered"]) == [None, 2.0, None]
    assert history.shares("orders") == []


def test_sums_leave_out_dead_letters_and_count_them_apart() -> None:
    one = look(
        queue("a", pending=1, oldest_ms=2000),
        queue("b", pending=2, oldest_ms=9000),
        queue("a.dlq", pending=7),
    )
    sums = told(History(), one).of_all()
    assert (sums["pending"], sums["dead_letters"], sums["oldest_age_s"]) == ([3], [7], [9])


def test_a_queue_that_is_gone_leaves_a_gap_and_is_forgotten_after_half_an_hour() -> None:
    history = told(History(), look(queue(pending=1)), look())
    assert known(history.of_queue("orders")["pending"]) == [1, None]
    for number in range(TICKS):
        history.record(2000.0 + number, look())
    assert history.of_queue("orders") == {}


def test_only_the_last_half_hour_is_kept_in_order() -> None:
    history = told(History(), *(look(queue(pending=number)) for number in range(TICKS + 7)))
    times, pending = history.times(), history.of_queue("orders")["pending"]
    assert len(times) == len(pending) == TICKS
    assert times == sorted(times)
    assert (pending[0], pending[-1]) == (7, TICKS + 6)


def test_looks_are_kept_for_half_a_minute() -> None:
    seen = [look(queue(pending=number)) for number in range(20)]
    history = told(History(), *seen)
    now_s = 1000.0 + 19 * TICK_S
    recent, older, oldest = (history.look_back(now_s, seconds) for seconds in (TICK_S, 30.0, 9999.0))
    assert recent is not None
    assert recent.metrics is seen[-2]
    assert older == oldest
    assert older is not None
    assert older.metrics is seen[-LOOKS]
    assert History().look_back(0.0, 5.0) is None


def test_shares_are_what_keys_got_against_what_was_due_to_them() -> None:
    def keys(fast: int, slow: int) -> list[KeyMetrics]:
        return [KeyMetrics("slow", 1, 9, slow, 0.25), KeyMetrics("fast", 3, 9, fast, 0.75)]

    history = told(
        History(), look(queue(keys=keys(0, 0), known_keys=2)), look(queue(keys=keys(75, 25), delivered=100, known_keys=2))
    )
    fast, slow = history.shares("orders")
    assert (fast.fairness_key, fast.entitled, fast.actual, fast.delivered_per_s) == ("fast", 0.75, 0.75, 15.0)
    assert (slow.fairness_key, slow.entitled, slow.actual) == ("slow", 0.25, 0.25)


def test_a_throttled_key_is_still_entitled_by_its_weight() -> None:
    throttled = [KeyMetrics("a", 1, 9, 5, 0.0), KeyMetrics("b", 3, 9, 5, 0.0), KeyMetrics("idle", 1, 0, 5, 0.0)]
    history = told(History(), *[look(queue(keys=throttled, known_keys=3))] * 2)
    assert {share.fairness_key: share.entitled for share in history.shares("orders")} == {"a": 0.25, "b": 0.75, "idle": 0.0}


def test_all_other_keys_are_one_share_and_come_last() -> None:
    def metrics(shown: int, other: int) -> Metrics:
        return look(queue(keys=[KeyMetrics("a", 1, 1, shown, 0.1)], known_keys=9, other_delivered=other))

    history = told(History(), metrics(0, 0), metrics(10, 90))
    told_of = [(share.fairness_key, share.entitled, share.actual) for share in history.shares("orders")]
    assert told_of == [("a", 0.1, 0.1), (OTHER_KEYS, 0.9, 0.9)]


@pytest.mark.parametrize("last", [None, look()], ids=["the broker is down", "its shard is down"])
def test_an_old_minute_has_no_shares(last: Metrics | None) -> None:
    keys = [KeyMetrics("a", 1, 1, 5, 1.0)]
    history = told(History(), *[look(queue(keys=keys, known_keys=1))] * 2, last)
    assert history.shares("orders") == []


@pytest.mark.parametrize("name", LEVELS)
def test_an_unknown_queue_has_no_series(name: str) -> None:
    assert name not in History().of_queue("nobody")


def test_keys_that_are_short_of_their_weight_are_found() -> None:
    def share(key: str, entitled: float, actual: float, pending: int = 5) -> LastMinuteShare:
        return LastMinuteShare(key, 1, pending, entitled, actual, 1.0)

    shares = [
        share("a", 0.5, 0.46),
        share("b", 0.8, 0.38),
        share("c", 0.3, 0.0),
        share("idle", 0.5, 0.1, 0),
        share(OTHER_KEYS, 0.9, 0.1),
    ]
    assert short_of_weight(shares, 3) == ["b", "c"]
    assert short_of_weight(shares, 1) == ["b"]
