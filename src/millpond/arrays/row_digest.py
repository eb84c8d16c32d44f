"""A digest of rows: the same for the same rows, in whatever order or batches they come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from millpond.arrays.radix import U64
from millpond.arrays.xxh3 import hash_keys

__all__ = ("digest_of_rows",)

_BITS = 128
_HALF = np.uint64(32)
_LOW = np.uint64((1 << 32) - 1)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(31)


def digest_of_rows(columns: Iterable[pa.Array[Any]], count: int) -> int:
    """A number for rows, `count` of them, of at most 2^128: those of several batches add up."""
    mixed = np.zeros(count, np.uint64)
    for column in columns:
        # Column after column, so that values which change places, within a row or between two, are seen.
        mixed ^= _numbers(column)
        mixed *= _ODD
        mixed ^= mixed >> _SHIFT
    # The whole sum, without a bit lost: else it would depend on where batches end.
    total = (int((mixed >> _HALF).sum(dtype=np.uint64)) << 32) + int((mixed & _LOW).sum(dtype=np.uint64))
    return total + (count << _BITS)


def _numbers(column: pa.Array[Any]) -> U64:
    """A number for each value: itself, or the hash of its bytes."""
    kind, types = column.type, pa.types
    if types.is_dictionary(kind):
        return _numbers(column.dictionary_decode())
    if types.is_boolean(kind) or types.is_null(kind):
        column = column.cast(pa.int64())
    elif types.is_timestamp(kind) or types.is_duration(kind) or types.is_integer(kind):
        column = column.cast(pa.int64(), safe=False)
    elif types.is_floating(kind):
        column = column.cast(pa.float64())
    elif not types.is_large_binary(kind):
        column = _texts(column)
    missing = column.null_count
    if pa.types.is_large_binary(column.type):
        numbers = hash_keys(column.fill_null(b"") if missing else column)
    else:
        numbers = (column.fill_null(0) if missing else column).to_numpy().view(np.uint64)
    if missing:
        numbers = np.where(column.is_valid().to_numpy(zero_copy_only=False), numbers, ~numbers)
    return numbers


def _texts(column: pa.Array[Any]) -> pa.Array[Any]:
    """The bytes of values that are no numbers."""
    if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        return column.cast(pa.large_binary())
    try:
        texts = column.cast(pa.large_string())
    except pa.ArrowException:  # raw rows may nest
        texts = pa.array(map(repr, column.to_pylist()), pa.large_string())
    return texts.cast(pa.large_binary())
