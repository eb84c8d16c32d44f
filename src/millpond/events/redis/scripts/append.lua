-- Appends deliveries to one stream: ids, days and source positions are decided here, all at once.
--
-- KEYS  head, raw, sources, index, due (compress, expire, forget), names, lost
-- ARGV  now_ms (-1: the server's), how far ahead of it a time may be, name, names in full, then for each delivery:
--           source, first position, last position, events, rows, then for each row: day, events, bytes, row
-- Gives an answer for each delivery: `n` and the first id, `r` (nothing is new) and the last id of the stream,
-- `c` (stored up to the middle) and the position, or `f` (no ids are left); nothing after the last two is looked at.

local function is_below(one, other)
    local a, b, c, d = struct.unpack('>I4I4I4I4', one)
    local e, f, g, h = struct.unpack('>I4I4I4I4', other)
    if a ~= e then return a < e end
    if b ~= f then return b < f end
    if c ~= g then return c < g end
    return d < h
end

lost_id(KEYS[9])
local now, name = tonumber(ARGV[1]), ARGV[3]
if now < 0 then
    local time = redis.call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local today, latest = math.floor(now / DAY_MS), math.min(math.floor((now + ARGV[2]) / DAY_MS), DAY_MAX)
local head = read_head(KEYS[1])
local is_new = head == nil
head = head or new_head(ARGV[4])
local before = work_of(head)
local floor = 0
if head.open == 1 then
    floor = head.day
elseif head.day ~= NO_DAY then
    floor = math.min(math.max(head.day + 1, today), DAY_MAX)
end

local function append_row(ms, counter, day, count, bytes, row)
    day = math.max(math.min(day, latest), floor)
    if head.open == 0 or day > head.day then
        if head.open == 1 then
            close_day(KEYS[4], head)
        end
        head.open, head.day, head.first_ms, head.first_counter = 1, day, ms, counter
        if head.compress == NO_DAY then head.compress = day end
        if head.expire == NO_DAY then head.expire = day end
    end
    floor = day
    head.ms, head.counter = advanced(ms, counter, count - 1)
    redis.call('XADD', KEYS[2], id_text(head.ms, head.counter), 'e', row)
    head.count, head.bytes, head.stored = head.count + count, head.bytes + bytes, head.stored + #row
end

-- The answer to a delivery that is not to be stored, or nil.
local function answer_without(source, first, last, count)
    if count == 0 then
        return 'r' .. id_bytes(head.ms, head.counter)
    end
    local stored = source ~= '' and redis.call('HGET', KEYS[3], source)
    if not stored or is_below(stored, first) then
        return nil
    end
    if is_below(stored, last) then
        return 'c' .. string.sub(stored, 1, POSITION_BYTES)
    end
    return 'r' .. id_bytes(head.ms, head.counter)
end

local answers, at, changed = {}, 5, false
while at <= #ARGV do
    local source, last, count, rows = ARGV[at], ARGV[at + 2], tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
    local answer = answer_without(source, ARGV[at + 1], last, count)
    at = at + 5
    if answer then
        at = at + 4 * rows
    else
        local ms, counter = advanced(head.ms, head.counter, 1)
        if now > ms then
            ms, counter = now, 0
        end
        if advanced(ms, counter, count) > MS_MAX then
            answer = 'f'
        else
            answer, changed = 'n' .. id_bytes(ms, counter), true
            for _ = 1, rows do
                local events = tonumber(ARGV[at + 1])
                append_row(ms, counter, tonumber(ARGV[at]), events, tonumber(ARGV[at + 2]), ARGV[at + 3])
                ms, counter = advanced(ms, counter, events)
                at = at + 4
            end
            if source ~= '' then
                -- history is delivered long after the days of its events
                redis.call('HSET', KEYS[3], source, last .. struct.pack('>i4', math.max(head.day, today)))
            end
        end
    end
    answers[#answers + 1] = answer
    local kind = string.sub(answer, 1, 1)
    if kind == 'c' or kind == 'f' then
        break
    end
end
if changed then
    put_head(KEYS[1], head)
    put_work({ KEYS[5], KEYS[6], KEYS[7] }, name, before, work_of(head))
    if is_new then
        redis.call('ZADD', KEYS[8], 0, name)
    end
    redis.call('SPUBLISH', KEYS[1], id_bytes(head.ms, head.counter))
end
return answers
