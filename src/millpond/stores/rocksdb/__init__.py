"""Spaces in RocksDB, by the `rocksdict` package."""

from millpond.extras import need

need("rocksdict")
