"""Storage of bytes: spaces in memory and in LMDB, objects in a folder or a bucket, ranges of sorted entries."""
