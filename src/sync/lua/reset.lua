-- Remembers that a key was reset, for the heartbeats of all pods, and publishes it to those that listen.
--
-- KEYS: resets, the count of resets.
-- ARGV: the key as family, rule and name; the publish command; its channel.
-- Answers: the count.

local resets, count_key = KEYS[1], KEYS[2]

if call('TYPE', resets).ok ~= 'zset' then
  call('DEL', resets)
end
local count = redis.pcall('INCR', count_key)
if type(count) ~= 'number' then
  -- The count is damaged: the newest reset has it.
  count = tonumber(call('ZREVRANGE', resets, 0, 0, 'WITHSCORES')[2] or 0) + 1
  call('SET', count_key, count)
end
call('ZADD', resets, count, ARGV[1])
call('ZREMRANGEBYRANK', resets, 0, -RESETS_MAX - 1)
call('PEXPIRE', resets, RECORD_LIFE)
call('PEXPIRE', count_key, RECORD_LIFE)
tell('r', ARGV[1], 0)
publish(ARGV[2], ARGV[3])
return count
