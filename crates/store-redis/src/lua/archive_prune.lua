-- Removes some archived records that ended at or before a time.
--
-- KEYS: as in archive_add. ARGV: 1 the time, 2 at most how many (below Lua's limit of arguments, some thousands).
-- Answers how many went.

local ids = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #ids > 0 then
  redis.call('HDEL', KEYS[1], unpack(ids))
  redis.call('HDEL', KEYS[2], unpack(ids))
  redis.call('ZREM', KEYS[3], unpack(ids))
  redis.call('ZREM', KEYS[4], unpack(ids))
end
return #ids
