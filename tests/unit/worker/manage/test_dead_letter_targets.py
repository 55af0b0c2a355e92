"""A dead letter queue on another shard: it is asked for before it is named."""

import pytest

from fila_proto_zmq.commands import (
    Appoint,
    Appointed,
    Command,
    CreateQueue,
    DeleteQueue,
    Done,
    QueueOptions,
    Redriven,
    UpdateQueue,
)
from fila_proto_zmq.errors import (
    InvalidArgumentError,
    LuaCompilationError,
    NotADeadLetterQueueError,
    QueueExistsError,
    QueueNotFoundError,
    ShardUnavailableError,
)
from fila_worker.core.manage.dead_letter_targets import Appointments
from fila_worker.core.settings import Limits
from tests.support.shard.linked_shards import LinkedShards, name_on

SOURCE, TARGET = name_on(3), name_on(5)


@pytest.fixture
def linked() -> LinkedShards:
    linked = LinkedShards(3, 5)
    linked[5].create(TARGET)
    return linked


def create(linked: LinkedShards, queue: str = SOURCE, dead_letter: str = TARGET, **options: object) -> object:
    """What a client hears of it, in the end; None: nothing yet."""
    request = linked[3].send(CreateQueue(QueueOptions(dead_letter=dead_letter, **options)), queue)  # type: ignore[arg-type]
    assert request not in linked[3].late, "answered before the other shard was asked"
    linked.carry()
    return linked[3].late.pop(request, None)


def lost(command: Command) -> int:
    return 0


def test_a_queue_that_is_there_may_be_named(linked: LinkedShards) -> None:
    assert create(linked) == Done()
    assert list(linked[3].shard.queues) == [SOURCE], "no .dlq of its own"
    linked[3].restart()
    assert linked[3].shard.queues[SOURCE].options.dead_letter == TARGET


@pytest.mark.parametrize("restarted", [False, True])
def test_it_may_be_redriven_from_then_on(linked: LinkedShards, restarted: bool) -> None:
    with pytest.raises(NotADeadLetterQueueError):
        linked[5].redrive(queue=TARGET)
    create(linked)
    if restarted:
        linked[5].restart()
    assert linked[5].redrive(queue=TARGET) == Redriven(0, 0)


def test_one_that_is_not_there_may_not(linked: LinkedShards) -> None:
    missing = name_on(5, "missing")
    refusal = create(linked, dead_letter=missing)
    assert isinstance(refusal, InvalidArgumentError)
    assert missing in str(refusal)
    assert linked[3].shard.queues == {}
    linked[3].restart()
    assert linked[3].shard.queues == {}


def test_a_dead_letter_queue_can_be_named_later(linked: LinkedShards) -> None:
    linked[3].create(SOURCE)
    command = UpdateQueue(QueueOptions(dead_letter=TARGET, max_attempts=3), ["dead_letter", "max_attempts"])
    request = linked[3].send(command, SOURCE)
    assert linked[3].shard.queues[SOURCE].options.max_attempts is None
    linked.carry()
    assert linked[3].late[request] == Done()
    options = linked[3].shard.queues[SOURCE].options
    assert (options.dead_letter, options.max_attempts) == (TARGET, 3)


def test_what_else_changed_meanwhile_stays(linked: LinkedShards) -> None:
    linked[3].create(SOURCE)
    linked[3].send(UpdateQueue(QueueOptions(dead_letter=TARGET), ["dead_letter"]), SOURCE)
    linked[3].ask(UpdateQueue(QueueOptions(max_attempts=9), ["max_attempts"]), SOURCE)
    linked.carry()
    options = linked[3].shard.queues[SOURCE].options
    assert (options.dead_letter, options.max_attempts) == (TARGET, 9)


# --- silence ----------------------------------------------------------------------------------------------------------


def test_silence_is_an_error_that_says_to_try_again(linked: LinkedShards) -> None:
    linked.copies = lost
    request = linked[3].send(CreateQueue(QueueOptions(dead_letter=TARGET)), SOURCE)
    linked.pass_time(Limits().appointment_wait_ms_max - 1)
    assert request not in linked[3].late
    assert linked[3].shard.next_due(linked[3].now_ms) == 1
    linked.pass_time(1)
    refusal = linked[3].late[request]
    assert isinstance(refusal, ShardUnavailableError)
    assert (refusal.retryable, TARGET in str(refusal)) == (True, True)
    assert linked[3].shard.queues == {}
    assert (linked[3].shard.next_due(linked[3].now_ms), linked[3].shard.part(Appointments).waiting) == (None, {})


def test_an_answer_that_comes_too_late_changes_nothing(linked: LinkedShards) -> None:
    linked.copies = lambda command: not isinstance(command, Appointed)
    request = linked[3].send(CreateQueue(QueueOptions(dead_letter=TARGET)), SOURCE)
    linked.pass_time(Limits().appointment_wait_ms_max)
    (late,) = [command for command in linked.seen if isinstance(command, Appointed)]
    linked.deliver(late)
    assert isinstance(linked[3].late[request], ShardUnavailableError)
    assert linked[3].shard.queues == {}


def test_an_answer_that_comes_twice_does_no_harm(linked: LinkedShards) -> None:
    linked.copies = lambda command: 2
    assert create(linked) == Done()
    assert len(linked[3].late) == 0


def test_an_answer_for_an_earlier_life_changes_nothing(linked: LinkedShards) -> None:
    missing = name_on(5, "missing")
    linked.copies = lambda command: not isinstance(command, Appointed)
    linked[3].send(CreateQueue(QueueOptions(dead_letter=TARGET)), SOURCE)
    linked.carry()
    (old,) = [command for command in linked.seen if isinstance(command, Appointed)]
    linked[3].restart()
    request = linked[3].send(CreateQueue(QueueOptions(dead_letter=missing)), SOURCE)
    linked.deliver(old)
    assert request not in linked[3].late
    assert linked[3].shard.queues == {}


# --- meanwhile --------------------------------------------------------------------------------------------------------


def test_of_two_that_create_the_same_queue_one_is_answered_that_it_exists(linked: LinkedShards) -> None:
    first, second = [linked[3].send(CreateQueue(QueueOptions(dead_letter=TARGET)), SOURCE) for _ in range(2)]
    linked.carry()
    assert linked[3].late[first] == Done()
    assert isinstance(linked[3].late[second], QueueExistsError)


def test_a_queue_that_went_meanwhile_is_not_found(linked: LinkedShards) -> None:
    linked[3].create(SOURCE)
    request = linked[3].send(UpdateQueue(QueueOptions(dead_letter=TARGET), ["dead_letter"]), SOURCE)
    linked[3].ask(DeleteQueue(), SOURCE)
    linked.carry()
    assert isinstance(linked[3].late[request], QueueNotFoundError)
    assert linked[3].shard.queues == {}


def test_waiting_takes_nothing_from_an_idle_queues_time(linked: LinkedShards) -> None:
    linked[3].send(CreateQueue(QueueOptions(dead_letter=TARGET, idle_expiry_ms=10_000)), SOURCE)
    linked[3].now_ms += 2_500
    linked.carry()
    linked[3].pass_time(9_999)
    assert SOURCE in linked[3].shard.queues
    linked[3].pass_time(1)
    assert SOURCE not in linked[3].shard.queues


def test_a_bad_script_is_refused_and_no_queue_is_left() -> None:
    compiled = 0

    def compile_hooks(*args: object, **options: object) -> None:
        nonlocal compiled
        compiled += 1
        raise LuaCompilationError("line 2: unexpected symbol")

    linked = LinkedShards(3, 5, compile_hooks=compile_hooks)  # type: ignore[arg-type]
    linked[5].create(TARGET)
    request = linked[3].send(CreateQueue(QueueOptions(dead_letter=TARGET, on_enqueue="bad")), SOURCE)
    linked.carry()
    assert isinstance(linked[3].late[request], LuaCompilationError)
    assert (linked[3].shard.queues, compiled) == ({}, 1)


def test_bad_options_are_refused_before_anybody_is_asked(linked: LinkedShards) -> None:
    with pytest.raises(InvalidArgumentError, match="max_attempts"):
        linked[3].ask(CreateQueue(QueueOptions(dead_letter=TARGET, max_attempts=0)), SOURCE)
    linked.carry()
    assert not [command for command in linked.seen if isinstance(command, Appoint)]


def test_a_queue_of_a_shard_that_is_asked_for_a_stranger_says_no(linked: LinkedShards) -> None:
    linked.deliver(Appoint(5, 3, 77, "nobody"))
    linked.collect()
    assert linked.seen == [Appointed(3, 5, 77, False)]
