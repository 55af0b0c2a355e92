-- Runs of a hook over a batch: one crossing from Python for all of it.
--
-- Arguments come flat, column by column; results go back flat, row by row: a table that crosses costs ten times what its
-- values do. The loop over the messages is generated (make_enqueue_loop) for the headers that the messages of a batch have in
-- common. It runs under one pcall; a failure ends it and is noted, and the loop goes on after the failed message.

local engine = ...
local pcall, type, unpack, concat, tostring, load, format = pcall, type, table.unpack, table.concat, tostring, load, string.format
local utf8_len, gsub, sub, find, match = utf8.len, string.gsub, string.sub, string.find, string.match
local sethook, getupvalue, error, next, ipairs, rawget = debug.sethook, debug.getupvalue, error, next, ipairs, rawget
local collectgarbage, clock = collectgarbage, engine.clock
local run, arm, lift, restore, forget_config = engine.run, engine.arm, engine.lift, engine.restore, engine.forget_config

local THROTTLE_KEYS_READ = 64 -- more than are allowed, because some may be the same
local ERROR_BYTES_MAX = 500
local NO_TABLE = "a hook returns a table or nil, not a "

local out, out_count, extras = {}, 0, {}

-- Return throttle keys as one value: a lone key itself, "" for none, "\0a\0b" for several; nil if they are no list of
-- strings.
local function flatten(keys)
  if keys[1] == nil then return "" end
  local list = { "" }
  for index = 1, THROTTLE_KEYS_READ do
    local key = keys[index]
    if key == nil then return concat(list, "\0") end
    if type(key) ~= "string" or find(key, "\0", 1, true) then return nil end
    list[index + 1] = key
  end
end

-- Add what few runs have beside the columns: the message's number, three values, a failure.
local function extra(at, first, second, third, failure)
  local count = #extras
  extras[count + 1], extras[count + 2], extras[count + 3] = at, first or false, second or false
  extras[count + 4], extras[count + 5] = third or false, failure or false
end

local function no_table(decision) error(NO_TABLE .. type(decision), 0) end

local function describe(failure)
  if failure == engine.no_memory then return engine.memory_text end
  if type(failure) == "number" then failure = tostring(failure) end
  if type(failure) ~= "string" then return "error object is a " .. type(failure) end
  local kind = match(failure, "^returned:%d+: attempt to index an? (%a+) value")
  if kind then failure = NO_TABLE .. kind end
  if #failure > ERROR_BYTES_MAX then failure = sub(failure, 1, ERROR_BYTES_MAX) .. "..." end
  if not utf8_len(failure) then failure = gsub(failure, "[\128-\255]", "?") end
  return failure
end

-- Run `loop` for messages 1 to `count`. It ends after `failures_max` failures in a row, after the first one that ran out of
-- memory, or with the message during which the batch's time ends, `time_max` seconds. Return the rows of the messages that it
-- ran, the extras, and how many extras there are. While a limit is being raised, only this function may run: until the hook
-- is off it calls only C.
local function drive(watched, loop, width, count, failures_max, time_max, listed, ...)
  local arguments = listed or { ... }
  forget_config()
  if run.exposed then
    for index = 1, out_count do out[index] = nil end -- these may have filled the memory
    collectgarbage() -- buffers of library functions fail without trying a collection
  end
  run.watched, run.exposed, run.at, run.place, extras = watched, false, 0, nil, {}
  run.long, run.deadline = false, clock() + time_max
  local last_failed, streak, done = 0, 0, count
  arm(restore())
  while true do
    local ok, failure = pcall(loop, arguments, count)
    sethook()
    lift()
    if ok then
      done = failure or count -- the message after which it stopped
      break
    end
    local at = run.at
    local no_memory = failure == engine.no_memory or run.out_of_memory
    run.exposed = run.exposed or no_memory
    extra(at, nil, nil, nil, describe(failure))
    for column = 1, width do out[(at - 1) * width + column] = nil end
    streak = at == last_failed + 1 and streak + 1 or 1
    last_failed = at
    if streak >= failures_max or run.exposed or clock() >= run.deadline then done = at end
    if done <= at then break end
    arm(restore())
  end
  local values, extra_count = done * width, #extras
  for index = 1, extra_count do out[values + index] = extras[index] end
  out_count = values + extra_count + 1
  out[out_count] = extra_count
  return unpack(out, 1, out_count)
end

engine.drivers[drive] = true
engine.drive = drive

-- Return what drive() returned, without strings that are not UTF-8.
function engine.sanitized()
  for index = 1, out_count do
    if type(out[index]) == "string" and not utf8_len(out[index]) then out[index] = false end
  end
  return unpack(out, 1, out_count)
end

local ENQUEUE_LOOP = [==[
local hook, run, out, queue, flatten, extra, no_table, type, pause, late = ...
return function(a, count)
  local at, watched = run.at, run.watched
  local o = at * $WIDTH + 1
  $START
  for i = at + 1, count do
    run.at = i
    $HEADERS
    local decision = hook({ headers = headers, payload_size = a[i], queue = queue })
    if decision == nil then
      $CLEAR
    else
      local keys, weight = decision.throttle_keys, decision.weight
      if keys ~= nil then
        if type(keys) == "table" then
          local key = keys[1]
          if key == nil or key == "" or keys[2] ~= nil then key = flatten(keys) end
          keys = key
        else
          keys = nil
        end
      elseif weight == nil and type(decision) ~= "table" then
        no_table(decision)
      end
      if weight == true then weight = nil end
      local priority, cost, delay = decision.priority, decision.cost, decision.delay_ms
      $STORE
    end
    o = o + $WIDTH
    if watched then
      if run.long and late() then return i end
    elseif i % 8 == 0 and pause() then
      return i
    end
  end
  if not watched then pause() end
end]==]

local NARROW = {
  WIDTH = "3",
  CLEAR = "out[o], out[o + 1], out[o + 2] = nil",
  STORE = [==[out[o], out[o + 1], out[o + 2] = decision.fairness_key, weight or nil, keys
      if priority ~= nil or cost ~= nil or delay ~= nil then extra(i, priority, cost, delay) end]==],
}
local WIDE = {
  WIDTH = "6",
  CLEAR = "out[o], out[o + 1], out[o + 2], out[o + 3], out[o + 4], out[o + 5] = nil",
  STORE = [==[if priority == true then priority = nil end
      if cost == true then cost = nil end
      if delay == true then delay = nil end
      out[o], out[o + 1], out[o + 2] = decision.fairness_key, weight or nil, keys
      out[o + 3], out[o + 4], out[o + 5] = priority or nil, cost or nil, delay or nil]==],
}
local ANY_HEADERS = [==[
local headers = {}
    for k = j + 1, j + a[j], 2 do headers[a[k]] = a[k + 1] end
    j = j + a[j] + 1
    run.place = j]==]

local function fill(template, parts)
  return (gsub(template, "%$(%u+)", parts))
end

-- Return a loop for messages whose headers are all `names`, a column each; or with any headers, if `names` is nil.
function engine.make_enqueue_loop(wide, names)
  local parts = {}
  for name, text in next, wide and WIDE or NARROW do parts[name] = text end
  if names then
    local fields, columns = {}, {}
    for index, name in ipairs(names) do
      columns[index] = format("local c%d = %d * count", index, index)
      fields[index] = format("[%q] = a[i + c%d]", name, index)
    end
    parts.START = concat(columns, " ")
    parts.HEADERS = format("local headers = { %s }", concat(fields, ", "))
  else
    parts.START = "local j = run.place or count + 1"
    parts.HEADERS = ANY_HEADERS
  end
  -- Replacement texts that contain "%" or "$" are safe: they are values of a table, and inserted unchanged.
  local made = load(fill(ENQUEUE_LOOP, parts), "=returned")
  return made(engine.on_enqueue, run, out, engine.queue, flatten, extra, no_table, type, engine.pause, engine.late)
end

local FAILURE_LOOP = [==[
local hook, run, out, queue, no_table, type, late = ...
return function(a, count)
  local at = run.at
  local j, o = run.place or 4 * count + 1, at * 2 + 1
  for i = at + 1, count do
    run.at = i
    $HEADERS
    local decision = hook({
      headers = headers, id = a[i], attempts = a[count + i], error = a[2 * count + i], fairness_key = a[3 * count + i],
      queue = queue,
    })
    if decision == nil then
      out[o], out[o + 1] = nil
    else
      if type(decision) ~= "table" then no_table(decision) end
      out[o], out[o + 1] = decision.action == "dlq", decision.delay_ms
    end
    o = o + 2
    if run.long and late() then return i end
  end
end]==]

function engine.make_failure_loop()
  local text = fill(FAILURE_LOOP, { HEADERS = ANY_HEADERS })
  return load(text, "=returned")(engine.on_failure, run, out, engine.queue, no_table, type, engine.late)
end

-- Compile a script and run its top level, within the limits. Return why it failed, if it did.
local function start(name, text)
  run.watched, run.at = true, run.at + 1
  arm(restore())
  local chunk, failure = load(text, "=" .. name, "t", engine.globals)
  local ok = chunk
  if chunk then
    ok, failure = pcall(chunk)
  end
  sethook()
  lift()
  if not ok then return describe(failure) end
end

engine.start = start
engine.drivers[start] = true

-- Return the names of the variables of their files that the hooks use, without the globals' table.
function engine.variables()
  local names = {}
  for _, hook in ipairs({ "on_enqueue", "on_failure" }) do
    local index = 1
    while engine[hook] and getupvalue(engine[hook], index) do
      names[#names + 1] = getupvalue(engine[hook], index)
      index = index + 1
    end
  end
  return concat(names, " ")
end

-- Return the function that a script defined; nil if there is none.
function engine.defined(name)
  local hook = rawget(engine.env, name)
  return type(hook) == "function" and hook or nil
end
