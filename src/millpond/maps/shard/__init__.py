"""A shard: the store of record of one map, one LMDB environment."""
