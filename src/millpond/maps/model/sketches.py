"""Sketches of Apache DataSketches, as the bytes that the library writes: how many values differ, and their quantiles.

| rule | sketch | an event brings |
|---|---|---|
| `distinct` | HLL of 2^12 registers with 8 bits each | the byte FF, then the text: no sketch begins so |
| `quantiles` | KLL of doubles, k = 200 | the sketch of one number |

Invariants:
* The bytes of a sketch of `distinct` follow from the set of its texts: coupons are sorted, and what the library keeps
  of the order in which they came is left out. So sketches of the same texts are equal.
* Those of `quantiles` do not: the library throws coins as it drops values, of more than 200. So no meaning is taken
  from the bytes of two that differ: the id of a load is made of its events, and merges unite them by layers, or refuse.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.byte_columns import Bytes, bytes_of
from millpond.arrays.radix import I64
from millpond.extras import need
from millpond.maps.model.aggregation import Rule

__all__ = ("event_sketches", "is_sound", "known_quantiles", "texts_counted", "united")

_LG_K = 12
_K = 200
_TEXT = 0xFF
_NUMBER_BYTES = 16
"""The size of the KLL sketch of one number, which lies in the second half."""
_FLAGS, _MODE = 5, 7
_OUT_OF_ORDER = 16
_COUPONS = {0: 8, 1: 12}
"""In the modes of few texts, a list and a set: where their coupons begin."""
_HIP = slice(8, 16)
"""In the mode of registers: the estimate that depends on the order of texts, which is not asked for out of order."""


@cache
def _library() -> Any:
    need("datasketches")
    import datasketches

    return datasketches


def event_sketches(rule: Rule, values: pa.Array) -> pa.Array:
    """The texts, or numbers, of events as the values of their rows."""
    if rule is Rule.DISTINCT:
        return pc.binary_join_element_wise(pa.scalar(bytes([_TEXT])), values.cast(pa.binary()), b"")
    head = np.frombuffer(_of_numbers(np.zeros(1), [])[:8], np.uint64)  # type: ignore[index]
    numbers = (values.fill_null(0) if values.null_count else values).to_numpy()
    raw = np.stack([np.broadcast_to(head, len(numbers)), numbers.view(np.uint64)], axis=1).reshape(-1).view(np.uint8)
    column = Bytes(np.arange(0, len(raw) + 1, _NUMBER_BYTES), raw).to_arrow()
    return pc.if_else(values.is_valid(), column, None) if values.null_count else column


def texts_counted(column: pa.Array) -> pa.Array:
    """About how many texts differ, of each sketch."""
    read = _library().hll_sketch.deserialize
    sketches = column.to_pylist()
    return pa.array([None if data is None else read(data).get_estimate() for data in sketches], pa.float64())


def known_quantiles(column: pa.Array, fraction: float) -> pa.Array:
    """The number below which a share of the numbers lies, of each sketch."""
    read = _library().kll_doubles_sketch.deserialize
    sketches = column.to_pylist()
    return pa.array([None if data is None else read(data).get_quantile(fraction) for data in sketches], pa.float64())


def is_sound(rule: Rule, column: pa.Array) -> bool:
    """True when all values are sketches that the library reads and writes again, of the size that they have here."""
    kind = _library().hll_sketch if rule is Rule.DISTINCT else _library().kll_doubles_sketch
    try:
        for data in column.drop_null().to_pylist():
            sketch = kind.deserialize(data)
            if rule is Rule.QUANTILES:
                sound = sketch.k == _K and sketch.n > 0 and sketch.serialize() == data
                sound = sound and not math.isnan(sketch.get_min_value() + sketch.get_max_value())
            else:
                sound = sketch.lg_config_k == _LG_K and _in_one_form(bytearray(sketch.serialize_compact())) == data
            if not sound:
                return False
    except (ValueError, IndexError, RuntimeError):  # as the library says that bytes are none
        return False
    return True


def united(rule: Rule, column: pa.Array, starts: I64) -> pa.Array:
    """The sketch of each run of values, of events and sketches; null where there is none."""
    rows = np.arange(len(column)) if not column.null_count else np.flatnonzero(_mask(column.is_valid()))
    sketches = column.drop_null()
    single = _is_single(rule, sketches)
    if len(starts) == len(column) and (rule is Rule.QUANTILES or not single.any()):
        return column
    bounds = np.searchsorted(rows, np.append(starts, len(column)))
    singles = np.concatenate([[0], np.cumsum(single)])[bounds]
    bodies, mask = sketches.filter(pa.array(~single)).to_pylist(), pa.array(single)
    read, build = _WAYS[rule]
    values = read(sketches.filter(mask))
    spans = zip(itertools.pairwise(singles.tolist()), itertools.pairwise((bounds - singles).tolist()), strict=True)
    return pa.array([build(values[a:b], bodies[c:d]) for (a, b), (c, d) in spans], pa.binary())


def _mask(flags: pa.Array) -> np.ndarray:
    mask: np.ndarray = flags.to_numpy(zero_copy_only=False)
    return mask


def _is_single(rule: Rule, column: pa.Array) -> np.ndarray:
    """True for values of events; a sketch of one number is one, too."""
    single, values = np.zeros(len(column), np.bool_), bytes_of(column)
    if len(column):
        single[:] = values.lengths == _NUMBER_BYTES if rule is Rule.QUANTILES else _first_bytes(values) == _TEXT
    return single


def _first_bytes(values: Bytes) -> np.ndarray:
    first: np.ndarray = values.data[values.offsets[:-1]]
    return first


def _texts(column: pa.Array) -> list[str]:
    raw = bytes_of(column)
    offsets = raw.offsets - raw.offsets[0]
    marked = raw.data[raw.offsets[0] : raw.offsets[-1]]
    plain = Bytes(offsets - np.arange(len(offsets)), np.delete(marked, offsets[:-1]))
    texts: list[str] = plain.to_arrow().cast(pa.string()).to_pylist()
    return texts


def _numbers(column: pa.Array) -> np.ndarray:
    raw = bytes_of(column)
    return np.ascontiguousarray(raw.data[raw.offsets[0] : raw.offsets[-1]].view(np.float64)[1::2])


def _of_texts(texts: Sequence[str], sketches: list[bytes]) -> bytes | None:
    library = _library()
    if not texts and len(sketches) < 2:
        return sketches[0] if sketches else None
    kind = library.tgt_hll_type.HLL_8
    sketch = library.hll_sketch(_LG_K, kind)
    deque(map(sketch.update, texts), maxlen=0)
    if sketches:
        union = library.hll_union(_LG_K)
        for data in sketches:
            union.update(library.hll_sketch.deserialize(data))
        union.update(sketch)
        sketch = union.get_result(kind)
    return _in_one_form(bytearray(sketch.serialize_compact()))


def _in_one_form(data: bytearray) -> bytes:
    """A sketch without what the library keeps of the order in which texts came."""
    begin = _COUPONS.get(data[_MODE] & 3)
    if begin is None:
        data[_FLAGS] |= _OUT_OF_ORDER
        data[_HIP] = bytes(8)
        return bytes(data)
    data[_FLAGS] &= ~_OUT_OF_ORDER
    return bytes(data[:begin]) + np.sort(np.frombuffer(data, "<u4", offset=begin)).tobytes()


def _of_numbers(numbers: np.ndarray, sketches: list[bytes]) -> bytes | None:
    if not len(numbers) and len(sketches) < 2:
        return sketches[0] if sketches else None
    library = _library()
    sketch = library.kll_doubles_sketch(_K)
    sketch.update(numbers)
    for data in sketches:
        sketch.merge(library.kll_doubles_sketch.deserialize(data))
    body: bytes = sketch.serialize()
    return body


_WAYS: dict[Rule, tuple[Callable[[pa.Array], Any], Callable[[Any, list[bytes]], bytes | None]]] = {
    Rule.DISTINCT: (_texts, _of_texts), Rule.QUANTILES: (_numbers, _of_numbers),
}  # fmt: skip
"""For each rule, how the values of events are read, and how a sketch is made of them and of other sketches."""
