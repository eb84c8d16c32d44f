"""Every driver of a space keeps the one contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from millpond.stores.lmdb.space import Limits, LmdbSpace
from millpond.stores.memory import MemorySpace
from millpond.testing.contracts.spaces import SpaceContract
from millpond.testing.faulty_space import FaultySpace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    import lmdb

    from millpond.kernel.space import Space


class TestMemorySpace(SpaceContract):
    @pytest.fixture
    def space(self) -> Space:
        return MemorySpace()

    def look_behind(self, space: Space, key: bytes) -> bytes | None:
        assert isinstance(space, MemorySpace)
        return space._rows.get(key)

    def put_behind(self, space: Space, key: bytes, value: bytes) -> None:
        assert isinstance(space, MemorySpace)
        space._rows = space._rows.changed([(key, value)])


class TestFaultySpace(TestMemorySpace):
    """The space of tests about lost answers keeps the contract itself."""

    @pytest.fixture
    def space(self) -> Space:
        return FaultySpace(MemorySpace())

    def look_behind(self, space: Space, key: bytes) -> bytes | None:
        return super().look_behind(_inner(space), key)

    def put_behind(self, space: Space, key: bytes, value: bytes) -> None:
        super().put_behind(_inner(space), key, value)

    def losing_results(self, space: Space, *, committed: bool) -> AbstractContextManager[None]:
        assert isinstance(space, FaultySpace)
        return space.losing_results(committed=committed)


class TestLmdbSpace(SpaceContract):
    @pytest.fixture
    def space(self, tmp_path: Path) -> Iterator[Space]:
        space = LmdbSpace(tmp_path / "space", durable=False)
        yield space
        space.close()

    def look_behind(self, space: Space, key: bytes) -> bytes | None:
        with _environment(space).begin() as transaction:
            return transaction.get(key)

    def put_behind(self, space: Space, key: bytes, value: bytes) -> None:
        with _environment(space).begin(write=True) as transaction:
            transaction.put(key, value)


class TestGrowingLmdbSpace(TestLmdbSpace):
    """The same over a map so small that most tests must grow it."""

    @pytest.fixture
    def space(self, tmp_path: Path) -> Iterator[Space]:
        space = LmdbSpace(tmp_path / "space", durable=False, limits=Limits(map_bytes=16384))
        yield space
        space.close()

    def test_a_reader_keeps_its_moment(self, space: Space) -> None:
        # Here a reader would make the writer wait, for its map must move: give it room first.
        space.write(lambda transaction: transaction.put(b"z", bytes(200_000)))
        space.write(lambda transaction: transaction.delete(b"z"))
        super().test_a_reader_keeps_its_moment(space)

    def test_a_reader_that_may_not_wait_reads_the_same_moment(self, space: Space) -> None:
        space.write(lambda transaction: transaction.put(b"z", bytes(200_000)))
        space.write(lambda transaction: transaction.delete(b"z"))
        super().test_a_reader_that_may_not_wait_reads_the_same_moment(space)


def _inner(space: Space) -> Space:
    assert isinstance(space, FaultySpace)
    return space.inner


def _environment(space: Space) -> lmdb.Environment:
    assert isinstance(space, LmdbSpace)
    assert space._environment is not None
    return space._environment.handle
