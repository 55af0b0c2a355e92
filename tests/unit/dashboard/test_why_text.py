"""Reasons in words: numbers with their units, and what can be done."""

from datetime import UTC, datetime, timedelta

import pytest

from fila_cluster.client.explanation import Reason
from fila_cluster.ops.dashboard.why import RESUME_KEY, RESUME_QUEUE, Action, actions, countdown, numbers
from fila_proto_zmq.reasons import ReasonCode

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


def reason(code: str, **details: object) -> Reason:
    return Reason(code, "text", None, details)


def test_numbers_have_their_units_and_moments_their_distance() -> None:
    told = numbers(
        reason(
            "x", tokens=0.25, messages=12_345, wait_ms=1500, leased_ms=NOW_MS - 3000, expires_ms=NOW_MS + 90_000, share=0.125,
            free_disk_bytes=2048, last_asked_ago_ms=4000, throttle_keys=["a", "b"], reservation=False, worker=None, error="",
        ),
        NOW,
    )  # fmt: skip
    assert told == [
        ("tokens", "0.25"),
        ("messages", "12,345"),
        ("wait", "1.5 s"),
        ("leased", "11:59:57 UTC, 3.0 s ago"),
        ("expires", "12:01:30 UTC, in 1 min 30 s"),
        ("share", "12.5 %"),
        ("free disk", "2 KiB"),
        ("last asked", "4.0 s ago"),
        ("throttle keys", "a, b"),
        ("reservation", "no"),
    ]


def test_messages_that_hold_places_are_named_with_their_consumers() -> None:
    holders = [{"message_id": "m1", "consumer": "c1", "since_ms": NOW_MS - 3000}]
    told = numbers(reason("concurrency", limit=2, in_use=2, holders=holders), NOW)
    assert told == [("limit", "2"), ("in use", "2"), ("holders", "m1 by c1 since 11:59:57 UTC, 3.0 s ago")]


@pytest.mark.parametrize(
    ("left_s", "text"),
    [(-1, "any moment"), (0.5, "in 0.5 s"), (59.94, "in 59.9 s"), (532, "in 8 min 52 s"), (3 * 3600 + 125, "in 3 h 02 min")],
)
def test_a_countdown_is_as_exact_as_it_is_near(left_s: float, text: str) -> None:
    assert countdown(NOW + timedelta(seconds=left_s), NOW) == text


@pytest.mark.parametrize(
    ("given", "todo"),
    [
        (reason("queue_paused", queue="q"), [Action("Resume the queue", verb=RESUME_QUEUE)]),
        (reason("key_paused", fairness_key="k"), [Action("Resume k", verb=RESUME_KEY, fairness_key="k")]),
        (reason("throttled", throttle_key="a:b"), [Action("Change the limits", "/limits?key=a%3Ab")]),
        (reason("delayed", messages=3), [Action("Delayed messages", "/messages?queue=q&state=delayed")]),
        (reason("dead_lettered", dead_letter_queue="other"), [Action("Dead letters", "/dead-letters?queue=other")]),
        (reason("expired", expires_ms=1), [Action("Dead letters", "/dead-letters?queue=q.dlq")]),
        (reason("breaker_open", threshold=3), [Action("Hooks", "/hooks?queue=q")]),
        (
            reason("ordered_behind", fairness_key="k", message_id="m", keys=2, messages=9),
            [
                Action("Why does that one wait?", "/why?queue=q&id=m"),
                Action("Messages of its key", "/messages?queue=q&key=k"),
                Action("Why does k wait?", "/why?queue=q&key=k"),
            ],
        ),
    ],
)
def test_what_can_be_done_is_a_click_away(given: Reason, todo: list[Action]) -> None:
    assert actions("q", given) == todo


def test_no_code_is_without_words() -> None:
    details = {"fairness_key": "k", "throttle_key": "t", "message_id": "m"}
    for code in ReasonCode:
        assert all(each.href or each.verb for each in actions("q", reason(code.value, **details)))
