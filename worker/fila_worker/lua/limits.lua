-- The limits of a run, whatever a script does.
--
-- A count hook checks the run every WINDOW instructions. Once a limit is hit it runs after every single instruction and
-- raises again, so that no pcall outlives it, until control is back in the driver. The check of elapsed time is cheap, and
-- only rules a timeout out. The timeout itself is measured in CPU time, so that a busy machine fails no good script. Between
-- two checks a script can do only as much as that many instructions can: little while memory is small (comparing two strings
-- of 400 KB can take 2 ms, short ones nanoseconds). So the window shrinks as memory grows.

local engine = ...
local sethook, getinfo, memory_kb = debug.sethook, debug.getinfo, collectgarbage
local error, pcall, type, find, floor = error, pcall, type, string.find, math.floor
local clock, cpu_clock, timeout_s = engine.clock, engine.cpu_clock, engine.timeout_ms / 1000

local WINDOW = 100 -- a check costs 0.15 µs, as much as 20 instructions
local WINDOW_MIN = 2
local ROOMY_KB = 160 -- beyond the empty sandbox; garbage is seldom more
local NO_MEMORY = "not enough memory" -- Lua's own text
local PCALL_DEPTH_MAX = 40

local run = { at = 0, instructions = 0 } -- at: the number of the run, set by the driver; long: some run was checked twice
local drivers = {} -- the functions that run a script; they are not interrupted when a script is stopped
local empty_kb, base_kb, roomy_kb = 0, 0, 0 -- memory of the empty sandbox; with the messages in it; and with ROOMY_KB more
local kept_kb = 0 -- memory when garbage was last collected here
local window = WINDOW
local seen, timed, started, cpu_started -- the runs last checked and last timed; since when, in real time and CPU time
local stopped -- the text of the limit that was hit
local adaptive -- whether the hook's window follows memory
local paused, cpu_paused, suspicious -- unwatched runs: the time at the last pause; whether the last check found them slow

local function where()
  for level = 3, 12 do
    local frame = getinfo(level, "Sl")
    if not frame then return "" end
    if find(frame.source, "^=on_") and frame.currentline > 0 then return frame.short_src .. ":" .. frame.currentline .. ": " end
  end
  return ""
end

local function halt()
  local frame = getinfo(2, "f")
  if frame and drivers[frame.func] then return end
  error(stopped, 0)
end

local function stop(text)
  local frame = getinfo(4, "f") -- the function that the hook interrupted
  if frame and drivers[frame.func] then return end -- the run is over
  local ok, place = pcall(where) -- this needs memory
  stopped = ok and place .. text or text
  sethook(halt, "", 1)
  error(stopped, 0)
end

local function stop_for_memory()
  run.out_of_memory = true
  stop(engine.memory_text)
end

-- Check whether the run's time is over. A run is timed from its second check on: most runs have none.
local function look_at_time()
  local now = clock()
  run.long = true
  if timed ~= seen then
    timed, started, cpu_started = seen, now, nil
  elseif now - started > timeout_s / 4 then
    local cpu = cpu_clock()
    if not cpu_started then
      cpu_started = cpu
    elseif cpu - cpu_started > timeout_s then
      stop(engine.timeout_text)
    end
  end
end

local tick, close_tick

-- Adapt the window: the more memory, the closer the next check.
local function adapt()
  local used_kb, fitting = memory_kb("count"), WINDOW
  if used_kb > roomy_kb and used_kb > kept_kb + ROOMY_KB then
    memory_kb("collect") -- garbage, even of another run, should not slow a run down
    used_kb = memory_kb("count")
    kept_kb = used_kb
  end
  if used_kb > roomy_kb then
    local ratio = ROOMY_KB / (used_kb - base_kb)
    fitting = floor(WINDOW * ratio * ratio)
    if fitting < WINDOW_MIN then fitting = WINDOW_MIN end
  end
  if fitting ~= window then
    window = fitting
    sethook(window == WINDOW and tick or close_tick, "", window)
  end
end

tick = function()
  local at = run.at
  if at ~= seen then
    seen = at
    if memory_kb("count") < roomy_kb then return end
  end
  look_at_time()
  adapt()
end

close_tick = function()
  seen = run.at
  look_at_time()
  adapt()
end

-- Check the limits at once: a library function is about to do much in a single instruction.
local function check()
  seen = run.at
  look_at_time()
  if adaptive then adapt() end
end

-- Prepare the next run, with all limits in force but that of memory. `messages_kb`: the memory that the messages take.
local function arm(messages_kb)
  stopped, seen, timed, window, run.out_of_memory = nil, nil, nil, WINDOW, false
  base_kb = empty_kb + messages_kb
  roomy_kb = base_kb + ROOMY_KB
  adaptive = run.watched
  if adaptive then
    sethook(tick, "", WINDOW)
  else
    paused = clock()
    if suspicious then cpu_paused = cpu_clock() end
  end
end

-- Prepare the next run like arm(), and count every instruction; slow.
local function arm_counting(messages_kb)
  arm(messages_kb)
  adaptive = false
  sethook(function()
    run.instructions = run.instructions + 1
    if run.instructions % WINDOW == 0 then
      seen = run.at
      look_at_time()
    end
  end, "", 1)
end

-- Return whether the batch's time is over. This is checked only after long runs: the others are too short to matter.
local function late()
  run.long = false
  return clock() >= run.deadline
end

-- Check the time after a few unwatched messages. If they take the CPU time of a limit twice, they have to be watched. Return
-- whether the batch's time is over.
local function pause()
  local now = clock()
  if now - paused > timeout_s then
    local cpu = cpu_clock()
    if suspicious and cpu - cpu_paused > timeout_s then
      run.exposed = true
      error("slow", 0)
    end
    suspicious, cpu_paused = true, cpu
  end
  paused = now
  return now >= run.deadline
end

-- Lua nests 200 C calls. When they are used up, the hook cannot run, and there is an error instead. If a script caught that
-- error close by, a loop around it would never be checked. From PCALL_DEPTH_MAX on, the way there takes longer than a window.
local function refuse_deep()
  if getinfo(PCALL_DEPTH_MAX, "l") then
    error(where() .. "pcall in more than " .. PCALL_DEPTH_MAX .. " nested calls is not allowed in hooks", 0)
  end
end

-- Return what pcall returned. If a limit was hit, raise again, so that a script cannot catch it.
local function settle(ok, ...)
  if ok then return true, ... end
  if stopped then error(stopped, 0) end
  if (...) == NO_MEMORY then stop_for_memory() end
  return false, ...
end

local function settle_handled(handler, ok, ...)
  if ok then return true, ... end
  if stopped then error(stopped, 0) end
  if (...) == NO_MEMORY then stop_for_memory() end
  return false, handler(...)
end

-- Measure the complete sandbox: its own memory does not count.
function engine.weigh()
  memory_kb("incremental", 200, 20, 9) -- in steps of some µs: with Lua's default one step collects all of a small state
  memory_kb("collect")
  empty_kb = memory_kb("count")
end

function engine.complain(text) error(where() .. text, 0) end

function engine.pcall(f, ...)
  refuse_deep()
  return settle(pcall(f, ...))
end

-- Call the handler after the error: the real xpcall runs it where the error was raised, with hooks off.
function engine.xpcall(f, handler, ...)
  if type(handler) ~= "function" then
    error(where() .. "bad argument #2 to 'xpcall' (function expected, got " .. type(handler) .. ")", 0)
  end
  refuse_deep()
  return settle_handled(handler, pcall(f, ...))
end

engine.run = run
engine.drivers = drivers
engine.arm = engine.counting and arm_counting or arm
engine.check = check
engine.pause = pause
engine.late = late
engine.no_memory = NO_MEMORY
