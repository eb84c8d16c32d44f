-- What all scripts share: the rows of a stream, as docs/format/events.md draws them.
-- Ids have 63 bits and Lua's numbers 53, so an id is two numbers here: milliseconds, and a counter below UNIT.
-- They are also the two halves of a Redis stream's id.
-- Bytes are never compared with `<`: Lua compares them as texts of the server's language.

local UNIT = 1048576
local MS_MAX = 8796093022207
local DAY_MS = 86400000
local DAY_MAX = 2932896
local NO_DAY = -1
local CLOSED, COMPRESSED = 1, 2
local HEAD = '>BBI4I4I4I4i4i4i4I4I4I8I8I8'
local SEGMENT = '>I4I4BI8I2'
local SEGMENT_BYTES, DAY_BYTES, POSITION_BYTES = 19, 36, 16

local function id_of(upper, lower)
    return upper * 4096 + math.floor(lower / UNIT), lower % UNIT
end

local function halves(ms, counter)
    return math.floor(ms / 4096), (ms % 4096) * UNIT + counter
end

local function id_bytes(ms, counter)
    return struct.pack('>I4I4', halves(ms, counter))
end

local function id_from(bytes, at)
    local upper, lower = struct.unpack('>I4I4', bytes, at or 1)
    return id_of(upper, lower)
end

local function id_text(ms, counter)
    return string.format('%.0f-%.0f', ms, counter)
end

local function advanced(ms, counter, count)
    local total = counter + count
    return ms + math.floor(total / UNIT), total % UNIT
end

local function is_after(ms, counter, other_ms, other_counter)
    return ms > other_ms or (ms == other_ms and counter > other_counter)
end

local function parse_head(row)
    if string.byte(row) ~= 1 then
        error('MILLPOND_FORMAT ' .. (string.byte(row) or 0))
    end
    local _, open, a, b, c, d, day, compress, expire, e, f, count, bytes, stored, at = struct.unpack(HEAD, row)
    local ms, counter = id_of(a, b)
    local dropped_ms, dropped_counter = id_of(c, d)
    local first_ms, first_counter = id_of(e, f)
    return {
        open = open, ms = ms, counter = counter, dropped_ms = dropped_ms, dropped_counter = dropped_counter, day = day,
        compress = compress, expire = expire, first_ms = first_ms, first_counter = first_counter, count = count,
        bytes = bytes, stored = stored, names = string.sub(row, at),
    }
end

local function read_head(key)
    local row = redis.call('GET', key)
    return row and parse_head(row) or nil
end

local function new_head(names)
    return {
        open = 0, ms = 0, counter = 0, dropped_ms = 0, dropped_counter = 0, day = NO_DAY, compress = NO_DAY,
        expire = NO_DAY, first_ms = 0, first_counter = 0, count = 0, bytes = 0, stored = 0, names = names,
    }
end

local function pack_head(head)
    local a, b = halves(head.ms, head.counter)
    local c, d = halves(head.dropped_ms, head.dropped_counter)
    local e, f = halves(head.first_ms, head.first_counter)
    return struct.pack(HEAD, 1, head.open, a, b, c, d, head.day, head.compress, head.expire, e, f, head.count, head.bytes,
        head.stored) .. head.names
end

local function put_head(key, head)
    redis.call('SET', key, pack_head(head))
end

-- The day from whose end on it is counted how long a stream without events is remembered: that of its last append.
local function forget_day(head)
    return math.max(head.day, math.floor(head.ms / DAY_MS))
end

-- The days for which a stream is in the registry: to compress, to expire, to forget.
local function work_of(head)
    return { head.compress, head.expire, head.expire == NO_DAY and head.day ~= NO_DAY and forget_day(head) or NO_DAY }
end

-- Changes the registry from what it says to what a head says; `keys` are those of its three sorted sets.
local function put_work(keys, name, before, after)
    for place = 1, 3 do
        if before[place] ~= after[place] then
            if before[place] ~= NO_DAY then
                redis.call('ZREM', keys[place], string.format('%07d', before[place]) .. name)
            end
            if after[place] ~= NO_DAY then
                redis.call('ZADD', keys[place], 0, string.format('%07d', after[place]) .. name)
            end
        end
    end
end

-- Lists the open day as closed.
local function close_day(index, head)
    local a, b = halves(head.ms, head.counter)
    local e, f = halves(head.first_ms, head.first_counter)
    redis.call('ZADD', index, 0, struct.pack(SEGMENT, a, b, CLOSED, head.stored, 1)
        .. struct.pack('>i4I4I4I4I4I8I8', head.day, e, f, a, b, head.count, head.bytes))
    head.open, head.first_ms, head.first_counter, head.count, head.bytes, head.stored = 0, 0, 0, 0, 0, 0
end

local function parse_segment(member)
    local a, b, state, _, days = struct.unpack(SEGMENT, member)
    local segment = { state = state, member = member, days = days }
    segment.ms, segment.counter = id_of(a, b)
    segment.first_day = struct.unpack('>i4', member, SEGMENT_BYTES + 1)
    segment.last_day = struct.unpack('>i4', member, SEGMENT_BYTES + 1 + (days - 1) * DAY_BYTES)
    return segment
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
