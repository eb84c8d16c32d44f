"""The first rows of an object, read by a process of its own.

    bytes ─▶ process, which has so much memory and so many seconds ─▶ JSON of the first rows
                  └─ it ends early, whatever ends it ─▶ none

Objects are what strangers wrote. Kilobytes of them unpack to gigabytes, or are nested so deeply that a parser in C++
ends the process it runs in: here that is not the node.
"""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from millpond.json_forms import FormError, parse_object, to_json
from millpond.server.console.tables import shown_rows

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ("ENDINGS", "MEMORY_BYTES", "first_rows")

MEMORY_BYTES: Final = 256 << 20
_CPU_SECONDS, _WAIT_SECONDS = 10, 60
_COLUMNS_MAX = 100
_CELL_CHARACTERS = 4_000


def first_rows(ending: str, data: bytes, limit: int) -> dict[str, Any] | None:
    """The first rows of a file, in the form of `shown_rows`; `ending` is one of `ENDINGS`.

    None for a file that is damaged, or that takes more memory or time than a preview has.
    """
    command = [sys.executable, "-m", __name__, ending, str(limit)]
    alone = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}  # others reserve ahead
    try:
        ended = subprocess.run(
            command, input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_WAIT_SECONDS, env=alone,
        )  # fmt: skip
        return None if ended.returncode else parse_object(ended.stdout)
    except (subprocess.TimeoutExpired, FormError):
        return None


def _parquet(data: bytes, limit: int) -> pa.Table:
    import pyarrow as pa
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


def _main() -> None:
    """Read a file from the input, within the bounds; its rows are the output."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    ending, limit = sys.argv[1:]
    table = ENDINGS[ending](sys.stdin.buffer.read(), int(limit))
    rows = shown_rows(table.select(range(min(table.num_columns, _COLUMNS_MAX))), int(limit))
    rows["rows"] = [[_bounded(cell) for cell in row] for row in rows["rows"]]
    sys.stdout.buffer.write(to_json(rows))


if __name__ == "__main__":
    _main()
