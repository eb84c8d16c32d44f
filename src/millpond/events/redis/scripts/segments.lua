-- What scripts share that read the segments of a stream, or change them.

local COMPRESSED = 2
local SEGMENT_BYTES, DAY_BYTES = 19, 36

-- The id up to which the streams of a shard were lost. Without this mark the server has lost its keys since a node marked
-- the shard, and nothing is stored or read before it is marked again.
local function lost_id(key)
    return redis.call('GET', key) or error('MILLPOND_LOST')
end

local function is_after(ms, counter, other_ms, other_counter)
    return ms > other_ms or (ms == other_ms and counter > other_counter)
end

local function parse_segment(member)
    local a, b, state, stored, days = struct.unpack(SEGMENT, member)
    local segment = { state = state, member = member, days = days, stored = stored }
    segment.ms, segment.counter = id_of(a, b)
    segment.first_day = struct.unpack('>i4', member, SEGMENT_BYTES + 1)
    segment.last_day = struct.unpack('>i4', member, SEGMENT_BYTES + 1 + (days - 1) * DAY_BYTES)
    return segment
end

-- The batches of a segment: their number and last ids; where it is partly compressed their events, and the number of
-- references, 1 or 0, that stand before them.
local function batches_of(segment)
    local at = SEGMENT_BYTES + 1 + segment.days * DAY_BYTES
    if #segment.member < at then
        return { count = 0, ids = '', events = 0, references = 0 }
    end
    local count, events, references = struct.unpack('>I4', segment.member, at), 0, 0
    local stop = at + 4 + 8 * count
    if segment.state == CLOSED then
        events, references = struct.unpack('>I8B', segment.member, stop)
    end
    return { count = count, ids = string.sub(segment.member, at + 4, stop - 1), events = events, references = references }
end

local function first_id(segment)
    return id_from(segment.member, SEGMENT_BYTES + 1 + 4)
end

local function count_of(segment)
    local count = 0
    for day = 0, segment.days - 1 do
        count = count + struct.unpack('>I8', segment.member, SEGMENT_BYTES + 1 + day * DAY_BYTES + 20)
    end
    return count
end

-- Notes the oldest day, and the oldest that is raw; drops the raw entries before it, and the key with the last of them,
-- for an empty stream takes 4 KB.
local function settle(index, raw, head)
    head.compress, head.expire = NO_DAY, NO_DAY
    local ms, counter
    for _, member in ipairs(redis.call('ZRANGE', index, 0, -1)) do
        local segment = parse_segment(member)
        if head.expire == NO_DAY then
            head.expire = segment.first_day
        end
        if segment.state == CLOSED then
            head.compress, ms, counter = segment.first_day, first_id(segment)
            break
        end
    end
    if not ms and head.open == 1 then
        head.compress, ms, counter = head.day, head.first_ms, head.first_counter
        if head.expire == NO_DAY then
            head.expire = head.day
        end
    end
    if ms then
        redis.call('XTRIM', raw, 'MINID', id_text(ms, counter))
    else
        redis.call('UNLINK', raw)
    end
end
