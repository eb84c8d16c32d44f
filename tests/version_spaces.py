"""Spaces of every driver for tests of repositories, and the places of their bytes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from millpond.kernel.space import Space
from millpond.stores.lmdb.space import LmdbSpace
from millpond.stores.memory import MemorySpace

SPACES = [
    "memory",
    "lmdb",
    pytest.param(
        "postgres",
        marks=[pytest.mark.skipif(find_spec("psycopg") is None, reason="needs psycopg"), pytest.mark.postgres],
    ),
    pytest.param("rocksdb", marks=pytest.mark.skipif(find_spec("rocksdict") is None, reason="needs rocksdict")),
]
"""The drivers, as parameters of a fixture."""


def open_space(driver: str, folder: Path) -> Space:
    """A new space of a driver."""
    if driver == "postgres":
        from millpond.stores.postgres.space import PostgresSpace
        from tests.postgres_server import new_location

        return PostgresSpace(new_location(), durable=False)
    if driver == "rocksdb":
        from millpond.stores.rocksdb.space import RocksSpace

        return RocksSpace(folder / "space", durable=False)
    return LmdbSpace(folder / "space", durable=False) if driver == "lmdb" else MemorySpace()
