-- KEYS  head, index
-- ARGV  day. Closes the open day if it is that day or an earlier one; 1 when it did.

local head = read_head(KEYS[1])
if not head or head.open == 0 or head.day > tonumber(ARGV[1]) then
    return 0
end
close_day(KEYS[2], head)
put_head(KEYS[1], head)
return 1
