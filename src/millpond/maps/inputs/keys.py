"""Keys as UTF-8: text as it is written, whole numbers and dates in their one way of being written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.maps.inputs.scalars import Converted, by_type, is_text, masked, present, to_long, to_scalar, unsuited
from millpond.maps.kinds import ScalarType

if TYPE_CHECKING:
    from millpond.maps.inputs.faults import Mask

__all__ = ("KEY_BYTES_MAX", "to_keys")

KEY_BYTES_MAX = 65_536


def to_keys(array: pa.Array[Any]) -> Converted:
    """A column as keys: binary, UTF-8. Nulls stay null: the caller calls them missing.

    Raises: `Invalid` when keys cannot be of the column's type.
    """
    converted = by_type(array, _to_keys)
    lengths = pc.binary_length(converted.values).fill_null(0).to_numpy(zero_copy_only=False)
    long: Mask = np.asarray(lengths > KEY_BYTES_MAX)
    if not long.any():
        return converted
    fault = (long, f"is longer than {KEY_BYTES_MAX} bytes")
    return Converted(masked(converted.values, long), (*converted.faults, fault))


def _to_keys(array: pa.Array[Any]) -> Converted:
    kind, types = array.type, pa.types
    if types.is_floating(kind):
        # Whole numbers turn into floats where some are missing; others have no one way of being written.
        whole = to_long(array)
        bad = present(array) & ~present(whole.values)
        text = whole.values.cast(pa.string())
        return Converted(text.cast(pa.binary()), ((bad, "is a float, which has no one way of being written"),))
    text_like = is_text(kind) or types.is_integer(kind) or types.is_boolean(kind) or types.is_date32(kind)
    if text_like or types.is_decimal(kind) or types.is_null(kind):
        return Converted(array.cast(pa.string()).cast(pa.binary()))
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        checked = to_scalar(array, ScalarType.STRING)
        return Converted(checked.values.cast(pa.binary()), checked.faults)
    raise unsuited(array, "keys")
