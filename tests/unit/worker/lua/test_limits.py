"""The limits of time and memory, against scripts that do their worst.

A run is stopped after 10 ms of CPU time, plus what is done between two looks at the clock. That overshoot is small, and
bounded even for the worst known script; what is asserted here is a generous multiple, because the machine may be slow.
"""

import time

import pytest

from fila_worker.core.hooks import EnqueueDecision, HookFailed
from tests.unit.worker.lua.scripts import compiled, decision, decisions, failure_of, hook

OVERSHOOT_S = 0.5

NO_TIME = "ran for more than 10 ms"
NO_MEMORY = "used more than 1,048,576 bytes of memory"

ENDLESS = {
    "a loop": "while true do end",
    "a goto": "::again:: goto again",
    "a for loop": "for i = 1, math.huge do end",
    "pcall around a loop": "while true do pcall(function() while true do end end) end",
    "pcall nested without end": "local function f() while true do pcall(f) end end f()",
    "xpcall": "while true do xpcall(function() while true do end end, function() while true do end end) end",
    "an error handler": "xpcall(error, function() while true do end end)",
    "recursion under pcall": "local function f() pcall(f) return 1 + f() end while true do pcall(f) end",
    "a to-be-closed variable": "local x <close> = setmetatable({}, { __close = function() while true do end end }) error('x')",
    "many to-be-closed variables": """
      local function closing() while true do end end
      while true do pcall(function() local x <close> = setmetatable({}, { __close = closing }) error('x') end) end""",
    "__index of the result": "return setmetatable({}, { __index = function() while true do end end })",
    "__index of throttle keys": "return { throttle_keys = setmetatable({}, { __index = function() while true do end end }) }",
    "__tostring in string.format": "('%s'):format(setmetatable({}, { __tostring = function() while true do end end }))",
    "__lt": "local x = setmetatable({}, { __lt = function() while true do end end }) return x < x",
    "__concat": "local x = setmetatable({}, { __concat = function() while true do end end }) return x .. x",
    "__index of the globals": "setmetatable(_G, { __index = function() while true do end end }) return absent",
    "a replacement function": "('a'):rep(100):gsub('a', function() while true do end end)",
    "a comparison in table.sort": "local t = {} for i = 1, 100 do t[i] = i end table.sort(t, function() while true do end end)",
    "C calls used up by metamethods": """
      local depth, object = 0, nil
      object = setmetatable({}, { __unm = function(x) depth = depth + 1 if depth > 150 then while true do end end return -x end })
      while true do depth = 0 pcall(function() return -object end) end""",
    "C calls used up, one instruction each": """
      local object = setmetatable({}, { __len = function(x) return #x end })
      while true do pcall(function() return #object end) end""",
    "errors of the C stack replaced while closing": """
      local closing = setmetatable({}, { __close = function() error("other") end })
      local object
      object = setmetatable({}, { __len = function(x) local y <close> = closing while true do pcall(rawlen, 5) return #x end end })
      while true do pcall(function() return #object end) end""",
    "reading the config": "while true do fila.get('x') end",
    "reading all of the config": "local i = 0 while true do i = i + 1 fila.get('x' .. i) end",
    "string.rep of nothing": "while true do string.rep('', 1 << 50) end",
    "random numbers": "while true do math.random(0) end",
    "ordinary matches": "while true do string.find(string.rep('a', 100), '^.*b') end",
    "a finished gmatch": "local f = string.gmatch(('a'):rep(60000), 'b') while true do f() end",
    "long concatenations": "local s = ('x'):rep(300000) while true do local t = s .. 'y' end",
    "long strings as keys": "local s, q = ('x'):rep(300000), {} while true do local t = q[s .. 'y'] end",
    "long strings compared": "local s = ('\\0'):rep(300000) local a, b = s .. 'y', s .. 'z' while true do local t = a < b end",
    "long strings sorted": """
      local s = ('\\0'):rep(200000) local a, b, t = s .. 'y', s .. 'z', {}
      for i = 1, 1000 do t[i] = i % 2 == 0 and a or b end
      table.sort(t)""",
    "long strings compared at once": "local s = '\\0\\0\\0\\0\\0\\0\\0\\0'" + " s = s .. s" * 15 + " local a, b = s .. 'y', s .. 'z'"
    + " local _ = a < b" * 150,
    "long numbers": "local s = ('0'):rep(300000) while true do local x = s + 1 end",
    "string.upper": "local s = ('a'):rep(300000) while true do s:upper() end",
    "utf8.len": "local s = ('x'):rep(300000) while true do utf8.len(s) end",
    "tonumber": "local s = ('0'):rep(300000) while true do tonumber(s) end",
    "string.pack": "while true do string.pack('s4', ('x'):rep(300000)) end",
    "string.format of numbers": """
      local t = {} for i = 1, 90 do t[i] = 1e308 end local f = ('%99.99f'):rep(90)
      while true do string.format(f, table.unpack(t)) end""",
    "rehashing": """
      local t, i = {}, 1 for i = 1, 4095 do t['k' .. i] = 1 end
      while true do t['k' .. i] = nil i = i + 1 t['k' .. (4095 + i)] = 1 end""",
    "an emptied table": """
      local t = {} for i = 1, 16000 do t[i * 7777] = 1 end for i = 1, 16000 do t[i * 7777] = nil end
      while true do next(t) end""",
}  # fmt: skip

GREEDY = {
    "a growing table": "local t = {} for i = 1, 1e9 do t[i] = i end",
    "a growing string": "local s = 'x' while true do s = s .. s end",
    "recursion": "local function f(n) return 1 + f(n) end f(1)",
    "string.rep": "string.rep('x', 1e9)",
    "string.rep under pcall": "while true do pcall(string.rep, 'x', 1e7) end",
    "gsub": "string.gsub(('a'):rep(10000), 'a', ('b'):rep(1000))",
    "string.format": "string.format('%s%s', ('x'):rep(600000), ('x'):rep(600000))",
    "table.concat": "local t = {} for i = 1, 1000 do t[i] = 'x' end table.concat(t, ('y'):rep(2000))",
    "garbage that is kept": "kept = kept or {} for i = 1, 30000 do kept[#kept + 1] = { i } end",
    "the config": "local t = {} for i = 1, 100 do t[i] = fila.get('big' .. i) end",
}

REFUSED = {
    "string.find": "string.find(('a'):rep(40), ('a?'):rep(40) .. ('a'):rep(40))",
    "lazy items": "string.find(('a'):rep(5000), '.-.-.-.-x')",
    "gsub": "string.gsub(('a'):rep(100000), '.-b', '')",
    "gmatch": "for x in string.gmatch(('a'):rep(100000), '.-b') do end",
    "%b": "string.find(('('):rep(100000), '%b()')",
    "back references": "string.find(('a'):rep(20000), '(.*)x%1')",
    "a malformed pattern": "string.find(('a'):rep(5000), '.-.-.-.-[')",
    "a long pattern": "string.find('a', ('[a-z]'):rep(1000))",
    "plain search": "string.find(('a'):rep(400000), ('a'):rep(200000) .. 'b', 1, true)",
    "table.move": "table.move({}, 1, 1e9, 2)",
    "table.move to the end": "table.move({}, 1, math.maxinteger - 1, 2)",
    "table.insert": "local t = {} for i = 61, 0, -1 do t[1 << i] = 1 end table.insert(t, 2, 5)",
    "table.remove": "local t = {} for i = 61, 0, -1 do t[1 << i] = 1 end table.remove(t, 2)",
    "table.unpack": "table.unpack({}, 1, 1e7)",
    "%q": "string.format('%q', ('\\0'):rep(200000))",
    "too many formats": "string.format(('%99.99f'):rep(200), table.unpack({}, 1, 200))",
    "pcall at the end of the stack": "local function f(n) local ok, e = pcall(f, n + 1) if not ok then error(e, 0) end end f(1)",
}


def judged(body: str, **options: object) -> tuple[HookFailed | EnqueueDecision, float]:
    """What comes of a run, and the CPU time that it took."""
    big = "v" * 60_000
    hooks = compiled(hook(body), get_config=lambda key: big if key.startswith("big") else None, **options)
    started = time.thread_time()
    (outcome,) = decisions(hooks, {"a": "b"})
    return outcome, time.thread_time() - started


@pytest.mark.parametrize("name", ENDLESS)
def test_endless(name: str):
    outcome, spent_s = judged(ENDLESS[name])
    assert isinstance(outcome, HookFailed)
    assert NO_TIME in outcome.text, outcome
    assert spent_s < 0.01 + OVERSHOOT_S


@pytest.mark.parametrize("name", GREEDY)
def test_greedy(name: str):
    outcome, spent_s = judged(GREEDY[name])
    assert isinstance(outcome, HookFailed)
    assert NO_MEMORY in outcome.text or NO_TIME in outcome.text, outcome
    assert spent_s < 0.01 + OVERSHOOT_S


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str):
    outcome, spent_s = judged(REFUSED[name])
    assert isinstance(outcome, HookFailed)
    assert outcome.text.startswith("on_enqueue:2: "), "refused on its line"
    assert spent_s < OVERSHOOT_S


@pytest.mark.parametrize("name", [*ENDLESS, *GREEDY])
def test_the_messages_behind_it_are_dealt_with(name: str):
    body = f"if msg.headers.bad then\n{(ENDLESS | GREEDY)[name]}\nend return {{ fairness_key = msg.headers.key }}"
    outcomes = decisions(compiled(hook(body)), {"key": "a"}, {"bad": "1"}, {"key": "b"}, {"key": "c"})
    assert [getattr(each, "fairness_key", "failed") for each in outcomes] in (
        ["a", "failed", "b", "c"],
        ["a", None, "b", "c"],  # not so bad without the config
    )


def test_an_error_names_the_line():
    assert failure_of(compiled(hook("local x = 1\nwhile true do end"))) == f"on_enqueue:3: {NO_TIME}"


def test_a_quick_run_has_all_the_time_for_itself():
    hooks = compiled(hook("local x = 0 for i = 1, 20000 do x = x + i end return { weight = 1 }"))
    outcomes = decisions(hooks, *[{}] * 100)
    assert all(isinstance(each, EnqueueDecision) for each in outcomes), "together they took far longer than 10 ms"


def test_a_limit_of_ones_own():
    outcome, spent_s = judged("while true do end", timeout_ms=50)
    assert isinstance(outcome, HookFailed)
    assert "ran for more than 50 ms" in outcome.text
    assert 0.05 <= spent_s < 0.05 * 1.25 + OVERSHOOT_S


@pytest.mark.parametrize("limit_bytes", [100_000, 1 << 20, 8 << 20])
def test_the_memory_limit_is_what_a_script_may_use(limit_bytes: int):
    part = max(1000, limit_bytes // 200)
    script = f"local x = ('x'):rep({part}) local s = x for i = 2, msg.payload_size / {part} do s = s .. x end return {{ weight = 1 }}"
    hooks = compiled(hook(script), memory_limit_bytes=limit_bytes, timeout_ms=10_000)
    assert decision(hooks, payload_bytes=limit_bytes * 4 // 10).weight == 1, "a concatenation holds what it joins"
    (outcome,) = decisions(hooks, {}, payload_bytes=limit_bytes * 6 // 10 + 100_000)
    assert isinstance(outcome, HookFailed)
    assert "bytes of memory" in outcome.text


def test_messages_do_not_eat_the_scripts_memory():
    hooks = compiled(hook("local s = ('x'):rep(450000) return { weight = #s > 0 and 1 }"))
    wide = {f"h{number}": "v" for number in range(6000)}
    large = {"h": "v" * 60_000}
    for headers in (wide, large, {}):
        outcomes = decisions(hooks, *[headers] * 3)
        assert [getattr(each, "weight", each) for each in outcomes] == [1, 1, 1]


def test_garbage_is_not_held_against_the_next_message():
    hooks = compiled(hook("local t = {} for i = 1, 2000 do t[i] = { i } end return { weight = 1 }"))
    assert all(isinstance(each, EnqueueDecision) for each in decisions(hooks, *[{}] * 50))


def test_a_script_that_hoards_starts_over():
    script = "local kept = {}\n" + hook("for i = 1, 1000 do kept[#kept + 1] = { i } end return { weight = #kept }")
    hooks = compiled(script, timeout_ms=1000)
    outcomes = decisions(hooks, *[{}] * 60)
    failed = [index for index, each in enumerate(outcomes) if isinstance(each, HookFailed)]
    assert failed, "it ran out of memory"
    assert outcomes[failed[0] + 1] == (None, 1000, None, None, None, None), "and begins again at once"


def test_a_script_that_cannot_start_over_is_kept():
    config = {"go": "1"}
    hooks = compiled(
        "local kept = {} assert(fila.get('go'))\n" + hook("for i = 1, 60000 do kept[i] = { i } end"), get_config=config.get
    )
    config.clear()
    for _ in range(3):
        assert "ran for" in (text := failure_of(hooks)) or "memory" in text
