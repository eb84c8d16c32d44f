"""The fields that a map lacks for the columns of an input: what `extra="add"` adds before it loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa

from millpond.errors import Invalid
from millpond.maps.inputs.mapping import ColumnMapping, extra_columns, find_columns, struct_fields
from millpond.maps.inputs.tables import batches_of
from millpond.maps.model.definition import MapDefinition, ScalarType
from millpond.maps.model.values import scalar_of

__all__ = ("AddFields", "joined_types", "missing_fields", "with_fields")

AddFields = Callable[[Mapping[str, str]], "MapDefinition"]
"""Adds fields of these types; the definition with them."""


def missing_fields(schema: pa.Schema, definition: MapDefinition, mapping: ColumnMapping) -> dict[str, str]:
    """The fields that a map of fields lacks, and their types.

    Raises: `Invalid` for a column whose type no field can have.
    """
    if definition.value is None or not definition.value.fields:
        return {}
    columns = find_columns(schema.names, definition, replace(mapping, extra="ignore"))
    types = {name: schema.field(name).type for name in extra_columns(schema.names, columns, definition, mapping)}
    whole = None if columns.value is None else schema.field(columns.value).type
    if whole is not None and pa.types.is_struct(whole):
        names = [field.name for field in whole]
        there = {name for _, name in struct_fields(names, definition, str(columns.value), "ignore")}
        types |= {field.name: field.type for field in whole if field.name not in there}
    return {name: _scalar(definition, name, kind) for name, kind in types.items()}


def _scalar(definition: MapDefinition, name: str, kind: pa.DataType) -> str:
    scalar = scalar_of(kind)
    if scalar is None:
        raise Invalid(
            "the column has no value that tells its type", kind="column_type", column=name, type=kind,
            hint=f'first: millpond alter {definition.name} --add "{name} double"',
        )  # fmt: skip
    return str(scalar)


def joined_types(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of several inputs: of several types the one that takes all values, which is text at worst."""
    kinds: dict[str, list[pa.DataType]] = {}
    for field in chain.from_iterable(schemas):
        kinds.setdefault(field.name, []).append(field.type)
    return pa.schema([(name, _joined(several)) for name, several in kinds.items()])


def _joined(kinds: Sequence[pa.DataType]) -> pa.DataType:
    types = list(dict.fromkeys(kind for kind in kinds if not pa.types.is_null(kind)))
    if len(types) < 2:
        return types[0] if types else pa.null()
    if all(map(pa.types.is_struct, types)):
        return pa.struct(list(joined_types([pa.schema(list(kind)) for kind in types])))
    scalars = {scalar_of(kind) for kind in types}
    if len(scalars) == 1:
        return types[0]
    return pa.float64() if scalars == {ScalarType.LONG, ScalarType.DOUBLE} else pa.string()


def with_fields(
    data: Any, definition: MapDefinition, mapping: ColumnMapping, add: AddFields
) -> tuple[Any, MapDefinition]:  # fmt: skip
    """The rows, and the definition with the fields that the first of them bring, where the load says to add those.

    Raises: as `missing_fields`.
    """
    if mapping.extra != "add":
        return data, definition
    batches = batches_of(data, definition, mapping)
    first = next(batches, None)
    if first is None:
        return batches, definition
    missing = missing_fields(first.schema, definition, mapping)
    return chain([first], batches), add(missing) if missing else definition
