"""The store of runs over each driver of a space."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("littlehorse")

from millpond.stores.lmdb.space import LmdbSpace
from millpond.stores.memory import MemorySpace
from tests.harness.contracts.run_stores import RunStoreContract

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond.kernel.space import Space


class TestRunStores(RunStoreContract):
    @pytest.fixture(params=["memory", "lmdb", "rocksdb"])
    def space(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Space]:
        space = opened(request.param, tmp_path / "space")
        yield space
        space.close()


def opened(driver: str, path: Path) -> Space:
    if driver == "memory":
        return MemorySpace()
    if driver == "lmdb":
        return LmdbSpace(path, durable=False)
    if find_spec("rocksdict") is None:
        pytest.skip("the extra rocksdb is not installed")
    from millpond.stores.rocksdb.space import RocksSpace

    return RocksSpace(path, durable=False)
