-- Drops all segments and raw entries of a stream at once, and gives an id without an event to the deletion.
--
-- KEYS  head, index, raw, due (compress, expire, forget), batches of segments
-- ARGV  now_ms (-1: the server's), name, then the last day of each of these segments
-- Gives the number of events dropped, and `done`, or `again`: a segment with batches was not named, and nothing is changed.

local head = read_head(KEYS[1])
if not head then
    return { 0, 'done' }
end
local now, named = tonumber(ARGV[1]), {}
if now < 0 then
    local time = redis.call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
end
for place = 3, #ARGV do
    named[tonumber(ARGV[place])] = true
end
local members, count = redis.call('ZRANGE', KEYS[2], 0, -1), head.count
for _, member in ipairs(members) do
    local segment = parse_segment(member)
    if batches_of(segment).count > 0 and not named[segment.last_day] then
        return { 0, 'again' }
    end
    count = count + count_of(segment)
end
if count == 0 then
    return { 0, 'done' }
end

local before, ms, counter = work_of(head), advanced(head.ms, head.counter, 1)
if now > ms then
    ms, counter = now, 0
end
for place = 7, #KEYS do
    redis.call('UNLINK', KEYS[place])
end
redis.call('UNLINK', KEYS[2], KEYS[3])
local emptied = new_head(head.names)
emptied.ms, emptied.counter, emptied.dropped_ms, emptied.dropped_counter = ms, counter, ms, counter
emptied.source, emptied.position, emptied.source_day = head.source, head.position, head.source_day
-- No day is left, so today's events find today free.
emptied.day = math.max(math.min(head.day, math.floor(now / DAY_MS) - 1), 0)
put_head(KEYS[1], emptied)
put_work({ KEYS[4], KEYS[5], KEYS[6] }, ARGV[2], before, work_of(emptied))
redis.call('SPUBLISH', KEYS[1], id_bytes(ms, counter))
return { count, 'done' }
