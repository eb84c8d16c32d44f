"""Fields that no row stores, worked out of those that it does."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from millpond.maps.model.aggregation import Computed
from millpond.maps.model.columns import value_arrow
from millpond.maps.model.definition import MapDefinition

__all__ = ("computed_column", "with_computed")


def computed_column(field: Computed, stored: Mapping[str, pa.Array]) -> pa.Array:
    """The values of a computed field, of the columns of stored ones by their names."""
    total, count = (stored[name].cast(pa.float64(), safe=False) for name in field.of)
    return pc.divide(total, pc.if_else(pc.equal(count, 0), None, count))


def with_computed(definition: MapDefinition, values: pa.Array) -> pa.Array:
    """Stored values as people see them: with the computed fields."""
    aggregation = definition.aggregation
    if aggregation is None or not aggregation.computed:
        return values
    kind = value_arrow(definition.shown)
    stored = dict(zip((field.name for field in values.type), values.flatten(), strict=True))
    made = [*stored.values(), *(computed_column(field, stored) for field in aggregation.computed)]
    return pa.StructArray.from_arrays(made, fields=list(kind), mask=values.is_null())
