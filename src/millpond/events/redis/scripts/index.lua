-- KEYS  head, index. Gives the head and the segments, oldest first; nothing for a stream that is not there.

local row = redis.call('GET', KEYS[1])
if not row then
    return {}
end
return { row, redis.call('ZRANGE', KEYS[2], 0, -1) }
