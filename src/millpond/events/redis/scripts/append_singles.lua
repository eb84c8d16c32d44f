-- Appends one event to each of some streams whose days are open: what most appends are, in as few steps as can be, so
-- that this script stands alone. It knows of a head only what such an append changes.
--
-- KEYS  the heads of the streams; the marks of their shards, one for each stream; then, for a cluster, all their other
--           keys, which are named alike
-- ARGV  now_ms (-1: the server's), how far ahead of it a time may be, the number of streams, then for each stream:
--           source, its numbers (position, day, bytes, and where the row is deflated the id and the checksum of its
--           reference), row
-- Gives an answer for each stream: `n` and the id, `r` (it was stored before) and the last id of the stream, or `-`: it
-- is for `append.lua`, for the day is not open, or the reference is another one.

local UNIT, MS_MAX, DAY_MS = 1048576, 8796093022207, 86400000
-- version, open, last id, dropped id, day, days of work, first id, events, bytes, stored bytes, reference
local HEAD, NUMBERS = '>BBI4I4c8i4c8c8I8I8I8I4', '>c16i4I4'
local unpacked, packed, floor, call = struct.unpack, struct.pack, math.floor, redis.call

local now, streams = tonumber(ARGV[1]), tonumber(ARGV[3])
if now < 0 then
    local time = call('TIME')
    now = time[1] * 1000 + floor(time[2] / 1000)
end
local today, latest = floor(now / DAY_MS), floor((now + ARGV[2]) / DAY_MS)
local rows = call('MGET', unpack(KEYS, 1, 2 * streams))
local answers, written, changed, at = {}, {}, {}, 4

-- Heads of another version are found before anything is written, and shards whose mark is lost with all other keys.
for place = 1, streams do
    if not rows[streams + place] then
        error('MILLPOND_LOST')
    end
    local version = rows[place] and string.byte(rows[place])
    if version and version > 2 then
        error('MILLPOND_FORMAT ' .. version)
    end
end

for place = 1, streams do
    local key, row, source, numbers, event = KEYS[place], rows[place], ARGV[at], ARGV[at + 1], ARGV[at + 2]
    local answer = '-'
    at = at + 3
    if row and string.sub(row, 1, 2) == '\2\1' then
        local _, _, upper, lower, dropped, day, work, first, count, bytes, stored, reference, stop = unpacked(HEAD, row)
        local position, event_day, size = unpacked(NUMBERS, numbers)
        local split = string.find(key, '}', 1, true) + 1
        local shard, name = string.sub(key, 1, split), string.sub(key, split + 6)
        local sources = shard .. 'sources:' .. name
        local before = source ~= '' and call('HGET', sources, source)
        local is_stored = false
        if before then
            local a, b, c, d = unpacked('>I4I4I4I4', before)
            local e, f, g, h = unpacked('>I4I4I4I4', position)
            is_stored = a > e or (a == e and (b > f or (b == f and (c > g or (c == g and d >= h)))))
        end
        local ms, counter = upper * 4096 + floor(lower / UNIT), lower % UNIT + 1
        if now > ms then
            ms, counter = now, 0
        elseif counter == UNIT then
            ms, counter = ms + 1, 0
        end
        if is_stored then
            answer = 'r' .. packed('>I4I4', upper, lower)
        elseif ms < MS_MAX and math.min(event_day, latest) <= day
            and (#numbers == 24 or string.sub(numbers, 25) == first .. packed('>I4', reference)) then
            upper, lower = floor(ms / 4096), (ms % 4096) * UNIT + counter
            call('XADD', shard .. 'raw:' .. name, string.format('%.0f-%.0f', ms, counter), 'e', event)
            if source ~= '' then
                call('HSET', sources, source, position .. packed('>i4', math.max(day, today)))
            end
            answer = 'n' .. packed('>I4I4', upper, lower)
            changed[#changed + 1] = key
            written[#written + 1] = key
            written[#written + 1] = packed(HEAD, 2, 1, upper, lower, dropped, day, work, first, count + 1, bytes + size,
                stored + #event, reference) .. string.sub(row, stop)
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
            call('SPUBLISH', key, string.sub(written[2 * place], 3, 10))
        end
    end
end
return answers
