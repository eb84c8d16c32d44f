"""The first rows of an object, read by a confined process.

    bytes ─▶ process ─▶ JSON of the first rows
                  └─ it ends early, whatever ends it ─▶ none

Objects are what strangers wrote. Kilobytes of them unpack to gigabytes, or are nested so deeply that a parser in C++
ends the process it runs in: here that is not the node.
"""

from __future__ import annotations

import io
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from millpond.json_forms import parse_object, to_json
from millpond.server.confined import Ask, Confines, EndedEarly, OutOfTime, confined
from millpond.server.console.tables import shown_rows

__all__ = ("ENDINGS", "MEMORY_BYTES", "first_rows")

MEMORY_BYTES: Final = 256 << 20
SECONDS_MAX: Final = 10
_COLUMNS_MAX = 100
_CELL_CHARACTERS = 4_000


def first_rows(ending: str, data: bytes, limit: int) -> dict[str, Any] | None:
    """The first rows of a file, in the form of `shown_rows`; `ending` is one of `ENDINGS`.

    None for a file that is damaged, or that takes more memory or time than a preview has.
    """
    try:
        rows = confined(Confines(MEMORY_BYTES, SECONDS_MAX), bytes, _rows, ending, data, limit)
    except (EndedEarly, OutOfTime):
        return None
    return parse_object(rows) if rows else None


def _parquet(data: bytes, limit: int) -> pa.Table:
    from pyarrow import parquet

    file = parquet.ParquetFile(io.BytesIO(data))
    batches = islice(file.iter_batches(limit + 1, use_threads=False), 1)
    return pa.Table.from_batches(list(batches), file.schema_arrow)


def _csv(data: bytes, _limit: int) -> pa.Table:
    from pyarrow import csv

    return csv.read_csv(io.BytesIO(data), csv.ReadOptions(use_threads=False))


def _json(data: bytes, _limit: int) -> pa.Table:
    from pyarrow import json

    return json.read_json(io.BytesIO(data), json.ReadOptions(use_threads=False))


ENDINGS: Final = {"parquet": _parquet, "csv": _csv, "json": _json, "jsonl": _json, "ndjson": _json}
"""The formats whose rows are shown, by the endings of names."""


def _bounded(cell: Any) -> Any:
    """A cell that is no longer than one is shown."""
    text = to_json(cell).decode() if isinstance(cell, dict | list) else cell
    return f"{text[:_CELL_CHARACTERS]}…" if isinstance(text, str) and len(text) > _CELL_CHARACTERS else cell


def _rows(_ask: Ask, ending: str, data: bytes, limit: int) -> bytes:
    """Read a file, in a process of its own; nothing is known of a damaged one."""
    try:
        table = ENDINGS[ending](data, limit)
    except (pa.ArrowException, OSError, ValueError):
        return b""
    rows = shown_rows(table.select(range(min(table.num_columns, _COLUMNS_MAX))), limit, None)
    rows["rows"] = [[_bounded(cell) for cell in row] for row in rows["rows"]]
    return to_json(rows)
