"""Times to live: a message that is too old is never delivered, and goes where dead letters go by itself."""

from itertools import pairwise

import pytest

from fila_proto_zmq.commands import Enqueue, QueueOptions, UpdateQueue, Verb
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import TTL_MS_MAX
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.settings import Limits, ShardSettings
from fila_worker.core.settle.dead_letters import EXPIRIES_MAX
from tests.support.shard.linked_shards import name_on
from tests.support.shard.shard import SHARDS, Got, ShardHarness

SWEEP_MS = 5_000
"""Within this time after its end, a message must be gone, with or without consumers."""

NAMED, ANOTHER = name_on(3, "named"), name_on(3, "another")


def payloads(got: list[Got]) -> list[bytes]:
    return [each.payload for each in got]


def letters(shard: ShardHarness) -> list[tuple[bytes, str | None, str | None]]:
    got = shard.receive(99, "q.dlq")
    return [(each.payload, each.record.extension.reason, each.record.extension.source_queue) for each in got]


def test_a_message_is_delivered_until_its_time_is_over(shard: ShardHarness) -> None:
    shard.enqueue(b"x", ttl_ms=5_000)
    shard.pass_time(4_999)
    assert payloads(shard.receive()) == [b"x"]


def test_it_is_not_delivered_afterwards_even_before_anybody_swept(shard: ShardHarness) -> None:
    shard.enqueue(b"x", b"y", ttl_ms=[5_000, 6_000])
    shard.now_ms += 5_500  # no turn yet: nothing was swept
    assert payloads(shard.receive(9)) == [b"y"]
    assert letters(shard) == [(b"x", "expired", "q")]


def test_nor_with_several_lanes_and_a_cap() -> None:
    shard = ShardHarness()
    shard.create(max_in_flight_per_key=2)
    shard.enqueue(b"x", ttl_ms=500)
    shard.enqueue(b"y", throttle_keys=[["t"]], ttl_ms=500)
    shard.enqueue(b"z")
    shard.now_ms += 500
    assert payloads(shard.receive(9)) == [b"z"]
    assert shard.counts("q.dlq") == (2, 0, 0)


@pytest.mark.parametrize("restarted", [False, True])
def test_it_is_dead_lettered_soon_even_without_consumers(shard: ShardHarness, restarted: bool) -> None:
    (message_id,) = shard.enqueue(b"x", key="acme", ttl_ms=60_000)
    shard.pass_time(59_999)
    assert shard.counts() == (1, 0, 0)
    if restarted:
        shard.restart()
    shard.pass_time(SWEEP_MS)
    assert shard.counts() == (0, 0, 0)
    (got,) = shard.receive(9, "q.dlq")
    assert (got.id, got.key, got.attempts, got.record.extension.reason) == (message_id, "acme", 0, "expired")
    assert got.record.extension.dead_lettered_ms <= shard.now_ms
    assert shard.stats().dead_lettered == 1


def test_discarded_where_dead_letters_are() -> None:
    shard = ShardHarness()
    shard.create(dead_letter="discard")
    shard.enqueue(b"x", ttl_ms=1_000)
    shard.pass_time(SWEEP_MS)
    assert shard.counts() == (0, 0, 0)
    assert "q.dlq" not in shard.shard.queues
    assert shard.shard.queues["q"].size_bytes == 0


def test_a_delayed_message_may_become_too_old_before_it_is_due(shard: ShardHarness) -> None:
    shard.enqueue(b"x", delay_ms=60_000, ttl_ms=5_000)
    shard.pass_time(5_000)
    assert shard.counts() == (0, 0, 0)
    assert letters(shard) == [(b"x", "expired", "q")]
    shard.pass_time(60_000)
    assert shard.counts() == (0, 0, 0)


@pytest.mark.parametrize(("delay_ms", "ttl_ms"), [(5_000, 5_000), (4_000, 5_000), (4_500, 4_900)])
def test_a_message_that_is_due_and_too_old_in_one_turn_dies_once(shard: ShardHarness, delay_ms: int, ttl_ms: int) -> None:
    shard.enqueue(b"x", delay_ms=delay_ms, ttl_ms=ttl_ms)
    shard.pass_time(10_000)
    assert shard.counts() == (0, 0, 0)
    assert letters(shard) == [(b"x", "expired", "q")]


def test_so_does_one_that_waits_for_a_retry(shard: ShardHarness) -> None:
    shard.enqueue(b"x", b"y", ttl_ms=10_000)
    shard.settle(Verb.RETRY, shard.receive(2), after_ms=10_000, error="busy")
    shard.pass_time(10_000)
    assert [each.error for each in shard.receive(9, "q.dlq")] == ["busy", "busy"]
    assert shard.counts() == (0, 0, 0)


# --- leased ones ------------------------------------------------------------------------------------------------------


def test_a_leased_one_is_left_alone(shard: ShardHarness) -> None:
    shard.enqueue(b"x", ttl_ms=2_000)
    got = shard.receive()
    shard.pass_time(10_000)
    assert shard.counts() == (0, 1, 0)
    shard.ack(got)
    shard.pass_time(SWEEP_MS)
    assert shard.counts() == shard.counts("q.dlq") == (0, 0, 0)


@pytest.mark.parametrize("how", ["nack", "retry", "late retry", "release", "defer", "expiry", "lost", "goodbye"])
@pytest.mark.parametrize("restarted", [False, True])
def test_it_is_judged_when_it_comes_back(how: str, restarted: bool) -> None:
    shard = ShardHarness()
    shard.create(visibility_timeout_ms=14_000)
    shard.enqueue(b"x", throttle_keys=[["t"]], ttl_ms=5_000)
    got = shard.receive()
    shard.pass_time(9_000)
    if restarted:
        shard.restart()
    match how:
        case "nack":
            shard.nack(got)
        case "retry":
            shard.settle(Verb.RETRY, got)
        case "late retry":
            shard.settle(Verb.RETRY, got, after_ms=60_000)
        case "release":
            shard.settle(Verb.RELEASE, got)
        case "defer":
            shard.settle(Verb.DEFER, got, after_ms=60_000)
        case "expiry":
            shard.heartbeat()
            shard.pass_time(5_000)
        case "lost":
            shard.pass_time(15_000)
        case "goodbye":
            shard.goodbye()
    assert shard.counts() == (0, 0, 0)
    assert letters(shard) == [(b"x", "expired", "q")]


@pytest.mark.parametrize("verb", [Verb.NACK, Verb.RELEASE, Verb.DEFER])
def test_one_that_comes_back_in_time_is_swept_later(shard: ShardHarness, verb: Verb) -> None:
    shard.enqueue(b"x", ttl_ms=20_000)
    got = shard.receive()
    shard.pass_time(10_000)
    shard.settle(verb, got, after_ms=60_000 if verb is Verb.DEFER else 0)
    assert shard.counts("q.dlq") == (0, 0, 0)
    shard.pass_time(10_000)
    assert letters(shard) == [(b"x", "expired", "q")]
    assert shard.counts() == (0, 0, 0)


def test_a_failed_attempt_that_was_the_last_keeps_its_reason() -> None:
    shard = ShardHarness()
    shard.create(max_attempts=1)
    shard.enqueue(b"x", ttl_ms=2_000)
    got = shard.receive()
    shard.pass_time(5_000)
    shard.nack(got, "broken")
    assert letters(shard) == [(b"x", "max_attempts", "q")]


def test_a_slot_of_a_strict_key_is_free_when_its_message_dies() -> None:
    shard = ShardHarness()
    shard.create(max_in_flight_per_key=1)
    shard.enqueue(b"0", ttl_ms=2_000)
    shard.enqueue(b"1")
    shard.settle(Verb.RETRY, shard.receive(), after_ms=60_000)
    assert shard.receive() == []
    shard.pass_time(2_000)
    assert payloads(shard.receive()) == [b"1"]


# --- whose time it is -------------------------------------------------------------------------------------------------


def test_a_queue_gives_its_messages_a_time_to_live_and_they_may_have_their_own() -> None:
    shard = ShardHarness()
    shard.create(default_ttl_ms=5_000)
    shard.enqueue(b"default", b"longer", b"shorter", ttl_ms=[0, 9_000, 2_000])
    shard.pass_time(2_000)
    assert shard.counts() == (2, 0, 0)
    shard.pass_time(3_000)
    assert payloads(shard.receive(9)) == [b"longer"]


def test_a_changed_default_is_for_what_comes() -> None:
    shard = ShardHarness()
    shard.create(default_ttl_ms=5_000)
    shard.enqueue(b"before")
    shard.ask(UpdateQueue(QueueOptions(), ["default_ttl_ms"]))
    shard.enqueue(b"after")
    shard.pass_time(10_000)
    assert payloads(shard.receive(9)) == [b"after"]


def test_dead_letters_do_not_expire_and_a_redriven_message_starts_afresh() -> None:
    shard = ShardHarness()
    shard.create(default_ttl_ms=5_000)
    shard.enqueue(b"x")
    shard.settle(Verb.FAIL, shard.receive())
    shard.pass_time(60_000)
    assert shard.counts("q.dlq") == (1, 0, 0)
    shard.redrive()
    shard.pass_time(4_999)
    assert shard.counts() == (1, 0, 0)
    shard.pass_time(SWEEP_MS)
    assert letters(shard) == [(b"x", "expired", "q")]


def test_a_time_to_live_of_its_own_ends_with_the_first_life(shard: ShardHarness) -> None:
    shard.enqueue(b"x", ttl_ms=1_000)
    shard.pass_time(SWEEP_MS)
    shard.redrive()
    shard.pass_time(60_000)
    assert payloads(shard.receive()) == [b"x"]


@pytest.mark.parametrize("ttl_ms", [-1, TTL_MS_MAX + 1])
def test_a_time_that_can_not_be_is_refused(shard: ShardHarness, ttl_ms: int) -> None:
    reply = shard.ask(Enqueue([seal_envelope(b"x")], ttl_ms=ttl_ms))
    ((_, fault),) = reply.faults
    assert (fault.code, "time to live" in fault.text) == (InvalidArgumentError.code, True)
    assert shard.counts() == (0, 0, 0)


# --- many of them -----------------------------------------------------------------------------------------------------


def test_many_that_end_at_once_are_swept_in_bounded_turns() -> None:
    limits = Limits(turn_due_max=20, due_read_bytes_max=300, due_read_messages_max=3)
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=600, limits=limits))
    shard.create()
    for key in "abc":
        shard.enqueue(*[b"%d" % number for number in range(40)], key=key, ttl_ms=2_000)
        shard.enqueue(*[b"%d" % number for number in range(20)], key=key, ttl_ms=2_000, delay_ms=2_000)
    shard.enqueue(b"alive", key="b")
    shard.now_ms += 2_000
    shard.turn()
    assert shard.shard.queues["q"].depth > 100
    shard.pass_time(0)
    assert shard.counts() == (1, 0, 0)
    assert shard.counts("q.dlq") == (180, 0, 0)
    assert payloads(shard.receive(9)) == [b"alive"]


# --- queues that name each other ---------------------------------------------------------------------------------------


def test_two_queues_that_name_each_other_do_not_send_a_message_to_and_fro_for_ever() -> None:
    a, b = NAMED, ANOTHER
    shard = ShardHarness()
    for queue in (a, b):
        shard.create(queue, default_ttl_ms=1_000)
    for queue, other in ((a, b), (b, a)):
        shard.ask(UpdateQueue(QueueOptions(dead_letter=other), ["dead_letter"]), queue)
    shard.enqueue(b"x", queue=a)
    for _ in range(10):
        shard.pass_time(2_000)
    assert [shard.counts(queue) for queue in (a, b, b + ".dlq")] == [(0, 0, 0), (0, 0, 0), (1, 0, 0)]


@pytest.mark.parametrize("length", [3, 5])
def test_a_message_expires_in_a_circle_of_queues_a_bounded_number_of_times(length: int) -> None:
    circle = [queue for queue in (f"circle-{number}" for number in range(100)) if shard_of(queue, SHARDS) == 3][:length]
    shard = ShardHarness()
    for queue in circle:
        shard.create(queue, default_ttl_ms=1_000)
    for queue, following in zip(circle, circle[1:] + circle[:1], strict=True):
        shard.ask(UpdateQueue(QueueOptions(dead_letter=following), ["dead_letter"]), queue)
    shard.enqueue(b"x", queue=circle[0])
    for _ in range(EXPIRIES_MAX + 1):
        assert sum(sum(shard.counts(queue)) for queue in circle) == 1
        shard.pass_time(2_000)
        shard.restart()
    last = circle[EXPIRIES_MAX % length] + ".dlq"
    assert [shard.counts(queue) for queue in (*circle, last)] == [(0, 0, 0)] * length + [(1, 0, 0)]
    shard.redrive(queue=last)
    (got,) = shard.receive(queue=circle[(EXPIRIES_MAX % length)])
    assert got.record.extension.expiries == 0, "it begins anew"


def test_as_many_queues_in_a_row_are_no_circle() -> None:
    chain = [queue for queue in (f"chain-{number}" for number in range(200)) if shard_of(queue, SHARDS) == 3][
        : EXPIRIES_MAX + 1
    ]
    shard = ShardHarness()
    shard.create(chain[-1])
    for queue, following in reversed([*pairwise(chain)]):
        shard.create(queue, default_ttl_ms=1_000, dead_letter=following)  # type: ignore[arg-type]
    shard.enqueue(b"x", queue=chain[0])
    for _ in range(EXPIRIES_MAX + 1):
        shard.pass_time(2_000)
    assert shard.counts(chain[-1]) == (1, 0, 0)


def test_a_wait_queue_gives_failed_messages_back() -> None:
    work, wait = NAMED, ANOTHER
    shard = ShardHarness()
    shard.create(work)
    shard.create(wait, default_ttl_ms=1_000, dead_letter=work)  # type: ignore[arg-type]
    shard.ask(UpdateQueue(QueueOptions(dead_letter=wait), ["dead_letter"]), work)
    shard.enqueue(b"x", queue=work)
    for _ in range(3):
        shard.settle(Verb.FAIL, shard.receive(queue=work), work)
        assert shard.counts(wait) == (1, 0, 0)
        shard.pass_time(2_000)
    assert shard.counts(work) == (1, 0, 0)
