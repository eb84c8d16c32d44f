"""The first rows of an object, read by a confined process.

    bytes, or ranges that it asks for ─▶ process ─▶ JSON of the first rows
                                              └─ it ends early, whatever ends it ─▶ none

Objects are what strangers wrote. Kilobytes of them unpack to gigabytes, or are nested so deeply that a parser in C++
ends the process it runs in: here that is not the node.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import islice
from typing import Any, Concatenate, Final, ParamSpec

import pyarrow as pa

from millpond.json_forms import parse_object, to_json
from millpond.server.confined import Ask, Confines, EndedEarly, OutOfTime, confined
from millpond.server.confined_files import Distant, ranges_of
from millpond.server.console.tables import shown_rows
from millpond.stores.objects.sources import SourceFile

__all__ = ("ENDINGS", "MEMORY_BYTES", "first_rows", "first_rows_of_ranges")

Params = ParamSpec("Params")

MEMORY_BYTES: Final = 256 << 20
SECONDS_MAX: Final = 10
RANGES_BYTES_MAX: Final = 64 << 20
"""The bytes of a large object that are read."""
_BUFFER_BYTES = 512 << 10
_COLUMNS_MAX = 100
_CELL_CHARACTERS = 4_000


def first_rows(ending: str, data: bytes, limit: int) -> dict[str, Any] | None:
    """The first rows of a file, in the form of `shown_rows`; `ending` is one of `ENDINGS`.

    None for a file that is damaged, or that takes more memory or time than a preview has.
    """
    return _confined(bytes, _rows, ending, data, limit)


def first_rows_of_ranges(read: Callable[[int, int], bytes], size: int, limit: int) -> dict[str, Any] | None:
    """The first rows of a Parquet file as `first_rows`, of which the footer and the first pages of columns are read;
    None also for one of which that is more than `RANGES_BYTES_MAX`.
    """
    return _confined(ranges_of(_Bounded(read, size), ""), _rows_of_ranges, limit)


class _Bounded:
    """An object of which so many bytes are read."""

    where = ""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read, self._size, self._left = read, size, RANGES_BYTES_MAX

    def size(self, _name: str) -> int:
        return self._size

    def get_range(self, _name: str, start: int, stop: int) -> bytes:
        """The bytes `[start, stop)`.

        Raises: `EndedEarly` when they are too many.
        """
        stop = min(stop, self._size)
        self._left -= max(0, stop - start)
        if not 0 <= start <= self._size or self._left < 0:
            raise EndedEarly("more is asked for than a preview reads")
        return self._read(start, stop)


def _confined(
    answer: Callable[[bytes], bytes], work: Callable[Concatenate[Ask, Params], bytes], *args: Params.args,
    **options: Params.kwargs,
) -> dict[str, Any] | None:  # fmt: skip
    try:
        rows = confined(Confines(MEMORY_BYTES, SECONDS_MAX), answer, work, *args, **options)
    except (EndedEarly, OutOfTime):
        return None
    return parse_object(rows) if rows else None


def _parquet(file: Any, limit: int) -> pa.Table:
    from pyarrow import parquet

    parquet_file = parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER_BYTES)
    names = parquet_file.schema_arrow.names
    columns = names[:_COLUMNS_MAX] if len(names) > _COLUMNS_MAX else None
    batches = list(islice(parquet_file.iter_batches(limit + 1, columns=columns, use_threads=False), 1))
    return pa.Table.from_batches(batches, batches[0].schema if batches else parquet_file.schema_arrow)


def _csv(file: Any, _limit: int) -> pa.Table:
    from pyarrow import csv

    return csv.read_csv(file, csv.ReadOptions(use_threads=False))


def _json(file: Any, _limit: int) -> pa.Table:
    from pyarrow import json

    return json.read_json(file, json.ReadOptions(use_threads=False))


ENDINGS: Final = {"parquet": _parquet, "csv": _csv, "json": _json, "jsonl": _json, "ndjson": _json}
"""The formats whose rows are shown, by the endings of names."""


def _bounded(cell: Any) -> Any:
    """A cell that is no longer than one is shown."""
    text = to_json(cell).decode() if isinstance(cell, dict | list) else cell
    return f"{text[:_CELL_CHARACTERS]}…" if isinstance(text, str) and len(text) > _CELL_CHARACTERS else cell


def _rows(_ask: Ask, ending: str, data: bytes, limit: int) -> bytes:
    return _rows_in(ending, io.BytesIO(data), limit)


def _rows_of_ranges(ask: Ask, limit: int) -> bytes:
    with io.BufferedReader(SourceFile(Distant(ask, ""), ""), _BUFFER_BYTES) as file:
        return _rows_in("parquet", file, limit)


def _rows_in(ending: str, file: Any, limit: int) -> bytes:
    """Read a file, in a process of its own; nothing is known of a damaged one."""
    try:
        table = ENDINGS[ending](file, limit)
    except (pa.ArrowException, OSError, ValueError):
        return b""
    rows = shown_rows(table.select(range(min(table.num_columns, _COLUMNS_MAX))), limit, None)
    rows["rows"] = [[_bounded(cell) for cell in row] for row in rows["rows"]]
    return to_json(rows)
