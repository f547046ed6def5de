-- Books the cells that a pod admitted, exactly once, and answers the state of each key.
--
-- KEYS: the pod's record in this lane, then the keys.
-- ARGV: previous, sequence and the step of news, packed; the publish command; its channel; the deltas, packed, in the
-- order of the keys.
-- Answers: applied, sequence, gross, repaired, and per key three numbers and flags, packed.

local previous_sequence, next_sequence
previous_sequence, next_sequence, news_step = unpack_from('<I8I8I8', ARGV[1])
local deltas = ARGV[4]
local values = call('MGET', unpack(KEYS))

local sequence, gross, record_sound = record_of(values[1])
local applied = next_sequence > 0 and sequence == previous_sequence
local repaired = record_sound and 0 or 1

-- `MGET` shows a value of another type as missing. It is not one of ours, and counts as damaged.
local missing = {}
for at = 1, #KEYS do
  if not values[at] then
    missing[#missing + 1] = KEYS[at]
  end
end
if #missing > 0 and call('EXISTS', unpack(missing)) > 0 then
  for at = 1, #KEYS do
    if not values[at] and call('EXISTS', KEYS[at]) == 1 then
      values[at] = ''
      repaired = at == 1 and 1 or repaired
    end
  end
end

local function apply_level(key, value, family, flags, cells, price, interval, capacity, debt_max, known)
  local level, demand, demand_at, published, live, sound = level_of(value, family, capacity, debt_max, known)
  local capped = 0
  if applied then
    if not sound then
      repaired = repaired + 1
    end
    -- A pod that allows less debt than another does not reduce the debt that the other one booked.
    local most = max(level, capacity + debt_max)
    level = level + price
    if level > most then
      level, capped = most, 1
    end
    demand = min(demand + cells * 1000, DEMAND_MAX)
    local left = live - now
    if flags % 2 == FLAG_LIVE and (left < LIVE_HOLD / 2 or left > LIVE_HOLD) then
      tell('l', key, LIVE_HOLD)
      live = now + LIVE_HOLD
    end
    keep_level(key, level, demand, demand_at, published, live, interval, capacity)
  end
  return pack('<I8I8I8B', level, demand, 0, capped)
end

local function apply_window(key, value, billed, window, requests, age, known)
  local index, current, previous, told, left, at, sound = window_of(value, window, requests, known)
  if applied then
    if not sound then
      repaired = repaired + 1
    end
    local counted_in = floor((at - age) / window)
    if counted_in == index then
      current = min(current + billed, LENGTH_MAX)
    elseif counted_in + 1 == index then
      previous = min(previous + billed, LENGTH_MAX)
    end
    keep_window(key, window, index, current, previous, told, left, requests)
  end
  return pack('<I8I8I8B', current, previous, left, 0)
end

local answers, position, booked = {}, 1, 0
for at = 2, #KEYS do
  local family, flags, cells, a, b, c, d, known
  family, flags, cells, a, b, c, d, known, position = unpack_from(DELTA, deltas, position)
  booked = booked + cells
  if family == FAMILY_WINDOW then
    answers[at - 1] = apply_window(KEYS[at], values[at], a, b, c, d, known)
  else
    answers[at - 1] = apply_level(KEYS[at], values[at], family, flags, cells, a, b, c, d, known)
  end
end

if applied then
  sequence, gross = next_sequence, min(gross + booked, LENGTH_MAX)
  call('SET', KEYS[1], pack(RECORD, sequence, gross), 'PX', RECORD_LIFE)
  publish(ARGV[2], ARGV[3])
end
return { applied and 1 or 0, sequence, gross, applied and repaired or 0, table.concat(answers) }
