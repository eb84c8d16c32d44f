"""Orders by radix are those of a stable sort, of numbers that are spread, clustered, or nearly the same."""

from __future__ import annotations

import numpy as np
import pytest

from millpond.arrays import radix
from millpond.arrays.radix import U64, radix_order

COUNT = 5_000


def numbers(shape: str) -> U64:
    random = np.random.default_rng(3)
    spread = random.integers(0, 1 << 64, COUNT, np.uint64, endpoint=False)
    match shape:
        case "spread":
            return spread
        case "upper digits alike":  # in threes, whose lower digits descend: few have to be moved
            return np.repeat(spread[: COUNT // 2] & ~np.uint64(3), 2) | np.tile(np.array([2, 1], np.uint64), COUNT // 2)
        case "lower digits tell":  # as many as would take too long one by one
            return (spread & np.uint64(0x3F << 58)) | random.permutation(COUNT).astype(np.uint64)
        case "crowds":  # spread well, and each of the few hundred upper halves in a long run that descends
            upper = np.repeat(spread[:200] & ~np.uint64((1 << 33) - 1), COUNT // 200)
            return upper | np.tile(np.arange(COUNT // 200)[::-1].astype(np.uint64), 200)
        case "repeated":
            return np.tile(spread[:250], COUNT // 250)
    return random.integers(0, 1000, COUNT).astype(np.uint64) * np.uint64(3_600_000)


@pytest.mark.parametrize("repeated", [1, 3, 40, 5000])
@pytest.mark.parametrize("ties", [0, 1, 2])
def test_many_numbers_in_buckets_are_in_the_order_of_a_stable_sort(repeated: int, ties: int) -> None:
    """As many of one value as may be moved one by one, and more."""
    random = np.random.default_rng(5)
    count = 4 * radix._BUCKETS_MIN
    few = random.integers(0, 1 << 64, count // repeated + 1, np.uint64, endpoint=False)
    columns = [random.choice(few, count), *(random.integers(0, 3, count).astype(np.uint64) for _ in range(ties))]
    assert np.array_equal(radix_order(columns), np.lexsort(columns[::-1]))


@pytest.mark.parametrize("shape", ["spread", "upper digits alike", "lower digits tell", "crowds", "repeated", "times"])
def test_the_order_is_that_of_a_stable_sort(shape: str) -> None:
    column = numbers(shape)
    rows = np.random.default_rng(4).permutation(len(column))
    for values in (column, column[rows]):
        assert np.array_equal(radix_order([values]), np.argsort(values, kind="stable"))
        minor = np.arange(len(values), dtype=np.uint64)[::-1] // np.uint64(7)
        assert np.array_equal(radix_order([values, minor]), np.lexsort((minor, values)))
