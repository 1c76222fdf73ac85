-- One bounded part of a list: looks at no more than a thousand ids, so that a rare filter over a long archive holds
-- nobody up. The caller asks again from where this stopped.
--
-- KEYS: as in archive_add. ARGV: 1 the id to begin behind or '', 2 '1' for newest first, 3 at most how many,
-- 4-7 pool, operation, owner, reason or ''.
-- Answers {the last id looked at, or '' at the end, JSON, JSON, …}.

local SCAN = 1000
local after, limit = ARGV[1], tonumber(ARGV[3])

local ids
if ARGV[2] == '1' then
  ids = redis.call('ZREVRANGEBYLEX', KEYS[3], after == '' and '+' or '(' .. after, '-', 'LIMIT', 0, SCAN)
else
  ids = redis.call('ZRANGEBYLEX', KEYS[3], after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, SCAN)
end
if #ids == 0 then
  return { '' }
end

local columns = redis.call('HMGET', KEYS[2], unpack(ids))
local answer = { '' }
for i, id in ipairs(ids) do
  local pool, operation, owner, reason = string.match(columns[i] or '', '^(%S+) (%S+) (%S+) (%S+)$')
  if pool and (ARGV[4] == '' or ARGV[4] == pool) and (ARGV[5] == '' or ARGV[5] == operation)
    and (ARGV[6] == '' or ARGV[6] == owner) and (ARGV[7] == '' or ARGV[7] == reason) then
    local json = redis.call('HGET', KEYS[1], id)
    if json then
      answer[#answer + 1] = json
    end
  end
  if #answer > limit then
    answer[1] = id
    return answer
  end
end
if #ids == SCAN then
  answer[1] = ids[#ids]
end
return answer
