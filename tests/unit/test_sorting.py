"""Columns of strings are sorted as Python sorts them, and taken in any order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millpond.arrays.sorting import order_of_strings, taken

# Few and nasty bytes and shared beginnings, so that ties, prefixes of one another and zeros turn up often.
STRINGS = st.one_of(
    st.lists(st.sampled_from([0, 1, 255]), max_size=20).map(bytes),
    st.tuples(st.sampled_from([b"", b"device-", b"device-0000"]), st.binary(max_size=12)).map(b"".join),
)


def column(strings: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.zeros(len(strings) + 1, np.int64)
    offsets[1:] = np.cumsum([len(string) for string in strings])
    return offsets, np.frombuffer(b"".join(strings), np.uint8)


def strings_of(offsets: np.ndarray, data: np.ndarray) -> list[bytes]:
    return [data[start:stop].tobytes() for start, stop in itertools.pairwise(offsets)]


def check(strings: list[bytes]) -> None:
    offsets, data = column(strings)
    order = order_of_strings(offsets, data)
    assert order.tolist() == sorted(range(len(strings)), key=lambda place: strings[place])
    assert strings_of(*taken(offsets, data, order)) == sorted(strings)


@given(st.lists(STRINGS, max_size=80))
@example([b"\x00" * 8, b"\x00" * 7, b"\x00" * 9, b"", b"\x00" * 16, b"\x00" * 7])
@example([b"same"] * 40)
@example([b"12345678" + b"\x00" * n for n in range(20, 0, -1)])
def test_strings_are_sorted_as_python_does(strings: list[bytes]) -> None:
    check(strings)


@pytest.mark.parametrize("distinct", [1, 3, 100, 20_000])
def test_many_strings_with_few_beginnings(distinct: int) -> None:
    random = np.random.default_rng(distinct)
    numbers = random.integers(0, distinct, 20_000)
    tails = random.integers(0, 1 << 16, 20_000)
    check([b"key-%012d\x00%d" % (number, tail) for number, tail in zip(numbers, tails, strict=True)])
