"""The hash of one key, `xxh3_64`, as `arrays/xxh3.py` has it for columns."""

from __future__ import annotations

from typing import Any

import xxhash

from millpond.deferred import np

__all__ = ("fold32", "hash_key")


def fold32(hashes: Any) -> Any:
    """The 4-byte form of 8-byte hashes: an integer or a `uint64` array.

    >>> hex(fold32(0x1234567800000001))
    '0x12345679'
    """
    if isinstance(hashes, int):
        return (hashes ^ (hashes >> 32)) & 0xFFFFFFFF
    return (hashes ^ (hashes >> np.uint64(32))) & np.uint64(0xFFFFFFFF)


def hash_key(key: bytes, bits: int = 64) -> int:
    """The hash of one key, by its `bits` lowest bits."""
    return xxhash.xxh3_64_intdigest(key) & ((1 << bits) - 1)
