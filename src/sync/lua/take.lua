-- Decides one check here and now: takes its cells if all of them are there. Or gives cells back that were taken.
--
-- KEYS: the pod's record in this lane, the key.
-- ARGV: the command to publish with; its channel; the cells as a delta, packed.
-- Answers: taken, and three numbers and flags, packed, as `apply.lua` has them.

local family, flags, cells, a, b, c, d = unpack_from(DELTA, ARGV[3])
local sliding = flags % (FLAG_SLIDING * 2) >= FLAG_SLIDING
local giving_back = flags >= FLAG_GIVE_BACK
local values = call('MGET', KEYS[1], KEYS[2])

-- The pod's books: only their total moves, their sequence is that of its batches.
local function book()
  local sequence, gross = record_of(values[1])
  gross = giving_back and max(0, gross - cells) or min(gross + cells, LENGTH_MAX)
  call('SET', KEYS[1], pack(RECORD, sequence, gross), 'PX', RECORD_LIFE)
end

local function take_level(price, interval, capacity, debt_max)
  local level, demand, demand_at, published, live = level_of(values[2], family, capacity, debt_max)
  local taken = giving_back or level + price <= capacity
  if taken then
    level = giving_back and max(0, level - price) or level + price
    demand = giving_back and max(0, demand - cells * 1000) or min(demand + cells * 1000, DEMAND_MAX)
    book()
    keep_level(KEYS[2], level, demand, demand_at, published, live, interval, capacity)
  end
  return taken, pack('<I8I8I8B', level, demand, 0, 0)
end

local function take_window(billed, window, requests)
  local index, current, previous, told, left = window_of(values[2], window)
  local seen = sliding and floor(previous * left / window) or 0
  local taken = giving_back or seen + current + billed <= requests
  if taken then
    current = giving_back and max(0, current - billed) or current + billed
    book()
    keep_window(KEYS[2], window, index, current, previous, told, left, requests)
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
