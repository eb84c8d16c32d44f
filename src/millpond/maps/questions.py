"""What a caller asks for, in the form that kernels read: one column of keys or numbers, one of instants.

Keys and times come in any shape people have at hand: Arrow arrays, chunked or dictionary-encoded or not, NumPy
arrays, lists. Nothing naive is given a zone in silence (`inputs/times.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import Invalid
from millpond.maps.inputs.times import parse_instant, to_millis
from millpond.maps.kinds import MapDefinition
from millpond.maps.radix import I64

__all__ = ("instants_of", "is_text", "numbers_of", "one_array", "single_key")

_DIGITS_MAX = 100


def is_text(told: str) -> bool:
    """Whether a string can be written as UTF-8: not where it holds half a surrogate pair, as JSON can."""
    try:
        told.encode()
    except UnicodeEncodeError:
        return False
    return True


def single_key(definition: MapDefinition, key: str | bytes | int) -> bytes | int | None:
    """One key as the shard stores it, for maps of ranges a number; None for a number that no range can hold.

    Raises: `Invalid` when a map of ranges is asked for something else.
    """
    if definition.kind.keyed:
        if isinstance(key, bytes):
            return key
        text = str(key)
        if not is_text(text):
            raise Invalid(
                "the key is no text", kind="key_encoding", map=definition.name, key=repr(text),
                hint="half a surrogate pair has no UTF-8; ask with the bytes of the key",
            )  # fmt: skip
        return text.encode()
    if isinstance(key, str) and key.strip().removeprefix("-").isdecimal():
        # Longer than any number of a map; Python refuses to read thousands of digits.
        key = int(key) if len(key) <= _DIGITS_MAX else 1 << 63
    if not isinstance(key, int):
        raise Invalid(
            "a ranged map is asked by number", kind="key_number", map=definition.name, key=repr(key),
            hint="the key is a whole number, such as 42",
        )  # fmt: skip
    return key if -(1 << 63) <= key < 1 << 63 else None


def one_array(column: Any) -> pa.Array:
    """Any column as one Arrow array."""
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return column.chunk(0)
        return _wide(column).combine_chunks()
    return column if isinstance(column, pa.Array) else pa.array(column)


def _wide(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text of 2 GiB and more does not fit one array with 32-bit offsets."""
    if column.nbytes < 1 << 31:
        return column
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return column.cast(wide.get(column.type, column.type))


def numbers_of(column: Any) -> tuple[I64, npt.NDArray[np.bool_]]:
    """Numbers and where there is one (an empty mask: everywhere), for maps of ranges.

    Text that is a whole number is read as one, for the sake of columns from CSV.

    Raises: `Invalid` when the column holds neither whole numbers nor their text.
    """
    array = one_array(column)
    try:
        numbers = array if array.type == pa.int64() else array.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Invalid(
            "keys of a map of ranges are whole numbers", kind="key_type", type=array.type,
            hint="cast the column to int64",
        ) from error  # fmt: skip
    if not numbers.null_count:
        return numbers.to_numpy(), np.zeros(0, np.bool_)
    return numbers.fill_null(0).to_numpy(), numbers.is_valid().to_numpy(zero_copy_only=False)


def instants_of(definition: MapDefinition, at: Any, count: int) -> tuple[I64, npt.NDArray[np.bool_]]:
    """UTC milliseconds, one for each key or one for all, and where there is one (an empty mask: everywhere).

    Raises: `Invalid` when a map with times is asked without one, when a time is naive or not understood, or when
    there are not as many times as keys.
    """
    everywhere = np.zeros(0, np.bool_)
    if not definition.kind.timed:
        return np.zeros(1, np.int64), everywhere
    if at is None:
        raise Invalid(
            "a map with times is asked at a time", kind="at_missing", map=definition.name,
            hint="pass at=…, one or a column",
        )  # fmt: skip
    if _is_column(at):
        return _instants(one_array(at), count)
    return np.array([parse_instant(at)], np.int64), everywhere


def _is_column(at: Any) -> bool:
    return isinstance(at, pa.Array | pa.ChunkedArray | list | tuple) or (hasattr(at, "__array__") and np.ndim(at) > 0)


def _instants(array: pa.Array, count: int) -> tuple[I64, npt.NDArray[np.bool_]]:
    if len(array) != count:
        raise Invalid("there are not as many times as keys", kind="at_length", keys=count, times=len(array))
    per_milli = _per_milli(array.type)
    if per_milli:
        numbers = array.view(pa.int64())
        raw = (numbers.fill_null(0) if array.null_count else numbers).to_numpy()
        return raw if per_milli == 1 else raw // per_milli, _known(array)
    millis, refused = to_millis(array)
    if pc.any(refused).as_py():
        row = int(np.argmax(refused.to_numpy(zero_copy_only=False)))
        raise Invalid(
            "time is not understood", kind="time_unknown", row=row, time=_shown(array[row]),
            hint="times are UTC milliseconds, or have a zone, in the years 1 to 9999",
        )  # fmt: skip
    return (millis.fill_null(0) if millis.null_count else millis).to_numpy(), _known(millis)


def _shown(time: pa.Scalar) -> str:
    """A time for people, also where Python has none that late."""
    try:
        return str(time)
    except (OverflowError, ValueError):
        return f"{time.value} ({time.type})"


def _per_milli(kind: pa.DataType) -> int:
    """How many units make a millisecond, where a column needs no more than that to be read; else 0."""
    if kind == pa.int64():
        return 1
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return {"ms": 1, "us": 1_000, "ns": 1_000_000}.get(kind.unit, 0)
    return 0


def _known(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Where there is a time; an empty mask: everywhere."""
    return array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else np.zeros(0, np.bool_)
