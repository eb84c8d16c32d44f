"""Replication: follow the primary's log, clone, compare, repair."""
