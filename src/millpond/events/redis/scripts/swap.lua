-- Puts a row into a hash where another one is, or none.
--
-- KEYS  hash
-- ARGV  field, the row that is there (empty: none), the new one, the greatest number of rows
-- Gives `done`, `other` (another row is there), or `full`.

local row = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if row ~= ARGV[2] then
    return 'other'
end
if row == '' and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then
    return 'full'
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 'done'
