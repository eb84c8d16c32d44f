"""The types of CSV columns, found in all of their cells: what Spark finds, too.

A column is of the first of these types that every cell of it is: whole number (32 bits, else 64), number, boolean,
date, time without a zone, time with one; else it is text. A column without any cell is text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ("ColumnTypes", "converted")

_NAIVE, _INSTANT = pa.timestamp("us"), pa.timestamp("us", "UTC")
_CANDIDATES = (pa.int32(), pa.int64(), pa.float64(), pa.bool_(), pa.date32(), _NAIVE, _INSTANT)
_PLAIN_NUMBER = r"^[+-]?[0-9]+$"
_BOOLEAN = r"^(?i:true|false)$"


class ColumnTypes:
    """The types of columns, as far as cells were seen."""

    def __init__(self, names: Sequence[str], texts: frozenset[str]) -> None:
        self._left: dict[str, tuple[pa.DataType, ...]] = {
            name: () if name.lower() in texts else _CANDIDATES for name in names
        }
        self._seen: set[str] = set()

    def see(self, batch: pa.RecordBatch) -> None:
        """Take the cells of a batch of text columns into account."""
        for name in batch.schema.names:
            cells = batch.column(name).drop_null()
            if len(cells):
                self._seen.add(name)
                self._left[name] = tuple(kind for kind in self._left[name] if _cast(cells, kind) is not None)

    def found(self, name: str) -> pa.DataType:
        left = self._left[name] if name in self._seen else ()
        return left[0] if left else pa.string()


def converted(cells: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    """A column of text as the type that was found for it."""
    made = cells if kind == pa.string() else _cast(cells, kind)
    assert made is not None, "every cell was seen"
    return made


def _cast(cells: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any] | None:
    """The cells in a type, or None when one of them is not of it."""
    pattern = _PLAIN_NUMBER if pa.types.is_integer(kind) else _BOOLEAN if pa.types.is_boolean(kind) else None
    if pattern is not None and not pc.all(pc.match_substring_regex(cells, pattern), min_count=0).as_py():
        return None  # Arrow reads 0x1F as a number, and 1 as a boolean
    try:
        return pc.ascii_lower(cells).cast(kind) if pa.types.is_boolean(kind) else _unsigned(cells, kind).cast(kind)
    except pa.ArrowInvalid:
        return None


def _unsigned(cells: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    """Without the plus signs that Arrow does not read."""
    return pc.replace_substring_regex(cells, r"^\+", "") if pa.types.is_integer(kind) else cells
