-- Appends deliveries to streams of one slot, or of one server: ids, days and source positions are decided here, at once.
--
-- KEYS  the heads of the streams; the marks of their shards, each once; then, for a cluster, all their other keys, which
--           are named alike
-- ARGV  now_ms (-1: the server's), how far ahead of it a time may be, the number of streams, the number of marks, then
--           for each stream: its names in full, deliveries, then for each delivery: source, its numbers (first and last
--           position, events, rows), then for each row: its numbers (day, events, bytes), row. Of a lone row of one
--           event the numbers end with the id and the checksum of the row that it was deflated with, or with `?`: the
--           reference is unknown. Without a source the positions are 0; or 1, and the id that must be the stream's last.
-- Gives an answer for each delivery: `n` and the first id, `r` (nothing is new) and the last id of the stream, `c`
-- (stored up to the middle) and the position, `m` (another id is the last) and that id, `f` (no ids are left), `p`
-- (another reference is used: send it plain), or `-`: it comes after a `c` or an `f`. After `?`, behind `n` and the id:
-- the id of the reference, and the row.

local DELIVERY, ROW = '>c16c16I4I4', '>i4I4I4'

local function is_below(one, other)
    local a, b, c, d = struct.unpack('>I4I4I4I4', one)
    local e, f, g, h = struct.unpack('>I4I4I4I4', other)
    if a ~= e then return a < e end
    if b ~= f then return b < f end
    if c ~= g then return c < g end
    return d < h
end

local now, streams = tonumber(ARGV[1]), tonumber(ARGV[3])
if now < 0 then
    local time = redis.call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local today, latest = math.floor(now / DAY_MS), math.min(math.floor((now + ARGV[2]) / DAY_MS), DAY_MAX)

-- Heads of another version are found before anything is written, and shards that were lost, as `lost_id` finds them.
local heads = redis.call('MGET', unpack(KEYS, 1, streams + ARGV[4]))
for place = streams + 1, streams + ARGV[4] do
    if not heads[place] then
        error('MILLPOND_LOST')
    end
end
for place = 1, streams do
    heads[place] = heads[place] and parse_head(heads[place])
end

local head, floor, before, shard, name

local function open_day(day, ms, counter, row)
    before = before or work_of(head)
    if head.open == 1 then
        close_day(shard .. 'index:' .. name, head)
    end
    head.open, head.day, head.first_ms, head.first_counter, head.reference = 1, day, ms, counter, reference_of(row)
    if head.compress == NO_DAY then head.compress = day end
    if head.expire == NO_DAY then head.expire = day end
end

local function day_for(day)
    return math.max(math.min(day, latest), floor)
end

-- True when a row was deflated with the first row of the day that it goes to.
local function has_reference(numbers)
    local day, _, _, a, b, reference = struct.unpack('>i4I4I4I4I4I4', numbers)
    local ms, counter = id_of(a, b)
    return head.open == 1 and ms == head.first_ms and counter == head.first_counter and reference == head.reference
        and day_for(day) == head.day
end

-- The reference of the open day; its row only where it is not the one that was just appended.
local function reference_answer(raw, ms, counter)
    local first = id_bytes(head.first_ms, head.first_counter)
    if head.reference == 0 or (head.first_ms == ms and head.first_counter == counter) then
        return head.reference == 0 and '' or first
    end
    local id = id_text(head.first_ms, head.first_counter)
    local entry = redis.call('XRANGE', raw, id, id)[1]
    return entry and first .. entry[2][2] or ''
end

local function append_row(raw, ms, counter, numbers, row)
    local day, count, bytes = struct.unpack(ROW, numbers)
    day = day_for(day)
    if head.open == 0 or day > head.day then
        open_day(day, ms, counter, row)
    end
    floor = day
    if count > 1 then
        ms, counter = advanced(ms, counter, count - 1)
    end
    redis.call('XADD', raw, id_text(ms, counter), 'e', row)
    head.ms, head.counter = ms, counter
    head.count, head.bytes, head.stored = head.count + count, head.bytes + bytes, head.stored + #row
    return advanced(ms, counter, 1)
end

-- The answer to a delivery that is not to be stored, or nil.
local function answer_without(stored, first, last, count)
    if count == 0 then
        return 'r' .. id_bytes(head.ms, head.counter)
    end
    if not stored or is_below(stored, first) then
        return nil
    end
    if is_below(stored, last) then
        return 'c' .. stored
    end
    return 'r' .. id_bytes(head.ms, head.counter)
end

-- The position of a source, or nil.
local function position_of(sources, source)
    if source == head.source then
        return source ~= '' and head.position or nil
    end
    local row = redis.call('HGET', sources, source)
    return row and string.sub(row, 1, POSITION_BYTES) or nil
end

-- Notes a position in the head; that of the source that was there goes to the others.
local function note_position(sources, source, position)
    if head.source ~= source and head.source ~= '' then
        redis.call('HSET', sources, head.source, head.position .. struct.pack('>i4', head.source_day))
    end
    -- history is delivered long after the days of its events
    head.source, head.position, head.source_day = source, position, math.max(head.day, today)
end

local answers, written, changed, ids, at, ended = {}, {}, {}, {}, 5, false

local function append_delivery(raw, sources)
    local source, first, last, count, rows = ARGV[at], struct.unpack(DELIVERY, ARGV[at + 1])
    local from = at + 2
    at = from + 2 * rows
    if ended then
        return '-'
    end
    if source == '' and string.byte(first, 16) == 1 and string.sub(last, 9) ~= id_bytes(head.ms, head.counter) then
        return 'm' .. id_bytes(head.ms, head.counter)
    end
    local answer = answer_without(source ~= '' and position_of(sources, source), first, last, count)
    if answer then
        ended = string.byte(answer) == 99 -- `c`
        return answer
    end
    local numbers = ARGV[from]
    local is_asking = #numbers == 13
    if #numbers > 13 and not has_reference(numbers) then
        return 'p'
    end
    local ms, counter = advanced(head.ms, head.counter, 1)
    if now > ms then
        ms, counter = now, 0
    end
    if advanced(ms, counter, count) > MS_MAX then
        ended = true
        return 'f'
    end
    local first_ms, first_counter = ms, counter
    for place = from, at - 1, 2 do
        ms, counter = append_row(raw, ms, counter, ARGV[place], ARGV[place + 1])
    end
    if source ~= '' then
        note_position(sources, source, last)
    end
    answer = 'n' .. id_bytes(first_ms, first_counter)
    return is_asking and answer .. reference_answer(raw, first_ms, first_counter) or answer
end

for place = 1, streams do
    local key, names, deliveries = KEYS[place], ARGV[at], tonumber(ARGV[at + 1])
    local split = string.find(key, '}', 1, true) + 1
    shard, name = string.sub(key, 1, split), string.sub(key, split + 6)
    local raw, sources = shard .. 'raw:' .. name, shard .. 'sources:' .. name
    local is_new = not heads[place]
    head, before, floor, ended = heads[place] or new_head(names), nil, 0, false
    if head.open == 1 then
        floor = head.day
    elseif head.day ~= NO_DAY then
        floor = math.min(math.max(head.day + 1, today), DAY_MAX)
    else
        -- While the clock is 36 hours behind the time that was believed last, it counts for no stream's first day.
        local believed = tonumber(redis.call('GET', shard .. 'clock') or 0)
        floor = now < believed - 129600000 and math.floor(believed / DAY_MS) or 0
    end
    local ms, counter = head.ms, head.counter
    at = at + 2
    for _ = 1, deliveries do
        answers[#answers + 1] = append_delivery(raw, sources)
    end
    if head.ms ~= ms or head.counter ~= counter then
        changed[#changed + 1], ids[#ids + 1] = key, id_bytes(head.ms, head.counter)
        written[#written + 1] = key
        written[#written + 1] = pack_head(head)
        if before then
            put_work({ shard .. 'due:compress', shard .. 'due:expire', shard .. 'due:forget' }, name, before, work_of(head))
        end
        if is_new then
            redis.call('ZADD', shard .. 'names', 0, name)
        end
    end
end
if changed[1] then
    redis.call('MSET', unpack(written))
    -- Only streams that somebody follows are published; who may not look for followers publishes all of them.
    local followers = redis.pcall('PUBSUB', 'SHARDNUMSUB', unpack(changed))
    for place, key in ipairs(changed) do
        if followers.err or followers[2 * place] > 0 then
            redis.call('SPUBLISH', key, ids[place])
        end
    end
end
return answers
