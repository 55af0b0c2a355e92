"""What a script can reach, and what it cannot."""

import pytest

from fila_worker.core.hooks import FailureDecision
from tests.unit.worker.lua.scripts import compiled, decided, decision, decisions, failure_of, hook, settled


@pytest.mark.parametrize(
    "name",
    [
        "collectgarbage", "coroutine", "debug", "dofile", "io", "load", "loadfile", "loadstring", "os", "package", "print", "python",
        "require", "warn", "string.dump", "engine", "arg", "module", "newproxy",
    ],
)  # fmt: skip
def test_absent(name: str):
    assert decided(f"return {{ weight = {name} == nil and 1 or 2 }}").weight == 1


@pytest.mark.parametrize(
    "name",
    [
        "assert", "error", "getmetatable", "ipairs", "next", "pairs", "pcall", "rawequal", "rawget", "rawlen", "rawset", "select",
        "setmetatable", "tonumber", "tostring", "type", "xpcall", "_VERSION", "_G", "math.floor", "math.random", "string.format",
        "string.rep", "string.gsub", "string.pack", "table.concat", "table.sort", "utf8.char", "fila.get",
    ],
)  # fmt: skip
def test_present(name: str):
    assert decided(f"return {{ weight = {name} == nil and 1 or 2 }}").weight == 2


def test_the_libraries_do_what_they_should():
    checks = """
      local words = {}
      for word in ("b,a,,c"):gmatch("[^,]+") do words[#words + 1] = word end
      table.sort(words)
      assert(table.concat(words, "+") == "a+b+c")
      table.sort(words, function(one, other) return one > other end)
      assert(words[1] == "c" and table.unpack(words, 2) == "b")
      table.insert(words, 2, "x") table.insert(words, "end") assert(#words == 5 and words[2] == "x" and words[5] == "end")
      assert(table.remove(words) == "end" and table.remove(words, 1) == "c" and #words == 3)
      assert(table.move({ 1, 2, 3 }, 2, 3, 1)[1] == 2 and #table.move({ 1, 2 }, 1, 2, 3, {}) % 4 == 0)
      assert(table.pack(1, nil).n == 2)
      assert(("x"):rep(3, "-") == "x-x-x" and ("abc"):upper() == "ABC" and ("abc"):sub(-2) == "bc" and (""):rep(9) == "")
      assert(("k=v"):match("^(%w+)=(%w+)$") == "k" and ("a.b"):find(".", 1, true) == 2 and ("abc"):find("b", -2) == 2)
      assert(select("#", ("abc"):find("(b)(c)")) == 4)
      assert(string.match(12345, "3(%d)") == "4" and string.find("123", 2) == 2)
      assert(("hello world"):gsub("o", "0") == "hell0 w0rld" and select(2, ("aaa"):gsub("a", "b", 2)) == 2)
      assert(("abc"):gsub("%w", { a = "1" }) == "1bc" and ("abc"):gsub("%w", function(c) return c .. "." end) == "a.b.c.")
      assert(("%d|%s|%5.2f|%q"):format(1, true, 2.5, "x") == '1|true| 2.50|"x"')
      assert(string.unpack("<I2", string.pack("<I2", 258)) == 258)
      assert(utf8.len("äö") == 2 and utf8.char(228) == "ä" and #utf8.charpattern == 14)
      local ok, text = pcall(error, "x", 0) assert(not ok and text == "x")
      ok, text = pcall(function() return 1, 2 end) assert(ok and text == 1)
      ok, text = xpcall(function() error({ code = 7 }) end, function(e) return e.code end) assert(not ok and text == 7)
      assert(select(3, xpcall(function(...) return ... end, tostring, 1, 2)) == 2)
      local object = setmetatable({}, { __index = { a = 1 }, __call = function(_, x) return x end, __tostring = function() return "me" end })
      assert(object.a == 1 and object(5) == 5 and tostring(object) == "me" and ("%s"):format(object) == "me")
      local class = {} class.__index = class function class.name() return "class" end
      assert(getmetatable(setmetatable({}, class)) == class and setmetatable({}, class).name() == "class")
      assert(getmetatable(setmetatable(setmetatable({}, class), nil)) == nil)
      assert(not pcall(setmetatable, setmetatable({}, { __metatable = "locked" }), {}))
      assert(getmetatable(setmetatable({}, { __metatable = "locked" })) == "locked")
      return { weight = 7 }
    """
    assert decided(checks).weight == 7


def test_a_wrong_argument_is_blamed_on_its_line():
    hooks = compiled(hook("\nreturn { fairness_key = string.match(msg.headers.absent, '%w+') }"))
    assert failure_of(hooks) == "on_enqueue:3: bad argument #1 to 'match' (string expected, got nil)"


@pytest.mark.parametrize(
    "body",
    [
        "getmetatable('').__index = function() return {} end",
        "setmetatable('', {})",
        "setmetatable({}, { __gc = function() end })",
        "setmetatable({}, { __mode = 'k' })",
        "setmetatable({}, { __index = rawget })",
        "table.concat(setmetatable({}, { __index = function() return 'x' end }), '', 1, 3)",
        "table.insert(setmetatable({}, { __len = function() return 1 << 40 end }), 1, 'x')",
        "string.rep()",
        "xpcall(error)",
        "fila.get(5)",
        "fila.get()",
        "error()",
    ],
)
def test_refused(body: str):
    assert failure_of(compiled(hook(body))).startswith("on_enqueue")


def test_a_finalizer_cannot_be_slipped_in_later():
    body = """
      local metatable = {}
      local object = setmetatable({}, metatable)
      metatable.__gc = function() slipped = true end
      object = nil
      for i = 1, 20000 do local garbage = { i } end
      return { weight = slipped and 2 or 1 }
    """
    assert decision(compiled(hook(body), timeout_ms=1000)).weight == 1


def test_no_python_object_is_within_reach():
    body = """
      local seen, todo, worst = {}, { _G, msg, getmetatable(""), fila.get }, "none"
      while #todo > 0 do
        local value = table.remove(todo)
        if type(value) == "userdata" or type(value) == "thread" then worst = type(value) end
        if type(value) == "table" and not seen[value] then
          seen[value] = true
          for key, field in next, value do todo[#todo + 1] = key todo[#todo + 1] = field end
          todo[#todo + 1] = getmetatable(value)
        end
      end
      return { fairness_key = worst }
    """
    assert decided(body, {"a": "b"}).fairness_key == "none"


def test_a_script_may_spoil_its_own_globals_only():
    hooks = compiled(
        "local rawset, pairs, globals = rawset, pairs, _G\n"
        "for _, library in pairs({ string, table, math, utf8, fila }) do\n"
        "  for name in pairs(library) do library[name] = nil end\n"
        "end\n"
        "function on_enqueue(msg)\n"
        "  for name in pairs(globals) do rawset(globals, name, nil) end\n"
        "  return { weight = 3, throttle_keys = { 'a', 'b' }, cost = 2 }\n"
        "end"
    )
    for _ in range(2):
        assert [outcome[1:5] for outcome in decisions(hooks, {"a": "1"}, {"b": "2"})] == [(3, ["a", "b"], None, 2000)] * 2


def test_what_on_enqueue_sees():
    body = "local h = msg.headers return { fairness_key = msg.queue .. '|' .. h.a .. '|' .. h['x-y'] .. '|' .. msg.payload_size }"
    assert decision(compiled(hook(body)), {"a": "1", "x-y": "ü\0"}, payload_bytes=42).fairness_key == "q|1|ü\0|42"


def test_what_on_failure_sees():
    script = """function on_failure(msg)
      assert(msg.headers.a == "1" and msg.id == "id-1" and msg.attempts == 3 and msg.queue == "q")
      assert(msg.error == "boom" and msg.fairness_key == "acme")
      return { action = "dlq" }
    end"""
    outcome = settled(compiled(None, script), headers={"a": "1"}, attempts=3, error="boom", key="acme")
    assert outcome == FailureDecision(dead_letter=True, delay_ms=0)


def test_every_message_has_tables_of_its_own():
    body = "msg.headers.seen = (msg.headers.seen or 0) + 1 msg.mine = (msg.mine or 0) + 1 return { weight = msg.headers.seen + msg.mine }"
    hooks = compiled(hook(body))
    assert {outcome.weight for outcome in decisions(hooks, *[{"a": "b"}] * 5)} == {2}


def test_the_config_is_read_anew_for_every_batch():
    config: dict[str, str] = {}
    hooks = compiled(hook("return { fairness_key = fila.get('plan:' .. msg.headers.t) or 'none' }"), get_config=config.get)
    assert decision(hooks, {"t": "a"}).fairness_key == "none"
    config["plan:a"] = "gøld"
    assert decision(hooks, {"t": "a"}).fairness_key == "gøld"
    del config["plan:a"]
    assert decision(hooks, {"t": "a"}).fairness_key == "none"


def test_within_a_batch_a_config_key_is_asked_for_once():
    asked: list[str] = []
    hooks = compiled(hook("fila.get('a') fila.get('b') return nil"), get_config=asked.append)
    decisions(hooks, *[{}] * 100)
    assert asked == ["a", "b"]


def test_config_keys_that_cannot_be():
    assert decided("return { weight = fila.get('\\xff') == nil and 1 or 2 }").weight == 1


def test_a_broken_config_is_not_the_scripts_to_catch():
    def broken(key: str) -> str:
        raise LookupError(key)

    hooks = compiled(hook("local ok, value = pcall(fila.get, 'a') caught = value return nil"), get_config=broken)
    with pytest.raises(LookupError):
        decision(hooks)


@pytest.mark.parametrize("value", ["{}", "print", "tostring", "function() end", "setmetatable({}, { __name = 'Kind' })"])
@pytest.mark.parametrize("shown", ["tostring({})", "string.format('%s', {})", "('%10s|%s'):format(1, {}):sub(12)"])
def test_no_text_has_an_address(value: str, shown: str):
    text = shown.replace("({}", f"({value}").replace(", {})", f", {value})")
    decided(f"local text = {text} assert(not text:find('0x', 1, true), text) return {{ weight = 2 }}")


def test_addresses_can_not_be_formatted():
    for template in ("%p", "%-20p", "100%% %p"):
        body = f"return {{ fairness_key = string.format('{template}', {{}}) }}"
        assert "string.format with %p" in failure_of(compiled(hook(body)))
    assert decided("return { fairness_key = ('100%%p%s'):format(1) }").fairness_key == "100%p1"


def test_a_text_of_its_own_stays():
    script = "local object = setmetatable({}, { __tostring = function() return 'at: 0x1' end })"
    assert (
        decided(f"{script} return {{ fairness_key = tostring(object) .. ('%s'):format(object) }}").fairness_key
        == "at: 0x1at: 0x1"
    )
    assert (
        decided("return { fairness_key = tostring({}) .. tostring('a: 0x1') .. tostring(nil) }").fairness_key
        == "tablea: 0x1nil"
    )
