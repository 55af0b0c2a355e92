"""Calls in steps: when they go on, and when they end."""

import pytest

from fila_cluster.client.calls.backlog import Browsing, Moving, Purging, Redriving
from fila_cluster.errors import InvalidArgumentError
from fila_proto_zmq.commands import Browse, Browsed, MessageView, Moved, MoveMessages, Purged, PurgeQueue, Redriven
from fila_proto_zmq.ids import format_id, high_half, low_half
from tests.unit.client.peer import BORN_MS, record

HIGH = high_half(BORN_MS, 3)


def walk(steps, *answers):
    """What is asked for these answers; all of them are needed."""
    asked = []
    for answer in answers:
        request = steps.next_request()
        assert request is not None
        asked.append(request)
        steps.answered(answer)
    assert steps.next_request() is None
    return [request.command for request in asked]


# --- purging and redriving --------------------------------------------------------------------------------------------


def test_purging_goes_on_until_nothing_is_left():
    purging = Purging("q", "k")
    assert walk(purging, Purged(1000, 500), Purged(500, 0)) == [PurgeQueue("k")] * 2
    assert purging.result == 1500


def test_who_enqueues_meanwhile_does_not_keep_it_going():
    purging = Purging("q", None)
    walk(purging, Purged(1000, 500), Purged(400, 900), Purged(1000, 5000))
    assert purging.result == 2400


def test_what_cannot_be_removed_does_not_keep_it_going():
    walk(Purging("q", None), Purged(0, 3))


def test_what_comes_back_does_not_keep_redriving_going():
    redriving = Redriving("q.dlq", 0, None)
    walk(redriving, Redriven(1000, 500), Redriven(500, 1000))
    assert redriving.result == 1500


def test_redriving_counts_what_went():
    redriving = Redriving("q.dlq", 0, None)
    walk(redriving, Redriven(1000, 10), Redriven(10, 0))
    assert redriving.result == 1010


# --- moving -----------------------------------------------------------------------------------------------------------


def test_moving_asks_for_what_is_left():
    moving = Moving("q", "aside", "k", 1500, None)
    asked = walk(moving, Moved(1000, 900), Moved(500, 400))
    assert asked == [MoveMessages("aside", 1000, "k"), MoveMessages("aside", 500, "k")]
    assert (moving.result, moving.pause_s) == (1500, 0.0)


def test_moving_ends_when_nothing_goes():
    moving = Moving("q", "aside", None, 0, None)
    walk(moving, Moved(3, 2), Moved(0, 2))
    assert moving.result == 3


@pytest.mark.parametrize(("rate", "portion"), [(0.5, 1), (10, 1), (25, 2), (1e6, 1000)])
def test_moving_at_a_rate_rests_after_each_portion(rate, portion):
    moving = Moving("q", "aside", None, 0, rate)
    assert moving.next_request().command == MoveMessages("aside", portion)
    moving.answered(Moved(portion, 9))
    assert moving.pause_s == portion / rate
    moving.answered(Moved(9, 0))
    assert moving.pause_s == 0.0


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), "5", True])
def test_a_rate_that_will_not_do(rate):
    with pytest.raises(InvalidArgumentError, match="rate"):
        Moving("q", "aside", None, 0, rate)


# --- browsing ---------------------------------------------------------------------------------------------------------


def view(sequence, state="pending", **fields):
    times = {"due_ms": 0, "leased_ms": 0, "lease_expires_ms": 0} | fields
    return MessageView(state, "k", 1, [], consumer="", record=record(b"x", sequence), **times)


def page(first, count, *, more):
    return Browsed([view(sequence) for sequence in range(first, first + count)], more)


def id_of(sequence):
    return format_id(HIGH, low_half(sequence))


def test_pages_begin_behind_the_last_message_seen():
    browsing = Browsing("q", 2500, id_of(5), "k", "pending")
    asked = walk(browsing, page(6, 1000, more=True), page(1006, 700, more=True), page(1706, 800, more=True))
    assert asked == [
        Browse(1000, (HIGH, low_half(5)), "k", "pending"),
        Browse(1000, (HIGH, low_half(1005)), "k", "pending"),
        Browse(800, (HIGH, low_half(1705)), "k", "pending"),
    ]
    assert [message.id for message in browsing.result] == [id_of(sequence) for sequence in range(6, 2506)]


def test_browsing_ends_with_the_backlog():
    browsing = Browsing("q", 10**12, None, None, None)
    assert walk(browsing, page(1, 1000, more=True), page(1001, 3, more=False)) == [
        Browse(1000),
        Browse(1000, (HIGH, low_half(1000))),
    ]
    assert len(browsing.result) == 1003


def test_an_empty_page_is_the_end_whatever_it_says():
    walk(Browsing("q", 10, None, None, None), Browsed([], True))


@pytest.mark.parametrize(
    "arguments",
    [
        ("bad name", 1, None, None, None),
        ("q", 0, None, None, None),
        ("q", True, None, None, None),
        ("q", 1.0, None, None, None),
        ("q", 1, "no id", None, None),
        ("q", 1, 3, None, None),
        ("q", 1, None, "", None),
        ("q", 1, None, None, "dead"),
        ("q", 1, None, None, ["pending"]),
    ],
)
def test_bad_questions(arguments):
    with pytest.raises(InvalidArgumentError):
        Browsing(*arguments)
