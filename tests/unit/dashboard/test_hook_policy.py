"""Hooks as edited against hooks as applied."""

import pytest

from fila_cluster.ops.dashboard.hooks.editor import TEMPLATES, HookPolicy, Shelf, changes, policy_of
from fila_cluster.ops.dashboard.hooks.trials.__main__ import run
from fila_cluster.ops.dashboard.hooks.trials.plan import TrialMessage, TrialPlan
from fila_cluster.ops.dashboard.widgets.forms import read_headers
from fila_proto_zmq.commands import QueueOptions

A, B, C = (HookPolicy(on_enqueue=name) for name in "ABC")


def test_only_what_changed_is_sent_and_an_empty_script_removes_the_hook() -> None:
    applied = policy_of(QueueOptions(on_enqueue="one\r\ntwo", on_failure="f", lua_timeout_ms=20))
    assert applied == HookPolicy("one\ntwo", "f", 20, None)
    assert changes(applied, applied) == {}
    wanted = HookPolicy("one\ntwo", " \n", None, 1 << 20)
    assert changes(applied, wanted) == {"on_failure": None, "lua_timeout": None, "lua_memory_limit": 1 << 20}
    assert changes(HookPolicy(), HookPolicy("x", timeout_ms=25)) == {"on_enqueue": "x", "lua_timeout": 0.025}
    assert changes(HookPolicy(), HookPolicy("\n\n")) == {}


def test_a_change_is_undone_once_and_only_if_there_is_no_later_one() -> None:
    shelf = Shelf()
    assert shelf.before("q", A) is None
    shelf.keep("q", A, B)
    assert shelf.before("q", B) == A
    assert shelf.before("q", C) is None
    shelf.keep("q", B, A)  # undone
    assert shelf.before("q", A) is None


def test_the_shelf_does_not_grow() -> None:
    shelf = Shelf(kept_max=2)
    for name in ("q1", "q2", "q3"):
        shelf.keep(name, A, B)
    assert [shelf.before(name, B) for name in ("q1", "q2", "q3")] == [None, A, A]


def test_the_examples_compile_and_run() -> None:
    message = TrialMessage("00000000-0000-7000-8000-000000000001", {"tenant": "acme"}, 1)
    plan = TrialPlan("q", TEMPLATES["on_enqueue"], TEMPLATES["on_failure"], 10, 1 << 20, {}, [message])
    hooks = run(plan).hooks
    assert hooks["on_enqueue"].verdicts[0].decided == {"fairness_key": "acme"}
    assert hooks["on_failure"].verdicts[0].decided == {"action": "retry", "delay_ms": 1000}


def test_headers_are_lines() -> None:
    assert read_headers("tenant = acme\n\nquery=a=b\n") == {"tenant": "acme", "query": "a=b"}
    with pytest.raises(ValueError, match="'nothing' is not a header: write it as name=value"):
        read_headers("a=b\nnothing")
