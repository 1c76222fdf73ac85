-- Adds records to the archive; those that are there already stay as they are.
--
-- KEYS: records (id -> JSON), columns (id -> "pool operation owner reason"), ids (all at score 0: ordered as text),
--       ended (by the time they ended).
-- ARGV: id, columns, time, JSON of each.

for i = 1, #ARGV, 4 do
  local id = ARGV[i]
  if redis.call('HSETNX', KEYS[1], id, ARGV[i + 3]) == 1 then
    redis.call('HSET', KEYS[2], id, ARGV[i + 1])
    redis.call('ZADD', KEYS[3], 0, id)
    redis.call('ZADD', KEYS[4], ARGV[i + 2], id)
  end
end
return 'ok'
