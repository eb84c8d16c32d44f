"""Index of ranges by width: table `widths`, one row `<class byte><start><end>` (sign bits flipped) per range.

The class is the bit length of `end - start`. The narrowest range that holds a number is found class by class, narrowest
first: within a class every range that can hold n starts in `(n - 2^class, n]`, so overlapping and nested ranges
cost no scan.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import lmdb

from millpond.arrays.longs import LONG_MIN, pack_long, unpack_long

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ("WIDTHS", "delete_widths", "put_widths", "ranges_holding", "width_class", "width_rows")

WIDTHS = "widths"


def width_class(start: int, end: int) -> int:
    """The class of a range: 0 for a single number, else the bit length of its width."""
    return (end - start).bit_length()


def width_rows(starts: list[int], ends: list[int]) -> list[bytes]:
    """The sorted keys of table `widths` for these ranges."""
    return sorted(
        bytes([width_class(start, end)]) + pack_long(start, plain=False) + pack_long(end, plain=False)
        for start, end in set(zip(starts, ends, strict=True))
    )


def put_widths(tx: lmdb.Transaction, table: Any, rows: pa.RecordBatch) -> None:
    """Enter the ranges of canonical rows."""
    from millpond.maps.model.address import long_column

    keys = width_rows(long_column(rows, "key_start").tolist(), long_column(rows, "key_end").tolist())
    tx.cursor(db=table).putmulti((key, b"") for key in keys)


def delete_widths(
    tx: lmdb.Transaction, widths: Any, rows: Any, starts: list[int], ends: list[int], *, plain: bool
) -> None:
    """Forget those of these ranges that no row has any more; `plain`: as longs lie in the table `rows`."""
    cursor = tx.cursor(db=rows)
    for start, end in set(zip(starts, ends, strict=True)):
        prefix = pack_long(start, plain) + pack_long(end, plain)
        if not (cursor.set_range(prefix) and cursor.key().startswith(prefix)):
            tx.delete(width_rows([start], [end])[0], db=widths)


def ranges_holding(tx: lmdb.Transaction, table: Any, number: int) -> Iterator[tuple[int, int]]:
    """`(start, end)` of the ranges that hold `number`: the narrowest first, among equals the latest start."""
    cursor = tx.cursor(db=table)
    more = cursor.first()
    while more:
        width = cursor.key()[0]
        yield from _class_holding(cursor, width, number)
        more = cursor.set_range(bytes([width + 1])) if width < 255 else False


def _class_holding(cursor: lmdb.Cursor, width: int, number: int) -> list[tuple[int, int]]:
    head = bytes([width])
    lowest = head + pack_long(max(number - (1 << width) + 1, LONG_MIN), plain=False)
    holding = []
    beyond = cursor.set_range(head + pack_long(number, plain=False) + b"\xff" * 9)
    more = cursor.prev() if beyond else cursor.last()
    while more and (row := cursor.key()) >= lowest:
        end = unpack_long(row[9:17], plain=False)
        if end >= number:
            holding.append((unpack_long(row[1:9], plain=False), end))
        more = cursor.prev()
    if len(holding) > 1:
        holding.sort(key=lambda span: (span[1] - span[0], -span[0]))
    return holding
