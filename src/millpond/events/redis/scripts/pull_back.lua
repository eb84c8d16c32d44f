-- Lets days after the latest one that are not compressed be days up to it, as far as there is room; 1 when some were.
--
-- KEYS  head, index, raw, due (compress, expire, forget)
-- ARGV  the latest day, name, the beginning of the keys of batches

local head = read_head(KEYS[1])
local latest = tonumber(ARGV[1])
if not head or head.day <= latest then
    return 0
end
local before, old_day, closed, floor = work_of(head), head.day, {}, NO_DAY
for _, member in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    local segment = parse_segment(member)
    if segment.state == CLOSED then
        closed[#closed + 1] = segment
    else
        floor = segment.last_day
    end
end
local later = #closed + head.open

local function pulled_back(day)
    later = later - 1
    floor = math.max(math.min(day, latest - later), floor + 1)
    return floor
end

for _, segment in ipairs(closed) do
    local day, member = pulled_back(segment.first_day), segment.member
    if day ~= segment.first_day and batches_of(segment).count > 0 then
        redis.call('RENAME', ARGV[3] .. segment.first_day, ARGV[3] .. day)
    end
    redis.call('ZREM', KEYS[2], member)
    redis.call('ZADD', KEYS[2], 0, string.sub(member, 1, SEGMENT_BYTES) .. struct.pack('>i4', day)
        .. string.sub(member, SEGMENT_BYTES + 5))
end
if head.open == 1 then
    head.day = pulled_back(head.day)
else
    head.day = #closed > 0 and floor or math.max(latest, floor)
end
settle(KEYS[2], KEYS[3], head)
put_head(KEYS[1], head)
put_work({ KEYS[4], KEYS[5], KEYS[6] }, ARGV[2], before, work_of(head))
return head.day < old_day and 1 or 0
