-- Changes batches of a compressed segment from which events go, and what the index says of them.
--
-- KEYS  head, index, raw, due (compress, expire, forget), batches of the segment, batches of the output
-- ARGV  name, the id up to which events are dropped (8 bytes, or empty), the segment as it was seen, the output (empty:
--           nothing is left), then the places of the batches that change, each with the new one (empty: it goes)
-- Gives `done`, or `fenced`.

local head = read_head(KEYS[1])
if not head or not redis.call('ZSCORE', KEYS[2], ARGV[3]) then
    return 'fenced'
end
local before = work_of(head)
for place = 5, #ARGV, 2 do
    redis.call('LSET', KEYS[7], ARGV[place], ARGV[place + 1])
end
redis.call('LREM', KEYS[7], 0, '')
redis.call('ZREM', KEYS[2], ARGV[3])
if ARGV[4] ~= '' then
    redis.call('ZADD', KEYS[2], 0, ARGV[4])
    if KEYS[7] ~= KEYS[8] then
        redis.call('RENAME', KEYS[7], KEYS[8])
    end
end
if ARGV[2] ~= '' then
    head.dropped_ms, head.dropped_counter = id_from(ARGV[2])
end
settle(KEYS[2], KEYS[3], head)
put_head(KEYS[1], head)
put_work({ KEYS[4], KEYS[5], KEYS[6] }, ARGV[1], before, work_of(head))
return 'done'
