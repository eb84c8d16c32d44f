"""Requested keys in the form that kernels read: one column of keys or numbers, one of instants.

Keys and times come in any common shape: Arrow arrays, chunked or dictionary-encoded or not, NumPy
arrays, pandas and polars series, lists. What may be a key says `inputs/keys.py`, what may be a time `inputs/times.py`.

A null key or time is a miss. A value that is no key or no time is an error that names it, or a miss: `on_invalid`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.radix import I64
from millpond.errors import Invalid
from millpond.maps.inputs.keys import NEVER_STORED, type_refused
from millpond.maps.inputs.scalars import Converted, by_type, to_instants
from millpond.maps.inputs.tables import column_of, tag_sets
from millpond.maps.inputs.tags import TAGS_HINT, check_keys_type, key_reader
from millpond.maps.model.definition import MapDefinition
from millpond.times.instants import INSTANT_MAX, INSTANT_MIN, MILLIS_CLEAR, parse_instant

__all__ = (
    "QueryKeys", "Key", "OnInvalid", "query_keys", "check_on_invalid", "instants_of", "is_utf8", "key_array",
    "key_in_column",
    "keys_of", "moments_of", "one_array",
)  # fmt: skip

Mask: TypeAlias = "npt.NDArray[np.bool_]"
Key: TypeAlias = (
    "str | bytes | int | float | bool | Decimal | date | np.generic | pa.Scalar | Mapping[str, object]"
    " | Sequence[tuple[str, object]] | None"
)
"""The types of one key, see `inputs/keys.py`, and of one set of tags, see `inputs/tags.py`."""
OnInvalid: TypeAlias = Literal["error", "miss"]

_SHOWN_MAX = 200
_NOBODY: Mask = np.zeros(0, np.bool_)


def check_on_invalid(on_invalid: str) -> None:
    """Refuse another word than `error` and `miss`.

    Raises: `Invalid`.
    """
    if on_invalid not in ("error", "miss"):
        raise Invalid(
            "on_invalid is not known", kind="on_invalid", on_invalid=repr(on_invalid), hint="one of: error, miss"
        )


def is_utf8(text: object) -> bool:
    """True when a value is text that has a form in UTF-8: half a surrogate pair, as JSON can hold it, has none."""
    try:
        return isinstance(text, str) and text.encode() is not None
    except UnicodeEncodeError:
        return False


# -- keys ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueryKeys:
    """A column of keys as kernels read it: bytes or text for keyed maps, int64 for ranged ones; null where none is.

    `faults`: masks of the rows whose value is no key, each with what is wrong with it. They are null in `values`.
    """

    values: pa.Array
    faults: tuple[tuple[Mask, str], ...] = ()

    @property
    def invalid(self) -> Mask:
        """The rows whose value is no key."""
        flags: Mask = np.zeros(len(self.values), np.bool_)
        for mask, _ in self.faults:
            flags |= mask
        return flags

    def reason(self, row: int) -> str:
        """The fault of a row that is `invalid`."""
        return next(problem for mask, problem in self.faults if mask[row])


def query_keys(definition: MapDefinition, keys: Any) -> QueryKeys:
    """Keys of any shape, read by the rule of `inputs/keys.py`.

    Raises: `Invalid`, kind `key_type`, when keys cannot be of the column's type; for what is no column at all.
    """
    array, keyed = key_array(definition, keys), definition.kind.keyed
    plain = keyed and not definition.tagged
    if plain and _is_bytes(array.type):
        return QueryKeys(array)  # what is no UTF-8 is in no map
    if not keyed and array.type == pa.int64():
        return QueryKeys(array)
    check_keys_type(definition, array.type, map=definition.name)
    if plain and pa.types.is_integer(array.type):
        return QueryKeys(array.cast(pa.string()))
    try:
        converted = by_type(array, key_reader(definition))
    except pa.ArrowNotImplementedError as error:
        raise _unreadable(definition, array, error) from error
    return QueryKeys(converted.values, tuple(fault for fault in converted.faults if fault[1] not in NEVER_STORED))


def _is_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def _unreadable(definition: MapDefinition, array: pa.Array, error: Exception) -> Invalid:
    return Invalid(
        "the keys cannot be read", kind="key_type", map=definition.name, type=array.type, reason=_first_line(error),
        hint="cast them to a plain type first",
    )  # fmt: skip


def keys_of(definition: MapDefinition, keys: Any, on_invalid: OnInvalid = "error") -> pa.Array:
    """Keys as kernels read them: `QueryKeys.values`.

    Raises: as `query_keys`; `Invalid`, kind `key_number`, for the first row whose value is no key, unless that is a
    miss.
    """
    array = key_array(definition, keys)
    encoded = query_keys(definition, array)
    if encoded.faults and on_invalid == "error":
        invalid = encoded.invalid
        if invalid.any():
            row = int(np.argmax(invalid))
            raise _no_key(definition, encoded.reason(row), _shown(array[row]), row=row)
    return encoded.values


def _no_key(definition: MapDefinition, problem: str, shown: str, **about: object) -> Invalid:
    if definition.tagged:
        return Invalid(
            f"the key {problem}", kind="key_tags", map=definition.name, **about, key=shown[:_SHOWN_MAX], hint=TAGS_HINT
        )  # fmt: skip
    hint = "floats are keys where they are whole" if definition.kind.keyed else "keys of a ranged map are whole numbers"
    return Invalid(
        f"the key {problem}", kind="key_number", map=definition.name, **about, key=shown, hint=f"{hint}, such as 42"
    )


def key_in_column(definition: MapDefinition, key: Any) -> Any:
    """One key of any type, as a column of one has it.

    Raises: as `keys_of`.
    """
    if isinstance(key, str) and not is_utf8(key):
        raise _no_key(definition, "is no text" if definition.tagged else "is not a whole number", ascii(key))
    if isinstance(key, pa.RunEndEncodedScalar | pa.UnionScalar):
        key = key.as_py()  # Arrow makes no column of them
    try:
        array = key_array(definition, [key])
    except Invalid as error:
        if definition.tagged:
            raise
        raise type_refused(type(key).__name__, keyed=definition.kind.keyed, map=definition.name) from error
    encoded = query_keys(definition, array)
    if encoded.faults and encoded.invalid[0]:
        raise _no_key(definition, encoded.reason(0), _shown(array[0]))
    return encoded.values[0].as_py()


# -- columns ------------------------------------------------------------------------------------------


def key_array(definition: MapDefinition, keys: Any) -> pa.Array:
    """Requested keys of any shape as one Arrow array, not read yet.

    Raises: as `one_array`.
    """
    return one_array(tag_sets(keys) if definition.tagged else keys, "key")


def one_array(column: Any, name: str = "key") -> pa.Array:
    """Any column as one Arrow array.

    Raises: `Invalid` naming the column when it is none.
    """
    if isinstance(column, pa.Array):
        return column
    if not isinstance(column, pa.ChunkedArray):
        column = column_of(name, column)
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    try:
        return _wide(column).combine_chunks()
    except pa.ArrowNotImplementedError as error:
        raise Invalid(
            "the column's chunks cannot be joined", kind="column_type", column=name, type=column.type,
            reason=_first_line(error), hint="cast it to a plain type first",
        ) from error  # fmt: skip


def _wide(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text of 2 GiB and more does not fit one array with 32-bit offsets."""
    if column.nbytes < 1 << 31:
        return column
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return column.cast(wide.get(column.type, column.type))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _shown(value: pa.Scalar) -> str:
    """A value for people, also where Python has none such, as a time that late."""
    try:
        plain = value.as_py()
        return repr(plain) if isinstance(plain, str | bytes) else str(plain)
    except (OverflowError, ValueError, pa.ArrowException):
        return f"{getattr(value, 'value', '?')} ({value.type})"


# -- times --------------------------------------------------------------------------------------------


def instants_of(
    definition: MapDefinition, at: Any, count: int, on_invalid: OnInvalid = "error"
) -> tuple[I64, npt.NDArray[np.bool_]]:
    """UTC milliseconds, one for each key or one for all, and where there is one (an empty mask: everywhere).

    Raises: `Invalid` when a map with times is asked without one, when a time is naive or not understood (in a column:
    unless that is a miss), or when there are not as many times as keys.
    """
    if not definition.kind.timed:
        return np.zeros(1, np.int64), _NOBODY
    if at is None:
        raise Invalid(
            "a map with times is asked at a time", kind="at_missing", map=definition.name,
            hint="pass at=…, one or a column",
        )  # fmt: skip
    return moments_of(at, count, on_invalid)


def moments_of(at: Any, count: int, on_invalid: OnInvalid = "error") -> tuple[I64, npt.NDArray[np.bool_]]:
    """One time, or a column of as many times as there are keys, as `instants_of` gives them.

    A column of one time has a mask: so it is told from the one time of all.

    Raises: as `instants_of`.
    """
    if _is_column(at):
        instants, there = _instants(one_array(at, "at"), count, on_invalid)
        return instants, there if len(there) or len(instants) != 1 else np.ones(1, np.bool_)
    return np.array([parse_instant(at)], np.int64), _NOBODY


def _is_column(at: Any) -> bool:
    if isinstance(at, pa.Array | pa.ChunkedArray | list | tuple):
        return True
    if isinstance(at, type):
        return False
    # What only has `__array__` may belie it; whoever knows its dimensions tells them.
    return hasattr(at, "__arrow_c_stream__") or bool(hasattr(at, "__array__") and getattr(at, "ndim", 0) > 0)


def _instants(array: pa.Array, count: int, on_invalid: OnInvalid) -> tuple[I64, npt.NDArray[np.bool_]]:
    if len(array) != count:
        raise Invalid("there are not as many times as keys", kind="at_length", keys=count, times=len(array))
    per_milli = _per_milli(array)
    if per_milli:
        numbers = array.view(pa.int64())
        raw = (numbers.fill_null(0) if array.null_count else numbers).to_numpy()
        return raw if per_milli == 1 else raw // per_milli, _validity(array)
    converted = _converted(array)
    invalid = QueryKeys(converted.values, converted.faults).invalid
    if on_invalid == "error" and invalid.any():
        row = int(np.argmax(invalid))
        raise Invalid(
            "time is not understood", kind="time_unknown", row=row, time=_shown(array[row]),
            hint="times are UTC milliseconds (seconds times 1000), or have a zone, in the years 1 to 9999",
        )  # fmt: skip
    millis = converted.values
    return (millis.fill_null(0) if millis.null_count else millis).to_numpy(), _validity(millis)


def _converted(array: pa.Array) -> Converted:
    if pa.types.is_dictionary(array.type):
        return to_instants(array)  # each entry of the dictionary is read once
    try:
        return by_type(array, to_instants)
    except pa.ArrowNotImplementedError as error:
        raise Invalid(
            "column does not hold times", kind="time_unknown", type=array.type, reason=_first_line(error),
            hint="cast it to a plain type first",
        ) from error  # fmt: skip


def _per_milli(array: pa.Array) -> int:
    """Units per millisecond, for a column that can be read by such a factor alone; else 0."""
    kind = array.type
    if kind == pa.int64():
        return int(_within(array, MILLIS_CLEAR))
    if not pa.types.is_timestamp(kind) or kind.tz is None:
        return 0
    per_milli = {"ms": 1, "us": 1_000, "ns": 1_000_000}.get(kind.unit, 0)
    bounds = INSTANT_MIN * per_milli, (INSTANT_MAX + 1) * per_milli  # spans may end where the years end
    return per_milli if _within(array.view(pa.int64()), bounds) else 0


def _within(numbers: pa.Array, bounds: tuple[int, int]) -> bool:
    least, most = pc.min_max(numbers).values()
    return not least.is_valid or (least.as_py() >= bounds[0] and most.as_py() <= bounds[1])


def _validity(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Mask of the rows that have a time; an empty mask means all."""
    return array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else _NOBODY
