"""Quotas: what is too much is refused message by message, with a time to try again; acks always work."""

import pytest

from fila_proto_zmq.commands import Cancel, Enqueue, Enqueued, PurgeQueue, Verb
from fila_proto_zmq.errors import OverloadedError
from fila_proto_zmq.record import FIXED_BYTES, record_id, seal_envelope
from fila_worker.core.enqueue import retry_after
from fila_worker.core.keys import FIRST, LAST
from fila_worker.core.settings import Limits, ShardSettings
from tests.support.shard.shard import ShardHarness


def limited(**limits: int) -> ShardHarness:
    harness = ShardHarness(settings=ShardSettings(**limits))
    harness.create("q")
    return harness


def offer(shard: ShardHarness, *payloads: bytes, key: str = "default", **columns: object) -> Enqueued:
    reply = shard.ask(Enqueue([seal_envelope(each) for each in payloads], key, **columns))  # type: ignore[arg-type]
    assert isinstance(reply, Enqueued)
    return reply


def refused(reply: Enqueued) -> list[int]:
    assert {fault.code for _, fault in reply.faults} <= {OverloadedError.code}
    assert all(fault.retry_after_ms > 0 for _, fault in reply.faults)
    return [index for index, _ in reply.faults]


def test_a_queue_takes_so_many_messages_whatever_their_state() -> None:
    shard = limited(max_queue_messages=4)
    offer(shard, b"0", b"1", b"2")
    shard.settle(Verb.RETRY, shard.receive(), after_ms=60_000)
    shard.receive()
    assert shard.counts() == (1, 1, 1)
    reply = offer(shard, b"3", b"4", b"5")
    assert (refused(reply), reply.count) == ([1, 2], 1)
    assert "max_queue_messages" in reply.faults[0][1].text
    assert refused(offer(shard, b"6", delay_ms=1_000)) == [0]
    shard.restart()
    assert refused(offer(shard, b"6")) == [0]


@pytest.mark.parametrize("how", ["ack", "ack one", "fail", "cancel", "purge", "expire"])
def test_what_leaves_makes_room_at_once(how: str) -> None:
    shard = limited(max_queue_messages=3)
    offer(shard, b"0", b"1", b"2", ttl_ms=1_000 if how == "expire" else 0)
    match how:
        case "ack":
            shard.ack(shard.receive(3))
        case "ack one":
            shard.ack(shard.receive(3)[:1])
        case "fail":
            shard.settle(Verb.FAIL, shard.receive())
        case "purge":
            shard.ask(PurgeQueue())
        case "expire":
            shard.pass_time(5_000)
        case "cancel":
            _, record = next(shard.store.scan(FIRST, LAST, shard.store.families.messages))
            shard.ask(Cancel(*record_id(record)))
    assert offer(shard, b"3").count == 1


def test_a_queue_takes_so_many_bytes_and_smaller_messages_still_fit() -> None:
    shard = limited(max_queue_bytes=1_060)
    reply = offer(shard, *[bytes(300)] * 4, b"", b"")
    assert refused(reply) == [3]
    assert shard.shard.queues["q"].size_bytes == 3 * (304 + FIXED_BYTES) + 2 * (4 + FIXED_BYTES)
    shard.ack(shard.receive(1))
    assert offer(shard, bytes(300)).count == 1
    shard.restart()
    assert refused(offer(shard, bytes(300))) == [0]


def test_a_key_takes_so_many_and_the_others_do_not_notice() -> None:
    shard = limited(max_key_messages=3)
    offer(shard, b"0", b"1", throttle_keys=[["t"]])
    offer(shard, b"2", delay_ms=9_000)
    reply = shard.ask(Enqueue([seal_envelope(b"")] * 4, ["default", "other", "other", "default"]))
    assert (refused(reply), reply.count) == ([0, 3], 2)
    assert "max_key_messages" in reply.faults[0][1].text
    shard.ack(shard.receive(9))
    assert offer(shard, b"3", b"4").count == 2, "acked messages on disk take no room"
    assert refused(offer(shard, b"5")) == [0]


def test_each_message_of_a_batch_is_judged_for_itself() -> None:
    shard = limited(max_queue_messages=2, max_payload_bytes=10)
    reply = offer(shard, b"0", bytes(11), b"1", b"2")
    assert [(index, fault.code) for index, fault in reply.faults] == [(1, "PAYLOAD_TOO_LARGE"), (3, "OVERLOADED")]
    assert reply.count == 2


def test_dead_letters_and_redriven_messages_are_let_in() -> None:
    shard = limited(max_queue_messages=1)
    offer(shard, b"0")
    shard.settle(Verb.FAIL, shard.receive())
    offer(shard, b"1")
    shard.settle(Verb.FAIL, shard.receive())
    assert shard.counts("q.dlq") == (2, 0, 0)
    assert shard.redrive().count == 2, "what was accepted is not lost"
    assert refused(offer(shard, b"2")) == [0]


def test_the_time_to_try_again_follows_the_rate_at_which_messages_leave() -> None:
    shard = limited(max_queue_messages=100)
    offer(shard, *[b""] * 100)
    (_, fault) = offer(shard, b"").faults[0]
    assert fault.retry_after_ms == retry_after.RETRY_MS
    for _ in range(10):
        shard.pass_time(1_000)
        shard.ack(shard.receive(5))
    offer(shard, *[b""] * 50)
    (_, fault) = offer(shard, b"").faults[0]
    assert 150 <= fault.retry_after_ms <= 250, "5 a second leave"
    shard.pass_time(60_000)
    (_, fault) = offer(shard, b"").faults[0]
    assert fault.retry_after_ms >= retry_after.RETRY_MS, "nobody works any more"


def test_a_disk_that_is_nearly_full_refuses_messages_and_nothing_else() -> None:
    shard = limited(min_free_disk_bytes=1_000)
    offer(shard, b"0", b"1")
    shard.shard.free_disk_bytes = 999
    with pytest.raises(OverloadedError, match="min_free_disk_bytes") as error:
        offer(shard, b"2")
    assert error.value.retry_after
    shard.ack(shard.receive(1))
    shard.nack(shard.receive(1))
    shard.ask(PurgeQueue())
    shard.shard.free_disk_bytes = 1_000
    assert offer(shard, b"2").count == 1


# --- keys -------------------------------------------------------------------------------------------------------------


def offer_to(shard: ShardHarness, *keys: str, **columns: int) -> Enqueued:
    reply = shard.ask(Enqueue([seal_envelope(b"")] * len(keys), list(keys), **columns))  # type: ignore[arg-type]
    assert isinstance(reply, Enqueued)
    return reply


@pytest.mark.parametrize("delay_ms", [0, 60_000])
def test_a_queue_takes_so_many_keys_and_messages_of_those_it_has(delay_ms: int) -> None:
    shard = limited(max_keys_per_queue=3)
    reply = offer_to(shard, "a", "b", "c", "d", "a", "e", delay_ms=delay_ms)
    assert (refused(reply), reply.count) == ([3, 5], 4)
    assert "max_keys_per_queue" in reply.faults[0][1].text
    shard.restart()
    assert refused(offer_to(shard, "c", "d", delay_ms=delay_ms)) == [1]


@pytest.mark.parametrize("how", ["ack", "fail", "purge", "restart"])
def test_keys_with_nothing_left_make_room(how: str) -> None:
    shard = limited(max_keys_per_queue=2)
    offer_to(shard, "a", "b")
    match how:
        case "ack":
            shard.ack(shard.receive(2))
        case "fail":
            shard.settle(Verb.FAIL, shard.receive(2))
        case "purge":
            shard.ask(PurgeQueue())
        case "restart":
            shard.ack(shard.receive(2))
            shard.restart()
    assert refused(offer_to(shard, "c", "d", "e")) == [2]
    assert {key.fairness_key for key in shard.stats().keys} == {"c", "d"}
    shard.restart()
    assert {key.fairness_key for key in shard.stats().keys} == {"c", "d"}


def test_a_leased_message_s_key_makes_no_room() -> None:
    shard = limited(max_keys_per_queue=1)
    offer_to(shard, "a")
    got = shard.receive()
    assert refused(offer_to(shard, "b")) == [0]
    shard.ack(got)
    shard.pass_time(1)
    assert offer_to(shard, "b").count == 1


def test_keys_that_were_remembered_for_their_weights_make_room() -> None:
    shard = ShardHarness(settings=ShardSettings(max_keys_per_queue=3, limits=Limits(ledger_counts_max=1)))
    shard.create()
    offer_to(shard, "a", "b", "c")
    shard.ack(shard.receive(3))
    shard.turn()
    assert len(shard.stats().keys) == 3
    assert refused(offer_to(shard, "d", "e", "f", "g")) == [3]


def test_dead_letters_of_any_number_of_keys_are_let_in_and_back() -> None:
    shard = limited(max_keys_per_queue=1)
    for key in ("a", "b"):
        offer_to(shard, key)
        shard.settle(Verb.FAIL, shard.receive())
    assert shard.counts("q.dlq") == (2, 0, 0)
    assert shard.redrive().count == 2, "what was accepted is not lost"
    assert refused(offer_to(shard, "c")) == [0]
