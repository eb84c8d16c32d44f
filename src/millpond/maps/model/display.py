"""Canonical rows as people see them: text keys, aware timestamps, a column per struct field.

Nothing is copied that Arrow can look at differently: keys and times are views of the same buffers.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millpond.error_values import shown
from millpond.errors import Invalid
from millpond.maps.model.columns import askable_schema, presented_schema
from millpond.maps.model.computed import shown_fields
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.tags import TAGS, shown_tags
from millpond.maps.model.values import present_values

__all__ = ("check_columns", "column_unknown", "present")


def check_columns(definition: MapDefinition, columns: Sequence[str] | None) -> list[str]:
    """The wanted columns by their own names, all of them when None.

    Raises: `Invalid` naming a column that the map does not have, and those it has.
    """
    if columns is None:
        return list(presented_schema(definition).names)
    presented = askable_schema(definition).names
    if not isinstance(columns, list | tuple):
        raise Invalid("columns are a list of names", kind="column_unknown", map=definition.name, columns=shown(columns))
    for name in columns:
        if not isinstance(name, str) or name not in presented:
            raise column_unknown(definition, name)
        if columns.count(name) > 1:
            raise Invalid("a column is asked for twice", kind="column_twice", map=definition.name, column=name,
                          hint="name each column once")  # fmt: skip
    return list(columns)


def column_unknown(definition: MapDefinition, name: object) -> Invalid:
    """The error that names a column the map does not have."""
    column = name if isinstance(name, str) else shown(name)
    return Invalid(
        "the map has no such column", kind="column_unknown", column=column, map=definition.name,
        hint=f"columns: {', '.join(askable_schema(definition).names)}",
    )  # fmt: skip


def present(definition: MapDefinition, rows: pa.RecordBatch, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """Canonical rows in `columns.presented_schema`, or just the wanted columns of `askable_schema`, in the order given.

    Raises: `Invalid` naming a column that the map does not have.
    """
    names = check_columns(definition, columns)
    schema = askable_schema(definition)
    shown = {name: rows.column(name) for name in names if name in definition.kind.address}
    if definition.tagged and TAGS in names:
        shown[TAGS] = shown_tags(rows.column("key"))
    if any(name not in shown for name in names):
        shown |= _shown_values(definition, rows.column("value"), names)
    arrays = [_shown(shown[name], schema.field(name).type) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([schema.field(name) for name in names]))


def _shown(array: pa.Array, type_: pa.DataType) -> pa.Array:
    return array if array.type == type_ else array.view(type_)


def _shown_values(definition: MapDefinition, values: pa.Array, names: Sequence[str]) -> dict[str, pa.Array]:
    type_ = definition.shown
    if type_ is None:
        return dict(zip(("value_type", "value"), present_values(values), strict=True))
    if type_.scalar is not None:
        return {"value": values}
    return shown_fields(definition, values, names)
