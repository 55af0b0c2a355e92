"""Delays: messages that come due, each at its time and to its place."""

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fila_proto_zmq.commands import Enqueue, Verb
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.settings import ShardSettings
from tests.support.shard.shard import Got, ShardHarness


def payloads(got: list[Got]) -> list[bytes]:
    return [each.payload for each in got]


def test_a_delayed_message_comes_due_then_and_not_before(shard: ShardHarness) -> None:
    shard.enqueue(b"x", delay_ms=5_000)
    assert shard.counts() == (0, 0, 1)
    shard.pass_time(4_999)
    assert shard.receive() == []
    assert shard.shard.next_due(shard.now_ms) == 1
    shard.pass_time(1)
    assert payloads(shard.receive()) == [b"x"]


def test_an_absolute_time_is_kept(shard: ShardHarness) -> None:
    shard.enqueue(b"x", due_ms=shard.now_ms + 5_000)
    shard.pass_time(4_999)
    assert shard.counts() == (0, 0, 1)
    shard.pass_time(1)
    assert shard.counts() == (1, 0, 0)


@pytest.mark.parametrize(("delay_ms", "due_in_ms"), [(2_000, 5_000), (5_000, 2_000)])
def test_the_later_of_delay_and_time_counts(shard: ShardHarness, delay_ms: int, due_in_ms: int) -> None:
    shard.enqueue(b"x", delay_ms=delay_ms, due_ms=shard.now_ms + due_in_ms)
    shard.pass_time(4_999)
    assert shard.counts() == (0, 0, 1)
    shard.pass_time(1)
    assert shard.counts() == (1, 0, 0)


def test_a_time_in_the_past_is_now(shard: ShardHarness) -> None:
    shard.enqueue(b"x", due_ms=1)
    shard.enqueue(b"y", due_ms=shard.now_ms)
    assert shard.counts() == (2, 0, 0)


def test_due_messages_take_the_place_of_their_enqueue(shard: ShardHarness) -> None:
    shard.enqueue(b"delayed", delay_ms=1_000)
    shard.enqueue(b"later")
    shard.pass_time(1_000)
    assert payloads(shard.receive(2)) == [b"delayed", b"later"]


def test_a_batch_may_mix_delays(shard: ShardHarness) -> None:
    envelopes = [seal_envelope(b"%d" % number) for number in range(4)]
    shard.ask(Enqueue(envelopes, delay_ms=[0, 3_000, 0, 1_000]))
    assert shard.counts() == (2, 0, 2)
    shard.pass_time(1_000)
    assert payloads(shard.receive(9)) == [b"0", b"2", b"3"]
    shard.pass_time(2_000)
    assert payloads(shard.receive(9)) == [b"1"]


def test_messages_that_are_due_in_the_same_millisecond_all_come(shard: ShardHarness) -> None:
    due_ms = shard.now_ms + 1_000
    for key in "ba":
        shard.enqueue(b"", key=key, due_ms=due_ms)
    shard.enqueue(b"", key="c", delay_ms=10)
    shard.pass_time(10)
    for key in "bad":
        shard.enqueue(b"", key=key, due_ms=due_ms, priority=-5)
    shard.restart()
    shard.enqueue(b"", key="a", due_ms=due_ms, priority=-9)
    shard.pass_time(990)
    assert shard.counts() == (7, 0, 0)


def test_an_earlier_message_may_be_scheduled_later(shard: ShardHarness) -> None:
    shard.enqueue(b"late", delay_ms=9_000)
    shard.pass_time(1_000)
    shard.enqueue(b"early", delay_ms=1_000)
    shard.pass_time(1_000)
    assert payloads(shard.receive(9)) == [b"early"]
    shard.pass_time(7_000)
    assert payloads(shard.receive(9)) == [b"late"]


def test_many_that_come_due_at_once_take_several_turns_and_none_is_lost(shard: ShardHarness) -> None:
    shard.limit(turn_due_max=10)
    for key in "abc":
        shard.enqueue(*[b""] * 15, key=key, delay_ms=1_000)
    shard.now_ms += 1_000
    shard.turn()
    assert shard.counts()[2] > 0
    assert shard.shard.next_due(shard.now_ms) == 0
    shard.pass_time(0)
    assert shard.counts() == (45, 0, 0)


def test_delays_survive_a_restart(shard: ShardHarness) -> None:
    shard.enqueue(b"0", delay_ms=1_000)
    shard.enqueue(b"1", delay_ms=60_000)
    shard.now_ms += 5_000
    shard.restart()
    assert shard.counts() == (0, 0, 2)
    shard.pass_time(0)
    assert payloads(shard.receive(9)) == [b"0"]
    shard.restart()
    shard.heartbeat()
    shard.pass_time(55_000)
    assert shard.counts()[2] == 0


def test_delayed_messages_are_not_held_in_memory(shard: ShardHarness) -> None:
    shard.enqueue(*[bytes(1000)] * 100, delay_ms=1_000)
    assert shard.shard.buffers.used_bytes == 0


def test_due_messages_that_do_not_fit_in_memory_are_delivered_in_order() -> None:
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=300))
    shard.create()
    expected = [b"%03d" % number for number in range(60)]
    shard.enqueue(*expected, delay_ms=1_000)
    shard.pass_time(1_000)
    assert payloads(shard.receive(60)) == expected


def test_a_delayed_message_keeps_its_options(shard: ShardHarness) -> None:
    (message_id,) = shard.enqueue(b"x", key="acme", priority=7, delay_ms=1_000, lease_ms=2_000)
    shard.pass_time(1_000)
    (got,) = shard.receive()
    assert (got.id, got.key, got.record.priority, got.attempts) == (message_id, "acme", 7, 0)
    assert got.expires_ms == shard.now_ms + 2_000


def test_a_key_that_is_only_delayed_is_not_in_the_ring(shard: ShardHarness) -> None:
    shard.enqueue(b"", key="a", delay_ms=1_000)
    assert len(shard.shard.queues["q"].ring) == 0
    shard.enqueue(b"now", key="b")
    assert payloads(shard.receive(9)) == [b"now"]


@hypothesis_settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_every_message_comes_due_in_its_millisecond(data: st.DataObject) -> None:
    shard = ShardHarness(settings=ShardSettings(consumer_timeout_ms=10**9))
    shard.create()
    due: list[int] = []
    for _ in range(data.draw(st.integers(1, 20))):
        match data.draw(st.sampled_from(["enqueue", "enqueue", "retry", "time", "restart"])):
            case "enqueue":
                delay_ms = data.draw(st.integers(1, 12))
                shard.enqueue(b"", key=data.draw(st.sampled_from("abc")), delay_ms=delay_ms)
                due.append(shard.now_ms + delay_ms)
            case "retry":
                after_ms = data.draw(st.integers(1, 12))
                if got := shard.receive(1):
                    shard.settle(Verb.RETRY, got, after_ms=after_ms)
                    due.remove(min(due))
                    due.append(shard.now_ms + after_ms)
            case "time":
                shard.pass_time(data.draw(st.integers(0, 8)))
            case "restart":
                shard.restart()
        waiting = sum(1 for due_ms in due if due_ms > shard.now_ms)
        shard.pass_time(0)
        assert shard.counts() == (len(due) - waiting, 0, waiting)
