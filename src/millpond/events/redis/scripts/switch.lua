-- Puts a compressed batch in the place of the events that it holds, and removes their raw entries in the same step, so
-- that memory falls. A closed segment takes one batch after the other; several segments become one, of a single batch.
--
-- KEYS  head, index, raw, due (compress, expire, forget), batches of the output; where several segments become one, or a
--           compressed one is replaced: the batches that these have
-- ARGV  name, batch, its last id (8 bytes), its events, the segments as they were seen
-- Gives `done` and the segment as it is listed now; `fenced`; or `other`: these are not the events that come next.

local head = read_head(KEYS[1])
local name, batch, events = ARGV[1], ARGV[2], tonumber(ARGV[4])
local stop_ms, stop_counter = id_from(ARGV[3])
local seen = redis.call('ZRANGEBYLEX', KEYS[2], '[' .. ARGV[5], '[' .. ARGV[#ARGV])
if not head or #seen ~= #ARGV - 4 then
    return { 'fenced' }
end
local segments, days, days_bytes, total = {}, 0, '', 0
for place, member in ipairs(seen) do
    if member ~= ARGV[4 + place] then
        return { 'fenced' }
    end
    local segment = parse_segment(member)
    segments[place] = segment
    days, total = days + segment.days, total + count_of(segment)
    days_bytes = days_bytes .. string.sub(member, SEGMENT_BYTES + 1, SEGMENT_BYTES + segment.days * DAY_BYTES)
end
local last = segments[#segments]
local is_whole = last.ms == stop_ms and last.counter == stop_counter
local first_ms, first_counter = first_id(segments[1])

local function events_of(row)
    return string.byte(row) == SINGLE and 1 or struct.unpack('<I4', row, 5)
end

-- How many events of a raw entry come after an id; their ids are consecutive.
local function events_after(entry, ms, counter)
    local entry_ms, entry_counter = string.match(entry[1], '(%d+)-(%d+)')
    return math.min(events_of(entry[2][2]), (entry_ms - ms) * UNIT + entry_counter - counter)
end

-- The events behind an id up to the end of the batch; of the raw entries that end there the bytes, and the first row.
local function replaced(ms, counter)
    local found, bytes, start, stop = 0, 0, id_text(ms, counter + 1), id_text(stop_ms, stop_counter)
    local row, ended
    repeat
        local entries = redis.call('XRANGE', KEYS[3], start, stop, 'COUNT', 256)
        for _, entry in ipairs(entries) do
            -- The batch before this one may end within the first entry.
            found = found + (bytes == 0 and events_after(entry, ms, counter) or events_of(entry[2][2]))
            row, bytes, ended = row or entry[2][2], bytes + #entry[2][2], entry[1]
        end
        start = #entries == 256 and '(' .. ended
    until not start
    local entry = ended ~= stop and redis.call('XRANGE', KEYS[3], stop, id_text(last.ms, last.counter), 'COUNT', 1)[1]
    if entry then
        found = found + events_after(entry, ms, counter) - events_after(entry, stop_ms, stop_counter)
    end
    return found, bytes, row
end

local count, ids, stored, done, references = 1, ARGV[3], #batch, events, 0
if #seen == 1 and last.state == CLOSED then
    local before = batches_of(last)
    local ms, counter = first_ms, first_counter - 1
    if before.count > 0 then
        ms, counter = id_from(before.ids, #before.ids - 7)
    end
    local found, bytes, row = 0, 0, nil
    if is_after(stop_ms, stop_counter, ms, counter) and not is_after(stop_ms, stop_counter, last.ms, last.counter) then
        found, bytes, row = replaced(ms, counter)
    end
    count, ids, stored, done = before.count + 1, before.ids .. ids, last.stored + stored - bytes, before.events + events
    if found ~= events or (done == total) ~= is_whole then
        return { 'other' }
    end
    references = before.references
    if before.count == 0 and not is_whole and row and reference_of(row) ~= 0 then
        references = redis.call('RPUSH', KEYS[7], row)
    elseif is_whole and references > 0 then
        redis.call('LPOP', KEYS[7])
    end
    if head.compress == last.last_day then -- what is raw before the oldest raw day is gone already
        redis.call('XTRIM', KEYS[3], 'MINID', id_text(stop_ms, stop_counter + 1))
    end
elseif not is_whole or events ~= total then
    return { 'other' }
end

local before = work_of(head)
for place = 8, #KEYS do
    redis.call('UNLINK', KEYS[place])
end
for _, member in ipairs(seen) do
    redis.call('ZREM', KEYS[2], member)
end
redis.call('RPUSH', KEYS[7], batch)
local a, b = halves(last.ms, last.counter)
local output = struct.pack(SEGMENT, a, b, is_whole and COMPRESSED or CLOSED, math.max(stored, 0), days) .. days_bytes
    .. struct.pack('>I4', count) .. ids .. (is_whole and '' or struct.pack('>I8B', done, references))
redis.call('ZADD', KEYS[2], 0, output)
if is_whole then
    settle(KEYS[2], KEYS[3], head)
    put_head(KEYS[1], head)
    put_work({ KEYS[4], KEYS[5], KEYS[6] }, name, before, work_of(head))
end
return { 'done', output }
