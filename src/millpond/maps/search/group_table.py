"""The table of groups as kernels read it: a line of addresses for each piece, see `groups.Groups`.

A *position* names one group or one row: piece × 2^32 + its number in the piece's column; -1 is "there is none".
"""

import numpy as np

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import load_i32, load_i64

__all__ = (
    "COUNT", "COVER_FROM", "COVER_OFFSETS", "COVER_ROW", "HASH", "KEY_DATA", "KEY_OFFSETS", "NUMBER", "PIECE",
    "ROW_OFFSETS", "cell", "key_of",
)  # fmt: skip

# Columns of the table, int64 addresses but for the first; 0: there is none.
COUNT, HASH, KEY_OFFSETS, KEY_DATA, ROW_OFFSETS, COVER_OFFSETS, COVER_FROM, COVER_ROW = range(8)

PIECE, NUMBER = 32, (1 << 32) - 1
"""A position is piece << 32 | number in the piece."""


@kernel
def cell(table, piece, column):  # type: ignore[no-untyped-def]
    """One column of a piece's line in the table of groups."""
    return load_i64(table + ((piece << 3) + column) * 8)


@kernel
def key_of(table, position):  # type: ignore[no-untyped-def]
    """The address and the length of the key of a group, which follows 8 bytes of hash."""
    offsets = cell(table, position >> PIECE, KEY_OFFSETS) + 4 * (position & NUMBER)
    start, stop = np.int64(load_i32(offsets)), np.int64(load_i32(offsets + 4))
    return cell(table, position >> PIECE, KEY_DATA) + start + 8, stop - start - 8
