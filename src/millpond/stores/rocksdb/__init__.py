"""Spaces in RocksDB, by the `rocksdict` package."""
