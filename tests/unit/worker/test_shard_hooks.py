"""Hooks in a shard, with real Lua: what scripts decide, when they are asked, and that a bad one is in nobody's way."""

from dataclasses import replace

import pytest

from fila_proto_zmq.commands import Enqueue, Enqueued, QueueOptions, SetConfig, UpdateQueue, Verb
from fila_proto_zmq.errors import LuaCompilationError
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.keys import FIRST, LAST
from fila_worker.core.settings import ShardSettings
from tests.support.shard import Got, ShardHarness

COOLDOWN_MS = 10_000
TENANT = "function on_enqueue(msg) return { fairness_key = msg.headers.tenant } end"
BROKEN = "function on_enqueue(msg) error('no') end"
PATIENT = ShardSettings(consumer_timeout_ms=1 << 40)
"""Consumers live as long as a test."""


def on_enqueue(body: str) -> str:
    return f"function on_enqueue(msg) {body} end"


def on_failure(body: str) -> str:
    return f"function on_failure(msg) {body} end"


def hooked(**options: object) -> ShardHarness:
    shard = ShardHarness(settings=PATIENT)
    shard.create(**options)  # type: ignore[arg-type]
    return shard


def send(shard: ShardHarness, *headers: dict[str, str], **columns: object) -> None:
    """Enqueue messages with these headers; all are taken in."""
    envelopes = [seal_envelope(b"payload", each) for each in headers]
    reply = shard.ask(Enqueue(envelopes, **columns))  # type: ignore[arg-type]
    assert isinstance(reply, Enqueued)
    assert (reply.count, reply.faults) == (len(headers), [])


def keys(shard: ShardHarness) -> list[str]:
    """Of the messages that are ready, in the order of their enqueues."""
    return [each.key for each in sorted(shard.receive(99), key=lambda each: each.record.id_low)]


def update(shard: ShardHarness, **options: object) -> None:
    shard.ask(UpdateQueue(QueueOptions(**options), list(options)))  # type: ignore[arg-type]


def failed(shard: ShardHarness, error: str = "boom") -> tuple[int, int, int]:
    """Nack one message; the counts of its queue."""
    send(shard, {"kind": "mail"})
    shard.nack(shard.receive(), error)
    return shard.counts()


def letters(shard: ShardHarness) -> list[Got]:
    return shard.receive(99, "q.dlq")


# --- on_enqueue decides -----------------------------------------------------------------------------------------------


def test_what_the_script_decides_wins_over_the_options() -> None:
    shard = hooked(
        on_enqueue=on_enqueue(
            "return { fairness_key = 'k', weight = 3, throttle_keys = { 't', 'u' }, priority = -2, cost = 0.5, delay_ms = 0 }"
        )
    )
    send(shard, {}, fairness_key="given", weight=7, throttle_keys=[["given"]], priority=9, cost_milli=4000, delay_ms=5_000)
    (got,) = shard.receive()
    assert (got.key, got.weight, got.throttle_keys, got.record.priority) == ("k", 3, ("t", "u"), -2)
    assert got.record.extension.cost_milli == 500


def test_what_it_leaves_out_keeps_the_options() -> None:
    shard = hooked(on_enqueue=on_enqueue("return {}"))
    send(shard, {}, fairness_key="given", weight=7, throttle_keys=[["t"]], priority=9, cost_milli=4000)
    (got,) = shard.receive()
    assert (got.key, got.weight, got.throttle_keys, got.record.priority) == ("given", 7, ("t",), 9)
    assert got.record.extension.cost_milli == 4000


def test_an_invalid_field_counts_as_left_out_and_the_others_hold() -> None:
    shard = hooked(on_enqueue=on_enqueue("return { fairness_key = 'k', weight = 'heavy', priority = 0.5, cost = -1 }"))
    send(shard, {}, weight=7, priority=9)
    (got,) = shard.receive()
    assert (got.key, got.weight, got.record.priority, got.record.extension.cost_milli) == ("k", 7, 9, 1000)


def test_each_message_of_a_batch_is_decided_on_its_own() -> None:
    shard = hooked(on_enqueue=TENANT)
    send(shard, {"tenant": "a"}, {}, {"tenant": "b"}, fairness_key=["x", "y", "z"])
    assert keys(shard) == ["a", "y", "b"]


def test_it_sees_headers_sizes_and_the_name_of_the_queue() -> None:
    shard = hooked(on_enqueue=on_enqueue("return { fairness_key = msg.headers.a .. msg.payload_size .. msg.queue }"))
    send(shard, {"a": "1"})
    assert keys(shard) == ["17q"]


@pytest.mark.parametrize(("delay", "due_ms"), [("delay_ms = 2000", 2_000), ("delay_ms = 0", 0), ("", 60_000)])
def test_its_delay_wins_over_a_time_to_deliver_at(delay: str, due_ms: int) -> None:
    shard = hooked(on_enqueue=on_enqueue(f"return {{ {delay} }}"))
    send(shard, {}, due_ms=shard.now_ms + 60_000)
    if due_ms:
        shard.pass_time(due_ms - 1)
        assert shard.counts() == (0, 0, 1)
        shard.pass_time(1)
    assert shard.counts() == (1, 0, 0)


def test_a_redriven_message_is_decided_anew() -> None:
    shard = hooked(on_enqueue=TENANT)
    send(shard, {"tenant": "a"})
    shard.settle(Verb.FAIL, shard.receive())
    update(shard, on_enqueue=on_enqueue("return { fairness_key = 'again', delay_ms = 1000 }"))
    shard.redrive()
    assert shard.counts() == (0, 0, 1)
    shard.pass_time(1_000)
    assert keys(shard) == ["again"]


def test_it_reads_the_runtime_config_as_it_is_now() -> None:
    shard = hooked(on_enqueue=on_enqueue("return { fairness_key = fila.get('region') }"))
    for region in ("eu", "us", None):
        shard.shard.set_config(SetConfig("region", region), shard.now_ms)
        send(shard, {}, fairness_key="nowhere")
    assert keys(shard) == ["eu", "us", "nowhere"]


# --- scripts that fail ------------------------------------------------------------------------------------------------

FAILING = {
    "it raises": "error('no')",
    "it indexes nil": "return { weight = msg.nobody.x }",
    "it never ends": "while true do end",
    "it fills memory": "local all = {} while true do all[#all + 1] = string.rep('x', 1000) .. #all end",
    "it calls what is not there": "os.exit(1)",
}


@pytest.mark.parametrize("body", FAILING.values(), ids=list(FAILING))
def test_a_script_that_fails_never_fails_an_enqueue(body: str) -> None:
    shard = hooked(on_enqueue=on_enqueue(body))
    send(shard, {}, {}, fairness_key="given", priority=4)
    assert [(each.key, each.record.priority) for each in shard.receive(9)] == [("given", 4)] * 2


def test_after_three_failures_in_a_row_hooks_are_bypassed_and_then_tried_again() -> None:
    shard = hooked(on_enqueue=on_enqueue("if msg.headers.bad then error('no') end return { fairness_key = 'hooked' }"))
    send(shard, {"bad": "1"}, {"bad": "1"}, {}, {"bad": "1"}, {"bad": "1"}, {"bad": "1"}, {})
    assert keys(shard) == ["default", "default", "hooked", "default", "default", "default", "default"]
    shard.pass_time(COOLDOWN_MS - 1)
    send(shard, {})
    assert keys(shard) == ["default"]
    shard.pass_time(1)
    send(shard, {})
    assert keys(shard) == ["hooked"]


def test_a_script_on_trial_has_one_failure() -> None:
    shard = hooked(on_enqueue=on_enqueue("if msg.headers.bad then error('no') end return { fairness_key = 'hooked' }"))
    send(shard, *[{"bad": "1"}] * 3)
    shard.pass_time(COOLDOWN_MS)
    send(shard, {"bad": "1"}, {})
    assert keys(shard) == ["default"] * 5
    shard.pass_time(COOLDOWN_MS)
    send(shard, {})
    assert keys(shard) == ["hooked"]


def test_both_hooks_of_a_queue_count_and_other_queues_do_not() -> None:
    shard = hooked(on_enqueue=TENANT, on_failure=on_failure("error('no')"))
    shard.create("other", on_enqueue=TENANT)  # type: ignore[arg-type]
    send(shard, *[{"tenant": "a"}] * 3)
    shard.nack(shard.receive(3))
    send(shard, {"tenant": "b"})
    assert keys(shard) == ["a", "a", "a", "default"]
    shard.ask(Enqueue([seal_envelope(b"", {"tenant": "b"})]), "other")
    assert [each.key for each in shard.receive(queue="other")] == ["b"]


def test_how_many_failures_and_how_long_is_a_matter_of_settings() -> None:
    settings = replace(PATIENT, lua_breaker_threshold=1, lua_breaker_cooldown_ms=500)
    shard = ShardHarness(settings=settings)
    shard.create(on_enqueue=on_enqueue("if msg.headers.bad then error('no') end return { fairness_key = 'hooked' }"))  # type: ignore[arg-type]
    send(shard, {"bad": "1"}, {})
    shard.pass_time(500)
    send(shard, {})
    assert keys(shard) == ["default", "default", "hooked"]


# --- on_failure -------------------------------------------------------------------------------------------------------


def test_a_nacked_message_is_retried_or_dead_lettered_as_the_script_says() -> None:
    shard = hooked(on_failure=on_failure("return { action = msg.error == 'fatal' and 'dlq' or 'retry' }"))
    assert failed(shard, "busy") == (1, 0, 0)
    shard.nack(shard.receive(), "fatal")
    assert shard.counts() == (0, 0, 0)
    ((letter,), stats) = (letters(shard), shard.stats())
    assert (letter.attempts, letter.error, letter.record.extension.reason) == (2, "fatal", "hook")
    assert (stats.nacked, stats.dead_lettered) == (2, 1)


def test_a_retry_may_wait() -> None:
    shard = hooked(on_failure=on_failure("return { action = 'retry', delay_ms = 100 * 2 ^ msg.attempts }"))
    assert failed(shard) == (0, 0, 1)
    shard.pass_time(200)
    shard.nack(shard.receive())
    shard.pass_time(399)
    assert shard.counts() == (0, 0, 1)
    shard.pass_time(1)
    assert [each.attempts for each in shard.receive()] == [2]


@pytest.mark.parametrize("body", ["return { action = 'explode' }", "return {}", "return", "error('no')"])
def test_anything_else_is_a_retry_at_once(body: str) -> None:
    shard = hooked(on_failure=on_failure(body))
    assert failed(shard) == (1, 0, 0)


def test_it_sees_the_message_and_how_it_failed() -> None:
    seen = "msg.headers.kind, msg.attempts, msg.queue, msg.error, msg.fairness_key, #msg.id"
    check = f"local all = table.concat({{ {seen} }}, ' ') return {{ action = all == 'mail 1 q boom default 36' and 'dlq' }}"
    shard = hooked(on_failure=on_failure(check))
    failed(shard)
    assert len(letters(shard)) == 1


def test_no_script_retries_beyond_the_last_attempt() -> None:
    shard = hooked(on_failure=on_failure("return { action = 'retry', delay_ms = 1000 }"), max_attempts=1)
    assert failed(shard) == (0, 0, 0)
    assert [each.record.extension.reason for each in letters(shard)] == ["max_attempts"]


@pytest.mark.parametrize("how", ["retry", "fail", "expiry", "lost", "release", "defer"])
def test_only_a_nack_asks_it(how: str) -> None:
    shard = ShardHarness()
    shard.create(visibility_timeout_ms=5_000 if how == "expiry" else 60_000, on_failure=on_failure("return { action = 'dlq' }"))  # type: ignore[arg-type]
    send(shard, {})
    got = shard.receive()
    if how in {"expiry", "lost"}:
        shard.pass_time(5_000 if how == "expiry" else 15_000)
    else:
        shard.settle(Verb[how.upper()], got)
    reasons = [each.record.extension.reason for each in letters(shard)]
    assert reasons == (["failed"] if how == "fail" else [])


def test_a_nack_of_a_dead_letter_leaves_it_where_it_is() -> None:
    shard = hooked(on_failure=on_failure("return { action = 'dlq' }"))
    failed(shard)
    shard.nack(letters(shard), queue="q.dlq")
    assert shard.counts("q.dlq") == (1, 0, 0)


# --- compiled ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["on_enqueue", "on_failure"])
@pytest.mark.parametrize("script", ["x = 1\nthis is no Lua", "x = 1", "error('at once')"])
def test_a_script_that_does_not_compile_leaves_no_queue(hook: str, script: str) -> None:
    shard = ShardHarness()
    with pytest.raises(LuaCompilationError, match="2" if "\n" in script else hook):
        shard.create(**{hook: script})  # type: ignore[arg-type]
    assert (shard.shard.queues, list(shard.store.scan(FIRST, LAST, shard.store.families.queues))) == ({}, [])
    shard.create()


def test_an_update_replaces_them_for_what_comes() -> None:
    shard = hooked(on_enqueue=TENANT)
    send(shard, {"tenant": "a"})
    update(shard, on_enqueue=on_enqueue("return { fairness_key = 'new' }"))
    send(shard, {"tenant": "b"})
    update(shard, on_enqueue=None)
    send(shard, {"tenant": "c"})
    assert keys(shard) == ["a", "new", "default"]


def test_an_update_that_does_not_compile_changes_nothing() -> None:
    shard = hooked(on_enqueue=TENANT)
    with pytest.raises(LuaCompilationError):
        update(shard, on_enqueue="this is no Lua", max_attempts=1)
    send(shard, {"tenant": "a"})
    assert (keys(shard), shard.shard.queues["q"].options.max_attempts) == (["a"], None)


def test_new_scripts_start_with_a_closed_breaker() -> None:
    shard = hooked(on_enqueue=BROKEN)
    send(shard, {}, {}, {})
    update(shard, on_enqueue=TENANT)
    send(shard, {"tenant": "a"})
    assert keys(shard)[-1] == "a"


def test_limits_of_a_queues_own_are_felt() -> None:
    long = on_enqueue("local n = 0 for i = 1, 3000000 do n = n + i end return { fairness_key = 'done' }")
    shard = hooked(on_enqueue=long, lua_timeout_ms=1)
    send(shard, {})
    update(shard, lua_timeout_ms=1_000)
    send(shard, {})
    assert keys(shard) == ["default", "done"]


def test_hooks_survive_a_restart() -> None:
    shard = hooked(on_enqueue=TENANT, on_failure=on_failure("return { action = 'dlq' }"))
    shard.restart()
    send(shard, {"tenant": "a"})
    (got,) = shard.receive()
    shard.nack([got])
    assert (got.key, len(letters(shard))) == ("a", 1)
