"""Values of one moment: remembered while nothing is written, and made anew behind every write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millpond.errors import NotFound
from millpond.kernel.moments import NAME_LETTERS_MAX, VALUES_MAX, Moments
from millpond.kernel.space import Space, Transaction, moment_of
from millpond.stores.lmdb.space import LmdbSpace
from millpond.stores.memory import MemorySpace


@pytest.fixture
def space(tmp_path: Path) -> Iterator[LmdbSpace]:
    made = LmdbSpace(tmp_path / "space")
    yield made
    made.close()


def put(value: bytes) -> Callable[[Transaction], None]:
    return lambda tx: tx.put(b"key", value)


def read(space: Space, values: Moments[bytes], made: list[bytes]) -> bytes:
    with space.read() as tx:

        def make() -> bytes:
            made.append(tx.get(b"key") or b"")
            return made[-1]

        return values.get(tx, "name", make)


def test_a_value_is_made_once_for_a_moment(space: LmdbSpace) -> None:
    values: Moments[bytes] = Moments()
    made: list[bytes] = []
    for value in (b"1", b"2", b"2"):
        space.write(put(value))
        assert [read(space, values, made) for _ in range(3)] == [value] * 3
    assert made == [b"1", b"2", b"2"]


def test_a_transaction_of_an_earlier_moment_has_its_own_values(space: LmdbSpace) -> None:
    values: Moments[bytes] = Moments()
    space.write(put(b"old"))
    with space.read() as before:
        other = LmdbSpace(space.path)  # another user of the file in this process
        other.write(put(b"new"))
        other.close()
        assert read(space, values, []) == b"new"
        assert values.get(before, "name", lambda: before.get(b"key") or b"") == b"old"
        assert read(space, values, []) == b"new"


def test_nothing_is_remembered_of_writes_of_errors_and_of_long_names(space: LmdbSpace) -> None:
    values: Moments[int] = Moments()
    numbers = iter(range(100))

    def write(tx: Transaction) -> list[int]:
        assert moment_of(tx) is None
        return [values.get(tx, "name", lambda: next(numbers)) for _ in range(2)]

    assert space.write(write) == [0, 1]
    long = "x" * (NAME_LETTERS_MAX + 1)

    def fail() -> int:
        raise NotFound("absent", kind="path_not_found")

    with space.read() as tx:
        assert [values.get(tx, long, lambda: next(numbers)) for _ in range(2)] == [2, 3]
        with pytest.raises(NotFound):
            values.get(tx, "name", fail)
        assert values.get(tx, "name", lambda: next(numbers)) == 4


def test_a_space_without_numbers_remembers_nothing() -> None:
    values: Moments[bytes] = Moments()
    made: list[bytes] = []
    memory = MemorySpace()
    memory.write(put(b"1"))
    assert [read(memory, values, made), read(memory, values, made)] == [b"1", b"1"]
    assert made == [b"1", b"1"]


def test_no_more_than_a_limit_is_held(space: LmdbSpace) -> None:
    values: Moments[int] = Moments()
    with space.read() as tx:
        for number in range(VALUES_MAX + 10):
            values.get(tx, str(number), lambda number=number: number)  # type: ignore[misc]
        assert [values.get(tx, str(number), lambda: -1) for number in (0, VALUES_MAX - 1)] == [0, VALUES_MAX - 1]
        assert values.get(tx, str(VALUES_MAX), lambda: -1) == -1
