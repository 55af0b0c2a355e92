"""Options of a queue: refused where they can never work, kept, and changed for what happens next."""

from collections.abc import Callable

import pytest

from fila_proto_zmq.commands import CreateQueue, QueueOptions, UpdateQueue, Verb
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, LuaCompilationError, QueueNotFoundError
from fila_proto_zmq.limits import (
    LEASE_MS_MAX,
    LUA_MEMORY_LIMIT_BYTES_MAX,
    LUA_MEMORY_LIMIT_BYTES_MIN,
    LUA_TIMEOUT_MS_MAX,
    SCRIPT_BYTES_MAX,
    TTL_MS_MAX,
)
from fila_worker.core.keys import FIRST, LAST
from tests.support.shard.hooked import TENANT, hooked, keys, send, update
from tests.support.shard.shard import ShardHarness

WRONG = {
    "visibility_timeout_ms": [0, -1, LEASE_MS_MAX + 1],
    "max_attempts": [0, -1, 2**31],
    "max_in_flight_per_key": [0, -1, 2**31],
    "default_ttl_ms": [0, -1, TTL_MS_MAX + 1],
    "idle_expiry_ms": [0, -1, TTL_MS_MAX + 1],
    "lua_timeout_ms": [0, -1, LUA_TIMEOUT_MS_MAX + 1],
    "lua_memory_limit_bytes": [0, LUA_MEMORY_LIMIT_BYTES_MIN - 1, LUA_MEMORY_LIMIT_BYTES_MAX + 1],
    "delivery": ["", "exactly_once"],
    "on_enqueue": ["x" * (SCRIPT_BYTES_MAX + 1)],
    "on_failure": ["x" * (SCRIPT_BYTES_MAX + 1)],
    "dead_letter": ["", "a b", "q", "x.dlq"],
}

RIGHT = QueueOptions(
    visibility_timeout_ms=1_000, max_attempts=5, dead_letter="discard", delivery="at_most_once", max_in_flight_per_key=2,
    default_ttl_ms=60_000, idle_expiry_ms=90_000, lua_timeout_ms=7, lua_memory_limit_bytes=LUA_MEMORY_LIMIT_BYTES_MIN,
)  # fmt: skip
BAD = [(field, value) for field, values in WRONG.items() for value in values]


def options(shard: ShardHarness) -> QueueOptions:
    return shard.shard.queues["q"].options


def on_disk(shard: ShardHarness) -> list[tuple[bytes, bytes]]:
    return list(shard.store.scan(FIRST, LAST, shard.store.families.queues))


@pytest.mark.parametrize(("field", "value"), BAD)
def test_what_can_never_work_creates_nothing(field: str, value: object) -> None:
    shard = ShardHarness()
    with pytest.raises(InvalidArgumentError) as refused:
        shard.create("q", **{field: value})
    assert len(str(refused.value)) < 400
    assert (shard.shard.queues, on_disk(shard)) == ({}, [])


@pytest.mark.parametrize(("field", "value"), BAD)
def test_and_changes_nothing(field: str, value: object) -> None:
    shard = ShardHarness()
    shard.ask(CreateQueue(RIGHT))
    with pytest.raises(InvalidArgumentError):
        update(shard, **{"max_attempts": 9, field: value})
    assert options(shard) == RIGHT
    shard.restart()
    assert options(shard) == RIGHT


def test_all_of_them_are_kept() -> None:
    shard = ShardHarness()
    shard.ask(CreateQueue(RIGHT))
    shard.restart()
    assert options(shard) == RIGHT


@pytest.mark.parametrize("restarted", [False, True])
def test_those_given_change_and_the_others_stay(restarted: bool) -> None:
    shard = ShardHarness()
    shard.ask(CreateQueue(RIGHT))
    update(shard, max_attempts=9, default_ttl_ms=None)
    if restarted:
        shard.restart()
    assert (options(shard).max_attempts, options(shard).default_ttl_ms) == (9, None)
    assert (options(shard).visibility_timeout_ms, options(shard).delivery) == (1_000, "at_most_once")


def test_an_option_that_is_not_named_is_not_changed(shard: ShardHarness) -> None:
    shard.ask(UpdateQueue(QueueOptions(max_attempts=3, visibility_timeout_ms=5), ["max_attempts"]))
    assert (options(shard).max_attempts, options(shard).visibility_timeout_ms) == (3, None)


def test_an_unknown_option_is_refused_by_name(shard: ShardHarness) -> None:
    with pytest.raises(InvalidArgumentError, match="colour"):
        shard.ask(UpdateQueue(QueueOptions(max_attempts=3), ["max_attempts", "colour"]))
    assert options(shard).max_attempts is None


def test_a_dead_letter_queue_goes_with_its_queue(shard: ShardHarness) -> None:
    with pytest.raises(InvalidArgumentError, match="update its source queue"):
        shard.ask(UpdateQueue(QueueOptions(max_attempts=3), ["max_attempts"]), "q.dlq")
    with pytest.raises(QueueNotFoundError):
        shard.ask(UpdateQueue(QueueOptions(max_attempts=3), ["max_attempts"]), "nobody")


def test_a_new_timeout_is_for_new_leases(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    (before,) = shard.receive()
    update(shard, visibility_timeout_ms=5_000)
    (after,) = shard.receive()
    assert (before.expires_ms - shard.now_ms, after.expires_ms - shard.now_ms) == (30_000, 5_000)


def test_a_new_limit_of_attempts_is_for_the_next_failure(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    for _ in range(3):
        shard.nack(shard.receive())
    update(shard, max_attempts=2)
    assert shard.counts() == (1, 0, 0)
    shard.nack(shard.receive())
    assert (shard.counts(), shard.counts("q.dlq")) == ((0, 0, 0), (1, 0, 0))


def test_a_new_dead_letter_policy_takes_nothing_from_what_is_leased(shard: ShardHarness) -> None:
    shard.enqueue(b"x")
    got = shard.receive()
    update(shard, dead_letter="discard")
    shard.nack(got)
    assert shard.counts() == (1, 0, 0)


@pytest.mark.parametrize("seen", ["create", "update"])
def test_a_script_that_does_not_compile_leaves_nothing_behind(seen: str) -> None:
    def refuse(*args: object, **given: object) -> None:
        raise LuaCompilationError("line 1: unexpected symbol near 'x'")

    shard = ShardHarness(compile_hooks=refuse)  # type: ignore[arg-type]
    if seen == "create":
        with pytest.raises(LuaCompilationError):
            shard.create("q", on_enqueue="x")
        assert on_disk(shard) == []
    else:
        shard.create("q")
        before = on_disk(shard)
        with pytest.raises(LuaCompilationError):
            update(shard, on_failure="x", max_attempts=2)
        assert (on_disk(shard), options(shard)) == (before, QueueOptions())
    shard.restart()


class Scripts:
    """Hooks that know when they are closed."""

    has_on_enqueue = has_on_failure = False
    failed = 0

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_scripts_are_closed_when_no_queue_can_run_them_any_more() -> None:
    made: list[Scripts] = []

    def compile_hooks(*args: object, **given: object) -> Scripts:
        made.append(Scripts())
        return made[-1]

    shard = ShardHarness(compile_hooks=compile_hooks)  # type: ignore[arg-type]
    shard.create("q", on_enqueue="1", idle_expiry_ms=5_000)
    update(shard, max_attempts=3)
    assert len(made) == 1, "what did not change is not compiled again"
    update(shard, on_enqueue="2")
    assert [each.closed for each in made] == [1, 0]
    update(shard, on_enqueue=None)
    assert [each.closed for each in made] == [1, 1]
    assert shard.shard.queues["q"].hooks is None
    update(shard, on_failure="3")
    shard.pass_time(5_000)
    assert [each.closed for each in made] == [1, 1, 1]


# --- commands that are wrong ------------------------------------------------------------------------------------------


REFUSED: dict[str, Callable[[ShardHarness], object]] = {
    "create again": lambda shard: shard.create("q"),
    "create a dlq": lambda shard: shard.create("x.dlq"),
    "create a bad name": lambda shard: shard.create("a b"),
    "redrive": lambda shard: shard.redrive(queue="q"),
    "redrive a negative number": lambda shard: shard.redrive(-1),
    "settle with an unknown verb": lambda shard: shard.settle(99, []),  # type: ignore[arg-type]
    "retry too late": lambda shard: shard.settle(Verb.RETRY, [], after_ms=2**60),
}


@pytest.mark.parametrize("command", REFUSED)
def test_a_refused_command_writes_nothing(shard: ShardHarness, command: str) -> None:
    shard.enqueue(b"x")
    before = {name: list(shard.store.scan(FIRST, LAST, family)) for name, family in shard.store.families._asdict().items()}
    with pytest.raises(FilaError):
        REFUSED[command](shard)
    after = {name: list(shard.store.scan(FIRST, LAST, family)) for name, family in shard.store.families._asdict().items()}
    assert after == before


DEFAULT_LEASE_MS = 30_000


def lease_ms(shard: ShardHarness) -> int:
    """How long the next delivery is leased."""
    shard.enqueue(b"x")
    (got,) = shard.receive()
    shard.ack([got])
    return got.expires_ms - shard.now_ms


def test_a_timeout_goes_back_to_the_brokers_default() -> None:
    shard = hooked(visibility_timeout_ms=5_000)
    assert lease_ms(shard) == 5_000
    update(shard, visibility_timeout_ms=None)
    assert lease_ms(shard) == DEFAULT_LEASE_MS


def test_without_its_limit_of_attempts_a_message_is_retried_for_ever() -> None:
    shard = hooked(max_attempts=1)
    shard.enqueue(b"x")
    update(shard, max_attempts=None)
    for _ in range(10):
        shard.nack(shard.receive())
    assert shard.counts() == (1, 0, 0)


def test_dead_letters_go_where_the_queue_says_when_they_die() -> None:
    shard = hooked(dead_letter="discard")
    shard.enqueue(b"0", b"1", b"2")
    for dead_letter in ("discard", None, "discard"):
        update(shard, dead_letter=dead_letter)
        shard.settle(Verb.FAIL, shard.receive())
    assert [each.payload for each in shard.receive(9, "q.dlq")] == [b"1"]


def test_what_is_queued_stays_as_it_was_enqueued() -> None:
    shard = hooked(on_enqueue=TENANT, default_ttl_ms=60_000)
    send(shard, {"tenant": "a"})
    update(shard, on_enqueue=None, default_ttl_ms=1_000)
    shard.pass_time(5_000)
    assert keys(shard) == ["a"]


def test_several_options_change_together() -> None:
    shard = hooked(max_attempts=3)
    update(shard, max_attempts=None, visibility_timeout_ms=1_000, max_in_flight_per_key=2)
    assert options(shard) == QueueOptions(visibility_timeout_ms=1_000, max_in_flight_per_key=2)


def test_or_not_at_all() -> None:
    shard = hooked(visibility_timeout_ms=5_000)
    with pytest.raises(InvalidArgumentError, match="max_attempts of 0"):
        update(shard, visibility_timeout_ms=9_000, max_attempts=0)
    assert lease_ms(shard) == 5_000


def test_nothing_given_changes_nothing(shard: ShardHarness) -> None:
    shard.ask(UpdateQueue(QueueOptions(max_attempts=3), []))
    assert options(shard) == QueueOptions()


def test_the_name_of_its_dlq_is_refused_and_the_queue_stays_as_it_is(shard: ShardHarness) -> None:
    with pytest.raises(InvalidArgumentError, match="update its source queue"):
        shard.ask(UpdateQueue(QueueOptions(max_attempts=3), ["max_attempts"]), "q.dlq")
    assert options(shard) == shard.shard.queues["q.dlq"].options == QueueOptions()


def test_subscriptions_and_messages_notice_nothing(shard: ShardHarness) -> None:
    shard.subscribe(2)
    shard.enqueue(b"0", b"1", b"2")
    got = shard.take_pushed()
    update(shard, max_attempts=9)
    assert (len(got), shard.take_pushed(), shard.counts()) == (2, [], (1, 2, 0))
    shard.ack(got)
    assert [each.payload for each in shard.take_pushed()] == [b"2"]
