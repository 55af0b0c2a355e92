"""What goes before a message, and when it is its turn."""

import pytest

from fila_proto_zmq.commands import (
    Cancel,
    Enqueue,
    Explained,
)
from fila_proto_zmq.ids import parse_id
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.effects import ClientCall
from fila_worker.core.settings import ShardSettings
from tests.support.shard.explained import codes, first, ids, starve, these, why, why_now
from tests.support.shard.shard import ADMIN, Got, ShardHarness


def busy(shard: ShardHarness, seconds: int = 10) -> list[Got]:
    """A consumer takes 20 messages a second for a while."""
    taken = []
    for _ in range(seconds * 2):
        got = shard.receive(10)
        shard.ack(got)
        taken += got
        shard.pass_time(500)
    return taken


def test_the_position_in_its_key(shard: ShardHarness) -> None:
    shard.subscribe(1)
    messages = shard.enqueue(*[b"m"] * 6)
    urgent = shard.enqueue(b"m", priority=-1)[0]
    assert [why(shard, each).position for each in (urgent, *messages[1:])] == [0, 1, 2, 3, 4, 5]
    behind = why(shard, messages[3]).reasons[-1]
    assert (behind.code, behind.text) == ("behind", "3 messages go before it in its fairness key 'default'")
    assert behind.details == {"fairness_key": "default", "ahead": 3, "exact": True}


def test_keys_that_take_turns() -> None:
    shard = ShardHarness()
    shard.create("q")
    for key, weight in (("a", 3), ("b", 1)):
        shard.enqueue(*[b"m"] * 500, key=key, weight=weight)
    busy(shard)
    (message,) = shard.enqueue(b"m", key="c", weight=4)
    told = why(shard, message)
    (turns,) = [each for each in told.reasons if each.code == "keys_ahead"]
    assert these(turns.details, ["keys", "weight", "weights", "share", "messages"]) == [2, 4, 8, 0.5, 4]
    assert turns.details["per_second"] == pytest.approx(20, rel=0.15)
    assert told.position == 0
    assert told.estimated_ms == pytest.approx(shard.now_ms + 5 * 50, abs=60)
    key = why(shard, key="a")
    assert these(first_of(key, "keys_ahead"), ["weight", "weights"]) == [3, 8]


def first_of(told: Explained, code: str) -> dict[str, object]:
    return next(each.details for each in told.reasons if each.code == code)


def test_an_estimate_from_the_pace_of_the_queue(shard: ShardHarness) -> None:
    messages = shard.enqueue(*[b"m"] * 1000)
    taken = busy(shard)
    told = why(shard, messages[len(taken) + 99])
    assert told.position == 99
    assert told.estimated_ms - shard.now_ms == pytest.approx(5000, rel=0.15)


def test_an_old_pace_says_nothing(shard: ShardHarness) -> None:
    messages = shard.enqueue(*[b"m"] * 1000)
    busy(shard)
    starve(shard)
    told = why(shard, messages[-1])
    assert (codes(told), told.estimated_ms) == (["no_consumers", "behind"], 0)


def test_a_position_far_behind_in_a_line_on_disk_is_about_right() -> None:
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=20_000), checked=False)
    shard.create("q")
    messages = [each for _ in range(12) for each in shard.enqueue(*[b"m"] * 1000)]
    assert why(shard, messages[4000]).position == 4000
    told = why(shard, messages[9000])
    assert told.position == pytest.approx(9000, rel=0.02)
    assert told.reasons[-1].details["exact"] is False
    assert told.reasons[-1].text.startswith("about ")


def test_nothing_is_in_the_way_of_what_the_next_turn_delivers(shard: ShardHarness) -> None:
    shard.subscribe(5)
    command = Enqueue([seal_envelope(b"m")] * 3, ["a", "a", "b"])
    shard.shard.apply(ClientCall(b"p", 1, "q", shard.now_ms), command)
    message, _, other = ids(shard, turn=False)
    told = why_now(shard, message)
    assert codes(told) == ["keys_ahead"]
    shard.shard.apply(ClientCall(ADMIN, 2, "q", shard.now_ms), Cancel(*parse_id(other)))
    told = why_now(shard, message)
    assert (codes(told), told.position, told.estimated_ms) == (["next"], 0, shard.now_ms)
    told = why_now(shard)
    assert first(told, "busy") == {"messages": 2, "per_second": 0.0}
    assert told.reasons[0].text.startswith("nothing stops 2 messages")
