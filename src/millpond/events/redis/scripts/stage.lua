-- Puts a batch behind those that are staged.
--
-- KEYS  staged
-- ARGV  batch, the life of staged batches in milliseconds

redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
