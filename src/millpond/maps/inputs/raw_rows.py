"""Raw rows as the events of a table by query: what its expressions say of each row, evaluated by DuckDB.

Whoever loads rows comes here, a task of Spark as well: what a query means does not depend on who evaluates it.
Calendars are those of the map's time zone.

| a row | becomes |
|---|---|
| for which the condition does not hold | nothing |
| of which an expression cannot be told | a reject, with what DuckDB says |
| any other | an event, which may be a reject as others are |
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

from millpond.arrays.radix import I64
from millpond.arrays.row_digest import digest_of_rows
from millpond.errors import Invalid
from millpond.maps.inputs.faults import Faults
from millpond.maps.inputs.mapping import ColumnMapping, find_columns
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.table_query import LOCKED, ROW, connected, table_query

__all__ = ("Events", "events_of")

_MISTAKES = (duckdb.BinderException, duckdb.ParserException, duckdb.CatalogException, duckdb.NotImplementedException)
"""Errors that are about all rows alike."""


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a batch of raw rows, the row that each is of, and the faults of rows that are none.

    `digest` is that of the rows which have events, by all their columns.
    """

    batch: pa.RecordBatch
    rows: I64
    faults: Faults
    digest: int


def events_of(batch: pa.RecordBatch, definition: MapDefinition, columns: ColumnMapping | None) -> Events:
    """The events of raw rows.

    Raises: `Invalid` for a column that is missing; kind `table_query` for an expression that does not fit the columns.
    """
    assert definition.query is not None and definition.aggregation is not None, "it is a table by query"
    columns_in = find_columns(batch.schema.names, definition, columns)
    names, sources = zip(*columns_in.fields, strict=True)
    columns_of = [pa.array(np.arange(batch.num_rows)), *(batch.column(source) for source in sources)]
    raw = pa.Table.from_arrays(columns_of, names=[ROW, *names])
    faults = Faults(batch.num_rows)
    with connected({**LOCKED, "threads": 1, "temp_directory": ""}) as connection:  # it takes row by row: nothing spills
        connection.execute("set timezone = $1", [definition.aggregation.time_zone])
        evaluating = _Evaluating(connection, raw, definition, faults)
        tables = evaluating.rows(0, len(raw)) or evaluating.rows(0, 0)
    table = pa.concat_tables(tables)
    events = table.drop_columns([ROW]).combine_chunks()
    batches = events.to_batches() or [pa.RecordBatch.from_pylist([], events.schema)]
    rows = table.column(ROW).to_numpy()
    whole_rows = batch.select(sorted(columns_in.beside)).take(pa.array(rows))
    return Events(batches[0], rows, faults, digest_of_rows(whole_rows.columns, len(rows)))


@dataclass(frozen=True, slots=True)
class _Evaluating:
    """The evaluation of some raw rows."""

    connection: duckdb.DuckDBPyConnection
    raw: pa.Table
    definition: MapDefinition
    faults: Faults

    def rows(self, start: int, stop: int) -> list[pa.Table]:
        """The events of some rows; where there is an error those of both halves, until it is of one row.

        Raises: `Invalid`, kind `table_query`.
        """
        try:
            self.connection.register("raw", self.raw.slice(start, stop - start))
            return [self.connection.sql(table_query(str(self.definition.query)).rows).to_arrow_table()]
        except _MISTAKES as error:
            raise Invalid(
                "the query of the table does not fit the columns", kind="table_query", map=self.definition.name,
                reason=_first_line(error), hint="cast columns that are text, such as delay::double",
            ) from None  # fmt: skip
        except duckdb.Error as error:
            if stop - start == 1:
                self.faults.bad[start], self.faults.reasons[start] = True, _first_line(error)
                return []
        middle = (start + stop) // 2
        return [*self.rows(start, middle), *self.rows(middle, stop)]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
