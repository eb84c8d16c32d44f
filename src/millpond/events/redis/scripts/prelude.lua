-- What all scripts share: the rows of a stream, as docs/format/events.md draws them.
-- Ids have 63 bits and Lua's numbers 53, so an id is two numbers here: milliseconds, and a counter below UNIT.
-- They are also the two halves of a Redis stream's id.
-- Bytes are never compared with `<`: Lua compares them as texts of the server's language.

local UNIT = 1048576
local MS_MAX = 8796093022207
local DAY_MS = 86400000
local DAY_MAX = 2932896
local NO_DAY = -1
local CLOSED = 1
local HEAD_VERSION, HEAD = 3, '>BBI4I4i4i4i4I4I4I4I4I4I8I8I8Bc0c16i4'
local EARLIER_HEAD = '>BBI4I4I4I4i4i4i4I4I4I8I8I8'
local SINGLE, DEFLATED, REFERENCE_BYTES_MAX = 2, 2, 4096
local SEGMENT = '>I4I4BI8I2'
local POSITION_BYTES, NO_POSITION = 16, string.rep('\0', 16)

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

-- The checksum of the first row of a day, with which others are deflated; 0 for one that is not for that.
local function reference_of(row)
    local is_one = string.byte(row) == SINGLE and string.byte(row, 2) < DEFLATED and #row <= REFERENCE_BYTES_MAX
    return is_one and struct.unpack('<I4', row, 3) or 0
end

local function parse_head(row)
    local version, head = string.byte(row), { reference = 0, source = '', position = NO_POSITION, source_day = NO_DAY }
    local _, a, b, c, d, e, f, at
    if version == HEAD_VERSION then
        _, head.open, c, d, head.day, head.compress, head.expire, e, f, head.reference, a, b, head.count, head.bytes,
            head.stored, head.source, head.position, head.source_day, at = struct.unpack(HEAD, row)
    elseif version == 1 or version == 2 then
        _, head.open, a, b, c, d, head.day, head.compress, head.expire, e, f, head.count, head.bytes, head.stored, at =
            struct.unpack(EARLIER_HEAD, row)
        if version == 2 then
            head.reference, at = struct.unpack('>I4', row, at)
        end
    else
        error('MILLPOND_FORMAT ' .. (version or 0))
    end
    head.ms, head.counter = id_of(a, b)
    head.dropped_ms, head.dropped_counter = id_of(c, d)
    head.first_ms, head.first_counter = id_of(e, f)
    head.names = string.sub(row, at)
    return head
end

local function read_head(key)
    local row = redis.call('GET', key)
    return row and parse_head(row) or nil
end

local function new_head(names)
    return {
        open = 0, ms = 0, counter = 0, dropped_ms = 0, dropped_counter = 0, day = NO_DAY, compress = NO_DAY,
        expire = NO_DAY, first_ms = 0, first_counter = 0, count = 0, bytes = 0, stored = 0, reference = 0,
        source = '', position = NO_POSITION, source_day = NO_DAY, names = names,
    }
end

local function pack_head(head)
    local a, b = halves(head.ms, head.counter)
    local c, d = halves(head.dropped_ms, head.dropped_counter)
    local e, f = halves(head.first_ms, head.first_counter)
    return struct.pack(HEAD, HEAD_VERSION, head.open, c, d, head.day, head.compress, head.expire, e, f, head.reference,
        a, b, head.count, head.bytes, head.stored, #head.source, head.source, head.position, head.source_day)
        .. head.names
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
    head.reference = 0
end
