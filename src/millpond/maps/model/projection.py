"""Values that were written under a former definition, shown as the one in force says: the one place that knows how.

    former        temp long (1), visib double (2)
    in force      t double (1), gust double (3, default 0)
    a value       {temp: 70, visib: 10}  →  {t: 70.0, gust: 0.0}

Invariants:
* a field is the same field where it has the same id, whatever it was called;
* a value that is null stays null: it has no fields that a default could fill;
* what is shown is equal for a row that folding rewrote meanwhile: `field_changes.py` says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from millpond.arrays.byte_columns import bytes_of
from millpond.errors import Invalid
from millpond.maps.model.columns import scalar_arrow, value_arrow
from millpond.maps.model.definition import MapDefinition, ScalarType, ValueType, parse_value_type
from millpond.maps.model.field_changes import WIDER
from millpond.maps.model.field_ids import FormerValue
from millpond.maps.model.one_value import SCALARS
from millpond.maps.model.values import decode_values

__all__ = ("Projection", "former_of", "projection")


@dataclass(frozen=True, slots=True)
class _Field:
    """A field in force: its place among the former ones, or None and the bytes of what is shown instead."""

    type: pa.DataType
    source: int | None
    default: bytes | None = None


@dataclass(frozen=True, slots=True)
class Projection:
    """The way from values of a former type to those of the type in force."""

    value: ValueType
    fields: tuple[_Field, ...]
    narrow: bool
    """True where a number may not be told exactly by the type in force."""
    too_narrow: str = ""
    """A field whose former type is wider than that in force, as it is where a widening was taken back."""

    def values(self, array: pa.Array, *, safe: bool = False) -> pa.Array:
        """The values as they are shown.

        Raises: `pa.ArrowInvalid`, when it is to be `safe`, for a number that would be another; `Invalid`, kind
        `field_narrowed`.
        """
        if self.too_narrow:
            raise Invalid(
                "rows have a wider type than their field", kind="field_narrowed", field=self.too_narrow,
                value=self.value, hint="widen the field; or restore the map from before they were loaded",
            )  # fmt: skip
        if not self.value.fields:
            return array.cast(self.fields[0].type, safe=safe)
        columns = [self._column(field, array, safe) for field in self.fields]
        missing = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(columns, fields=list(value_arrow(self.value)), mask=missing)

    @staticmethod
    def _column(field: _Field, array: pa.Array, safe: bool) -> pa.Array:
        if field.source is None:
            # One array for all ranges of a size: a field that is new to large layers costs no memory for each row.
            bits = max(len(array) - 1, 0).bit_length()
            return _repeated(field.type, field.default, bits, safe).slice(0, len(array))
        return array.field(field.source).cast(field.type, safe=safe)

    def exact(self, array: pa.Array, name: str) -> pa.Array:
        """The values as they are shown, if the type in force tells them all.

        Raises: `Invalid`, kind `field_narrowed`, naming a number of the map that it does not tell.
        """
        try:
            return self.values(array, safe=True)
        except pa.ArrowInvalid as error:
            raise Invalid(
                "a double does not tell this number from others", kind="field_narrowed", map=name,
                reason=str(error).splitlines()[0], hint="leave the field a long, or widen it to string",
            ) from error  # fmt: skip


@lru_cache(maxsize=16)
def _repeated(kind: pa.DataType, default: bytes | None, bits: int, safe: bool) -> pa.Array:
    if default is None:
        return pa.nulls(1 << bits, kind)
    stored = decode_values(bytes_of(pa.array([default], pa.binary())), ValueType(scalar=SCALARS[default[0]]))
    return stored.cast(kind, safe=safe).take(pa.array(np.zeros(1 << bits, np.int64)))


def former_of(definition: MapDefinition) -> FormerValue:
    """The value type of a definition, for rows that were written under it."""
    return FormerValue(definition.value_id, str(definition.value), definition.field_ids)


def projection(former: FormerValue, definition: MapDefinition) -> Projection | None:
    """The way from a former value type to that of a definition; None where both are the same."""
    assert definition.value is not None, "maps without a declared type have no fields"
    written = parse_value_type(former.value)
    positions = dict(zip(former.ids, range(len(former.ids)), strict=True))
    if (former.ids, written) == (definition.field_ids, definition.value):
        return None
    defaults = (
        {} if definition.fields is None else {d.field: bytes.fromhex(d.value) for d in definition.fields.defaults}
    )
    fields = tuple(
        _Field(scalar_arrow(scalar), positions.get(id_), defaults.get(id_))
        for id_, (_, scalar) in zip(definition.field_ids, definition.value.parts, strict=True)
    )
    narrow = any(
        pa.types.is_floating(field.type) and _shown_of(field, written) is ScalarType.LONG for field in fields
    )  # fmt: skip
    too_narrow = (
        name for id_, (name, scalar) in zip(definition.field_ids, definition.value.parts, strict=True)
        if id_ in positions and scalar not in (was := written.parts[positions[id_]][1], *WIDER.get(was, ()))
    )  # fmt: skip
    return Projection(definition.value, fields, narrow, next(too_narrow, ""))


def _shown_of(field: _Field, written: ValueType) -> ScalarType | None:
    """The type of what is shown as a field: of rows, or of its default."""
    if field.source is not None:
        return written.parts[field.source][1]
    return None if field.default is None else SCALARS[field.default[0]]
