-- Drops the segments whose days are all due, and forgets a stream that had no events for long.
--
-- KEYS  head, index, raw, sources, due (compress, expire, forget), names, batches of segments
-- ARGV  day, forget_day, name, then the last day of each of these segments
-- Gives the number of events dropped, and `done`, `again` (a segment with batches is due that was not named), or `trim`
-- with the segment, of which only some days are due.

local head = read_head(KEYS[1])
if not head then
    return { 0, 'done', '' }
end
local day, name, before = tonumber(ARGV[1]), ARGV[3], work_of(head)
local keys = {}
for place = 4, #ARGV do
    keys[tonumber(ARGV[place])] = KEYS[5 + place]
end
local changed = head.open == 1 and head.day <= day
if changed then
    close_day(KEYS[2], head)
end

local count, outcome, trimmed = 0, 'done', ''
while true do
    local member = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
    local segment = member and parse_segment(member)
    if not segment or segment.first_day > day then
        break
    end
    if segment.last_day > day then
        outcome, trimmed = 'trim', member
        break
    end
    if batches_of(segment).count > 0 then
        if not keys[segment.last_day] then
            outcome = 'again'
            break
        end
        redis.call('UNLINK', keys[segment.last_day])
    end
    redis.call('ZREM', KEYS[2], member)
    count, changed = count + count_of(segment), true
    head.dropped_ms, head.dropped_counter = segment.ms, segment.counter
end
if changed then
    settle(KEYS[2], KEYS[3], head)
end

-- Positions go with the day of their last events, and not before a stream would be forgotten. One without a day was
-- written before days were noted.
local latest = math.min(day, tonumber(ARGV[2]))
local positions = outcome == 'done' and redis.call('HGETALL', KEYS[4]) or {}
for place = 1, #positions, 2 do
    local source, row = positions[place], positions[place + 1]
    if #row == POSITION_BYTES then
        redis.call('HSET', KEYS[4], source, row .. struct.pack('>i4', head.day))
    elseif struct.unpack('>i4', row, POSITION_BYTES + 1) <= latest then
        redis.call('HDEL', KEYS[4], source)
    end
end
if outcome == 'done' and head.source ~= '' and head.source_day <= latest then
    head.source, head.position, head.source_day, changed = '', NO_POSITION, NO_DAY, true
end

local due = { KEYS[5], KEYS[6], KEYS[7] }
if head.expire == NO_DAY and forget_day(head) <= tonumber(ARGV[2]) then
    put_work(due, name, before, { NO_DAY, NO_DAY, NO_DAY })
    redis.call('ZREM', KEYS[8], name)
    redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
elseif changed then
    put_head(KEYS[1], head)
    put_work(due, name, before, work_of(head))
end
return { count, outcome, trimmed }
