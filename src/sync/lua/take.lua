-- Decides one check here and now: takes its cells if all of them are there. Or gives cells back that were taken.
-- A pod's books are of what it tells, not of what it takes: they are not touched.
--
-- KEYS: the key.
-- ARGV: the command to publish with; its channel; the cells as a delta, packed.
-- Answers: taken, and three numbers and flags, packed, as `apply.lua` has them.

local family, flags, cells, a, b, c, d = unpack_from(DELTA, ARGV[3])
local sliding = flags % (FLAG_SLIDING * 2) >= FLAG_SLIDING
local giving_back = flags >= FLAG_GIVE_BACK
local key = KEYS[1]
local value = call('MGET', key)[1] -- a value of another type is shown as missing

local function take_level(price, interval, capacity, debt_max)
  local level, demand, demand_at, published, live = level_of(value, family, capacity, debt_max)
  local taken = giving_back or level + price <= capacity
  if taken then
    level = giving_back and max(0, level - price) or level + price
    demand = giving_back and max(0, demand - cells * 1000) or min(demand + cells * 1000, DEMAND_MAX)
    if giving_back then
      published = min(published, now + level) -- when it fills up again, that is news again
    end
    keep_level(key, level, demand, demand_at, published, live, interval, capacity)
  end
  return taken, pack('<I8I8I8B', level, demand, 0, 0)
end

local function take_window(billed, window, requests)
  local index, current, previous, told, left = window_of(value, window)
  local seen = sliding and floor(previous * left / window) or 0
  local taken = giving_back or seen + current + billed <= requests
  if taken then
    current = giving_back and max(0, current - billed) or current + billed
    keep_window(key, window, index, current, previous, told, left, requests)
  end
  return taken, pack('<I8I8I8B', current, previous, left, 0)
end

local taken, answer
if family == FAMILY_WINDOW then
  taken, answer = take_window(a, b, c)
else
  taken, answer = take_level(a, b, c, d)
end
publish(ARGV[1], ARGV[2])
return { taken and 1 or 0, answer }
