"""``/history``: what is remembered, as programs read it; and that it is remembered at even intervals."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from fila_cluster.ops.analysis import watch as watching_module
from fila_cluster.ops.analysis.history import CONSUMERS, DEAD_LETTERS, SERIES, TICK_S, TICKS, History, half_hour
from fila_cluster.ops.analysis.watch import Watch, remember
from fila_proto_zmq.commands import KeyMetrics, Metrics
from tests.unit.analysis.looks import of_queues, queue
from tests.unit.observer.test_app import GONE, Answer, get, watching

START_S = 1_700_000_000.0


def keys(fast: int, slow: int) -> list[KeyMetrics]:
    return [KeyMetrics("slow", 1, 9, slow, 0.25), KeyMetrics("fast", 3, 9, fast, 0.75)]


FIRST = of_queues(queue("eu/orders", pending=7, keys=keys(0, 0), known_keys=2), queue("mail", pending=1))
SECOND = of_queues(
    queue("eu/orders", pending=3, keys=keys(30, 10), known_keys=2, enqueued=1, delivered=40), queue("mail", pending=2)
)


def remembered(*looks: Metrics | None) -> History:
    history = History()
    for number, look in enumerate(looks):
        history.record(START_S + number * TICK_S, look)
    return history


def ask(history: History, url: str, watch: Watch | None = None) -> Any:
    answer = get(watch or watching(SECOND), url, history)
    assert answer.status == 200
    return json.loads(answer.body)


def test_a_queue_s_half_hour_is_json_that_must_not_be_cached():
    answer: Answer = get(watching(SECOND), "/history?queue=eu%2Forders", remembered(FIRST, SECOND))
    assert answer.status == 200
    assert (answer.headers["content-type"], answer.headers["cache-control"]) == ("application/json", "no-store")
    told = json.loads(answer.body)
    assert (told["queue"], told["times"]) == ("eu/orders", [START_S, START_S + TICK_S])
    assert told["series"].keys() == {*SERIES, CONSUMERS}
    assert told["series"]["pending"] == [7, 3]
    assert (told["series"]["enqueued"], told["series"]["delivered"]) == ([None, 0.2], [None, 8])
    assert told["shares"] == [
        {"fairness_key": "fast", "weight": 3, "pending": 9, "entitled": 0.75, "actual": 0.75, "delivered_per_s": 6.0},
        {"fairness_key": "slow", "weight": 1, "pending": 9, "entitled": 0.25, "actual": 0.25, "delivered_per_s": 2.0},
    ]
    assert told["workers"] == {"worker-0": 40}


def test_without_a_queue_it_is_the_sums_of_all():
    told = ask(remembered(FIRST, SECOND), "/history")
    assert (told["queue"], told["shares"]) == (None, [])
    assert told["series"].keys() == {*SERIES, DEAD_LETTERS}
    assert (told["series"]["pending"], told["series"]["delivered"]) == ([8, 5], [None, 8])


def test_before_anything_was_seen_there_are_no_times():
    told = ask(History(), "/history")
    assert told["times"] == told["series"]["pending"] == []


@pytest.mark.parametrize("name", ["nobody", ""])
def test_an_unknown_queue_is_one_clear_line(name: str):
    answer = get(watching(SECOND), f"/history?queue={name}", remembered(SECOND))
    assert answer.status == 404
    told = json.loads(answer.body)
    assert told.keys() == {"error"}
    assert told["error"].startswith(f"no history of the queue {name!r}: ")
    assert "\n" not in told["error"]


def test_while_the_broker_is_down_the_past_is_shown_and_the_present_is_not():
    told = ask(remembered(FIRST, SECOND, None), "/history?queue=eu/orders", watching(SECOND, GONE))
    assert told["series"]["pending"] == [7, 3, None]
    assert (told["shares"], told["workers"]) == ([], {})


def test_a_queue_that_is_gone_has_no_share_in_the_last_minute():
    told = ask(remembered(FIRST, SECOND, of_queues(queue("mail"))), "/history?queue=eu/orders")
    assert told["series"]["pending"] == [7, 3, None]
    assert told["shares"] == []


def test_it_is_never_more_than_half_an_hour():
    told = half_hour(remembered(*[SECOND] * (TICKS + 5)), "mail", SECOND)
    assert told is not None
    assert len(told.times) == len(told.series["pending"]) == TICKS
    assert told.times[0] == START_S + 5 * TICK_S


def test_it_is_remembered_at_even_intervals_outages_too(monkeypatch: pytest.MonkeyPatch):
    """However long a look takes: here two seconds, and once more than a whole interval."""
    now_s = 100.0
    busy_s = [2.0, 6.0, 0.0, 0.0]
    pauses: list[float] = []
    watch, history = watching(SECOND), History()

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        pauses.append(seconds)
        now_s += seconds
        watch.latest = None if len(pauses) == 2 else SECOND
        if len(pauses) == 4:
            raise asyncio.CancelledError

    def record(at_s: float, look: Metrics | None) -> None:
        nonlocal now_s
        now_s += busy_s[len(pauses)]
        looks.append(look)

    looks: list[Metrics | None] = []
    monkeypatch.setattr(history, "record", record)
    monkeypatch.setattr(watching_module, "time", SimpleNamespace(monotonic=lambda: now_s, time=lambda: START_S))
    monkeypatch.setattr(watching_module, "asyncio", SimpleNamespace(sleep=sleep))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(remember(watch, history))
    assert looks == [SECOND, SECOND, None, SECOND]
    assert pauses == [TICK_S - 2, 0.0, TICK_S, TICK_S]
