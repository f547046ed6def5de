-- Books the cells that a pod reports, exactly once, and answers the level of each key.
--
-- KEYS: the pod's record of this book group, then the keys.
-- ARGV: the previous sequence number, the next one and the step of news, packed; the command to publish with; its channel;
-- the deltas, packed, in the order of the keys.
-- Answers: applied, sequence, gross, repaired, and per key three numbers and flags, packed.

local previous_sequence, next_sequence
previous_sequence, next_sequence, news_step = unpack_from('<I8I8I8', ARGV[1])
local deltas = ARGV[4]
local values = call('MGET', unpack(KEYS))

local sequence, gross, record_sound = record_of(values[1])
local applied = next_sequence > 0 and sequence == previous_sequence
local repaired = record_sound and 0 or 1

-- `MGET` returns a value of another type as missing. Such a value does not have our format, so the script repairs it.
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

-- Made at the first window with these flags: most calls have none.
local apply_window = {}
local function make_apply_window(flags)
  local window_of, keep_window, change_previous = window_functions(flags)
  return function(key, value, billed, window, requests, age, known)
    local index, current, previous, told, left, at, sound = window_of(value, window, requests, known)
    if applied then
      if not sound then
        repaired = repaired + 1
      end
      local counted_in = floor((at - age) / window)
      if counted_in == index then
        current = min(current + billed, LENGTH_MAX)
      elseif counted_in + 1 == index then
        current, previous = change_previous(current, previous, min(previous + billed, LENGTH_MAX), requests)
      end
      keep_window(key, window, index, current, previous, told, left, requests)
    end
    return pack('<I8I8I8B', current, previous, left, 0)
  end
end

local answers, position, booked = {}, 1, 0
for at = 2, #KEYS do
  -- For a level `a` to `d` are price, interval, capacity and debt_max.
  local family, flags, cells, a, b, c, d, known
  family, flags, cells, a, b, c, d, known, position = unpack_from(DELTA, deltas, position)
  booked = booked + cells
  if family == FAMILY_WINDOW then
    apply_window[flags] = apply_window[flags] or make_apply_window(flags)
    answers[at - 1] = apply_window[flags](KEYS[at], values[at], a, b, c, d, known)
  else
    local level, demand, demand_at, published, live, sound = level_of(values[at], family, c, d, known)
    local capped = 0
    if applied then
      if not sound then
        repaired = repaired + 1
      end
      -- A pod that allows less debt than another pod forgives nothing that the other one booked.
      local most = max(level, c + d)
      level = level + a
      if level > most then
        level, capped = most, 1
      end
      demand = min(demand + cells * 1000, DEMAND_MAX)
      if flags % 2 == FLAG_LIVE then
        local left = live - now
        if left < LIVE_HOLD / 2 or left > LIVE_HOLD then
          tell('l', KEYS[at], LIVE_HOLD)
          live = now + LIVE_HOLD
        end
      end
      keep_level(KEYS[at], level, demand, demand_at, published, live, b, c)
    end
    answers[at - 1] = pack('<I8I8I8B', level, demand, 0, capped)
  end
end

if applied then
  sequence, gross = next_sequence, min(gross + booked, LENGTH_MAX)
  call('SET', KEYS[1], pack(RECORD, sequence, gross), 'EX', RECORD_SECONDS)
  publish(ARGV[2], ARGV[3])
end
return { applied and 1 or 0, sequence, gross, applied and repaired or 0, table.concat(answers) }
