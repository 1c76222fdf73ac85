-- Appends one page, exactly once.
--
-- ARGV: 1-4 the writer's position (seq, writer, number, at or ''), 5 writer, 6 number, 7 body, 8 time in tests or '',
--       9 '1' if the answer will be followed by WAIT.
-- Answers {'ok', now, pages, seq, at}, the last two of the own page, which is among the pages only if this is a second
-- attempt; or {'rewound'}, {'lost', floor}, {'hole', from, to}, {'late', last number}.

local tip, floor, kept = stand()
local after = tonumber(ARGV[1])
local writer, number = ARGV[5], ARGV[6]

local stray = astray(tip, floor, kept, after, ARGV[2], ARGV[3], ARGV[4])
if stray then
  return stray
end
local now = clock(tip, ARGV[8])

-- A second attempt? Each writer's last page is remembered as "number seq at".
local function answer_again(seq, at)
  if ARGV[9] == '1' then
    -- WAIT waits for the connection's own last write: without one it would confirm what no replica may have.
    redis.call('HSET', HEAD, 'asked_again', whole(now))
  end
  local pages = {}
  if seq > after then
    pages = redis.call('XRANGE', PAGES, '(' .. whole(after) .. '-0', whole(seq) .. '-0')
  elseif seq > floor.seq then
    pages = { page(seq) }
  end
  return { 'ok', whole(now), pages, whole(seq), whole(at) }
end

local last = redis.call('HGET', WRITERS, writer)
if last then
  local last_number, last_seq, last_at = string.match(last, '^(%d+) (%d+) (%-?%d+)$')
  if tonumber(number) == tonumber(last_number) then
    return answer_again(tonumber(last_seq), tonumber(last_at))
  elseif tonumber(number) < tonumber(last_number) then
    -- Older than its last: writers go in order, so this is rare, and a search is good enough.
    local to = '+'
    while true do
      local chunk = redis.call('XREVRANGE', PAGES, to, '-', 'COUNT', 100)
      for _, entry in ipairs(chunk) do
        local found = record_of(entry)
        if found.writer == writer and found.number == number then
          return answer_again(found.seq, found.at)
        end
        to = '(' .. entry[1]
      end
      if #chunk < 100 then
        return { 'late', last_number }
      end
    end
  end
end

local missed = {}
if tip.seq > after then
  missed = redis.call('XRANGE', PAGES, '(' .. whole(after) .. '-0', '+')
  if #missed ~= tip.seq - after then
    return { 'hole', whole(after), whole(tip.seq) }
  end
end

local seq = whole(tip.seq + 1)
local at = whole(now)
redis.call('XADD', PAGES, seq .. '-0', 'at', at, 'writer', writer, 'number', number, 'body', ARGV[7])
redis.call('HSET', HEAD, 'seq', seq, 'at', at, 'writer', writer, 'number', number,
  'base', whole(floor.seq), 'base_at', whole(floor.at), 'base_writer', floor.writer, 'base_number', floor.number)
redis.call('HSET', WRITERS, writer, number .. ' ' .. seq .. ' ' .. at)
if floor.seq == tip.seq and floor.seq > 0 then
  -- Only now and then: what lies before a floor that the checkpoint dictated belongs to a history that is over.
  redis.call('XTRIM', PAGES, 'MINID', seq)
end
-- Those who wait hear the bell and not the page, which they would then carry twice. Its failure loses a wake-up only.
redis.pcall('XADD', BELL, 'MAXLEN', '1', seq .. '-0', 'seq', seq)
return { 'ok', at, missed, seq, at }
