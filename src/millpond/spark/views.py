"""Rows of a map, and their changes, in the form that Spark reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from millpond.errors import Invalid
from millpond.maps.layered.differences import AddressRows, Difference
from millpond.maps.model.columns import askable_schema
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.display import present

__all__ = ("CHANGE_COLUMNS", "ChangesView", "TableView", "as_spark_holds", "with_change_columns")

BATCH_ROWS = 65_536

CHANGE, COMMIT = "_change", "_commit"
CHANGE_COLUMNS = pa.schema([(CHANGE, pa.string()), (COMMIT, pa.string())])
"""The columns that tell of a change of a branch: `added`, `changed` or `removed`, and the id of the commit."""
_CHANGES = pa.array(["added", "changed", "removed"])
_ROW = "\0place"


def as_spark_holds(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows with Spark's own types: it holds times in microseconds."""
    return rows.cast(to_arrow_schema(from_arrow_schema(rows.schema), timezone="UTC"))


def with_change_columns(definition: MapDefinition, schema: pa.Schema) -> pa.Schema:
    """A schema with the columns of changes behind its own.

    Raises: `Invalid`, kind `column_taken`, when the map has a column of such a name.
    """
    for name in CHANGE_COLUMNS.names:
        if name in askable_schema(definition).names:
            raise Invalid(
                "the map has a column of the name of one of changes", kind="column_taken", column=name,
                map=definition.name, hint="rename the field, or leave out the option 'changes'",
            )  # fmt: skip
    return pa.schema([*schema, *CHANGE_COLUMNS])


@dataclass(frozen=True, slots=True)
class TableView:
    """Rows in the form that Spark reads: the wanted columns of those that a condition takes, in batches of a moderate
    size.
    """

    definition: MapDefinition
    columns: Sequence[str]
    where: pc.Expression | None

    def __call__(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Show canonical rows."""
        if self.where is None:
            shown = present(self.definition, rows, self.columns)
        else:
            # The condition may be about columns that are not wanted.
            shown = present(self.definition, rows, askable_schema(self.definition).names)
            shown = shown.filter(self.where).select(self.columns)
        return _in_batches(shown)


def _in_batches(shown: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, shown.num_rows, BATCH_ROWS):
        yield as_spark_holds(shown.slice(start, BATCH_ROWS))


@dataclass(frozen=True, slots=True)
class ChangesView:
    """Differences of two states as rows: what an address has now, and of one that is gone what it had.

    A condition makes of each state the rows that it takes, before they are compared: so an address whose value it takes
    no more is gone. Rows that are gone come only with the columns that say so.
    """

    table: TableView

    def __call__(self, difference: Difference, commit: str) -> Iterator[pa.RecordBatch]:
        """Show the differences that a commit made."""
        was = self._counted(difference.old, difference.old_positions)
        now = self._counted(difference.new, difference.new_positions)
        gone = was & ~now if CHANGE in self.table.columns else np.zeros(len(was), np.bool_)
        own = [name for name in self.table.columns if name not in CHANGE_COLUMNS.names]
        for side, positions, changes in (
            (difference.new, difference.new_positions[now], np.where(was[now], 1, 0)),
            (difference.old, difference.old_positions[gone], np.full(int(gone.sum()), 2)),
        ):  # fmt: skip
            shown = present(self._definition(side), side.rows.take(pa.array(positions)), own)
            marks = [_CHANGES.take(pa.array(changes)), pa.repeat(commit, len(positions))]
            schema = pa.schema([*shown.schema, *CHANGE_COLUMNS])
            rows = pa.RecordBatch.from_arrays([*shown.columns, *marks], schema=schema)
            yield from _in_batches(rows.select(self.table.columns))

    def _definition(self, side: AddressRows) -> MapDefinition:
        """The definition of the rows of a side, which may be of an earlier map of this name."""
        definition = self.table.definition
        return definition if side.definition.incarnation == definition.incarnation else side.definition

    def _counted(self, side: AddressRows, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """True where a side has a row that the condition takes."""
        there: npt.NDArray[np.bool_] = positions >= 0
        if self.table.where is None:
            return there
        rows = np.flatnonzero(there)
        definition = self._definition(side)
        shown = present(definition, side.rows.take(pa.array(positions[rows])), askable_schema(definition).names)
        taken = shown.append_column(_ROW, pa.array(rows)).filter(self.table.where)
        counted = np.zeros(len(positions), np.bool_)
        counted[taken.column(_ROW).to_numpy()] = True
        return counted
