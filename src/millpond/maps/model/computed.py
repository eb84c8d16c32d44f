"""Fields that no row stores, worked out of those that it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.byte_columns import bytes_of, to_list
from millpond.maps.model.aggregation import Computed, Formula
from millpond.maps.model.columns import value_arrow
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.sketches import known_quantiles, texts_counted
from millpond.maps.model.values import decode_values, encode_values

__all__ = ("computed_column", "shown_bytes", "shown_fields", "with_computed")


def computed_column(field: Computed, stored: Mapping[str, pa.Array]) -> pa.Array:
    """The values of a computed field, of the columns of stored ones by their names."""
    if field.formula is Formula.DISTINCT:
        return texts_counted(stored[field.of[0]])
    if field.at is not None:
        return known_quantiles(stored[field.of[0]], field.at)
    total, count = (stored[name].cast(pa.float64(), safe=False) for name in field.of)
    return pc.divide(total, pc.if_else(pc.equal(count, 0), None, count))


def with_computed(definition: MapDefinition, values: pa.Array) -> pa.Array:
    """Stored values as people see them: with the computed fields."""
    if definition.shown == definition.value:
        return values
    kind = value_arrow(definition.shown)
    columns = shown_fields(definition, values, [field.name for field in kind])
    return pa.StructArray.from_arrays([columns[field.name] for field in kind], fields=list(kind), mask=values.is_null())


def shown_bytes(definition: MapDefinition, stored: bytes) -> bytes:
    """One encoded value as people see it."""
    if definition.shown == definition.value:
        return stored
    values = decode_values(bytes_of(pa.array([stored])), definition.value)
    return to_list(encode_values(with_computed(definition, values), definition.shown))[0]


def shown_fields(definition: MapDefinition, values: pa.Array, names: Sequence[str]) -> dict[str, pa.Array]:
    """Some of the fields of values, stored and computed ones."""
    assert definition.value is not None, "fields are declared"
    stored = {name: pc.struct_field(values, name) for name, _ in definition.value.fields}
    computed = () if definition.aggregation is None else definition.aggregation.computed
    columns = {field.name: computed_column(field, stored) for field in computed if field.name in names}
    return {name: column for name, column in (stored | columns).items() if name in names}
