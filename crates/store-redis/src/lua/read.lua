-- The pages after a position.
--
-- ARGV: 1-4 the position (seq, writer, number, at or ''), 5 at most how many.
-- Answers {'ok', now, pages, last place of the journal}, or {'rewound'}, {'lost', floor}.

local tip, floor, kept = stand()
local after = tonumber(ARGV[1])
local limit = tonumber(ARGV[5])

local stray = astray(tip, floor, kept, after, ARGV[2], ARGV[3], ARGV[4])
if stray then
  return stray
end
local pages = {}
if limit > 0 and tip.seq > after then
  pages = redis.call('XRANGE', PAGES, '(' .. whole(after) .. '-0', '+', 'COUNT', whole(limit))
end
return { 'ok', whole(clock(tip, '')), pages, whole(tip.seq) }
