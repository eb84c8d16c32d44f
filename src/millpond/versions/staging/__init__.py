"""Branches and what is staged on them: records, layers, reads, writes, turns, compaction."""
