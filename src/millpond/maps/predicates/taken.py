"""The rows of canonical batches that a condition takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millpond.arrays.matching import matching
from millpond.errors import Invalid
from millpond.maps.model.display import present

if TYPE_CHECKING:
    import numpy.typing as npt

    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.predicates.predicate import Predicate

__all__ = ("filtered", "taken_rows")

_ROW = " row"
"""No map has a column of that name."""


def filtered(batch: pa.RecordBatch, condition: Predicate) -> pa.RecordBatch:
    """The rows of a presented batch that a condition takes.

    Raises: `Invalid` when the condition does not go with the columns.
    """
    try:
        return matching(batch, condition.expression)
    except (pa.ArrowException, TypeError) as error:
        raise Invalid("condition does not go with the map's columns", kind="condition", reason=error) from error


def taken_rows(
    definition: MapDefinition, condition: Predicate, canonical: pa.RecordBatch
) -> npt.NDArray[np.bool_]:  # fmt: skip
    """Mask of the rows of a canonical batch that a condition takes.

    Raises: as `filtered`.
    """
    mask = np.full(canonical.num_rows, condition.expression is None)
    if condition.expression is not None:
        shown = present(definition, canonical, list(condition.columns))
        within = _within(condition, shown)
        numbers = pa.array(np.flatnonzero(within))
        if len(numbers):
            some = shown if len(numbers) == len(shown) else shown.take(numbers)
            mask[filtered(some.append_column(_ROW, numbers), condition).column(_ROW).to_numpy()] = True
    return mask


def _within(condition: Predicate, shown: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Mask of the rows whose numbers are not outside the spans of a condition: Arrow takes longer to refuse others."""
    mask = np.ones(shown.num_rows, np.bool_)
    for name, span in condition.spans.items():
        if name not in shown.schema.names:
            continue
        column = shown.column(name)
        number = {pa.int64(): int, pa.float64(): float}.get(column.type)
        if number is None:
            continue
        if type(span.lower) is number:
            mask &= ~(column.fill_null(span.lower).to_numpy() < span.lower)  # not a number stays, and so does null
        if type(span.upper) is number:
            mask &= ~(column.fill_null(span.upper).to_numpy() > span.upper)
    return mask
