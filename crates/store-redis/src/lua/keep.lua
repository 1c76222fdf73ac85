-- Keeps a checkpoint if it is newer than the one there is, and trims pages, never beyond the checkpoint kept.
--
-- ARGV: 1-4 the checkpoint's page (seq, writer, number, at), 5 its image, 6 trim up to this place, 7 forget writers
--       that have been silent for this many microseconds.
-- Answers {'ok'}, or {'rewound'}, {'lost', floor} if the checkpoint is not of this history: a coordinator that was ahead
-- of a fail-over must not make everybody follow what was lost.

local tip, floor, kept = stand()
local seq = tonumber(ARGV[1])

if seq > kept.seq or redis.call('HEXISTS', CHECKPOINT, 'seq') == 0 then
  local stray = astray(tip, floor, kept, seq, ARGV[2], ARGV[3], ARGV[4])
  if stray then
    return stray
  end
  redis.call('HSET', CHECKPOINT, 'seq', ARGV[1], 'writer', ARGV[2], 'number', ARGV[3], 'at', ARGV[4], 'image', ARGV[5])
  kept = { seq = seq, writer = ARGV[2], number = ARGV[3], at = tonumber(ARGV[4]) }
end

local to = math.min(tonumber(ARGV[6]), kept.seq)
if to > floor.seq then
  local boundary = kept
  if to < kept.seq then
    local entry = page(to)
    boundary = entry and record_of(entry)
  end
  if boundary then
    -- The mark of the last page that goes stays, for readers that are exactly there.
    redis.call('HSET', HEAD, 'seq', whole(tip.seq), 'at', whole(tip.at), 'writer', tip.writer, 'number', tip.number,
      'base', whole(to), 'base_at', whole(boundary.at), 'base_writer', boundary.writer, 'base_number', boundary.number)
    redis.call('XTRIM', PAGES, 'MINID', whole(to + 1))
  end
end

-- In the journal's own time, so that tests with a time of theirs mean the same.
local writers = redis.call('HGETALL', WRITERS)
for i = 1, #writers, 2 do
  local at = tonumber(string.match(writers[i + 1], '(%-?%d+)$'))
  if at < tip.at - tonumber(ARGV[7]) then
    redis.call('HDEL', WRITERS, writers[i])
  end
end
return { 'ok' }
