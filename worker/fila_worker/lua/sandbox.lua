-- What a script can reach: an environment of its own, in which nothing leads out, and nothing runs long in C without a check.
--
-- Library functions whose cost is bounded by the memory they may use are the real ones. The others are guarded: they refuse
-- calls that could outlive the time limit, and tables with metatables if C would call metamethods without the hook.

local engine = ...
local check, complain = engine.check, engine.complain
local allow_match, allow_plain = engine.allow_match, engine.allow_plain
local type, select, rawget, ipairs, tostring = type, select, rawget, ipairs, tostring
local getmetatable, setmetatable = getmetatable, setmetatable
local get_any_metatable, set_any_metatable, getinfo = debug.getmetatable, debug.setmetatable, debug.getinfo
local find, match, gmatch, gsub, rep, format = string.find, string.match, string.gmatch, string.gsub, string.rep, string.format
local concat, insert, move, remove, sort, unpack = table.concat, table.insert, table.move, table.remove, table.sort, table.unpack
local tointeger, utf8_len = math.tointeger, utf8.len
local restore, ask = engine.restore, engine.ask

local ELEMENTS_MAX = 100000 -- moved in one call, about 1 ms
local FORMATTED_MAX = 100 -- arguments: %99.99f takes 10 µs
local QUOTED_BYTES_MAX = 20000 -- %q takes 0.1 µs a byte
local LONG = 2000 -- bytes that are worth a check of the time
local CONFIG_CACHED_MAX = 64

local function copy(library)
  local copied = {}
  for name, value in next, library do copied[name] = value end
  return copied
end

-- --- base ------------------------------------------------------------------------------------------------------------

local env = {}
for _, name in ipairs({
  "assert", "error", "getmetatable", "ipairs", "next", "pairs", "rawequal", "rawget", "rawlen", "rawset", "select", "tonumber",
  "type", "_VERSION",
}) do
  env[name] = _G[name]
end
env._G = env

local ADDRESSED = { table = true, ["function"] = true, thread = true, userdata = true }

-- Return a text without an address: that would show where things lie in the worker's memory, and differ from run to run.
function env.tostring(...)
  local shown, value = tostring(...), (...)
  if not ADDRESSED[type(value)] then return shown end
  local metatable = get_any_metatable(value)
  if metatable and rawget(metatable, "__tostring") then return shown end
  return (gsub(shown, ": [^:]*$", ""))
end
env.pcall, env.xpcall = engine.pcall, engine.xpcall

local EVENTS = {
  "__add", "__sub", "__mul", "__div", "__mod", "__pow", "__unm", "__idiv", "__band", "__bor", "__bxor", "__shl", "__shr", "__bnot",
  "__concat", "__len", "__eq", "__lt", "__le", "__index", "__newindex", "__call", "__close", "__pairs", "__tostring", "__name",
}

-- Set a copy of the metatable, which scripts never see. Finalizers run with hooks off, and weak tables make the collector's
-- work quadratic, so neither `__gc` nor `__mode` may get into a metatable, not even later. C functions as metamethods would
-- nest C calls faster than the hook can check.
function env.setmetatable(object, metatable)
  if type(object) ~= "table" or (metatable ~= nil and type(metatable) ~= "table") then
    return setmetatable(object, metatable) -- this raises an error that names the mistake
  end
  local current = get_any_metatable(object)
  if current and rawget(current, "protected") then complain("cannot change a protected metatable") end
  if metatable == nil then return set_any_metatable(object, nil) end
  if rawget(metatable, "__gc") ~= nil then complain("metatables with __gc are not allowed in hooks") end
  if rawget(metatable, "__mode") ~= nil then complain("metatables with __mode are not allowed in hooks") end
  local real = {}
  for _, event in ipairs(EVENTS) do
    local value = rawget(metatable, event)
    if type(value) == "function" and getinfo(value, "S").what == "C" then
      complain("a library function as " .. event .. " is not allowed in hooks: wrap it in a function")
    end
    real[event] = value
  end
  real.__metatable = rawget(metatable, "__metatable")
  if real.__metatable == nil then real.__metatable = metatable else real.protected = true end
  return set_any_metatable(object, real)
end

-- --- string ----------------------------------------------------------------------------------------------------------

local strings = copy(string)
strings.dump = nil

function strings.find(subject, pattern, from, plain)
  if plain then allow_plain(subject, pattern, "find") else allow_match(subject, pattern, "find", true) end
  return find(subject, pattern, from, plain)
end

function strings.match(subject, pattern, from)
  allow_match(subject, pattern, "match", true)
  return match(subject, pattern, from)
end

function strings.gmatch(subject, pattern, from)
  allow_match(subject, pattern, "gmatch", false)
  local next_match = gmatch(subject, pattern, from)
  local function last(first, ...)
    if first == nil then next_match = nil end -- a further call would search the rest again
    return first, ...
  end
  return function()
    if next_match then return last(next_match()) end
  end
end

function strings.gsub(subject, pattern, replacement, count)
  allow_match(subject, pattern, "gsub", true)
  return gsub(subject, pattern, replacement, count)
end

function strings.rep(text, count, separator)
  if text == "" and (separator == nil or separator == "") then return "" end -- else endless, without using memory
  if type(count) ~= "number" or count > LONG then check() end
  return rep(text, count, separator)
end

function strings.format(template, ...)
  local count = select("#", ...)
  if count > FORMATTED_MAX then complain("string.format with " .. count .. " values: use at most " .. FORMATTED_MAX) end
  local bytes, addressed = 0, false
  for index = 1, count do
    local value = (select(index, ...))
    if type(value) == "string" then bytes = bytes + #value end
    addressed = addressed or ADDRESSED[type(value)]
  end
  if bytes > LONG then
    check()
    if bytes > QUOTED_BYTES_MAX and find(template, "%q", 1, true) then
      complain("string.format of " .. bytes .. " bytes with %q: use at most " .. QUOTED_BYTES_MAX)
    end
  end
  if type(template) == "string" and find(template, "p", 1, true) and find(gsub(template, "%%%%", ""), "%%[-%d]*p") then
    complain("string.format with %p is not allowed in hooks")
  end
  if not addressed then return format(template, ...) end
  local values = { ... }
  for index = 1, count do
    if ADDRESSED[type(values[index])] then values[index] = env.tostring(values[index]) end
  end
  return format(template, unpack(values, 1, count))
end

local of_strings = getmetatable("")
of_strings.__index = strings
of_strings.__metatable = false
env.string = strings

-- --- table -----------------------------------------------------------------------------------------------------------

local tables = copy(table)

local function raw(list, name)
  if getmetatable(list) ~= nil and type(list) == "table" then
    complain("table." .. name .. " of a table with a metatable is not allowed in hooks")
  end
end

-- Refuse calls that touch more than ELEMENTS_MAX elements: #list can be huge with few elements in it.
local function bounded(from, to, name)
  from, to = tointeger(from), tointeger(to)
  if from and to and to > from and (to - from < 0 or to - from > ELEMENTS_MAX) then
    complain("table." .. name .. " of more than " .. ELEMENTS_MAX .. " elements is not allowed in hooks")
  end
end

function tables.concat(list, separator, from, to)
  raw(list, "concat")
  check()
  return concat(list, separator, from, to)
end

function tables.insert(list, ...)
  raw(list, "insert")
  if select("#", ...) == 2 and type(list) == "table" then bounded((...), #list, "insert") end
  return insert(list, ...)
end

function tables.remove(list, ...)
  raw(list, "remove")
  if select("#", ...) > 0 and type(list) == "table" then bounded((...), #list, "remove") end
  return remove(list, ...)
end

function tables.move(list, from, to, at, target)
  raw(list, "move")
  raw(target, "move")
  bounded(from, to, "move")
  check()
  if target == nil then return move(list, from, to, at) end
  return move(list, from, to, at, target)
end

function tables.unpack(list, from, to)
  raw(list, "unpack")
  if type(list) == "table" then bounded(from or 1, to or #list, "unpack") end
  return unpack(list, from, to)
end

local function less(one, other) return one < other end

-- Sort with a Lua function in any case, so that the hook runs.
function tables.sort(list, before)
  raw(list, "sort")
  check()
  if before == nil then return sort(list, less) end
  return sort(list, function(one, other) return before(one, other) end)
end

env.table = tables
env.math = copy(math)
env.utf8 = copy(utf8)

-- --- fila ------------------------------------------------------------------------------------------------------------

local known, known_count = {}, 0

-- Forget the values that were read: another batch may have another config.
function engine.forget_config()
  if known_count > 0 then known, known_count = {}, 0 end
end

local function read(key)
  if not utf8_len(key) then return nil end -- keys of the runtime config are UTF-8
  if known_count >= CONFIG_CACHED_MAX then engine.forget_config() end
  check()
  local value = ask(key) -- this lifts the memory limit: hitting it in the callback would break Python's frames
  restore()
  known[key] = value or false
  known_count = known_count + 1
  return value
end

env.fila = {
  get = function(key)
    if type(key) ~= "string" then complain("fila.get takes a string as its key, not a " .. type(key)) end
    local value = known[key]
    if value == nil then return read(key) end
    return value or nil
  end,
}

engine.env = env
engine.globals = env -- as scripts see them
if engine.tracked then
  local run = engine.run
  local function write(_, name, value)
    run.wrote = true
    env[name] = value
  end
  engine.globals = setmetatable({}, { __index = env, __newindex = write, __metatable = false })
end
