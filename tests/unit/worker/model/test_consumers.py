"""Consumers: how they leave, and what happens when they fall silent."""

import pytest

from fila_proto_zmq.commands import Delivered, Goodbye, Heartbeat, Receive, Subscribe, Unsubscribe, Verb
from fila_worker.process.shard_process import ShardProcess
from fila_worker.process.slots import Slot
from tests.support.shard.shard import SHARDS, Got, ShardHarness

TIMEOUT_MS = 15_000


def payloads(got: list[Got]) -> list[bytes]:
    return [each.payload for each in got]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# --- goodbye ----------------------------------------------------------------------------------------------------------


def test_goodbye_gives_back_everything_uncounted(shard: ShardHarness) -> None:
    shard.create("other")
    shard.enqueue(*numbered(4))
    shard.enqueue(b"x", queue="other")
    shard.subscribe(2)
    shard.receive(1)
    shard.receive(1, "other")
    shard.goodbye()
    assert (shard.counts(), shard.counts("other")) == ((4, 0, 0), (1, 0, 0))
    assert [(each.payload, each.attempts, each.error) for each in shard.receive(9, client=b"c2")] == [
        (payload, 0, "") for payload in numbered(4)
    ]
    assert shard.stats().expired == shard.stats().nacked == 0


def test_goodbye_leaves_the_others_alone(shard: ShardHarness) -> None:
    shard.enqueue(*numbered(4))
    shard.subscribe(2, client=b"c1")
    shard.subscribe(2, client=b"c2")
    held = shard.take_pushed(b"c2")
    shard.goodbye(b"c1")
    shard.ack(held)
    assert len(shard.take_pushed(b"c2")) == 2


def test_goodbye_ends_a_waiting_receive(shard: ShardHarness) -> None:
    waiting = shard.send(Receive(1, 60_000))
    shard.goodbye()
    shard.enqueue(b"")
    assert shard.late[waiting] == Delivered(0, [])
    assert shard.counts() == (1, 0, 0)


def test_goodbye_of_a_stranger_is_no_error(shard: ShardHarness) -> None:
    shard.ask(Goodbye(), client=b"stranger")


def test_an_operator_ends_a_client_like_a_goodbye(shard: ShardHarness) -> None:
    shard.enqueue(*numbered(4))
    shard.subscribe(2)
    waiting = shard.send(Receive(1, 60_000), client=b"c1")
    shard.subscribe(2, client=b"c2")
    held = shard.take_pushed(b"c2")
    shard.shard.end_client(b"stranger", shard.now_ms)
    shard.shard.end_client(b"c1", shard.now_ms)
    shard.turn()
    assert waiting in shard.late
    shard.ack(held)
    assert len(shard.take_pushed(b"c2")) == 2
    assert not shard.shard.consumers.leaving
    assert set(shard.shard.consumers.by_client) == {b"c2"}
    shard.subscribe(4)  # it may come anew
    assert shard.stats().expired == shard.stats().nacked == 0


def test_what_was_given_back_by_goodbye_cannot_be_settled(shard: ShardHarness) -> None:
    shard.enqueue(b"")
    got = shard.receive()
    shard.goodbye()
    assert [fault.code for _, _, fault in shard.settle(Verb.ACK, got).faults] == ["LEASE_EXPIRED"]
    assert shard.counts() == (1, 0, 0)


# --- silence ----------------------------------------------------------------------------------------------------------


def test_a_silent_consumers_messages_go_to_others_as_failed_attempts(shard: ShardHarness) -> None:
    shard.enqueue(*numbered(3))
    shard.subscribe(3, client=b"silent")
    shard.pass_time(TIMEOUT_MS - 1)
    assert shard.counts() == (0, 3, 0)
    shard.pass_time(1)
    assert [(each.payload, each.attempts, each.error) for each in shard.receive(3)] == [
        (payload, 1, "consumer lost") for payload in numbered(3)
    ]


def test_a_lost_consumer_is_sent_nothing_more(shard: ShardHarness) -> None:
    shard.subscribe(3)
    shard.pass_time(TIMEOUT_MS)
    assert shard.stats().info.consumers == 0
    shard.enqueue(b"")
    assert shard.take_pushed() == []


def test_a_lost_consumer_cannot_settle(shard: ShardHarness) -> None:
    shard.enqueue(b"")
    got = shard.receive()
    shard.pass_time(TIMEOUT_MS)
    held = shard.receive(client=b"c2")
    assert [fault.code for _, _, fault in shard.settle(Verb.ACK, got).faults] == ["LEASE_EXPIRED"]
    shard.ack(held)


def test_a_lost_consumer_that_returns_is_a_consumer_again(shard: ShardHarness) -> None:
    shard.subscribe(3)
    shard.pass_time(TIMEOUT_MS)
    shard.subscribe(3)
    shard.enqueue(b"")
    assert len(shard.take_pushed()) == 1


@pytest.mark.parametrize(
    "sign_of_life",
    [Heartbeat(), Subscribe(1, 3), Receive(1, 0), Unsubscribe(9)],
    ids=lambda command: type(command).__name__,
)
def test_any_frame_keeps_its_client_alive(shard: ShardHarness, sign_of_life: object) -> None:
    shard.enqueue(b"")
    shard.subscribe(3)
    for _ in range(3):
        shard.pass_time(TIMEOUT_MS - 1)
        shard.send(sign_of_life)  # type: ignore[arg-type]
    assert shard.stats().info.consumers == 1


def test_a_refused_frame_keeps_its_client_alive_too(shard: ShardHarness) -> None:
    shard.subscribe(3)
    shard.pass_time(TIMEOUT_MS - 1)
    shard.send(Receive(0, 0))
    shard.pass_time(TIMEOUT_MS - 1)
    assert shard.stats().info.consumers == 1


def test_a_heartbeat_is_answered() -> None:
    """Every request is: what forwards one remembers it until then."""
    shard = ShardHarness()
    assert shard.send(Heartbeat()) in shard.late


def test_a_lost_consumer_may_lose_many_messages_at_once(shard: ShardHarness) -> None:
    shard.enqueue(*numbered(3000))
    shard.subscribe(3000)
    shard.pass_time(0)
    assert len(shard.take_pushed()) == 3000
    shard.pass_time(TIMEOUT_MS)
    assert shard.counts() == (3000, 0, 0)


def test_an_attempt_that_ends_with_its_consumer_counts_towards_max_attempts() -> None:
    shard = ShardHarness()
    shard.create(max_attempts=1)
    shard.enqueue(b"")
    shard.receive()
    shard.pass_time(TIMEOUT_MS)
    (dead,) = shard.receive(queue="q.dlq")
    assert (dead.error, dead.record.extension.reason) == ("consumer lost", "max_attempts")


def test_clients_that_come_and_go_are_forgotten(shard: ShardHarness) -> None:
    for number in range(50):
        shard.receive(client=b"c%d" % number)
    shard.pass_time(TIMEOUT_MS)
    assert len(shard.shard.consumers) == 0
    assert shard.shard.next_due(shard.now_ms) is None


def test_frames_that_waited_while_the_process_was_paused_are_no_silence(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    shard.receive()
    host = ShardProcess([Slot.of(shard.shard)], SHARDS)
    shard.now_ms += 60_000
    host.paused(60_000)
    assert shard.shard.consumers.next_loss() == shard.now_ms + shard.settings.consumer_timeout_ms


def test_a_clock_that_is_set_back_keeps_no_lost_consumer(shard: ShardHarness) -> None:
    shard.subscribe(1)
    shard.now_ms -= 600_000
    shard.heartbeat()
    shard.pass_time(shard.settings.consumer_timeout_ms)
    assert len(shard.shard.consumers) == 0
