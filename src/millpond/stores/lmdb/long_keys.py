"""Keys that are longer than LMDB's: stored under their first bytes and a hash, in rows that say which keys they hold.

    key of 1 to 510 bytes       itself                                               value
    key of 511 bytes and more   first 495 bytes, 16 bytes of xxh3_128 of the key     rows: key, value; key, value …

Invariants:
* A stored key of 511 bytes is the place of long keys, a shorter one is a key itself: neither is taken for the other.
* A place holds every long key that has its first bytes and its hash, ordered by key: hashes that clash cost time, never
  a row. A place without rows is removed.
* The keys that share their first 495 bytes, long or not, are a *group*: side by side in the file, but within the group
  in the order of hashes. A scan puts a group in order before it goes on.

The bytes are drawn in `docs/format/space.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import xxhash

from millpond.errors import Corrupt

__all__ = (
    "GROUP_BYTES",
    "PLAIN_KEY_BYTES_MAX",
    "find_row",
    "is_bucket",
    "bucket_key",
    "rows_in",
    "with_row",
    "without_row",
)

PLAIN_KEY_BYTES_MAX = 510
"""One less than LMDB takes: the longest is the mark of a place."""

GROUP_BYTES = 495
_HASH_BYTES = 16
HASH_BITS = 128
"""Fewer make hashes clash, which only tests want."""

_LENGTHS = struct.Struct(">HI")

assert GROUP_BYTES + _HASH_BYTES == PLAIN_KEY_BYTES_MAX + 1


def bucket_key(key: bytes) -> bytes:
    """The stored key under which a long key lies."""
    assert len(key) > PLAIN_KEY_BYTES_MAX
    # Cut off, keys keep their order but for those of one beginning; the hash tells these apart. A clash costs time
    # alone, for a place holds whole keys.
    digest = xxhash.xxh3_128_intdigest(key) & ((1 << HASH_BITS) - 1)
    return key[:GROUP_BYTES] + digest.to_bytes(_HASH_BYTES, "big")


def is_bucket(stored: bytes) -> bool:
    """True when long keys lie under a stored key, False when it is a key itself."""
    return len(stored) > PLAIN_KEY_BYTES_MAX


def rows_in(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values that a place holds.

    Raises:
        Corrupt: the bytes are not what `with_row` makes.
    """
    at = 0
    while at < len(content):
        if at + _LENGTHS.size > len(content):
            raise _damaged(content)
        key_bytes, value_bytes = _LENGTHS.unpack_from(content, at)
        middle = at + _LENGTHS.size + key_bytes
        stop = middle + value_bytes
        # A short key has a row of its own, so none is here.
        if key_bytes <= PLAIN_KEY_BYTES_MAX or stop > len(content):
            raise _damaged(content)
        yield content[at + _LENGTHS.size : middle], content[middle:stop]
        at = stop


def find_row(content: bytes | None, key: bytes) -> bytes | None:
    """The value of a long key in the content of its place; None when it is not there."""
    return None if content is None else next((value for name, value in rows_in(content) if name == key), None)


def with_row(content: bytes | None, key: bytes, value: bytes) -> bytes:
    """The content of a place that also holds this row, over one with the same key."""
    return _content({**dict(rows_in(content or b"")), key: value})


def without_row(content: bytes, key: bytes) -> bytes | None:
    """The content of a place without this key; None when nothing is left."""
    return _content({name: value for name, value in rows_in(content) if name != key}) or None


def _content(rows: dict[bytes, bytes]) -> bytes:
    return b"".join(_LENGTHS.pack(len(key), len(value)) + key + value for key, value in sorted(rows.items()))


def _damaged(content: bytes) -> Corrupt:
    return Corrupt("a place of long keys cannot be read", kind="space_damaged", bytes=content[:32].hex())
