"""Where dead letters go: to the queue's own .dlq, nowhere, or to a queue that was named for it; and how they come back."""

import pytest

from fila_proto_zmq.commands import CreateQueue, DeleteQueue, QueueOptions, Redriven, UpdateQueue, Verb
from fila_proto_zmq.errors import InvalidArgumentError, NotADeadLetterQueueError, QueueNotFoundError
from fila_proto_zmq.names import shard_of
from fila_worker.core.settings import ShardSettings
from tests.support.shard.linked_shards import name_on
from tests.support.shard.shard import SHARDS, ShardHarness

HERE = shard_of("q", SHARDS)
NAMED = name_on(HERE, "letters")


@pytest.fixture
def shard() -> ShardHarness:
    harness = ShardHarness(index=HERE)
    harness.create("q")
    return harness


@pytest.fixture
def named() -> ShardHarness:
    """``q`` sends its dead letters to another queue of its shard."""
    harness = ShardHarness(index=HERE)
    harness.create(NAMED)
    harness.create("q", dead_letter=NAMED)
    return harness


def fail(shard: ShardHarness, *payloads: bytes, queue: str = "q", **columns: object) -> list[str]:
    ids = shard.enqueue(*payloads, queue=queue, **columns)
    shard.settle(Verb.FAIL, shard.receive(len(payloads), queue), queue, error="boom")
    return ids


def update(shard: ShardHarness, dead_letter: str | None, queue: str = "q") -> None:
    shard.ask(UpdateQueue(QueueOptions(dead_letter=dead_letter), ["dead_letter"]), queue)


# --- discard ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fail", "attempts", "expired lease", "too old"])
def test_discarded_messages_are_gone(how: str) -> None:
    shard = ShardHarness(index=HERE)
    shard.create(dead_letter="discard", max_attempts=1, visibility_timeout_ms=5_000)
    shard.enqueue(b"x", ttl_ms=2_000 if how == "too old" else 0)
    match how:
        case "fail":
            shard.settle(Verb.FAIL, shard.receive())
        case "attempts":
            shard.nack(shard.receive())
        case "expired lease":
            shard.receive()
    shard.pass_time(5_000)
    assert (shard.counts(), shard.stats().dead_lettered) == ((0, 0, 0), 1)
    assert list(shard.shard.queues) == ["q"]
    shard.restart()
    assert (shard.counts(), shard.shard.queues["q"].size_bytes) == ((0, 0, 0), 0)
    with pytest.raises(QueueNotFoundError):
        shard.redrive()


# --- a named queue of the same shard ----------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_a_named_queue_gets_them_with_all_that_is_known(named: ShardHarness, restarted: bool) -> None:
    (message_id,) = fail(named, b"x", key="acme", priority=-2, weight=4, cost_milli=2_500, throttle_keys=[["t"]])
    if restarted:
        named.restart()
    assert "q.dlq" not in named.shard.queues
    (got,) = named.receive(9, NAMED)
    extension = got.record.extension
    assert (got.id, got.key, got.weight, got.attempts, got.error) == (message_id, "acme", 4, 1, "boom")
    assert (extension.reason, extension.source_queue, extension.dead_lettered_ms) == ("failed", "q", named.now_ms)
    assert (got.record.priority, extension.cost_milli) == (-2, 2_500)


def test_they_keep_their_place_among_others(named: ShardHarness) -> None:
    named.enqueue(b"first")
    named.enqueue(b"second", queue=NAMED)
    named.settle(Verb.FAIL, named.receive())
    assert [each.payload for each in named.receive(9, NAMED)] == [b"first", b"second"]


def test_it_can_be_redriven_and_keeps_what_is_its_own(named: ShardHarness) -> None:
    ids = fail(named, b"0", b"1", key="acme")
    named.enqueue(b"its own", queue=NAMED, key="acme")
    assert named.redrive(queue=NAMED) == Redriven(2, 1)
    assert [(each.id, each.attempts, each.error) for each in named.receive(9)] == [(each, 0, "") for each in ids]
    assert [each.payload for each in named.receive(9, NAMED)] == [b"its own"]
    assert named.redrive(queue=NAMED) == Redriven(0, 0)


def test_more_letters_than_a_step_moves_among_as_many_others(named: ShardHarness) -> None:
    named.limit(redrive_messages_max=7)
    for number in range(15):
        named.enqueue(b"own", queue=NAMED, key=str(number % 2))
        fail(named, b"%d" % number, key=str(number % 2))
    moved = 0
    while step := named.redrive(queue=NAMED).count:
        moved += step
        named.restart()
    assert moved == 15
    assert {each.payload for each in named.receive(99, NAMED)} == {b"own"}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_queue_that_was_never_named_can_not(named: ShardHarness, restarted: bool) -> None:
    if restarted:
        named.restart()
    with pytest.raises(NotADeadLetterQueueError):
        named.redrive(queue="q")
    assert named.redrive(queue=NAMED) == Redriven(0, 0)


def test_a_letter_whose_queue_is_gone_stays(named: ShardHarness) -> None:
    fail(named, b"x")
    named.ask(DeleteQueue())
    assert named.redrive(queue=NAMED) == Redriven(0, 1)
    named.create("q")
    assert named.redrive(queue=NAMED) == Redriven(1, 0)


@pytest.mark.parametrize("restarted", [False, True])
def test_letters_for_a_queue_that_is_gone_stay_with_their_own(named: ShardHarness, restarted: bool) -> None:
    named.ask(DeleteQueue(), NAMED)
    if restarted:
        named.restart()
    fail(named, b"x", priority=3)
    assert named.counts("q.dlq") == (1, 0, 0)
    named.restart()
    assert named.redrive() == Redriven(1, 0)


def test_a_queue_of_that_name_made_anew_takes_them_and_can_be_redriven(named: ShardHarness) -> None:
    named.ask(DeleteQueue(), NAMED)
    named.create(NAMED)
    fail(named, b"x")
    named.restart()
    assert named.redrive(queue=NAMED) == Redriven(1, 0)


def test_a_failure_in_the_named_queue_goes_on_to_its_own(named: ShardHarness) -> None:
    fail(named, b"x")
    named.settle(Verb.FAIL, named.receive(9, NAMED), NAMED)
    assert named.counts(NAMED + ".dlq") == (1, 0, 0)
    assert named.redrive(queue=NAMED + ".dlq") == Redriven(1, 0)
    assert named.counts(NAMED) == (1, 0, 0)


def test_what_expires_in_line_goes_there_too(named: ShardHarness) -> None:
    named.enqueue(b"pending", ttl_ms=1_000)
    named.enqueue(b"delayed", ttl_ms=1_000, delay_ms=9_000)
    named.pass_time(5_000)
    assert sorted(each.payload for each in named.receive(9, NAMED)) == [b"delayed", b"pending"]


def test_what_expires_when_it_is_picked_goes_there_too() -> None:
    shard = ShardHarness(index=HERE, settings=ShardSettings(buffer_bytes=300))
    shard.create(NAMED)
    shard.create("q", dead_letter=NAMED)
    shard.subscribe(5, NAMED)
    shard.enqueue(*[b"%d" % number for number in range(20)], ttl_ms=1_000)
    shard.enqueue(b"alive")
    shard.now_ms += 1_000
    assert [each.payload for each in shard.receive(9)] == [b"alive"]
    assert len(shard.take_pushed()) == 5
    assert shard.counts(NAMED) == (15, 5, 0)


# --- naming -----------------------------------------------------------------------------------------------------------


def test_it_must_exist() -> None:
    shard = ShardHarness(index=HERE)
    with pytest.raises(InvalidArgumentError, match="no such queue"):
        shard.create("q", dead_letter=NAMED)
    assert shard.shard.queues == {}
    shard.create("q")
    with pytest.raises(InvalidArgumentError, match="no such queue"):
        update(shard, NAMED)
    assert shard.shard.queues["q"].options.dead_letter is None


@pytest.mark.parametrize("wrong", ["q", "q.dlq", "other.dlq", "", "a b", "x" * 201, "a/b/c"])
def test_it_must_be_able_to(wrong: str) -> None:
    shard = ShardHarness(index=HERE)
    with pytest.raises(InvalidArgumentError, match="dead_letter="):
        shard.create("q", dead_letter=wrong)
    assert shard.shard.queues == {}


def test_a_refused_command_names_no_target(shard: ShardHarness) -> None:
    shard.create(NAMED)

    def refuse(*args: object, **options: object) -> None:
        raise InvalidArgumentError("line 1: no")

    shard.shard.compile_hooks = refuse  # type: ignore[assignment]
    for command in (
        UpdateQueue(QueueOptions(dead_letter=NAMED, on_enqueue="bad"), ["dead_letter", "on_enqueue"]),
        UpdateQueue(QueueOptions(dead_letter=NAMED, max_attempts=0), ["dead_letter", "max_attempts"]),
        UpdateQueue(QueueOptions(dead_letter=NAMED), ["dead_letter", "no_such_option"]),
    ):
        with pytest.raises(InvalidArgumentError):
            shard.ask(command)
    with pytest.raises(InvalidArgumentError):
        shard.ask(CreateQueue(QueueOptions(dead_letter=NAMED, on_failure="bad")), "r")
    with pytest.raises(NotADeadLetterQueueError):
        shard.redrive(queue=NAMED)


def test_policies_can_be_changed_for_what_happens_next(shard: ShardHarness) -> None:
    shard.create(NAMED)
    fail(shard, b"own")
    update(shard, NAMED)
    shard.restart()
    fail(shard, b"named")
    update(shard, "discard")
    fail(shard, b"dropped")
    update(shard, "dlq")
    shard.restart()
    fail(shard, b"own again")
    update(shard, None)
    fail(shard, b"and again")
    assert shard.counts("q.dlq") == (3, 0, 0)
    assert [each.payload for each in shard.receive(9, NAMED)] == [b"named"]
    assert shard.redrive() == Redriven(3, 0)
