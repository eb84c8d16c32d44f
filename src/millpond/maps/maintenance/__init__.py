"""Maintenance of a shard: condense, retain, compact."""
