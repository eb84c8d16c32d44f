-- Puts staged batches in the place of segments, if these are what was seen; nothing, where the output is empty.
--
-- KEYS  head, index, raw, staged, batches of the output, due (compress, expire, forget), batches of the segments
-- ARGV  name, number of staged batches, the id up to which events are dropped (8 bytes, or empty), the output, the segments
-- Gives `done`, `fenced`, or `lost` (the staged batches expired).

local head = read_head(KEYS[1])
local name, output = ARGV[1], ARGV[4]
local seen = redis.call('ZRANGEBYLEX', KEYS[2], '[' .. ARGV[5], '[' .. ARGV[#ARGV])
if not head or #seen ~= #ARGV - 4 then
    return 'fenced'
end
for place, member in ipairs(seen) do
    if member ~= ARGV[4 + place] then
        return 'fenced'
    end
end
if redis.call('LLEN', KEYS[4]) ~= tonumber(ARGV[2]) then
    return 'lost'
end

local before = work_of(head)
for place = 9, #KEYS do
    redis.call('UNLINK', KEYS[place])
end
for _, member in ipairs(seen) do
    redis.call('ZREM', KEYS[2], member)
end
if output ~= '' then
    redis.call('RENAME', KEYS[4], KEYS[5])
    redis.call('PERSIST', KEYS[5])
    redis.call('ZADD', KEYS[2], 0, output)
end
if ARGV[3] ~= '' then
    head.dropped_ms, head.dropped_counter = id_from(ARGV[3])
end
settle(KEYS[2], KEYS[3], head)
put_head(KEYS[1], head)
put_work({ KEYS[6], KEYS[7], KEYS[8] }, name, before, work_of(head))
return 'done'
