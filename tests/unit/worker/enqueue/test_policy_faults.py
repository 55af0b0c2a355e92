"""Hooks that fail or do not compile: no call fails for it, and a breaker keeps them from costing time."""

from dataclasses import replace

import pytest

from fila_proto_zmq.commands import Enqueue
from fila_proto_zmq.errors import LuaCompilationError
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.keys import FIRST, LAST
from tests.support.shard.hooked import PATIENT, TENANT, hooked, keys, on_enqueue, on_failure, send, update
from tests.support.shard.shard import ShardHarness

COOLDOWN_MS = 10_000
TOUCHY = on_enqueue("if msg.headers.bad then error('no') end return { fairness_key = 'hooked' }")
"""Fails for messages with a header ``bad``."""


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
    shard = hooked(on_enqueue=TOUCHY)
    send(shard, {"bad": "1"}, {"bad": "1"}, {}, {"bad": "1"}, {"bad": "1"}, {"bad": "1"}, {})
    assert keys(shard) == ["default", "default", "hooked", "default", "default", "default", "default"]
    shard.pass_time(COOLDOWN_MS - 1)
    send(shard, {})
    assert keys(shard) == ["default"]
    shard.pass_time(1)
    send(shard, {})
    assert keys(shard) == ["hooked"]


def test_a_script_on_trial_has_one_failure() -> None:
    shard = hooked(on_enqueue=TOUCHY)
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
    shard.create(on_enqueue=TOUCHY)  # type: ignore[arg-type]
    send(shard, {"bad": "1"}, {})
    shard.pass_time(500)
    send(shard, {})
    assert keys(shard) == ["default", "default", "hooked"]


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
    shard = hooked(on_enqueue=on_enqueue("error('no')"))
    send(shard, {}, {}, {})
    update(shard, on_enqueue=TENANT)
    send(shard, {"tenant": "a"})
    assert keys(shard)[-1] == "a"


def test_limits_of_a_queues_own_are_felt() -> None:
    long = on_enqueue("local n = 0 for i = 1, 1000000 do n = n + i end return { fairness_key = 'done' }")
    shard = hooked(on_enqueue=long, lua_timeout_ms=1)
    send(shard, {})
    update(shard, lua_timeout_ms=1_000)
    send(shard, {})
    assert keys(shard) == ["default", "done"]
