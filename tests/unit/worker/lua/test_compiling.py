"""Scripts are compiled when their queue is made: what is wrong is said then, with the line."""

import time

import pytest

from fila_proto_zmq.errors import LuaCompilationError
from tests.unit.worker.lua.scripts import TENANT, compiled, decision, hook, settled


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("function on_enqueue(msg)\n  return {\nend", "on_enqueue:3: "),
        ("local x = nil\nlocal y = x.z\nfunction on_enqueue(msg) end", "on_enqueue:2: attempt to index a nil value"),
        ("function on_enqeue(msg) end", "on_enqueue: the script defines no function of that name"),
        ("on_enqueue = 5", "defines no function"),
        ("", "defines no function"),
        ("error({})", "on_enqueue: error object is a table"),
        ("\x1bLua", "on_enqueue:"),
        ("x = '" + "y" * 200_000 + "' .. ('z'):rep(900000)", "on_enqueue: used more than 1,048,576 bytes of memory"),
        ("local function f() return f() + 1 end f()", "on_enqueue"),
        ("setmetatable(_G, { __index = function() return print end }) on_enqueue = nil", "defines no function"),
    ],
)
def test_what_is_wrong_is_said(script: str, text: str):
    with pytest.raises(LuaCompilationError) as caught:
        compiled(script)
    assert text in str(caught.value)


def test_each_script_must_define_its_own_function():
    with pytest.raises(LuaCompilationError, match="on_failure"):
        compiled(TENANT, TENANT)


def test_a_top_level_that_never_ends():
    started = time.thread_time()
    with pytest.raises(LuaCompilationError, match="on_enqueue:1: ran for more than 10 ms"):
        compiled("while true do end")
    assert time.thread_time() - started < 0.5


def test_a_bare_queue_has_no_hooks():
    hooks = compiled(TENANT)
    assert (hooks.has_on_enqueue, hooks.has_on_failure) == (True, False)
    hooks.close()


def test_both_scripts_share_one_state():
    hooks = compiled(
        hook("return { fairness_key = last_error or 'none' }"),
        "function on_failure(msg) last_error = msg.error return nil end",
    )
    assert decision(hooks).fairness_key == "none"
    settled(hooks, error="boom")
    assert decision(hooks).fairness_key == "boom"


def test_one_text_may_define_both():
    text = "local seen = 0\nfunction on_enqueue() return { weight = seen } end\nfunction on_failure() seen = seen + 7 end"
    hooks = compiled(text, text)
    settled(hooks)
    assert decision(hooks).weight == 7


def test_queues_share_nothing():
    writes = compiled("function on_enqueue(msg) shared = 'mine' string.mine = 1 math.pi = 3 end")
    reads = compiled(hook("return { fairness_key = tostring(shared) .. tostring(string.mine) .. math.floor(math.pi * 100) }"))
    decision(writes)
    assert decision(reads).fairness_key == "nilnil314"


def test_the_runtime_config_is_there_from_the_start():
    hooks = compiled(
        "local plan = fila.get('plan')\n" + hook("return { fairness_key = plan }"), get_config={"plan": "gold"}.get
    )
    assert decision(hooks).fairness_key == "gold"
