"""Scripts that run without a count hook: only such as cannot run long, and with the same outcome."""

import pytest

from fila_worker.core.hooks import EnqueueDecision, HookFailed
from fila_worker.lua.straight import ALLOWED, REFUSED, is_straight
from tests.unit.worker.lua.scripts import TENANT, compiled, decided, decisions, hook

TYPICAL = """
-- Fair by tenant, throttled by provider.
function on_enqueue(msg)
  local headers = msg.headers
  local tenant = headers.tenant or "unknown"
  local weight = tonumber(fila.get("weight:" .. tenant)) or 1
  if headers["x-plan"] == "gold" and msg.payload_size < 1024 * 64 then weight = weight * 2 end
  return {
    fairness_key = tenant:lower(),
    weight = math.min(weight, 10),
    throttle_keys = { "provider:" .. (headers.provider or "none") },
    cost = 1 + msg.payload_size / 1024,
  }
end
"""

FAILURE = "function on_failure(msg) if msg.attempts > 3 then return { action = 'dlq' } end return { delay_ms = 100 * msg.attempts } end"


@pytest.mark.parametrize("script", [TENANT, TYPICAL, FAILURE, TENANT + "\n" + FAILURE])
def test_straight(script: str):
    assert is_straight(script)


@pytest.mark.parametrize(
    "body",
    [
        "while true do end", "for i = 1, 2 do end", "repeat until false", "::a:: goto a",
        "local function f() return f() end return f()", "local f f = function() return f() end", "return on_enqueue(msg)",
        "return _G['on_' .. 'enqueue'](msg)", "return _ENV.x", "return ('x')[msg.headers.a]", "return string[msg.headers.a]",
        "return ('x'):rep(1e9)", "return string.rep('', 1e9)", "local s = string return s['rep']('', 1e9)", "return ('x')['r\\101p']",
        "return setmetatable({}, {})", "pcall(error)", "table.sort({})", "('a'):gsub('a', type)", "return ('x')[ [[rep]] ]",
        "return ('x')[\n'len' .. '']", "local x = 'a\\0'", "local x = 1\vlocal y = 2", "-- on_enqueue", "-- a function",
        "local a = msg.headers.a" + " local _ = a < a" * 20, "local a = ''" + " a = a .. a" * 50, "local a = 1" * 600,
        "return math.floor" + "(1)" * 70, "local t = { [msg.headers.a] = 1 }", "next({})", "return select('#', 1)",
    ],
)  # fmt: skip
def test_not_straight(body: str):
    assert not is_straight(hook(body))


@pytest.mark.parametrize(
    "script",
    [
        "on_enqueue = function(msg) end",
        "local f f = function(msg) return f(msg) end on_enqueue = f",
        "-- function on_enqueue(\nlocal f f = function() return f() end",
        "function on_enqueue(msg) end function helper() end",
        "function on_enqueue(msg) return helper(msg) end helper = on_enqueue",
    ],
)
def test_the_hook_is_the_only_function_and_out_of_its_own_reach(script: str):
    assert not is_straight(script)


def test_every_name_in_the_sandbox_is_known():
    body = """
      local names = {}
      for name, value in next, _G do
        names[#names + 1] = name
        if type(value) == "table" and value ~= _G then for member in next, value do names[#names + 1] = member end end
      end
      table.sort(names)
      return { fairness_key = table.concat(names, " ") }
    """
    found = set((decided(body).fairness_key or "").split()) - {"on_enqueue"}
    assert found == ALLOWED | REFUSED
    assert not ALLOWED & REFUSED


@pytest.mark.parametrize("payload_bytes", [100, 100_000])
def test_watched_or_not_the_outcome_is_the_same(payload_bytes: int):
    config = {"weight:ACME": "3", "weight:bad": "x"}.get
    unwatched, watched = compiled(TYPICAL, get_config=config), compiled(TYPICAL + "-- while", get_config=config)
    headers = [{"tenant": "ACME"}, {}, {"provider": "mail", "x-plan": "gold", "tenant": "bad"}, {"tenant": "ä" * 200}] * 20
    outcomes = decisions(unwatched, *headers, payload_bytes=payload_bytes)
    assert outcomes == decisions(watched, *headers, payload_bytes=payload_bytes)
    assert EnqueueDecision in set(map(type, outcomes))
    assert not unwatched._watched
    assert watched._watched


def test_an_error_costs_it_nothing():
    hooks = compiled(hook("return { fairness_key = msg.headers.tenant:lower() }"))
    outcomes = decisions(hooks, {"tenant": "A"}, {}, {"tenant": "B"})
    assert [type(each) for each in outcomes] == [EnqueueDecision, HookFailed, EnqueueDecision]
    assert not hooks._watched


def test_one_that_needs_memory_gets_it_and_is_watched():
    doubled = "local s = msg.headers.s" + " s = s .. s" * 6 + " return { weight = #s }"
    hooks = compiled(hook(doubled))
    outcomes = decisions(hooks, {"s": "x"}, {"s": "x" * 2000}, {"s": "xx"})
    assert [each[1] for each in outcomes] == [64, 128_000, 128]
    assert hooks._watched
    assert not hooks.failed


def test_one_that_hoards_is_watched_and_stopped():
    hooks = compiled(hook("kept = (kept or '') .. msg.headers.s return { weight = 1 }"))
    outcomes = decisions(hooks, *[{"s": "x" * 100}] * 10_000)
    assert hooks._watched
    assert any(isinstance(each, HookFailed) for each in outcomes)


def test_long_headers_are_watched_for_that_batch():
    hooks = compiled(hook("return { weight = #msg.headers.s }"))
    (outcome,) = decisions(hooks, {"s": "x" * 60_000})
    assert outcome[1] == 60_000
    assert not hooks._watched


def test_slow_runs_are_found_out():
    now_s = 0.0

    def clock() -> float:
        return now_s

    def take_time(key: str) -> str:
        nonlocal now_s
        now_s += 0.002
        return key

    script = hook("return { fairness_key = fila.get(msg.headers.k) }")
    hooks = compiled(script, get_config=take_time, clocks=(clock, clock))
    messages = [{"k": str(number)} for number in range(100)]
    assert not hooks._watched
    assert [each[0] for each in decisions(hooks, *messages)] == [str(number) for number in range(100)]
    assert hooks._watched
    assert not hooks.failed


def test_a_short_time_limit_is_always_watched():
    assert compiled(TENANT, timeout_ms=1)._watched
