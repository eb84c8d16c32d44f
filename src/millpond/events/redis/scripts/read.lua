-- Reads the rows of a page, segment by segment, as they stand at one moment.
--
-- KEYS  head, index, raw, lost
-- ARGV  after (8 bytes), the greatest number of bytes, the beginning of the keys of batches
-- Gives the id up to which streams were lost; then, of a stream that is there: the head, 1 where more follows, and for
-- each row its id (raw entries only) and its bytes. `reference` stands for the id of a row with which rows behind it were
-- deflated.

local lost = lost_id(KEYS[4])
local row = redis.call('GET', KEYS[1])
if not row then
    return { lost }
end
local head = parse_head(row)
local ms, counter = id_from(ARGV[1])
if is_after(head.dropped_ms, head.dropped_counter, ms, counter) then
    ms, counter = head.dropped_ms, head.dropped_counter
end
local reply = { lost, row, 0 }
if not is_after(head.ms, head.counter, ms, counter) then
    return reply
end

local function is_deflated(row)
    return string.byte(row) == SINGLE and (string.byte(row, 2) or 0) >= DEFLATED
end

local bytes_max, size, rows = tonumber(ARGV[2]), 0, 0

-- False when the row is more than the page may hold; its size is that before compression.
local function add(id, batch)
    size = size + (string.byte(batch) == 1 and #batch >= 12 and struct.unpack('<I4', batch, 9) or #batch)
    if rows > 0 and size > bytes_max then
        reply[3] = 1
        return false
    end
    rows = rows + 1
    reply[#reply + 1] = id
    reply[#reply + 1] = batch
    return true
end

-- False when the page is full. What was read is behind the cursor then: a raw entry may hold events of a batch, too.
local function add_batches(key, batches)
    for place = 1, batches.count do
        local last_ms, last_counter = id_from(batches.ids, 8 * place - 7)
        if is_after(last_ms, last_counter, ms, counter) then
            local batch = redis.call('LINDEX', key, place - 1 + batches.references)
            if not batch then
                error('MILLPOND_DAMAGED a batch is missing: ' .. key)
            end
            if not add('', batch) then
                return false
            end
            ms, counter = last_ms, last_counter
        end
    end
    return true
end

-- False when the page is full. A raw entry has the id of its last event, and belongs to one day, of which the first
-- entry is the reference; once it is compressed, the list under a key begins with it.
local function add_raw(first, stop, key)
    local start, count, has_reference = '(' .. id_text(ms, counter), 1, false
    while true do
        local entries = redis.call('XRANGE', KEYS[3], start, stop, 'COUNT', count)
        for _, entry in ipairs(entries) do
            if not has_reference and is_deflated(entry[2][2]) then
                local found = not key and redis.call('XRANGE', KEYS[3], first, first)[1]
                reply[#reply + 1] = 'reference'
                reply[#reply + 1] = key and redis.call('LINDEX', key, 0) or found and found[2][2] or ''
                has_reference = true
            end
            if not add(entry[1], entry[2][2]) then
                return false
            end
            start = '(' .. entry[1]
        end
        if #entries < count then
            return true
        end
        count = math.max(1, math.min(512, math.floor((bytes_max - size) * rows / math.max(size, 1))))
    end
end

while true do
    local start = id_bytes(advanced(ms, counter, 1))
    local member = redis.call('ZRANGEBYLEX', KEYS[2], '[' .. start, '+', 'LIMIT', 0, 1)[1]
    local segment = member and parse_segment(member)
    local going
    if not segment then
        going = add_raw(id_text(head.first_ms, head.first_counter), '+')
    else
        local key, batches = ARGV[3] .. segment.last_day, batches_of(segment)
        going = add_batches(key, batches) and (segment.state == COMPRESSED or add_raw(id_text(first_id(segment)),
            id_text(segment.ms, segment.counter), batches.references > 0 and key))
    end
    if not segment or not going then
        return reply
    end
    ms, counter = segment.ms, segment.counter
end
