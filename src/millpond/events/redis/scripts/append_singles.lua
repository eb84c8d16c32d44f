-- Appends one event to each of some streams whose days are open: what most appends are, in as few steps as can be, so
-- that this script stands alone. It knows of a head only what such an append changes.
--
-- KEYS  the heads of the streams; the marks of their shards, each once; then, for a cluster, all their other keys, which
--           are named alike
-- ARGV  now_ms (-1: the server's), how far ahead of it a time may be, the number of streams, the number of marks; the
--           numbers of all streams (flags, position, day, bytes, the id and the checksum of the reference); then for
--           each stream: its source, where it has another one than the stream before, and its row
-- Gives an answer for each stream: `n` and the id, `r` (it was stored before) and the last id of the stream, or `-`: it
-- is for `append.lua`, for the day is not open, or the reference is another one.

local UNIT, MS_MAX, DAY_MS = 1048576, 8796093022207, 86400000
-- of a head behind version and open: last id, dropped id, day, days of work and first id, events, bytes, stored bytes
local HEAD, HEAD_FROM, OPEN = '>I4I4c8i4c16I8I8I8', 3, '\2\1'
local NUMBERS, NUMBERS_BYTES, REFERENCE_FROM, REFERENCE_BYTES = '>Bc16i4I4', 37, 25, 12
local HAS_SOURCE, OTHER_SOURCE, DEFLATED = 1, 2, 4
local unpacked, packed, floor, sub, call = struct.unpack, struct.pack, math.floor, string.sub, redis.call

local now, streams = tonumber(ARGV[1]), tonumber(ARGV[3])
if now < 0 then
    local time = call('TIME')
    now = time[1] * 1000 + floor(time[2] / 1000)
end
local today, latest = floor(now / DAY_MS), floor((now + ARGV[2]) / DAY_MS)
local rows = call('MGET', unpack(KEYS, 1, streams + ARGV[4]))

-- Heads of another version are found before anything is written, and shards whose mark is lost with all other keys.
for place = 1, streams do
    local version = rows[place] and string.byte(rows[place])
    if version and version > 2 then
        error('MILLPOND_FORMAT ' .. version)
    end
end
for place = streams + 1, streams + ARGV[4] do
    if not rows[place] then
        error('MILLPOND_LOST')
    end
end

local function is_stored(before, position)
    local a, b, c, d = unpacked('>I4I4I4I4', before)
    local e, f, g, h = unpacked('>I4I4I4I4', position)
    return a > e or (a == e and (b > f or (b == f and (c > g or (c == g and d >= h)))))
end

local answers, written, changed, at, numbers = {}, {}, {}, 6, ARGV[5]
local shard_bytes, today_bytes = string.find(KEYS[1], '}', 1, true) + 1, packed('>i4', today)
-- Ids are made of the time, so those of many streams are alike: texts of the last one are kept.
local source, known_ms, known_counter, id, id_text

for place = 1, streams do
    local key, row, numbers_at = KEYS[place], rows[place], (place - 1) * NUMBERS_BYTES + 1
    local flags, position, event_day, size = unpacked(NUMBERS, numbers, numbers_at)
    local has_source, is_deflated = flags % OTHER_SOURCE == HAS_SOURCE, flags >= DEFLATED
    if flags % DEFLATED >= OTHER_SOURCE then
        source, at = ARGV[at], at + 1
    end
    local event, answer = ARGV[at], '-'
    at = at + 1
    if row and sub(row, 1, 2) == OPEN then
        local upper, lower, dropped, day, kept, count, bytes, stored, stop = unpacked(HEAD, row, HEAD_FROM)
        local shard, name = sub(key, 1, shard_bytes), sub(key, shard_bytes + 6)
        local sources = has_source and shard .. 'sources:' .. name
        local before = has_source and call('HGET', sources, source)
        local ms, counter = upper * 4096 + floor(lower / UNIT), lower % UNIT + 1
        if now > ms then
            ms, counter = now, 0
        elseif counter == UNIT then
            ms, counter = ms + 1, 0
        end
        if before and is_stored(before, position) then
            answer = 'r' .. packed('>I4I4', upper, lower)
        elseif ms < MS_MAX and (event_day <= day or latest <= day)
            and not (is_deflated and sub(numbers, numbers_at + REFERENCE_FROM, numbers_at + REFERENCE_FROM
                + REFERENCE_BYTES - 1) ~= sub(kept, 9) .. sub(row, stop, stop + 3)) then
            if ms ~= known_ms or counter ~= known_counter then
                known_ms, known_counter = ms, counter
                id_text = string.format('%.0f-%.0f', ms, counter)
                id = packed('>I4I4', floor(ms / 4096), (ms % 4096) * UNIT + counter)
            end
            call('XADD', shard .. 'raw:' .. name, id_text, 'e', event)
            if has_source then
                call('HSET', sources, source, position .. (day > today and packed('>i4', day) or today_bytes))
            end
            answer = 'n' .. id
            changed[#changed + 1] = key
            written[#written + 1] = key
            written[#written + 1] = OPEN .. id
                .. packed('>c8i4c16I8I8I8', dropped, day, kept, count + 1, bytes + size, stored + #event) .. sub(row, stop)
        end
    end
    answers[place] = answer
end
if changed[1] then
    call('MSET', unpack(written))
    -- Only streams that somebody follows are published; who may not look for followers publishes all of them.
    local followers = redis.pcall('PUBSUB', 'SHARDNUMSUB', unpack(changed))
    for place, key in ipairs(changed) do
        if followers.err or followers[2 * place] > 0 then
            call('SPUBLISH', key, sub(written[2 * place], 3, 10))
        end
    end
end
return answers
