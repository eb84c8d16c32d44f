"""Routes between nodes and for operators: the log, replication, digests, copies, parts, repairs."""
