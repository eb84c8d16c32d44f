"""Whatever holds rows in memory, as Arrow record batches.

| data | how |
|---|---|
| Arrow table, batch, reader, dataset | as it is |
| pandas, polars, DuckDB: anything with `__arrow_c_stream__` | through that, uncopied where it can be |
| a dict of columns | Arrow arrays, NumPy arrays, lists |
| dicts, or batches, in a list or a generator | columns are all that any dict names; what a dict leaves out is null |

Python values of several types in one column become a union, which maps without a declared value type store as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import chain, islice
from math import inf
from types import NoneType
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from millpond.error_values import shown
from millpond.errors import Invalid
from millpond.maps.inputs.json_text import json_text
from millpond.maps.inputs.mapping import ColumnMapping, nested_columns
from millpond.maps.inputs.nesting import check_values
from millpond.maps.inputs.scalars import WIDE
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.tags import TAGS

__all__ = ("BATCH_ROWS_MAX", "batch_of_dicts", "batches_of", "column_of", "joined_batches", "tag_sets")

BATCH_ROWS_MAX = 1 << 18
"""Rows that are normalised at a time: enough to be quick, few enough to stay in the cache's reach."""

_DICTS_MAX = 1 << 16


# What Arrow raises over values that it cannot tell, or that belie what they look like.
_UNREADABLE = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError, KeyError)

FormOf: TypeAlias = Callable[[str], str]
"""`mapping.nested_columns`."""


def _no_form(_name: str) -> str:
    return ""


def batches_of(
    data: Any, definition: MapDefinition | None = None, mapping: ColumnMapping | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of `data`, in order, in batches of at most `BATCH_ROWS_MAX`.

    Python's dicts and lists become JSON text where the map that is loaded holds JSON, and maps where it has tags: Arrow
    would give each dict the keys of all the others.

    Raises: `Invalid` when it holds no rows, or columns of different lengths.
    """
    form_of = _no_form if definition is None else nested_columns(definition, mapping)
    for batch in _batches_of(data, form_of):
        for start in range(0, batch.num_rows, BATCH_ROWS_MAX):
            yield batch.slice(start, BATCH_ROWS_MAX)


def joined_batches(
    batches: Iterable[pa.RecordBatch], rows_max: int, bytes_max: float = inf
) -> Iterator[pa.RecordBatch]:
    """The same rows in batches as large as they may be; one that is larger comes as it is."""
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if group and (rows + batch.num_rows > rows_max or size + batch.nbytes > bytes_max):
            yield _joined(group)
            group, rows, size = [], 0, 0
        group.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if group:
        yield _joined(group)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _batches_of(data: Any, form_of: FormOf) -> Iterable[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        return (data,)
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.Table) or hasattr(data, "to_batches"):
        return data.to_batches()
    if hasattr(data, "__arrow_c_stream__"):
        return _of_stream(data)
    if hasattr(data, "__arrow_c_array__"):
        return _of_array(data)
    if isinstance(data, Mapping):
        return _of_columns(data, form_of)
    if isinstance(data, Iterable) and not isinstance(data, str | bytes | type) and getattr(data, "ndim", 1) > 0:
        return _of_items(data, form_of)
    raise _unknown(data)


def _unknown(data: object) -> Invalid:
    hint = "give an Arrow table, a pandas or polars frame, a list of dicts or a dict of columns"
    if isinstance(data, str | bytes) or hasattr(data, "__fspath__"):
        hint = "files are loaded by Pond.load_files, or 'millpond load MAP FILE'"
    if hasattr(data, "collect"):
        hint = "collect it first, or write it with Spark: df.write.format('millpond')"
    return Invalid("data holds no rows that can be read", kind="data_unknown", type=type(data).__name__, hint=hint)


def _of_stream(data: Any) -> Iterator[pa.RecordBatch]:
    apart = {}
    for name in _object_columns(data):
        check_values(str(name), data[name])
        if (mixed := _beside_times(data[name])) is not None:
            apart[name] = _array(str(name), mixed, _no_form)
    try:
        if not apart:
            yield from pa.RecordBatchReader.from_stream(data)
            return
        others = pa.RecordBatchReader.from_stream(data.drop(columns=list(apart))).read_all()
        columns = dict(zip(others.schema.names, others.columns, strict=True))
        yield from pa.table(columns | {str(name): column for name, column in apart.items()}).to_batches()
    except (pa.ArrowException, TypeError, ValueError) as error:
        text = str(error.args[0] if error.args else error)
        raise Invalid(
            "the frame cannot be read as Arrow columns", kind="frame_columns", reason=text.splitlines()[0],
            hint="give each column one type",
        ) from error  # fmt: skip


def _object_columns(data: Any) -> Sequence[Any]:
    """The columns of a pandas frame that hold Python objects: Arrow looks into them, however deep they are."""
    if not hasattr(data, "select_dtypes") or not getattr(data.columns, "is_unique", False):
        return ()
    return [name for name, kind in data.dtypes.items() if _has_objects(kind)]


def _has_objects(kind: Any) -> bool:
    """True for a type of NumPy, or of pandas' categories, that holds Python objects."""
    kind = getattr(getattr(kind, "categories", None), "dtype", kind)
    return isinstance(kind, np.dtype) and kind.hasobject


def _of_array(data: Any) -> Iterator[pa.RecordBatch]:
    try:
        yield pa.record_batch(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise _unknown(data) from error


def _of_columns(data: Mapping[Any, Any], form_of: FormOf) -> Iterator[pa.RecordBatch]:
    columns = {str(name): _column(str(name), values, form_of) for name, values in data.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise Invalid(
            "columns have different lengths", kind="column_lengths", hint="give every column a value for each row",
            **lengths,
        )  # fmt: skip
    yield from pa.table(columns).to_batches()


def column_of(name: str, values: Any) -> pa.Array[Any] | pa.ChunkedArray[Any]:
    """One column: an Arrow array, a NumPy array, a pandas or polars series, a list or generator of Python values.

    Raises: `Invalid`, naming the column, when it is a single value, or holds values that Arrow cannot tell.
    """
    return _column(name, values, _no_form)


def _column(name: str, values: Any, form_of: FormOf) -> pa.Array[Any] | pa.ChunkedArray[Any]:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, str | bytes | bytearray | memoryview | Mapping | pa.Scalar) or not _is_column(values):
        raise Invalid(
            "column is a single value", kind="column_type", column=name, type=type(values).__name__,
            hint="give a list of values for each column, or a list of dicts",
        )  # fmt: skip
    if isinstance(values, list | tuple):
        return _array(name, values, form_of)
    try:
        if hasattr(values, "__arrow_array__") or hasattr(values, "__arrow_c_array__") or hasattr(values, "dtype"):
            if _has_objects(getattr(values, "dtype", None)):
                check_values(name, values)
                if (mixed := _beside_times(values)) is not None:
                    return _array(name, mixed, _no_form)
            return pa.array(values)
        if hasattr(values, "__arrow_c_stream__"):
            return pa.chunked_array(values)
        values = list(values)
    except _UNREADABLE as error:
        raise _unreadable(name, error) from error
    return _array(name, values, form_of)


def _is_column(values: Any) -> bool:
    """True when values can be iterated; a class, and an array without a dimension, only look as if."""
    return not isinstance(values, type) and isinstance(values, Iterable) and getattr(values, "ndim", 1) == 1


def _of_items(data: Iterable[Any], form_of: FormOf) -> Iterator[pa.RecordBatch]:
    items = iter(data)
    first = next(items, None)
    if first is None:
        return
    items = chain((first,), items)
    if isinstance(first, pa.RecordBatch | pa.Table):
        for item in items:
            yield from _batches_of(item, form_of)
    elif isinstance(first, Mapping):
        while chunk := list(islice(items, _DICTS_MAX)):
            yield batch_of_dicts(chunk, form_of=form_of)
    else:
        raise Invalid(
            "rows are neither dicts nor record batches", kind="data_unknown", type=type(first).__name__,
            hint="give a dict for each row, such as {'key': 'JFK', 'value': 7}",
        )  # fmt: skip


def batch_of_dicts(rows: Sequence[Any], *, form_of: FormOf = _no_form) -> pa.RecordBatch:
    """One batch of rows that are dicts: its columns are all that any of them names; dicts and lists have
    the form that `form_of` tells.

    Raises: `Invalid` when values of a column cannot be expressed in Arrow.
    """
    for row in rows:
        if not isinstance(row, Mapping):
            raise Invalid("row is no dict", kind="data_unknown", type=type(row).__name__, row=shown(row))
    names = list(dict.fromkeys(name for row in rows for name in row))
    arrays = [_array(str(name), [row.get(name) for row in rows], form_of) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=[str(name) for name in names])


# -- columns of Python values -------------------------------------------------------------------------


def _array(name: str, values: Sequence[Any], form_of: FormOf) -> pa.Array[Any]:
    form = form_of(name)
    if form == TAGS:
        return _tag_sets(name, values)
    if form:
        values = [
            _as_json(name, row, value) if isinstance(value, dict | list | tuple) else value
            for row, value in enumerate(values)
        ]
    check_values(name, values)
    kinds = _kinds_of(values)
    if "other" in kinds and len(kinds) > 2:
        values = _with_none(values)
        kinds = _kinds_of(values)
    if kinds == {"int", "float"}:
        # Arrow would make them all floats: 1 and 1.0 are different values, and different keys.
        return _union(name, values)
    if len(kinds) <= 1 or "other" in kinds:
        return _plain(name, values)
    return _union(name, values)


def tag_sets(keys: Any) -> Any:
    """Requested sets of tags: Python's as maps, columns as they are.

    Raises: as `column_of`.
    """
    return _tag_sets("key", keys) if isinstance(keys, list | tuple) else keys


def _tag_sets(name: str, values: Sequence[Any]) -> pa.Array[Any]:
    """Sets of tags: dicts and lists of pairs as maps, the others as text, in a union where there are both.

    What is neither becomes text that no set has: that it is none is for its row to tell.
    """
    check_values(name, values)
    sets = [_pairs(value) for value in values]
    there = np.array([pairs is not None for pairs in sets], np.int8)
    others = [value for value, pairs in zip(values, sets, strict=True) if pairs is None]
    texts = _array(name, [_text_of_no_tags(value) for value in others], _no_form)
    if not there.any():
        return texts
    maps = _tag_maps(name, [pairs for pairs in sets if pairs is not None])
    if there.all():
        return maps
    offsets = np.where(there, np.cumsum(there), np.cumsum(1 - there)) - 1
    return pa.UnionArray.from_dense(pa.array(there), pa.array(offsets.astype(np.int32)), [texts, maps])


def _pairs(value: object) -> list[Any] | None:
    """The names and values of a set; None for what is no dict and no list of pairs."""
    if isinstance(value, Mapping):
        return list(value.items())
    is_set = isinstance(value, list | tuple) and all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in value
    )
    return list(value) if is_set else None  # type: ignore[call-overload]


def _text_of_no_tags(value: object) -> str | bytes | None:
    return value if isinstance(value, str | bytes | None) else repr(value).replace("=", ":")


def _tag_maps(name: str, sets: Sequence[list[Any]]) -> pa.Array[Any]:
    ends = pa.array(np.cumsum([0, *map(len, sets)], dtype=np.int32))
    names = ["" if pair[0] is None else _part_of_tag(pair[0]) for pairs in sets for pair in pairs]
    items = [_part_of_tag(pair[1]) for pairs in sets for pair in pairs]
    columns = (_array(name, column, _no_form) if column else pa.array([], pa.string()) for column in (names, items))
    return pa.MapArray.from_arrays(ends, *columns)


def _part_of_tag(part: Any) -> Any:
    """A name or a value; what is nested gets a sign that neither may have."""
    return f"{part!r}=" if isinstance(part, Mapping | list | tuple | set) else part


def _as_json(name: str, row: int, value: object) -> str:
    try:
        return json_text(value)
    except ValueError as error:
        raise Invalid(
            f"a value {error}", kind="json_form", column=name, row=row,
            hint="give text, numbers, booleans, null, times, durations, bytes, lists and dicts of them",
        ) from error  # fmt: skip


def _kinds_of(values: Sequence[Any]) -> set[str]:
    """The kinds of values that are not None; of integers and times, each value is looked at."""
    types = set(map(type, values)) - {NoneType}
    varying = tuple(kind for kind in types if kind is not bool and issubclass(kind, int | datetime))
    kinds = {_kind_of_type(kind) for kind in types.difference(varying)}
    if varying:
        kinds.update(_kind_of(value) for value in values if isinstance(value, varying))
    return kinds


def _kind_of(value: object) -> str:
    if isinstance(value, datetime):
        if value != value:
            return "other"  # pandas' NaT: missing, whatever is beside it
        return "naive" if value.utcoffset() is None else "aware"
    if isinstance(value, int) and not isinstance(value, bool):
        return "int" if -(1 << 63) <= value < 1 << 64 else "wide"
    return _kind_of_type(type(value))


def _kind_of_type(type_: type) -> str:
    """The kind of all values of a type that is no integer and no time."""
    for kind in (bool, float, str, bytes, Decimal):
        if issubclass(type_, kind):
            return kind.__name__
    return "other"


def _beside_times(values: Iterable[Any]) -> list[Any] | None:
    """Python objects among which are times and something else, all of which Arrow would take for times like the first;
    None for others.
    """
    if not any(issubclass(kind, datetime) for kind in set(map(type, values))):
        return None
    there = _with_none(values)
    return there if len(_kinds_of(there)) > 1 else None


def _with_none(values: Iterable[Any]) -> list[Any]:
    """The values with None for those that are missing in the words of pandas: NA, NaN, NaT."""
    return [None if type(value).__name__ == "NAType" or _is_nan(value) else value for value in values]


def _is_nan(value: object) -> bool:
    return isinstance(value, float | datetime) and value != value


def _plain(name: str, values: Sequence[Any]) -> pa.Array[Any]:
    try:
        return pa.array(values)
    except _UNREADABLE as error:
        if any(isinstance(value, int) for value in values):
            return _wide(name, values)
        if any(isinstance(value, np.datetime64) for value in values):
            return _of_datetimes(name, values)
        return _with_missing(name, values, error)


def _of_datetimes(name: str, values: Sequence[Any]) -> pa.Array[Any]:
    """NumPy's own times, which Arrow takes as an array and not one by one."""
    try:
        return pa.array(np.array([np.datetime64("NaT") if value is None else value for value in values]))
    except _UNREADABLE as error:
        raise _unreadable(name, error) from error


def _with_missing(name: str, values: Sequence[Any], first: Exception) -> pa.Array[Any]:
    """Values whose missing entries are written as pandas writes them: NA, NaT."""
    try:
        return pa.array(values, from_pandas=True)
    except _UNREADABLE:
        raise _unreadable(name, first) from first


def _wide(name: str, values: Sequence[Any]) -> pa.Array[Any]:
    """Whole numbers beyond 64 bits, which only a decimal holds: whether they fit is for their rows to tell."""
    try:
        whole = [value if value is None else Decimal(value) for value in values]
        return pa.array(whole, WIDE)
    except (*_UNREADABLE, ArithmeticError) as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> Invalid:
    return Invalid(
        "column holds values that cannot be read together", kind="column_values", column=name,
        reason=str(error).partition("\n")[0], hint="give each column values of one type",
    )  # fmt: skip


def _union(name: str, values: Sequence[Any]) -> pa.Array[Any]:
    """A dense union with a child for each kind of value; nulls go with the first."""
    kinds = list(dict.fromkeys(_kind_of(value) for value in values if value is not None))
    codes = {kind: code for code, kind in enumerate(kinds)}
    children: list[list[Any]] = [[] for _ in kinds]
    types, offsets = [], []
    for value in values:
        code = 0 if value is None else codes[_kind_of(value)]
        types.append(code)
        offsets.append(len(children[code]))
        children[code].append(value)
    arrays = [_plain(name, child) for child in children]
    return pa.UnionArray.from_dense(pa.array(types, pa.int8()), pa.array(offsets, pa.int32()), arrays, kinds)
