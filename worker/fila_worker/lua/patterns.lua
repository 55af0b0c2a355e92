-- Bounds on what a pattern may cost, checked before it is matched.
--
-- Matching runs in C, where the count hook does not run. Its backtracking is exponential in the pattern (a?a?a?…) and
-- polynomial in the subject (.-.-.-x). So a match is allowed only if its worst case, counted in steps of some 2 ns, is within
-- bounds. The worst case of an item is the worst case of the items after it, once for every place where the item may end.
-- Most quantifiers end in one place only, because the next item cannot match what they repeat (^(%w+)-); they cost nothing
-- extra. Where that is not enough, the subject is examined: how long its runs of a class are, and how often the next items
-- occur in it.

local engine = ...
local find, sub, char, gsub, gmatch, match = string.find, string.sub, string.char, string.gsub, string.gmatch, string.match
local type, ipairs, concat = type, ipairs, table.concat
local check, complain = engine.check, engine.complain

local CHEAP_STEPS = 20000 -- not worth a check of the time
local STEPS_MAX = math.min(100000 * engine.timeout_ms, 1000000) -- in one call, at most about 2 ms
local SUBJECT_MAX = 100000 -- longer subjects are not examined: that alone would take too long
local PATTERN_MAX = 500
local CACHED_MAX = 50 -- a pattern takes some KiB of the script's memory

local every = {}
for code = 0, 255 do every[#every + 1] = char(code) end
every = concat(every)

local function malformed(pattern, why) complain("malformed pattern '" .. sub(pattern, 1, 60) .. "' (" .. why .. ")") end

-- Return the end of the class at `at`, as the matcher sees it.
local function class_end(pattern, at)
  local c = sub(pattern, at, at)
  if c == "%" then
    if at == #pattern then malformed(pattern, "ends with '%'") end
    return at + 1
  elseif c ~= "[" then
    return at
  end
  at = at + 1
  if sub(pattern, at, at) == "^" then at = at + 1 end
  repeat
    if at > #pattern then malformed(pattern, "missing ']'") end
    if sub(pattern, at, at) == "%" then at = at + 1 end
    at = at + 1
  until sub(pattern, at, at) == "]"
  return at
end

-- Return a class in a form that means the same when it stands alone.
local function alone(text)
  if #text == 1 and find(text, "^[%^%$]") then return "%" .. text end
  return text
end

local function parse(pattern, anchors)
  local items, at, anchored = {}, 1, false
  if anchors and sub(pattern, 1, 1) == "^" then at, anchored = 2, true end
  while at <= #pattern do
    local c, pair = sub(pattern, at, at), sub(pattern, at, at + 1)
    if c == "(" or c == ")" then
      at = at + 1
    elseif c == "$" and at == #pattern then
      items[#items + 1] = { kind = "end" }
      at = at + 1
    elseif pair == "%b" then
      if at + 3 > #pattern then malformed(pattern, "missing arguments to '%b'") end
      items[#items + 1] = { kind = "scan" }
      at = at + 4
    elseif pair == "%f" then
      if sub(pattern, at + 2, at + 2) ~= "[" then malformed(pattern, "missing '[' after '%f'") end
      items[#items + 1] = { kind = "edge" }
      at = class_end(pattern, at + 2) + 1
    elseif find(pair, "^%%%d") then
      items[#items + 1] = { kind = "scan" }
      at = at + 2
    else
      local last = class_end(pattern, at)
      local quantifier = match(pattern, "^[*+?-]", last + 1)
      local text = alone(sub(pattern, at, last))
      items[#items + 1] = { kind = quantifier or "one", class = text, weight = 1 + #text / 4 }
      at = last + (quantifier and 2 or 1)
    end
  end
  return items, anchored
end

-- Return whether two classes share no character.
local function apart(one, other)
  local others = 256 - #gsub(every, other, "")
  local rest = gsub(every, one, "")
  return #rest - #gsub(rest, other, "") == others
end

local REPEATS = { ["*"] = true, ["+"] = true, ["-"] = true, ["?"] = true }
local MAY_FOLLOW = { one = true, ["+"] = true }
local MAY_BE_EMPTY = { ["*"] = true, ["-"] = true, ["?"] = true }

-- Return which items may match the first character after item `index`, and whether that must be one of them.
local function followers(items, index)
  local first = {}
  for next = index + 1, #items do
    local item = items[next]
    if item.kind == "end" then return first, true end
    if not item.class then return nil end
    first[#first + 1] = item.class
    if not MAY_BE_EMPTY[item.kind] then return first, true end
  end
  return first, false
end

-- Return the steps a character of a pattern that matches wherever its first item does: it reads its subject once. Else nil.
local function linear_steps(items)
  local head = items[1]
  if not head or not head.class or not MAY_FOLLOW[head.kind] then return nil end
  local _, bound = followers(items, 1)
  if bound ~= false then return nil end
  local steps = 1
  for _, item in ipairs(items) do steps = steps + item.weight + 1 end
  return steps
end

-- Mark the items that can end in one place only, and note what the others depend on.
local function relate(items)
  for index, item in ipairs(items) do
    if REPEATS[item.kind] then
      local first, bound = followers(items, index)
      item.chain = 1 + (first and #first or 0)
      item.first = first
      item.sure = first and not bound -- the rest matches anywhere: the first try is the last
      if first and bound then
        item.sure = true
        for _, class in ipairs(first) do item.sure = item.sure and apart(item.class, class) end
      end
    end
  end
end

-- Return the steps of a match from one place, at worst. `run_of(class)`: its longest run; `places_of(item)`: how many places
-- the next items may start at.
local function steps_at(items, size, run_of, places_of)
  local steps = 1
  for index = #items, 1, -1 do
    local item = items[index]
    local kind = item.kind
    if kind == "scan" then
      steps = steps + size
    elseif kind == "?" then
      steps = item.weight + (item.sure and steps + item.chain or 2 * steps)
    elseif REPEATS[kind] then
      local run = run_of(item.class, size)
      local ends = item.sure and 1 or places_of(item, run)
      steps = (item.weight + item.chain) * (run + 1) + ends * steps
    else
      steps = steps + (item.weight or 1)
    end
  end
  return steps
end

local function whole(_, size) return size end
local function anywhere(_, run) return run + 1 end

local function worst(known, size)
  if known.linear then return (size + 1) * known.linear end
  return (known.anchored and 1 or size + 1) * steps_at(known.items, size, whole, anywhere)
end

-- Return the worst case on this very subject.
local function worst_on(known, subject)
  local runs, counts = {}, {}
  local function run_of(class)
    if not runs[class] then
      check()
      local longest = 0
      if class == "." then
        longest = #subject
      else
        for run in gmatch(subject, class .. "+") do
          if #run > longest then longest = #run end
        end
      end
      runs[class] = longest
    end
    return runs[class]
  end
  local function count_of(class)
    if not counts[class] then
      check()
      counts[class] = #subject - #gsub(subject, class, "")
    end
    return counts[class]
  end
  local function places_of(item, run)
    if not item.first then return run + 1 end
    local places = 1
    for _, class in ipairs(item.first) do places = places + count_of(class) end
    return places < run + 1 and places or run + 1
  end
  local steps = steps_at(known.items, #subject, run_of, places_of)
  if known.anchored then return steps end
  local head = known.items[1]
  if head and head.class and not MAY_BE_EMPTY[head.kind] then return #subject + count_of(head.class) * steps end
  return (#subject + 1) * steps
end

-- Return the longest subject, among powers of two minus 1, with which the pattern stays within `steps`.
local function longest_within(known, steps)
  local size = 0
  while size < 1048576 and worst(known, size * 2 + 1) <= steps do size = size * 2 + 1 end
  return size
end

local caches, cached = { [true] = {}, [false] = {} }, 0

local function study(pattern, anchors)
  if #pattern > PATTERN_MAX then
    complain("pattern of " .. #pattern .. " bytes: use at most " .. PATTERN_MAX)
  end
  check()
  local items, anchored = parse(pattern, anchors)
  relate(items)
  local known = { items = items, anchored = anchored, literal = not find(pattern, "[%^$*+?.()[%%-]") }
  known.linear = linear_steps(items)
  known.cheap = longest_within(known, CHEAP_STEPS)
  known.bounded = longest_within(known, STEPS_MAX)
  if cached >= CACHED_MAX then caches, cached = { [true] = {}, [false] = {} }, 0 end
  caches[anchors][pattern] = known
  cached = cached + 1
  return known
end

local function refuse(pattern, subject)
  complain("pattern '" .. sub(pattern, 1, 60) .. "' could take too long on a subject of " .. #subject
    .. " bytes: anchor it with ^, repeat fewer classes, or cut the subject with string.sub")
end

local function text_of(value, place, name)
  if type(value) == "number" then return value .. "" end
  complain("bad argument #" .. place .. " to '" .. name .. "' (string expected, got " .. type(value) .. ")")
end

-- Refuse a match that could break the time limit; return if it could not.
local function allow(subject, pattern, name, anchors)
  if type(subject) ~= "string" then subject = text_of(subject, 1, name) end
  if type(pattern) ~= "string" then pattern = text_of(pattern, 2, name) end
  local known = caches[anchors][pattern] or study(pattern, anchors)
  local size = #subject
  if size <= known.cheap then return end
  check()
  if size <= known.bounded then return end
  if known.literal then
    if size * (1 + #pattern / 16) > STEPS_MAX * 3 then refuse(pattern, subject) end
  elseif known.linear or size > SUBJECT_MAX or worst_on(known, subject) > STEPS_MAX then
    refuse(pattern, subject)
  end
end

local function allow_plain(subject, text, name)
  if type(subject) ~= "string" then subject = text_of(subject, 1, name) end
  if type(text) ~= "string" then text = text_of(text, 2, name) end
  if #subject * (1 + #text / 16) > CHEAP_STEPS then
    check()
    if #subject * (1 + #text / 16) > STEPS_MAX * 3 then
      complain("looking for " .. #text .. " bytes in " .. #subject .. " could take too long")
    end
  end
end

engine.allow_match = allow
engine.allow_plain = allow_plain
