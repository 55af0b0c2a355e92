"""Decisions of pure scripts are recalled, and are the same as those of a run."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fila_worker.core.hooks import Breaker, EnqueueDecision, GuardedHooks, HookFailed
from fila_worker.lua.hooks import LuaHooks
from fila_worker.lua.straight import is_pure_text, is_straight
from tests.unit.worker.lua.scripts import TENANT, compiled, decisions, hook, pack, settled

PURE = {
    "by tenant": TENANT,
    "by size": hook("return { cost = 1 + msg.payload_size }"),
    "by config": hook(
        "return { weight = tonumber(fila.get('w:' .. (msg.headers.tenant or ''))), fairness_key = fila.get('key') }"
    ),
    "with variables": hook(
        "local w, tenant = 1, msg.headers.tenant\nif tenant == 'a' then w = w * 2 end return { weight = w, fairness_key = tenant }"
    ),
    "with a constant": "local KEYS = { a = 'A', b = 'B' }\n"
    + hook('return { fairness_key = KEYS["a"], weight = #msg.headers.tenant }'),
    "failing": hook("return { fairness_key = msg.headers.tenant:upper() }"),
    "with '=' in strings": hook("local x = 'a.b = {' -- t.x = {\nreturn { fairness_key = x .. (msg.headers.plan or '') }"),
}

IMPURE = {
    "a counter": "local count = 0\n" + hook("count = count + 1 return { weight = count }"),
    "a global": hook("seen = (seen or 0) + 1 return { weight = seen }"),
    "a shadowed global": hook("if msg.headers.x then local n = 1 end n = (n or 0) + 1 return { weight = n }"),
    "a field": "local kept = { n = 0 }\n" + hook("kept.n = kept.n + 1 return { weight = kept.n }"),
    "a field in a list": "local kept = { n = 0 }\n" + hook("local x x, kept.n = 1, kept.n + 1 return { weight = kept.n }"),
    "an element": "local kept = { 0 }\n" + hook("kept[1] = kept[1] + 1 return { weight = kept[1] }"),
    "a library": hook("string.n = (string.n or 0) + 1 return { weight = string.n }"),
    "chance": hook("return { weight = math.random(1000000) }"),
    "the other hook": "local x = 0\n" + hook("x = x + 1 return { weight = x }"),
}

_headers = st.dictionaries(st.sampled_from(["tenant", "plan", "x"]), st.sampled_from(["a", "b", ""]), max_size=3)
_batches = st.lists(st.lists(st.tuples(_headers, st.integers(0, 2)), max_size=6), max_size=6)
_configs = st.dictionaries(st.sampled_from(["w:a", "w:b", "key"]), st.sampled_from(["1", "7", "x"]), max_size=3)


def played(hooks: LuaHooks, batch: list[tuple[dict[str, str], int]], threshold: int) -> list[object]:
    """What becomes of a batch behind a breaker with this threshold, which is closed before it."""
    guard = GuardedHooks(hooks, Breaker(threshold, 1000))
    return list(guard.on_enqueue([pack(headers) for headers, _ in batch], [size for _, size in batch], 0))


@pytest.mark.parametrize("name", PURE)
@settings(max_examples=40, deadline=None)
@given(_batches, st.lists(_configs, min_size=6, max_size=6), st.integers(1, 3))
def test_recalled_or_not_the_decisions_are_the_same(name: str, batches, configs, threshold: int):
    config: dict[str, str] = {}
    recalling = compiled(PURE[name], get_config=config.get)
    running = compiled(PURE[name], get_config=config.get, recalls=False)
    assert recalling._recall.active
    for batch, values in zip(batches * 2, configs * 2, strict=False):
        config.clear()
        config.update(values)
        assert played(recalling, batch, threshold) == played(running, batch, threshold)


@pytest.mark.parametrize("name", IMPURE)
def test_what_keeps_something_is_not_recalled(name: str):
    hooks = compiled(IMPURE[name])
    messages = [{"tenant": "a"}] * 5
    weights = [each[1] for _ in range(3) for each in decisions(hooks, *messages)]
    if name == "chance":
        assert len(set(weights)) > 1
    else:
        assert weights == list(range(1, 16))


def test_a_global_that_the_other_hook_writes():
    hooks = compiled(
        hook("return { fairness_key = trouble and 'b' or 'a' }"),
        "function on_failure(msg) local trouble_is = msg.error if trouble_is then trouble = true end end",
    )
    assert decisions(hooks, {}, {}) == decisions(hooks, {}, {})
    settled(hooks, error="x")
    assert [each[0] for each in decisions(hooks, {}, {})] == ["b", "b"]


@pytest.mark.parametrize(
    "body",
    [
        "t.x = 1", "t . x = 1", "t.x.y=1", "t['x'] = 1", "t[1]=1", "a, t.x = 1, 2", "t.x, a = 1, 2", "a, b = 1, 2", "x = 1", "f().x = 1",
        "local x <close> = nil", "local s = '{' t.x = 1", "local s = \"{\" t.x = 1", "local t = {} -- {\nt.x = 1", "local a = math.random()",
        "local a\nif b then\na\n.\nx = 1 end", "local a local b a,\nb = 1, 2",
    ],
)  # fmt: skip
def test_texts_that_are_not_pure(body: str):
    assert not is_pure_text(hook(body))


@pytest.mark.parametrize(
    "body",
    [
        "local x = 1", "local x, y = 1, 2", "local x x = 1", "local x = 1 x = x + 1 if x == 2 then x = 3 end", "return { a = 1, ['b'] = 2 }",
        "local t = { { a = 1 }, b = { c = 2 } } local x x = t", "local x = a == b", "local x = a <= b and a ~= c", "local x\nx\n=\n1",
        "local x\nfoo('a')\nx = 1", "local x local y = t[1] x = y",
    ],
)  # fmt: skip
def test_texts_that_are(body: str):
    assert is_pure_text(hook(body))


def test_a_changed_config_is_seen_by_the_next_batch():
    config = {"w": "1"}
    hooks = compiled(hook("return { weight = tonumber(fila.get('w')) }"), get_config=config.get)
    assert [each[1] for each in decisions(hooks, {}, {})] == [1, 1]
    config["w"] = "2"
    assert [each[1] for each in decisions(hooks, {}, {})] == [2, 2]
    del config["w"]
    assert [each[1] for each in decisions(hooks, {}, {})] == [None, None]


def test_too_many_config_keys_to_compare():
    config = {f"w:{number}": "5" for number in range(1000)}
    hooks = compiled(hook("return { weight = tonumber(fila.get('w:' .. msg.headers.t)) }"), get_config=config.get)
    messages = [{"t": str(number)} for number in range(1000)]
    for _ in range(2):
        assert {each[1] for each in decisions(hooks, *messages)} == {5}
    assert not hooks._recall.active
    config["w:7"] = "6"
    assert decisions(hooks, messages[7])[0][1] == 6


def test_messages_that_are_all_different():
    hooks = compiled(TENANT)
    for start in range(0, 10_000, 100):
        outcomes = decisions(hooks, *[{"tenant": str(number)} for number in range(start, start + 100)])
        assert outcomes[99][0] == str(start + 99)
    assert not hooks._recall.active, "it did not pay"


def test_what_is_recalled_is_bounded():
    hooks = compiled(TENANT)
    for start in range(0, 30_000, 100):
        decisions(hooks, *[{"tenant": str(number)} for number in range(start, start + 100)], *[{"tenant": "same"}] * 100)
    assert hooks._recall.active
    assert len(hooks._recall._decisions) <= 10_000


def test_failures_are_not_remembered():
    hooks = compiled(hook("return { weight = msg.headers.absent .. 'x' }"))
    for _ in range(2):
        assert [type(each) for each in decisions(hooks, {}, {})] == [HookFailed, HookFailed]
    assert hooks.failed == 4


def test_it_stops_where_it_would_have_stopped():
    hooks = compiled(hook("return { fairness_key = msg.headers.k .. 'x' }"))
    good, bad = {"k": "a"}, {}
    assert [type(each) for each in decisions(hooks, good, good)] == [EnqueueDecision] * 2
    assert len(decisions(hooks, good, bad, good, bad, bad, good, good, failures_max=3)) == 7
    assert len(decisions(hooks, good, bad, good, bad, failures_max=1)) == 2
    assert hooks.failed == 4


def test_only_straight_scripts_are_examined():
    script = "-- while\n" + TENANT
    assert is_pure_text(script)
    assert not is_straight(script)
    assert not compiled(script)._recall.active


def test_long_headers_are_no_key():
    hooks = compiled(TENANT)
    for _ in range(2):
        assert decisions(hooks, {"tenant": "a", "long": "x" * 2000})[0][0] == "a"
    assert not hooks._recall._decisions
