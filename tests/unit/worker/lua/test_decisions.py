"""What a script returns becomes a decision: field by field, an invalid one is left out."""

import pytest

from fila_worker.core.hooks import NO_CHANGE, FailureDecision, HookFailed
from tests.unit.worker.lua.scripts import compiled, decided, decision, failure_of, hook, settled


def test_all_fields():
    outcome = decided(
        "return { fairness_key = 'acme', weight = 3, throttle_keys = { 'a', 'b' }, priority = -5, cost = 2.5, delay_ms = 100 }"
    )
    assert outcome == ("acme", 3, ["a", "b"], -5, 2500, 100)


@pytest.mark.parametrize("body", ["", "return nil", "return {}", "return { other = 1 }"])
def test_nothing_is_no_change(body: str):
    assert decided(body) == NO_CHANGE


@pytest.mark.parametrize("kind", ["string", "number", "boolean", "function"])
def test_anything_else_fails(kind: str):
    value = {"string": "'acme'", "number": "5", "boolean": "false", "function": "tostring"}[kind]
    assert failure_of(compiled(hook(f"return {value}"))) == f"on_enqueue: a hook returns a table or nil, not a {kind}"


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("'a'", "a"), ("'ключ'", "ключ"), ("('x'):rep(1024)", "x" * 1024), ("('x'):rep(1025)", None), ("('é'):rep(600)", None),
        ("''", None), ("5", None), ("{}", None), ("true", None), ("'\\xff'", None), ("'a\\xffb'", None), ("'a\\0b'", "a\0b"),
    ],
)  # fmt: skip
def test_fairness_keys(value: str, key: str | None):
    outcome = decided(f"return {{ fairness_key = {value}, weight = 7 }}")
    assert (outcome.fairness_key, outcome.weight) == (key, 7)


@pytest.mark.parametrize(
    ("value", "weight"),
    [
        ("1", 1), ("3.9", 3), ("0", 1), ("-4", 1), ("0.5", 1), ("1000000", 1_000_000), ("1000001", None), ("'3'", None),
        ("0/0", None), ("1/0", None), ("-1/0", None), ("true", None), ("false", None), ("{}", None), ("2^53", None),
    ],
)  # fmt: skip
def test_weights(value: str, weight: int | None):
    assert decided(f"return {{ weight = {value} }}").weight == weight


def test_true_is_not_one():
    hooks = compiled(hook("return { weight = msg.headers.flag and true or 1 }"))
    assert decision(hooks).weight == 1
    assert decision(hooks, {"flag": "1"}).weight is None


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        ("{ 'a' }", ["a"]), ("{ 'b', 'a' }", ["b", "a"]), ("{ 'a', 'a', 'b' }", ["a", "b"]), ("{}", []), ("{ 'a', nil, 'c' }", ["a"]),
        ("{ 'a', '' }", None), ("{ '' , 'a' }", None), ("{ '' }", None), ("{ '\\0a' }", None),
        ("{ 1 }", None), ("{ 'a', 1 }", None), ("'a'", None), ("5", None),
        ("{ true }", None), ("{ { 'a' } }", None), ("{ ('x'):rep(256) }", ["x" * 256]), ("{ ('x'):rep(257) }", None), ("false", None),
        ("{ 'a', '\\xff' }", None), ("{ 'a', 'b\\0c' }", None),
    ],
)  # fmt: skip
def test_throttle_keys(value: str, keys: list[str] | None):
    outcome = decided(f"return {{ throttle_keys = {value}, weight = 7 }}")
    assert (outcome.throttle_keys, outcome.weight) == (keys, 7)


def test_sixteen_throttle_keys_at_most():
    body = "local keys = {{}} for i = 1, {} do keys[i] = 'k' .. i % {} end return {{ throttle_keys = keys }}"
    assert len(decided(body.format(16, 100)).throttle_keys or ()) == 16
    assert decided(body.format(17, 100)).throttle_keys is None
    assert len(decided(body.format(60, 16)).throttle_keys or ()) == 16, "repeated ones count once"
    assert decided(body.format(1000, 10)).throttle_keys is None, "nobody reads that many"


@pytest.mark.parametrize(
    ("value", "priority"),
    [
        ("0", 0), ("-2147483648", -(2**31)), ("2147483647", 2**31 - 1), ("2147483648", None), ("3.0", 3), ("3.5", None), ("'1'", None),
        ("0/0", None), ("true", None),
    ],
)  # fmt: skip
def test_priorities(value: str, priority: int | None):
    assert decided(f"return {{ priority = {value} }}").priority == priority


@pytest.mark.parametrize(
    ("value", "cost_milli"),
    [
        ("1", 1000), ("0.0005", 1), ("0.0001", 1), ("2.0004", 2000), ("2.0005", 2001), ("1000000", 10**9), ("1000001", None),
        ("0", None), ("-1", None), ("0/0", None), ("1/0", None), ("'1'", None), ("true", None),
    ],
)  # fmt: skip
def test_costs(value: str, cost_milli: int | None):
    assert decided(f"return {{ cost = {value} }}").cost_milli == cost_milli


@pytest.mark.parametrize(
    ("value", "delay_ms"),
    [
        ("0", 0),
        ("1.2", 2),
        ("-1", None),
        ("-0.0", 0),
        ("0/0", None),
        ("1/0", None),
        ("1e15", None),
        ("'5'", None),
        ("true", None),
    ],
)
def test_delays(value: str, delay_ms: int | None):
    assert decided(f"return {{ delay_ms = {value} }}").delay_ms == delay_ms


def test_defaults_in_a_metatable_count():
    assert decided("return setmetatable({ weight = 2 }, { __index = { fairness_key = 'acme' } })")[:2] == ("acme", 2)


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("return { action = 'dlq' }", FailureDecision(dead_letter=True, delay_ms=0)),
        ("return { action = 'retry', delay_ms = 1000.5 }", FailureDecision(dead_letter=False, delay_ms=1001)),
        ("return { action = 'explode', delay_ms = -1 }", FailureDecision(dead_letter=False, delay_ms=0)),
        ("return { action = {} }", FailureDecision(dead_letter=False, delay_ms=0)),
        ("return nil", FailureDecision(dead_letter=False, delay_ms=0)),
        ("", FailureDecision(dead_letter=False, delay_ms=0)),
    ],
)
def test_failure_decisions(body: str, outcome: FailureDecision):
    assert settled(compiled(None, f"function on_failure(msg) {body} end")) == outcome


def test_a_failure_decision_that_is_no_table():
    outcome = settled(compiled(None, "function on_failure(msg) return 'dlq' end"))
    assert outcome == HookFailed("on_failure: a hook returns a table or nil, not a string")
