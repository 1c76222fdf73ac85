-- What every script of the journal needs: where the journal stands, and whether a reader stands on it.
--
-- Prepended to append, read and keep. A script is one step for everybody else, and Redis replicates (and writes to the
-- append-only file) all its effects together: a replica or a restarted server holds all of a page or nothing of it, and
-- never a page without those before it.
--
-- Numbers are Lua doubles: exact up to 2^53, which is enough for places and for microseconds until the year 2255.
-- `tostring` would round them to 14 digits, hence `whole`.

local HEAD, PAGES, WRITERS, CHECKPOINT, BELL = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

local function whole(number)
  return string.format('%.0f', number)
end

-- The place of a stream entry whose id is "<place>-0".
local function place(id)
  return tonumber(string.match(id, '^%d+'))
end

-- Four fields (seq, at, writer, number) of a hash reply, beginning at `first`; place 0 if they are missing.
local function record(fields, first)
  return {
    seq = tonumber(fields[first] or 0),
    at = tonumber(fields[first + 1] or 0),
    writer = fields[first + 2] or '',
    number = fields[first + 3] or '',
  }
end

-- The same of a stream entry: {id, {'at', .., 'writer', .., 'number', .., 'body', ..}}.
local function record_of(entry)
  local fields = entry[2]
  return { seq = place(entry[1]), at = tonumber(fields[2]), writer = fields[4], number = fields[6] }
end

local function page(seq)
  return redis.call('XRANGE', PAGES, whole(seq) .. '-0', whole(seq) .. '-0')[1]
end

-- Where the journal stands:
--   tip    its last page
--   floor  the last page that was trimmed; its mark is remembered so that a reader exactly there goes on
--   kept   the checkpoint
-- If the checkpoint survived but the pages up to it did not (a half restored backup, a deleted or evicted key), the
-- journal goes on behind the checkpoint: a place that somebody may have applied is never given out again.
local function stand()
  local h = redis.call('HMGET', HEAD, 'seq', 'at', 'writer', 'number', 'base', 'base_at', 'base_writer', 'base_number')
  local kept = record(redis.call('HMGET', CHECKPOINT, 'seq', 'at', 'writer', 'number'), 1)
  local tip, floor = record(h, 1), record(h, 5)
  if not h[1] then
    -- The head is missing: what pages there are tell it.
    local last = redis.call('XREVRANGE', PAGES, '+', '-', 'COUNT', 1)[1]
    if last then
      local first = place(redis.call('XRANGE', PAGES, '-', '+', 'COUNT', 1)[1][1])
      tip = record_of(last)
      floor = { seq = first - 1, at = 0, writer = '', number = '' }
      if floor.seq > 0 and kept.seq == floor.seq then
        floor = kept
      end
    end
  end
  if kept.seq > tip.seq then
    tip, floor = kept, kept
  end
  return tip, floor, kept
end

-- Whether a position is on the journal: nil, or what to answer. `at` may be empty if the reader does not know it: it
-- tells a page from another attempt's page with the same mark, written again after the first was lost.
local function astray(tip, floor, kept, seq, writer, number, at)
  local there
  if seq == floor.seq then
    there = floor
  elseif seq == tip.seq then
    there = tip
  elseif seq > floor.seq and seq < tip.seq then
    local entry = page(seq)
    there = entry and record_of(entry)
  end
  if there and (seq == 0 or (there.writer == writer and there.number == number and (at == '' or whole(there.at) == at))) then
    return nil
  end
  if kept.seq < floor.seq then
    -- There is nothing to begin again from; going round in circles would not help.
    return { 'lost', whole(floor.seq) }
  end
  return { 'rewound' }
end

-- The journal's clock, which never steps back: the given time in tests, or the server's.
local function clock(tip, given)
  local now
  if given ~= '' then
    now = tonumber(given)
  else
    local time = redis.call('TIME')
    now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  return math.max(now, tip.at)
end
