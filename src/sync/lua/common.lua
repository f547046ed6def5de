-- The part that all scripts share: how they pack values, age them and publish news. It precedes each script.
--
-- All times are microseconds. Every number stays below 2^53, so that doubles hold it exactly. Values are packed
-- strings of a fixed length. Any other value does not have our format: it is not *sound*. It counts as missing, and the
-- next write replaces it.

local call, pack, unpack_from, floor, ceil, min, max =
  redis.call, struct.pack, struct.unpack, math.floor, math.ceil, math.min, math.max

-- Every point in time in a sound value is below this: the year 2112.
local NUMBER_MAX = 4503599627370496
-- Every length of time and every count is below this.
local LENGTH_MAX = 2251799813685248
-- Thousandths of cells.
local DEMAND_MAX = 549755813888
-- Milliseconds in which demand falls to its half.
local DEMAND_HALVES = 10000
-- How long a key stays live.
local LIVE_HOLD = 10000000
-- The longest debt that a pod may allow because news is rare.
local DEBT_HEARD_MAX = 2000000
-- Seconds that a value stays after it has drained.
local SPARE = 20
-- How long a pod's record stays: in milliseconds, and in seconds as Redis wants it.
local RECORD_LIFE, RECORD_SECONDS = 3600000, '3600'
-- The resets that the store remembers.
local RESETS_MAX = 1024
-- The end of a key's name that identifies the key: family, rule and name.
local TAIL = -51

-- sequence, gross
local RECORD, RECORD_LENGTH = '<I8I8', 16
-- tat, capacity, demand, demand_at, published_until, live_until
local LEVEL, LEVEL_LENGTH = '<I8I8I8I8I8I8', 48
-- window, index, current, previous, told
local WINDOW, WINDOW_LENGTH = '<I8I8I8I8I8', 40
-- family, flags, gross; then for a level: price, interval, capacity, debt_max, known; for windows: billed, window, requests,
-- age, known. A value that is not sound starts again at `known`, which is what the pod knows of the key.
local DELTA = '<BBI8I8I8I8I8I8'
local FAMILY_LEVEL, FAMILY_WINDOW = 0, 2
local FLAG_LIVE, FLAG_SLIDING, FLAG_GIVE_BACK, FLAG_CHARGE, FLAG_CARRY = 1, 2, 4, 8, 16
-- A window carries at most this part of its limit (one in so many) into the next one.
local CARRY_PART = 10

local time = call('TIME') local now = time[1] * 1000000 + time[2] -- the clock

local news = {}
-- A level that grew by less than this is not news.
local news_step = 20000

local function tell(kind, key, span)
  news[#news + 1] = pack('<c1c51I8', kind, key:sub(TAIL), span)
end

-- A number of seconds as text. Redis would format the number again for every key; keys of a batch often share it.
local texts = {}
local function text_of(seconds)
  local text = texts[seconds]
  if not text then
    text = string.format('%d', seconds)
    texts[seconds] = text
  end
  return text
end

-- Publishes all news in one message. Correctness never depends on news, so a failure to publish is ignored.
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

-- The present level on the scale of `capacity`, and whether the value was sound. If it was not, the level is what the pod
-- knows, without debt.
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
  -- A level above what any pod books means that the clock was set back since.
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
    demand_at = demand_at + passed * 1000 -- the rest of a millisecond counts the next time
  else
    demand_at = now
  end
  return level, demand, demand_at, published, live, true
end

-- Stores a level, and adds it to the news if it is new.
local function keep_level(key, level, demand, demand_at, published, live, interval, capacity)
  local tat = now + level
  -- The time for which there is no room for a cell.
  local full_for = level + interval - capacity
  if full_for > 0 and tat - published > news_step and tat - published > full_for / 4 then
    tell('f', key, level)
    published = tat
  end
  call('SET', key, pack(LEVEL, tat, capacity, demand, demand_at, published, live), 'EX', text_of(ceil(level / 1000000) + SPARE))
end

-- The functions for windows: `window_of`, `keep_window` and `change_previous`. Not every call needs them, and Redis makes
-- them anew for each.
local function window_functions(flags)
  local carries = flags % (FLAG_CARRY * 2) >= FLAG_CARRY

  -- The cells above the limit that a window with `count` cells carries into the next one.
  local function carried(count, requests)
    return carries and min(max(0, count - requests), floor(requests / CARRY_PART)) or 0
  end

  -- Both counts after the window before got another count. What it carries over changes with it.
  local function change_previous(current, previous, changed, requests)
    local by = carried(changed, requests) - carried(previous, requests)
    return max(0, current + by), changed
  end

  -- The present windows: index, current, previous, whether news was published (`told`), the time left, the present time,
  -- and whether the value was sound. If it was not, the current window has the cells that the pod knows.
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
          return index, carried(current, requests), current, 0, left, now, true
        elseif stored == index + 1 then
          -- The clock was set back a little: the stored window counts as just begun.
          return stored, current, previous, told, window, stored * window, true
        end
      end
    end
    return index, sound and 0 or min(known, requests), 0, 0, (index + 1) * window - now, now, sound
  end

  -- Stores windows, and adds a full one to the news once.
  local function keep_window(key, window, index, current, previous, told, left, requests)
    if current >= requests and told == 0 then
      tell('f', key, left)
      told = 1
    end
    call('SET', key, pack(WINDOW, window, index, current, previous, told), 'EX', text_of(ceil(window / 500000) + SPARE))
  end

  return window_of, keep_window, change_previous
end
