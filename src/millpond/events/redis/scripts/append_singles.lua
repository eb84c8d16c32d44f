-- Appends one event to each of some streams whose days are open: what most appends are, in as few steps as can be, so
-- that this script stands alone. It knows of a head only what such an append changes. Most of its time are arguments,
-- texts of numbers, tables and calls, not what these do: there is little of them.
--
-- KEYS  the heads of the streams; then, for a cluster, all their other keys, which are named alike. A mark is not read:
--           a head is made only in a shard that has one, and both are lost together.
-- ARGV  numbers: of all (the time and 1, 0 stands for the server's; how far ahead of it a time may be; the number of
--           streams), then of each stream (flags, position, day, bytes, the id and the checksum of the reference); then
--           for each stream: its source, where it has another one than the stream before, and its row
-- Gives nine bytes for each stream: `n` and the id, `r` (it was stored before) and the last id of the stream, or `-`: it
-- is for `append.lua`, for the day is not open, or the reference is another one.

local UNIT, MS_MAX, DAY_MS, VERSION, OPEN = 1048576, 8796093022207, 86400000, 3, 1
-- of a head: version, open and dropped id; day; days of work, and 12 bytes of its reference; last id, events, bytes, stored
-- bytes; its source, with position and day
local HEAD, CHANGED = '>c10i4c20I4I4I8I8I8Bc0I4I4I4I4i4', '>c10i4c20c8I8I8I8Bc0I4I4I4I4i4'
local FOR_ALL, ALL_BYTES, NUMBERS, NUMBERS_BYTES = '>I8I8I4', 20, '>BI4I4I4I4i4I4c12', 37
local unpacked, packed, byte, sub, call = struct.unpack, struct.pack, string.byte, string.sub, redis.call

local numbers = ARGV[1]
local now, ahead, streams = unpacked(FOR_ALL, numbers)
now = now - 1
if now < 0 then
    local time = call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local row, rows = nil, nil
if streams == 1 then
    row = call('GET', KEYS[1])
else
    rows = call('MGET', unpack(KEYS, 1, streams))
end

-- Heads of another version are found before anything is written.
for place = 1, streams do
    row = rows and rows[place] or row
    local version = row and byte(row) or 0
    if version > VERSION then
        error('MILLPOND_FORMAT ' .. version)
    end
end

local answer, head, answers, written, at = nil, nil, rows and {}, rows and {}, 2
local shard_bytes = string.find(KEYS[1], '}', 1, true) + 1
-- Ids are made of the time, so those of many streams are alike: the text of the last one is kept.
local source, known_ms, known_counter, id_text, id

for place = 1, streams do
    local key, event = KEYS[place], nil
    local flags, a, b, c, d, event_day, size, reference =
        unpacked(NUMBERS, numbers, ALL_BYTES + 1 + (place - 1) * NUMBERS_BYTES)
    if rows then
        row = rows[place]
    end
    -- 1: it has a source; 2: that is another one than before; 4: it is deflated
    if flags % 4 > 1 then
        source, at = ARGV[at], at + 1
    end
    event, at, answer, head = ARGV[at], at + 1, '-00000000', nil
    local version, open = 0, 0
    if row then
        version, open = byte(row, 1, 2)
    end
    if version == VERSION and open == OPEN then
        local begin, day, kept, upper, lower, count, bytes, stored, last_source, e, f, g, h, last_day, stop =
            unpacked(HEAD, row)
        if (event_day <= day or now + ahead < (day + 1) * DAY_MS) and (flags < 4 or reference == sub(kept, 9)) then
            local shard, name = sub(key, 1, shard_bytes), sub(key, shard_bytes + 6)
            local has_source, is_stored, spilled = flags % 2 == 1, false, nil
            if has_source then
                local is_known = source == last_source
                if not is_known then
                    local before = call('HGET', shard .. 'sources:' .. name, source)
                    spilled = last_source ~= '' and packed('>I4I4I4I4i4', e, f, g, h, last_day)
                    if before then
                        is_known, e, f, g, h = true, unpacked('>I4I4I4I4', before)
                    end
                end
                is_stored = is_known
                    and (e > a or (e == a and (f > b or (f == b and (g > c or (g == c and h >= d))))))
            end
            local ms, counter = upper * 4096 + (lower - lower % UNIT) / UNIT, lower % UNIT + 1
            if now > ms then
                ms, counter = now, 0
            elseif counter == UNIT then
                ms, counter = ms + 1, 0
            end
            if is_stored then
                answer = packed('>c1I4I4', 'r', upper, lower)
            elseif ms < MS_MAX then
                if ms ~= known_ms or counter ~= known_counter then
                    known_ms, known_counter = ms, counter
                    id_text = string.format('%.0f-%d', ms, counter)
                    id = packed('>I4I4', (ms - ms % 4096) / 4096, (ms % 4096) * UNIT + counter)
                end
                call('XADD', shard .. 'raw:' .. name, id_text, 'e', event)
                if spilled then
                    call('HSET', shard .. 'sources:' .. name, last_source, spilled)
                end
                if has_source then
                    local today = (now - now % DAY_MS) / DAY_MS
                    last_source, e, f, g, h, last_day = source, a, b, c, d, day > today and day or today
                end
                answer = 'n' .. id
                head = packed(CHANGED, begin, day, kept, id, count + 1, bytes + size, stored + #event, #last_source,
                    last_source, e, f, g, h, last_day)
                if stop <= #row then
                    head = head .. sub(row, stop)
                end
            end
        end
    end
    if rows then
        answers[place] = answer
        if head then
            written[#written + 1] = key
            written[#written + 1] = head
        end
    end
end
if not rows then
    if head then
        call('SET', KEYS[1], head)
        -- To publish costs less than to look for followers, but in a cluster it is a large message to each replica.
        local followers = #KEYS > 1 and redis.pcall('PUBSUB', 'SHARDNUMSUB', KEYS[1])
        if not followers or followers.err or followers[2] > 0 then
            call('SPUBLISH', KEYS[1], id)
        end
    end
    return answer
end
if written[1] then
    call('MSET', unpack(written))
    -- Only streams that somebody follows are published; who may not look for followers publishes all of them.
    local changed = {}
    for place = 1, #written, 2 do
        changed[#changed + 1] = written[place]
    end
    local followers = redis.pcall('PUBSUB', 'SHARDNUMSUB', unpack(changed))
    for place, key in ipairs(changed) do
        if followers.err or followers[2 * place] > 0 then
            call('SPUBLISH', key, sub(written[2 * place], 35, 42))
        end
    end
end
return table.concat(answers)
