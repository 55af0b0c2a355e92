"""Failed attempts: nack, retry, fail, and where messages go that always fail."""

import pytest

from fila_proto_zmq.commands import Enqueue, Verb
from fila_proto_zmq.limits import ERROR_TEXT_BYTES_MAX, METADATA_BYTES_MAX
from fila_proto_zmq.record import seal_envelope
from tests.support.shard.shard import Got, ShardHarness


def capped(max_attempts: int) -> ShardHarness:
    harness = ShardHarness()
    harness.create(max_attempts=max_attempts)
    return harness


def payloads(got: list[Got]) -> list[bytes]:
    return [each.payload for each in got]


# --- nack -------------------------------------------------------------------------------------------------------------


def test_a_nacked_message_is_delivered_again_at_once_with_its_attempt_and_error(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    (first,) = shard.receive()
    assert (first.attempts, first.error) == (0, "")
    shard.nack([first], "boom")
    (second,) = shard.receive()
    assert (second.attempts, second.error, second.id, second.payload) == (1, "boom", first.id, b"x")
    shard.nack([second], "")
    assert [(each.attempts, each.error) for each in shard.receive()] == [(2, "")]


def test_a_nacked_message_keeps_its_place_in_line(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1", b"2", b"3")
    got = shard.receive(3)
    shard.nack([got[1], got[0]])
    assert payloads(shard.receive(9)) == [b"0", b"1", b"3"]


def test_a_nack_ignores_a_delay(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    shard.settle(Verb.NACK, shard.receive(), after_ms=1_000)
    assert len(shard.receive()) == 1


def test_without_a_cap_a_message_may_fail_for_ever(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    for attempt in range(50):
        (got,) = shard.receive()
        assert got.attempts == attempt
        shard.nack([got])


def test_nacks_are_counted(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1", b"2")
    shard.nack(shard.receive(2))
    assert shard.stats().nacked == 2


def test_attempts_and_errors_survive_a_restart(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    shard.nack(shard.receive(), "boom")
    shard.restart()
    assert [(each.attempts, each.error) for each in shard.receive()] == [(1, "boom")]


# --- retry ------------------------------------------------------------------------------------------------------------


def test_a_retry_waits_and_then_takes_its_old_place(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1", b"2")
    shard.settle(Verb.RETRY, shard.receive(), error="429", after_ms=5_000)
    assert shard.counts() == (2, 0, 1)
    shard.pass_time(4_999)
    assert shard.counts() == (2, 0, 1)
    shard.pass_time(1)
    assert [(each.payload, each.attempts, each.error) for each in shard.receive(9)] == [
        (b"0", 1, "429"),
        (b"1", 0, ""),
        (b"2", 0, ""),
    ]


def test_a_retry_without_a_delay_is_pending_at_once(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    shard.settle(Verb.RETRY, shard.receive())
    assert shard.counts() == (1, 0, 0)


def test_a_delayed_retry_survives_a_restart(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    shard.settle(Verb.RETRY, shard.receive(), error="429", after_ms=5_000)
    shard.restart()
    assert shard.counts() == (0, 0, 1)
    shard.pass_time(5_000)
    assert [(each.attempts, each.error) for each in shard.receive()] == [(1, "429")]


def test_a_retry_of_the_last_attempt_is_dead_lettered_at_once() -> None:
    shard = capped(1)
    shard.enqueue(b"x")
    shard.settle(Verb.RETRY, shard.receive(), after_ms=5_000)
    assert (shard.counts(), shard.counts("q.dlq")) == ((0, 0, 0), (1, 0, 0))


# --- what an attempt leaves behind ------------------------------------------------------------------------------------


def test_metadata_is_handed_to_the_next_attempt_until_another_replaces_it(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    seen = []
    for metadata in (b"page 2", None, b"", b"page 3"):
        (got,) = shard.receive()
        seen.append(got.record.extension.metadata)
        shard.settle(Verb.NACK, [got], metadata=metadata)
    (last,) = shard.receive()
    assert [*seen, last.record.extension.metadata] == [b"", b"page 2", b"page 2", b"", b"page 3"]


def test_metadata_may_be_as_large_as_its_limit(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    shard.settle(Verb.NACK, shard.receive(), metadata=bytes(METADATA_BYTES_MAX))
    (got,) = shard.receive()
    assert len(got.record.extension.metadata) == METADATA_BYTES_MAX


@pytest.mark.parametrize("error", ["x" * 10_000, "é" * 10_000, "💥" * 10_000])
def test_a_long_error_is_cut_between_characters_and_keeps_its_end(shard: ShardHarness, error: str) -> None:
    shard.enqueue(b"x")
    shard.nack(shard.receive(), "the beginning" + error + "the end")
    (got,) = shard.receive()
    assert ERROR_TEXT_BYTES_MAX - 4 < len(got.error.encode()) <= ERROR_TEXT_BYTES_MAX
    assert got.error.endswith("the end")


def test_headers_and_payload_are_not_touched_by_attempts(shard: ShardHarness) -> None:
    shard.ask(Enqueue([seal_envelope(bytes(range(256)), {"k": "vé"})]))
    shard.nack(shard.receive(), "boom")
    shard.settle(Verb.FAIL, shard.receive())
    shard.redrive()
    (got,) = shard.receive()
    assert (got.payload, got.headers) == (bytes(range(256)), {"k": "vé"})


# --- max_attempts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_attempts", [1, 2, 5])
def test_max_attempts_allows_so_many_deliveries(max_attempts: int) -> None:
    shard = capped(max_attempts)
    shard.enqueue(b"x")
    deliveries = 0
    while got := shard.receive():
        deliveries += 1
        shard.nack(got, f"attempt {deliveries}")
    assert deliveries == max_attempts
    (dead,) = shard.receive(queue="q.dlq")
    assert (dead.attempts, dead.error) == (max_attempts, f"attempt {max_attempts}")


def test_every_kind_of_failed_attempt_counts() -> None:
    shard = capped(4)
    shard.enqueue(b"x")
    shard.nack(shard.receive())
    shard.settle(Verb.RETRY, shard.receive(), after_ms=10)
    shard.pass_time(10)
    shard.receive()
    shard.pass_time(15_000)
    shard.receive()
    for _ in range(3):
        shard.heartbeat()
        shard.pass_time(10_000)
    (dead,) = shard.receive(queue="q.dlq")
    assert (dead.attempts, dead.error, dead.record.extension.reason) == (4, "lease expired", "max_attempts")


def test_giving_back_does_not_count() -> None:
    shard = capped(1)
    shard.enqueue(b"x")
    shard.settle(Verb.RELEASE, shard.receive())
    shard.receive()
    shard.goodbye()
    assert [each.attempts for each in shard.receive()] == [0]


# --- dead letters -----------------------------------------------------------------------------------------------------


def test_a_failed_message_is_dead_lettered_now_with_its_story(shard: ShardHarness) -> None:
    (message_id,) = shard.enqueue(b"x", key="acme", priority=-3)
    shard.now_ms += 5_000
    shard.settle(Verb.FAIL, shard.receive(), error="no such customer")
    assert (shard.counts(), shard.counts("q.dlq")) == ((0, 0, 0), (1, 0, 0))
    assert shard.stats().dead_lettered == 1
    (dead,) = shard.receive(queue="q.dlq")
    extension = dead.record.extension
    assert (dead.id, dead.payload, dead.key, dead.record.priority) == (message_id, b"x", "acme", -3)
    assert (dead.attempts, dead.error) == (1, "no such customer")
    assert (extension.reason, extension.source_queue, extension.dead_lettered_ms) == ("failed", "q", shard.now_ms)


def test_a_worn_out_message_says_so() -> None:
    shard = capped(1)
    shard.enqueue(b"x")
    shard.nack(shard.receive(), "boom")
    (dead,) = shard.receive(queue="q.dlq")
    extension = dead.record.extension
    assert (extension.reason, extension.source_queue, extension.dead_lettered_ms) == ("max_attempts", "q", shard.now_ms)


def test_dead_letters_are_in_the_order_of_their_enqueues(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1", b"2")
    got = shard.receive(3)
    for each in reversed(got):
        shard.settle(Verb.FAIL, [each])
    assert payloads(shard.receive(9, "q.dlq")) == [b"0", b"1", b"2"]


def test_an_own_visibility_timeout_goes_along(shard: ShardHarness) -> None:
    shard.enqueue(b"x", lease_ms=2_000)
    shard.settle(Verb.FAIL, shard.receive())
    (dead,) = shard.receive(queue="q.dlq")
    assert dead.expires_ms == shard.now_ms + 2_000


@pytest.mark.parametrize("verb", [Verb.NACK, Verb.FAIL, Verb.RETRY])
def test_a_dead_letter_that_fails_stays_where_it_is(shard: ShardHarness, verb: Verb) -> None:
    shard.enqueue(b"x")
    shard.settle(Verb.FAIL, shard.receive(), error="first")
    for attempt in range(1, 4):
        (dead,) = shard.receive(queue="q.dlq")
        assert dead.attempts == attempt
        shard.settle(verb, [dead], "q.dlq", error="again")
    (dead,) = shard.receive(queue="q.dlq")
    assert (dead.error, dead.record.extension.reason, dead.record.extension.source_queue) == ("again", "failed", "q")
    assert shard.stats("q.dlq").dead_lettered == 0


def test_an_expired_dead_letter_stays_where_it_is(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    shard.settle(Verb.FAIL, shard.receive())
    shard.receive(queue="q.dlq")
    shard.pass_time(15_000)
    assert shard.counts("q.dlq") == (1, 0, 0)


def test_an_acked_dead_letter_is_gone(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    shard.settle(Verb.FAIL, shard.receive())
    shard.ack(shard.receive(queue="q.dlq"), "q.dlq")
    assert shard.counts("q.dlq") == (0, 0, 0)


def test_dead_letters_survive_a_restart(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    shard.settle(Verb.FAIL, shard.receive())
    shard.restart()
    assert (shard.counts(), shard.counts("q.dlq")) == ((1, 0, 0), (1, 0, 0))


def test_some_of_a_lease_may_be_dead_lettered_and_some_retried() -> None:
    shard = capped(2)
    shard.enqueue(b"old")
    shard.nack(shard.receive())
    shard.enqueue(b"new")
    shard.nack(shard.receive(2), "boom")
    assert payloads(shard.receive(9)) == [b"new"]
    assert payloads(shard.receive(9, "q.dlq")) == [b"old"]
