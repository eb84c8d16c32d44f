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
        numbered = shown.append_column(_ROW, pa.array(np.arange(len(mask))))
        mask[filtered(numbered, condition).column(_ROW).to_numpy()] = True
    return mask
