-- Decides one check in the store: takes its cells if there is room for all of them. With `FLAG_GIVE_BACK` it refunds
-- cells instead. With `FLAG_CHARGE` it charges cells for which there is no room: a window counts them, a level books them
-- as debt. A pod's record covers what it reports, not what it takes, so the script does not touch it.
--
-- KEYS: the key.
-- ARGV: the command to publish with; its channel; the cells as a delta, packed.
-- Answers: taken, and three numbers and flags, packed as in `apply.lua`.

local family, flags, cells, a, b, c, d, known = unpack_from(DELTA, ARGV[3])
local function has(flag)
  return flags % (flag * 2) >= flag
end
local sliding, giving_back, charging = has(FLAG_SLIDING), has(FLAG_GIVE_BACK), has(FLAG_CHARGE)
local key = KEYS[1]
local value = call('MGET', key)[1]
if not value and call('EXISTS', key) == 1 then
  value = '' -- MGET returns a value of another type as missing; it is not sound
end

local function take_level(price, interval, capacity, debt_max)
  local level, demand, demand_at, published, live, sound = level_of(value, family, capacity, debt_max, known)
  local taken, capped = giving_back or level + price <= capacity, 0
  if giving_back then
    level, demand = max(0, level - price), max(0, demand - cells * 1000)
    published = min(published, now + level) -- a key that fills up again is news again
  elseif taken or charging then
    local most = max(level, capacity + debt_max)
    level, demand = level + price, min(demand + cells * 1000, DEMAND_MAX)
    if level > most then
      level, capped = most, 1
    end
  end
  if taken or charging or not sound then
    keep_level(key, level, demand, demand_at, published, live, interval, capacity)
  end
  return taken, pack('<I8I8I8B', level, demand, 0, capped)
end

local function take_window(billed, window, requests, age)
  local window_of, keep_window, change_previous = window_functions(flags)
  local index, current, previous, told, left, at, sound = window_of(value, window, requests, known)
  local seen = sliding and floor(previous * left / window) or 0
  local taken = giving_back or seen + current + billed <= requests
  if giving_back then
    -- The cells leave the window in which the refund was made, not another one.
    local counted_in = floor((at - age) / window)
    if counted_in == index then
      current = max(0, current - billed)
    elseif counted_in + 1 == index then
      current, previous = change_previous(current, previous, max(0, previous - billed), requests)
    end
    told = current < requests and 0 or told -- a window that fills up again is news again
  elseif taken or charging then
    current = min(current + billed, LENGTH_MAX)
  end
  if taken or charging or not sound then
    keep_window(key, window, index, current, previous, told, left, requests)
  end
  return taken, pack('<I8I8I8B', current, previous, left, 0)
end

local taken, answer
if family == FAMILY_WINDOW then
  taken, answer = take_window(a, b, c, d)
else
  taken, answer = take_level(a, b, c, d)
end
publish(ARGV[1], ARGV[2])
return { taken and 1 or 0, answer }
