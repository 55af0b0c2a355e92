"""How many consumers are wanted: of what waits, what limits let through counts, at the pace that consumers have shown."""

import math
from typing import Any

import pytest

from fila_cluster.client.explanation import Explanation, Reason
from fila_cluster.ops.analysis.history import TICK_S
from fila_cluster.ops.analysis.scaling import Scale, examined_part, scale
from fila_proto_zmq.commands import QueueDescription, QueueInfo, QueueOptions

NAMES = ("pending", "in_flight", "consumers", "acked", "nacked", "enqueued")
IDLE = (0, 0, 0, 0)


def past(*ticks: tuple[float, ...], enqueued: float = 0) -> dict[str, list[float]]:
    """Ticks of (pending, in flight, consumers, acked a second)."""
    return {
        name: [float(each[index]) for each in ((*tick, 0, enqueued) for tick in ticks)] for index, name in enumerate(NAMES)
    }


def reason(code: str, **details: Any) -> Reason:
    return Reason(code, "", None, details)


def limited(messages: int, *, rate: float | None = None, tokens: float | None = None, places: int | None = None) -> Reason:
    limit = {"throttle_key": "api", "messages": messages, "rate": rate, "tokens": tokens, "concurrency": places}
    return reason("limited", messages=messages, limits=[limit])


def throttled(messages: int, code: str = "throttled") -> Reason:
    return reason(code, messages=messages, keys=1, fairness_key="acme", throttle_key="api")


def asked(
    *reasons: Reason,
    pending: int = 0,
    in_flight: int = 0,
    consumers: int = 0,
    before: dict[str, list[float]] | None = None,
    drain_s: float = 60,
    paused: bool = False,
    max_in_flight: int | None = None,
    examined: float = 1.0,
) -> Scale:
    info = QueueInfo("orders", pending, in_flight, 0, consumers, paused, False, 0)
    described = QueueDescription(info, QueueOptions(max_in_flight=max_in_flight), 0, 0, False, [], 0)
    return scale(described, Explanation("pending", list(reasons), None, None), before or {}, drain_s, examined)


BUSY = past(*[(3000, 20, 2, 10)] * 12, enqueued=10)
"""Two consumers do 5 a second each, and as many messages come."""


# --- the backlog and what comes ---------------------------------------------------------------------------------------


def test_a_queue_with_nothing_to_do_needs_nobody() -> None:
    told = asked(before=past(*[IDLE] * 12))
    assert (told.consumers, told.reason) == (0, "nothing waits")
    assert asked().consumers == 0, "also if it was never seen"


def test_one_consumer_comes_first_and_shows_what_one_does() -> None:
    told = asked(pending=9000, before=past(*[(9000, 0, 0, 0)] * 12))
    assert (told.consumers, told.per_consumer, told.deliverable) == (1, None, 9000)
    assert told.reason == "9,000 of 9,000 messages can be delivered in 60 s; nobody knows yet what one consumer does"
    assert asked(pending=9000, consumers=3, in_flight=3).consumers == 3, "nor what three do"


def test_the_backlog_goes_in_time_and_what_comes_meanwhile_goes_too() -> None:
    told = asked(pending=6000, in_flight=20, consumers=2, before=BUSY)
    assert (told.per_consumer, told.per_second, told.consumers) == (5, 110, 22)
    assert asked(pending=6000, in_flight=20, consumers=2, before=BUSY, drain_s=600).consumers == 4
    assert told.reason == "6,000 of 6,000 messages can be delivered in 60 s"


def test_consumers_that_are_enough_stay_as_many_as_work_at_a_time() -> None:
    """Twenty of them settle ten messages a second, each of which takes a fifth of a second: two work at a time."""
    told = asked(pending=1, in_flight=2, consumers=20, before=past(*[(1, 2, 20, 10)] * 12, enqueued=10))
    assert (told.consumers, told.reason) == (3, "its consumers keep up"), "two, and a little more for the one that waits"


def test_a_few_messages_that_wait_are_no_reason_for_one_more_consumer() -> None:
    each_holds_many = past(*[(3, 300, 10, 300)] * 12, enqueued=300)
    assert asked(pending=3, in_flight=300, consumers=10, before=each_holds_many).consumers == 10


def test_consumers_that_hold_many_messages_have_shown_more_while_a_backlog_was_there() -> None:
    both = past(*[(9000, 500, 5, 500)] * 8, *[(0, 50, 5, 50)] * 20, enqueued=50)
    told = asked(in_flight=50, consumers=5, before=both)
    assert (told.per_consumer, told.consumers) == (100, 1)


def test_the_last_pace_counts_and_not_one_from_before() -> None:
    slower = past(*[(9000, 20, 2, 200)] * 100, *[(9000, 20, 2, 10)] * 12)
    assert asked(pending=9000, in_flight=20, consumers=2, before=slower).per_consumer == 5


def test_consumers_that_have_just_come_do_not_make_all_look_slow() -> None:
    grown = [*[(6000, 10, 1, 5)] * 12, *[(6000, 200, 20, 5)] * 3]
    assert asked(pending=6000, in_flight=200, consumers=20, before=past(*grown, enqueued=5)).consumers == 21
    always_more = past(*[(6000, 10 * number, number, 5 * number) for number in range(1, 12)], enqueued=5)
    assert asked(pending=6000, in_flight=200, consumers=20, before=always_more).consumers == 21


def test_rates_that_are_not_known_are_no_rates() -> None:
    gaps = BUSY | {"acked": [math.nan, *BUSY["acked"][1:]], "enqueued": [math.nan] * 11 + [10.0]}
    assert asked(pending=6000, in_flight=20, consumers=2, before=gaps).per_second == 110


def test_what_is_delivered_at_most_once_is_never_leased() -> None:
    assert asked(pending=6000, consumers=2, before=past(*[(6000, 0, 2, 10)] * 12)).per_consumer == 5


def test_nobody_is_started_for_whom_there_is_no_message() -> None:
    minutes = past(*[(8, 1, 1, 1 / 300)] * 300)
    assert asked(pending=8, in_flight=1, consumers=1, before=minutes).consumers == 9


def test_work_that_takes_longer_than_the_time_to_drain_has_to_begin_at_once() -> None:
    hours = past(*[(8, 2, 1, 0)] * 13)
    assert asked(pending=8, in_flight=2, consumers=1, before=hours).consumers == 5, "each takes two at a time"
    assert asked(pending=8, in_flight=2, consumers=1, before=past(*[(8, 2, 1, 0)] * 6)).consumers == 1, "it has just begun"


def test_long_work_that_has_begun_is_not_cut_off() -> None:
    hour = past(*[(0, 3, 3, 0)] * 300)
    assert asked(in_flight=3, consumers=3, before=hour).consumers == 3
    ten_minutes = past(*[(0, 3, 5, 3 / 600)] * 300)
    assert asked(in_flight=3, consumers=5, before=ten_minutes).consumers == 3
    quick = past(*[(9000, 20, 2, 10)] * 12, *[(0, 1, 2, 0)] * 70)
    assert asked(in_flight=1, consumers=2, before=quick).consumers == 1


# --- limits -----------------------------------------------------------------------------------------------------------


def test_nobody_is_started_for_what_is_throttled() -> None:
    """Ten a second go, whoever waits; five consumers are more than enough for them, and a thousand a second come."""
    starved = past(*[(9000, 1, 5, 10)] * 12, enqueued=1000)
    told = asked(throttled(9000), pending=9000, in_flight=1, consumers=5, before=starved)
    assert (told.consumers, told.deliverable) == (1, 0)
    assert told.reason == "9,000 messages waiting, and limits let none of them through"


def test_a_full_bucket_is_a_limit_too_before_anybody_consumes() -> None:
    seen = past(*[(3000, 20, 2, 10)] * 12, *[(9000, 0, 0, 0)] * 12)
    told = asked(limited(9000, rate=10, tokens=50), pending=9000, before=seen)
    assert (told.deliverable, told.per_second, told.consumers) == (650, pytest.approx(10.8, abs=0.1), 3)


def test_messages_beside_throttled_ones_count_in_full() -> None:
    told = asked(throttled(5000), pending=5600, in_flight=20, consumers=2, before=BUSY)
    assert (told.deliverable, told.per_second, told.consumers) == (600, 20, 4)


@pytest.mark.parametrize("code", ["parked", "key_paused", "in_flight_cap", "ordered_behind", "concurrency"])
def test_other_limits_of_keys_hold_back_as_well(code: str) -> None:
    assert asked(throttled(600, code), pending=600, in_flight=20, consumers=2, before=BUSY).deliverable == 0


def test_places_let_through_what_they_turn_over() -> None:
    """A lease lasts for two seconds, so five places turn over 150 messages a minute."""
    told = asked(limited(9000, places=5), pending=9000, consumers=2, in_flight=20, before=BUSY)
    assert told.deliverable == 150
    slow = past(*[(9000, 5, 5, 0.05)] * 300)  # a lease lasts for 100 seconds
    assert asked(limited(9000, places=5), pending=9000, before=slow).deliverable == 5


def test_a_queue_that_is_paused_or_full_needs_no_more() -> None:
    told = asked(pending=9000, in_flight=20, consumers=2, paused=True, before=past(*[(9000, 20, 2, 0)] * 12))
    assert (told.consumers, told.reason) == (2, "the queue is paused")
    full = asked(reason("concurrency", queue="orders"), pending=9000, in_flight=20, consumers=2, before=BUSY)
    assert (full.consumers, full.deliverable) == (2, 0)


def test_a_limit_of_the_queue_is_a_limit_of_consumers() -> None:
    assert asked(pending=6000, in_flight=3, consumers=2, max_in_flight=8, before=BUSY).consumers == 8


def test_keys_that_nobody_looked_at_count_as_alike() -> None:
    part = examined_part([10_000, 1000])
    assert part == pytest.approx(3000 / 11_000)
    assert asked(throttled(2400), pending=8800, consumers=2, in_flight=20, before=BUSY, examined=part).deliverable == 0
    told = asked(limited(2400, rate=1, tokens=0), pending=8800, consumers=2, in_flight=20, before=BUSY, examined=part)
    assert told.deliverable == 60, "one bucket is for all of them"
    assert examined_part([]) == examined_part([7, 9]) == 1


# --- in a circle ------------------------------------------------------------------------------------------------------


def test_an_autoscaler_that_asks_again_and_again_drains_the_queue_in_time_and_comes_to_rest() -> None:
    """It asks every 15 s, and keeps the highest answer of the last minute. Each consumer does 5 a second."""
    ticks: list[tuple[float, ...]] = []
    waits, consumers, answers, coming = 12_000.0, 0, [0], 20.0
    drained_s = None
    for tick in range(120):
        done = min(5.0 * consumers, waits / TICK_S + coming)
        waits += (coming - done) * TICK_S
        in_flight = 10 * consumers if waits > 1 else done / 5
        ticks.append((waits, in_flight, consumers, done))
        if drained_s is None and waits < 1:
            drained_s = tick * TICK_S
        if tick % 3 == 0:
            seen = past(*ticks, enqueued=coming)
            answers.append(
                asked(pending=round(waits), in_flight=round(in_flight), consumers=consumers, before=seen).consumers
            )
            consumers = max(answers[-4:])
    assert drained_s is not None
    assert drained_s < 120
    assert max(answers) < 60
    assert set(answers[-20:]) <= {4, 5}
