"""Rows of Arrow as the lists that a page shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any, Final

import pyarrow as pa

__all__ = ("ROWS_BYTES_MAX", "cells_of", "newest_rows", "shown_cell", "shown_rows")


ROWS_BYTES_MAX: Final = 2 << 20
"""The bytes of rows, beyond which a page shows no other one."""


def shown_rows(
    rows: pa.RecordBatchReader | pa.Table, limit: int, bytes_max: int | None = ROWS_BYTES_MAX
) -> dict[str, Any]:
    """The first rows, with the names of their columns; `more` when there are others, which are not read.

    Behind so many bytes there is no other row; None: in a process that is confined.
    """
    shown: list[list[Any]] = []
    more = False
    for batch in _small(rows, limit + 1, bytes_max):
        if batch is None:
            more = True
            break
        shown.extend([shown_cell(cell) for cell in row] for row in zip(*map(cells_of, batch.columns), strict=True))
    if hasattr(rows, "close"):
        rows.close()
    return {"columns": list(rows.schema.names), "rows": shown[:limit], "more": more or len(shown) > limit}


def newest_rows(rows: pa.RecordBatchReader, column: str, limit: int) -> dict[str, Any]:
    """The newest rows by a column of times, the oldest of them first; `more` when there are older ones.

    All are read, and few are held.
    """
    import pyarrow as pa

    held = rows.schema.empty_table()
    for batch in rows:
        held = pa.concat_tables([held, pa.Table.from_batches([batch])])
        if held.num_rows > limit:
            held = held.sort_by([(column, "descending")]).slice(0, limit + 1)
    shown = shown_rows(held.sort_by([(column, "descending")]), limit)
    shown["rows"].reverse()
    return shown


def _small(rows: pa.RecordBatchReader | pa.Table, limit: int, bytes_max: int | None) -> Iterator[pa.RecordBatch | None]:
    """The first rows, in batches; large rows one by one, and None where there are too many bytes for another."""
    room, size = limit, 0
    for batch in rows.to_batches() if hasattr(rows, "to_batches") else rows:
        head = batch.slice(0, room)
        step = room if bytes_max is None or size + head.nbytes <= bytes_max else 1
        for at in range(0, head.num_rows, step):
            if bytes_max is not None and size >= bytes_max:
                yield None
                return
            part = head.slice(at, step)
            size += part.nbytes
            yield part
        room -= head.num_rows
        if not room:
            return


def cells_of(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[Any]:
    """The values of a column as Python has them."""
    try:
        return column.to_pylist()
    except (OverflowError, ValueError):
        return list(map(_cell_of, column))


def _cell_of(scalar: pa.Scalar[Any]) -> Any:
    """A value as Python has it; as text where it has none: of a year above 9999, of text that is no UTF-8."""
    import pyarrow as pa

    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")
    except (OverflowError, ValueError):
        try:
            return scalar.cast(pa.string()).as_py()
        except pa.ArrowException:
            return f"a value of {scalar.type}"


def shown_cell(cell: Any) -> Any:
    """A value as JSON has it: instants in ISO 8601, bytes in hexadecimal, all that JSON has not as text."""
    if isinstance(cell, datetime):
        finer = "auto" if cell.microsecond % 1_000 or not cell.microsecond else "milliseconds"
        return cell.isoformat(timespec=finer).replace("+00:00", "Z")
    if isinstance(cell, date):
        return cell.isoformat()
    if isinstance(cell, bytes):
        return cell.hex()
    if isinstance(cell, dict):
        return {str(name): shown_cell(value) for name, value in cell.items()}
    if isinstance(cell, list | tuple):
        return [shown_cell(value) for value in cell]
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else str(cell)
    return cell if isinstance(cell, str | bool | int) or cell is None else str(cell)
