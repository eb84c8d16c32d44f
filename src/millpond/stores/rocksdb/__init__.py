"""Spaces in RocksDB, by the `rocksdict` package."""

from __future__ import annotations

from millpond.extras import need

need("rocksdict")
