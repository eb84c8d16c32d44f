"""Rows of Arrow as the lists that a page shows."""

from __future__ import annotations

import math
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ("cells_of", "shown_cell", "shown_rows")


def shown_rows(rows: pa.RecordBatchReader | pa.Table, limit: int) -> dict[str, Any]:
    """The first rows, with the names of their columns; `more` when there are others, which are not read."""
    batches = rows.to_batches() if hasattr(rows, "to_batches") else rows
    shown: list[list[Any]] = []
    for batch in batches:
        columns = [cells_of(column.slice(0, limit + 1 - len(shown))) for column in batch.columns]
        shown.extend([shown_cell(cell) for cell in row] for row in zip(*columns, strict=True))
        if len(shown) > limit:
            break
    if hasattr(rows, "close"):
        rows.close()
    return {"columns": list(rows.schema.names), "rows": shown[:limit], "more": len(shown) > limit}


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
    if isinstance(cell, datetime | date):
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
