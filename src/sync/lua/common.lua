-- What all scripts share: how values are packed, how they age, and how news is published. It precedes each of them.
--
-- All times are in microseconds. Every number stays below 2^53, so that a double holds it exactly. Values are packed
-- strings of a fixed length. A value of any other form is not ours: it counts as damaged, and is replaced by the next
-- write.

local call, pack, unpack_from, floor, ceil, min, max =
  redis.call, struct.pack, struct.unpack, math.floor, math.ceil, math.min, math.max

-- Above any point in time that a sound value holds: the year 2112.
local NUMBER_MAX = 4503599627370496
-- Above any length of time and any count.
local LENGTH_MAX = 2251799813685248
-- Thousandths of cells.
local DEMAND_MAX = 549755813888
-- Milliseconds in which demand falls to one half.
local DEMAND_HALVES = 10000
-- How long a key stays live.
local LIVE_HOLD = 10000000
-- The most debt that a pod allows because news is published rarely.
local DEBT_HEARD_MAX = 2000000
-- Seconds that a value outlives its use.
local SPARE = 20
-- Milliseconds for which a pod's record is kept.
local RECORD_LIFE = 3600000
-- The most resets that are remembered.
local RESETS_MAX = 1024
-- The end of a key's name that identifies the key: family, rule and name.
local TAIL = -51

-- sequence, gross
local RECORD, RECORD_LENGTH = '<I8I8', 16
-- tat, capacity, demand, demand_at, published_until, live_until
local LEVEL, LEVEL_LENGTH = '<I8I8I8I8I8I8', 48
-- window, index, current, previous, told
local WINDOW, WINDOW_LENGTH = '<I8I8I8I8I8', 40
-- family, flags, gross, then of a level: price, interval, capacity, debt_max, known; of windows: billed, window, requests,
-- age, known. A damaged value starts again at what the pod knows.
local DELTA = '<BBI8I8I8I8I8I8'
local FAMILY_LEVEL, FAMILY_WINDOW = 0, 2
local FLAG_LIVE, FLAG_SLIDING, FLAG_GIVE_BACK, FLAG_CHARGE = 1, 2, 4, 8

local time = call('TIME') local now = time[1] * 1000000 + time[2] -- the clock

local news = {}
-- A level that grew by less than this is not published.
local news_step = 20000

local function tell(kind, key, span)
  news[#news + 1] = pack('<c1c51I8', kind, key:sub(TAIL), span)
end

-- A number of seconds as text. Redis would format the number for every key; keys of a batch often share it.
local texts = {}
local function text_of(seconds)
  local text = texts[seconds]
  if not text then
    text = string.format('%d', seconds)
    texts[seconds] = text
  end
  return text
end

-- Publishes all news in one message. News is never needed for a correct result, so a failure is ignored.
local function publish(command, channel)
  if #news > 0 then
    redis.pcall(command, channel, table.concat(news))
  end
end

-- Sequence and gross of a record, and whether it is sound. A missing record is sound.
local function record_of(value)
  if not value then
    return 0, 0, true
  end
  if #value == RECORD_LENGTH then
    local sequence, gross = unpack_from(RECORD, value)
    if max(sequence, gross) < NUMBER_MAX then
      return sequence, gross, true
    end
  end
  return 0, 0, false
end

-- The level as of now, scaled to `capacity`, and whether the value was sound. A damaged value is replaced by what the
-- pod knows, without debt.
local function level_of(value, family, capacity, debt_max, known)
  if not value then
    return 0, 0, now, 0, 0, true
  end
  if #value ~= LEVEL_LENGTH then
    return min(known, capacity), 0, now, 0, 0, false
  end
  local tat, scale, demand, demand_at, published, live = unpack_from(LEVEL, value)
  if tat >= NUMBER_MAX or scale >= NUMBER_MAX or demand >= NUMBER_MAX or demand_at >= NUMBER_MAX
    or published >= NUMBER_MAX or live >= NUMBER_MAX then
    return min(known, capacity), 0, now, 0, 0, false
  end
  local level = tat > now and tat - now or 0
  if scale ~= capacity and scale > 0 and family == FAMILY_LEVEL then
    -- Half full stays half full.
    level = min(ceil(level * capacity / scale), LENGTH_MAX)
    published = now + min(ceil(max(0, published - now) * capacity / scale), LENGTH_MAX)
  end
  -- If it is more than any pod books, then the clock was set back meanwhile.
  local most = capacity + max(debt_max, DEBT_HEARD_MAX)
  if family == FAMILY_LEVEL then
    level = min(level, most)
  end
  if published > now + most then
    published = 0
  end
  if demand > 0 and demand_at <= now then
    local passed = floor((now - demand_at) / 1000)
    demand = floor(min(demand, DEMAND_MAX) * DEMAND_HALVES / (DEMAND_HALVES + passed))
    demand_at = demand_at + passed * 1000 -- what is left of a millisecond counts the next time
  else
    demand_at = now
  end
  return level, demand, demand_at, published, live, true
end

-- Writes a level, and publishes it if that is news.
local function keep_level(key, level, demand, demand_at, published, live, interval, capacity)
  local tat = now + level
  -- How long the bucket has no room for a cell.
  local full_for = level + interval - capacity
  if full_for > 0 and tat - published > news_step and tat - published > full_for / 4 then
    tell('f', key, level)
    published = tat
  end
  call('SET', key, pack(LEVEL, tat, capacity, demand, demand_at, published, live), 'EX', text_of(ceil(level / 1000000) + SPARE))
end

-- The windows as of now: index, current, previous, whether its news was published, the time left, the current time,
-- whether the value was sound. A damaged value is replaced by the cells that the pod knows.
local function window_of(value, window, requests, known)
  local index, sound = floor(now / window), not value
  if value and #value == WINDOW_LENGTH then
    local length, stored, current, previous, told = unpack_from(WINDOW, value)
    sound = length < NUMBER_MAX and stored < NUMBER_MAX and current < NUMBER_MAX and previous < NUMBER_MAX
      and told < NUMBER_MAX
    if sound and length == window then
      local left = (index + 1) * window - now
      if stored == index then
        return index, current, previous, told, left, now, true
      elseif stored + 1 == index then
        return index, 0, current, 0, left, now, true
      elseif stored == index + 1 then
        -- The clock was set back a little: the stored window has just begun.
        return stored, current, previous, told, window, stored * window, true
      end
    end
  end
  return index, sound and 0 or min(known, requests), 0, 0, (index + 1) * window - now, now, sound
end

-- Writes the windows, and publishes once that one is full.
local function keep_window(key, window, index, current, previous, told, left, requests)
  if current >= requests and told == 0 then
    tell('f', key, left)
    told = 1
  end
  call('SET', key, pack(WINDOW, window, index, current, previous, told), 'EX', text_of(ceil(window / 500000) + SPARE))
end
