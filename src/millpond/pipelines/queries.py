"""Queries of steps, by the engine that is here: tables and maps are views, other inputs are bound parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.clock import SystemClock
from millpond.errors import Invalid
from millpond.maps.model.table_query import connected
from millpond.pipelines.attempt_threads import ended_by
from millpond.pipelines.reads import map_of

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from millpond.client.pond import RemotePond
    from millpond.pond import Pond

__all__ = ("bound", "is_table", "query_rows", "row_text", "write_rows")

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_BATCH_ROWS = 100_000


def is_table(value: Any) -> bool:
    """True for an input that is a view in a query: a table of files, or a map."""
    return isinstance(value, Mapping) and ("path" in value or "map" in value)


def bound(query: str, inputs: Mapping[str, Any], parameter: Callable[[str], str]) -> str:
    """A query whose places are names of views, and of parameters.

    >>> bound("select * from {flights} where day = {day}", {"flights": {"path": "a"}, "day": "x"}, "${}".format)
    'select * from flights where day = $day'
    """
    return _PLACEHOLDER.sub(lambda match: match[1] if is_table(inputs[match[1]]) else parameter(match[1]), query)


def query_rows(
    pond: Pond | RemotePond, query: str, inputs: Mapping[str, Any], take: Callable[[pa.RecordBatchReader], Any],
    maps: Sequence[Mapping[str, Any]] = (), rows_max: int | None = None,
) -> Any:  # fmt: skip
    """The result of a function of the rows of a query, or the first of them; `maps` are views by their names.

    Raises: `Invalid` for a query that fails; as the maps, which are read as streams.
    """
    import duckdb  # here, as in `write_rows`: a worker that asks nothing does without it

    failures = list[list[BaseException]]()
    parameters = {name: _typed(value) for name, value in inputs.items() if not is_table(value)}
    try:
        with connected({"threads": 2}) as connection:
            connection.execute("set timezone = 'UTC'")
            tables = {name: value for name, value in inputs.items() if is_table(value)}
            for name, value in {**{str(own["map"]): own for own in maps}, **tables}.items():
                failures.append(_view(connection, pond, name, value))
            with ended_by(connection.interrupt):
                rows = connection.sql(bound(query, inputs, "${}".format), params=parameters)
                return take((rows if rows_max is None else rows.limit(rows_max)).to_arrow_reader(_BATCH_ROWS))
    except (duckdb.Error, OSError) as error:
        if own := next((failure for of_map in failures for failure in of_map), None):
            raise own from None  # as it was, and not as DuckDB words it
        if isinstance(error, OSError):
            raise
        raise Invalid("the query fails", kind="pipeline_sql", reason=str(error).splitlines()[0],
                      hint="mend it; tables and maps are inputs: from {weather}, so named") from None  # fmt: skip


def write_rows(reader: pa.RecordBatchReader, file: Path) -> int:
    """Write rows as Parquet, whole or not at all; how many there are."""
    from pyarrow import parquet

    file.parent.mkdir(parents=True, exist_ok=True)
    staging = file.with_name(f".{file.name}.{SystemClock().random_id()}")  # an attempt that is over may write still
    rows = 0
    try:
        with parquet.ParquetWriter(staging, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)
                rows += batch.num_rows
        staging.rename(file)
    finally:
        staging.unlink(missing_ok=True)
    return rows


def row_text(row: Mapping[str, Any]) -> str:
    """A row of a query to look at: its JSON, with other values as their text.

    >>> row_text({"key": "JFK", "day": date(2013, 1, 1), "temp": 39.0})
    '{"key":"JFK","day":"2013-01-01","temp":39.0}'
    """
    try:
        return msgspec.json.encode(row, enc_hook=str).decode()
    except TypeError:  # a map whose keys have no JSON
        return str(row)


def _view(
    connection: duckdb.DuckDBPyConnection, pond: Pond | RemotePond, name: str, value: Mapping[str, Any]
) -> list[BaseException]:
    """Make an input a view; a list of what will fail while it is read."""
    if "path" not in value:
        from millpond.maps.sql import add_stream

        return add_stream(connection, name, map_of(pond, value))
    path = Path(str(value["path"]))
    files = [str(path)] if path.is_file() else sorted(map(str, path.glob("*.parquet")))
    if not files:
        raise Invalid("the table is not here", kind="pipeline_place", input=name, path=path,
                      hint="workers that take tables of others share the folder of pipeline files")  # fmt: skip
    connection.register(name, connection.read_parquet(files))
    return []


def _typed(value: Any) -> Any:
    """A parameter as the engine compares it: text that is a day, or an instant, as that."""
    if isinstance(value, str):
        for kind, pattern in ((date, r"\d{4}-\d\d-\d\d"), (datetime, r"\d{4}-\d\d-\d\dT\d\d:\d\d.*")):
            if re.fullmatch(pattern, value):
                try:
                    return kind.fromisoformat(value)
                except ValueError:
                    return value
    return value
