"""Pieces of a long list whose ends come from what is in it: two lists that are much alike have most pieces in common.

    a b c| d e f g| h i          one more entry, and one piece is another:
    a b c| d e X f g| h i

An entry ends a piece by the hash of its key, and the more likely the more bytes it has: so pieces have about the same
bytes, whether their entries are small or large, and what comes into one moves no end of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

import xxhash

__all__ = ("PIECE_BYTES_MAX", "pieces")

PIECE_BYTES_MIN: Final = 256 << 10
"""No piece ends before it has so many bytes, but the last."""
PIECE_BYTES: Final = 1 << 20
"""The bytes after that in which a piece ends, on average."""
PIECE_BYTES_MAX: Final = 8 << 20
"""A piece ends here in any case, which one of thousands does."""
_HASHES: Final = 1 << 64

T = TypeVar("T")


def pieces(entries: Iterable[T], key: Callable[[T], bytes], bytes_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Entries in their order, piece by piece.

    >>> entries = [str(number).encode() for number in range(100_000)]
    >>> cut = list(pieces(entries, bytes, lambda _entry: 100))
    >>> sum(cut, []) == entries, 3 < len(cut) < 30
    (True, True)
    >>> more = [piece for piece in pieces([b"new", *entries], bytes, lambda _entry: 100) if piece not in cut]
    >>> len(more)
    1
    """
    some: list[T] = []
    size = 0
    for entry in entries:
        some.append(entry)
        size += (grown := bytes_of(entry))
        # The least size is counted from the end before, so a change may move the next ends, too. But behind the first
        # end that two lists have in common, ends are the same up to the next change.
        if size >= PIECE_BYTES_MIN and (size >= PIECE_BYTES_MAX or _ends(key(entry), grown)):
            yield some
            some, size = [], 0
    if some:
        yield some


def _ends(key: bytes, size: int) -> bool:
    """True for one of `PIECE_BYTES` / size keys: whether it does depends on nothing but the entry."""
    # In whole numbers: a float has no room for 64 bits, and lists would be cut otherwise where it is rounded otherwise.
    return xxhash.xxh3_64_intdigest(key) * PIECE_BYTES < _HASHES * size
