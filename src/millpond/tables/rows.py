"""Tables whose rows are made from values, some at a time; and the values that a condition leaves of their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.matching import matching
from millpond.maps.predicates.bounds import Span
from millpond.maps.predicates.predicate import typed_spans

__all__ = ("TIME", "Left", "Row", "RowTable", "scanned")

Row: TypeAlias = tuple[Any, ...]
TIME = pa.timestamp("ms", tz="UTC")
POINTS_MAX = 1_000
"""Values of a column that are looked up one by one; where there are more, all are listed."""
_EVERYTHING = Span()


@dataclass(frozen=True, slots=True)
class Left:
    """The spans that a condition leaves of the columns; it may take less, never more."""

    spans: Mapping[str, Span]

    @property
    def nothing(self) -> bool:
        """True when no row can satisfy the condition."""
        return any(span.empty for span in self.spans.values())

    def span(self, name: str) -> Span:
        """The span of a column."""
        return self.spans.get(name, _EVERYTHING)

    def points(self, name: str) -> list[Any] | None:
        """The few values that a column may have; None for many."""
        points = self.span(name).points
        return None if points is None or len(points) > POINTS_MAX else sorted(points)

    def holds(self, name: str, value: Any) -> bool:
        """True when a column may have a value."""
        span = self.span(name)
        if span.points is not None:
            return value in span.points
        return (span.lower is None or value >= span.lower) and (span.upper is None or value <= span.upper)


def scanned(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], where: pc.Expression | None, columns: Sequence[str] | None
) -> pa.RecordBatchReader:  # fmt: skip
    """The rows of batches that satisfy a condition, a batch for each: one without rows lets a query end in time."""
    names = schema.names if columns is None else list(columns)
    shown = pa.schema([schema.field(name) for name in names])
    batches_left = ((batch if where is None else matching(batch, where)).select(names) for batch in batches)
    return pa.RecordBatchReader.from_batches(shown, batches_left)


class RowTable:
    """A table that is read when it is asked for: `read` makes pages of rows, of which some may not be wanted."""

    def __init__(self, name: str, schema: pa.Schema, read: Callable[[Left], Iterable[Sequence[Row]]]) -> None:
        self.name, self.schema = name, schema
        self._read = read

    def scan(self, where: pc.Expression | None, columns: Sequence[str] | None) -> pa.RecordBatchReader:
        """The rows that satisfy a condition, a batch for each page."""
        return scanned(self.schema, self._batches(where), where, columns)

    def _batches(self, where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        left = Left({} if where is None else typed_spans(where, self.schema))
        for page in () if left.nothing else self._read(left):
            cells = zip(*page, strict=True) if page else [()] * len(self.schema)
            columns = [pa.array(column, field.type) for column, field in zip(cells, self.schema, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
