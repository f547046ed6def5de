-- A pod's heartbeat. Answers how many pods send one, and which keys were reset since this pod's last one.
--
-- KEYS: pods, resets, the count of resets.
-- ARGV: the pod; the milliseconds after which it no longer counts; the number of resets it has seen; 1 if it leaves.
-- Answers: pods, resets, the keys reset.

local pods, resets, count_key = KEYS[1], KEYS[2], KEYS[3]
local pod, expiry, seen, leaving = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local now_ms = floor(now / 1000)

-- A value of another type is not ours.
local function repair(key, type)
  local found = call('TYPE', key).ok
  if found ~= type and found ~= 'none' then
    call('DEL', key)
  end
end
repair(pods, 'zset')
repair(resets, 'zset')
repair(count_key, 'string')

if leaving then
  call('ZREM', pods, pod)
else
  call('ZADD', pods, now_ms, pod)
end
-- Removes pods that are gone, and those with a time from before the clock was set back.
call('ZREMRANGEBYSCORE', pods, '-inf', '(' .. now_ms - expiry)
call('ZREMRANGEBYSCORE', pods, '(' .. now_ms + expiry, '+inf')

local count = tonumber(call('GET', count_key) or 0)
if not count then
  count = tonumber(call('ZREVRANGE', resets, 0, 0, 'WITHSCORES')[2] or 0)
  call('SET', count_key, count)
end
-- A pod that has seen more resets than there were has seen another store: it receives all of them.
local known = seen > count and 0 or seen
local keys = call('ZRANGEBYSCORE', resets, '(' .. known, '+inf', 'LIMIT', 0, RESETS_MAX)

call('PEXPIRE', pods, expiry)
call('PEXPIRE', resets, RECORD_LIFE)
call('PEXPIRE', count_key, RECORD_LIFE)
return { call('ZCARD', pods), count, keys }
