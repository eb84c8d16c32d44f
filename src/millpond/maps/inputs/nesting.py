"""A limit to nesting, before anything that recurses sees a text, a value or a type.

Parsers of JSON, Arrow's conversions and its destructors go down one frame of the stack for each level, in C++ without
a limit of their own: a line of 20,000 brackets ends the process. So depth is measured here first, without recursion.

Invariants:
* Depth is never found less than a parser would find it before its first error; what is inside strings is no level.
* Who passes `lines_are_shallow` may be parsed as one stream: no document in it reaches over its line.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.errors import Invalid

__all__ = (
    "NESTING_MAX", "TOO_DEEP", "NestedTooDeep", "check_type", "check_values", "decode_json", "is_deep_text",
    "is_deep_value", "lines_are_shallow",
)  # fmt: skip

NESTING_MAX = 256
"""Levels of objects and arrays in JSON, of elements in XML, of lists and structs in Arrow and Python."""

TOO_DEEP = f"is nested more than {NESTING_MAX} deep"


class NestedTooDeep(ValueError):
    """JSON of more than `NESTING_MAX` levels: it is not parsed."""


_LOOKED_INTO = (Mapping, list, tuple, set, frozenset, np.ndarray, pa.Scalar)
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, or one that does not end: no parser finds a level behind where it begins, and it is looked at once."""
_OPENING, _CLOSING, _NEWLINE = ord("{"), ord("}"), ord("\n")
_SLAB_BYTES = 1 << 17
_BRACE_OF_BRACKET = 0x20
"""The bit by which `{` and `}` differ from `[` and `]`."""


# -- text ---------------------------------------------------------------------------------------------


def is_deep_text(text: bytes) -> bool:
    """True when JSON text nests more than `NESTING_MAX` levels.

    >>> is_deep_text(b"[" * 300), is_deep_text(b'["' + b"[" * 300 + b'"]')
    (True, False)
    """
    if text.count(b"[") + text.count(b"{") <= NESTING_MAX:
        return False
    folded = np.frombuffer(_STRING.sub(b"", text), np.uint8) | _BRACE_OF_BRACKET
    steps = (folded == _OPENING).astype(np.int8) - (folded == _CLOSING).astype(np.int8)
    return bool(np.cumsum(steps, dtype=np.int64).max(initial=0) > NESTING_MAX)


def decode_json(text: bytes | str, decode: Callable[[Any], Any] = json.loads) -> Any:
    """JSON text as Python values.

    Raises: `NestedTooDeep`; `ValueError` when it is no JSON.
    """
    if is_deep_text(text if isinstance(text, bytes) else text.encode(errors="surrogatepass")):
        raise NestedTooDeep(f"it {TOO_DEEP}")
    return decode(text)


def lines_are_shallow(block: bytes) -> bool:
    """True when each line is an object of its own, by its first and last sign, of at most `NESTING_MAX` levels.

    A parser that reads the lines as one stream then starts anew in each: after `}` no document goes on with `{`.
    """
    data = np.frombuffer(block, np.uint8)
    if _is_plainly_shallow(data):
        return True
    stops = np.flatnonzero(data == ord("\n"))
    if not block.endswith(b"\n"):
        stops = np.append(stops, len(block))
    starts = np.concatenate((np.zeros(1, np.int64), stops[:-1] + 1))
    filled = stops > starts
    starts, stops = starts[filled], stops[filled]
    odd = np.flatnonzero((data[starts] != _OPENING) | (data[stops - 1] != _CLOSING))
    if not all(_is_object(block[starts[line] : stops[line]]) for line in odd):
        return False
    opening = (data | _BRACE_OF_BRACKET) == _OPENING
    if np.count_nonzero(opening) < len(starts) - len(odd) + NESTING_MAX:
        return True  # one sign opens each line: what is left over is not enough to make any of them deep
    return not any(is_deep_text(block[starts[line] : stops[line]]) for line in _busy_lines(opening, starts))


def _is_plainly_shallow(data: npt.NDArray[np.uint8]) -> bool:
    """True for lines as they usually are: `{` follows each `}` and its newline, and few signs open anything else.

    It spares a block the longer look. Slab by slab, so that what is compared stays in the cache of the processor.
    """
    if len(data) < _SLAB_BYTES or data[0] != _OPENING:
        return False
    body = data[:-1] if data[-1] == _NEWLINE else data
    if body[-1] != _CLOSING:
        return False
    lines, opening = 1, 0
    for start in range(0, len(body), _SLAB_BYTES):
        slab = body[start : start + _SLAB_BYTES]
        ends = np.flatnonzero(slab == _NEWLINE) + start
        if not ((body[ends - 1] == _CLOSING) & (body[ends + 1] == _OPENING)).all():
            return False
        lines += len(ends)
        opening += int(np.count_nonzero((slab | _BRACE_OF_BRACKET) == _OPENING))
    return opening < lines + NESTING_MAX  # one opens each line: what is left over makes none of them deep


def _is_object(line: bytes) -> bool:
    text = line.strip()
    return not text or (text.startswith(b"{") and text.endswith(b"}"))


def _busy_lines(opening: npt.NDArray[np.bool_], starts: npt.NDArray[np.int64]) -> list[int]:
    """The lines with more than `NESTING_MAX` opening signs: others cannot nest so deep."""
    opens = np.flatnonzero(opening)
    lines = np.searchsorted(starts, opens, side="right") - 1
    return np.unique(lines[NESTING_MAX:][lines[NESTING_MAX:] == lines[:-NESTING_MAX]]).tolist()


# -- Python values ------------------------------------------------------------------------------------


def is_deep_value(value: object) -> bool:
    """True when dicts, lists and arrays of Python objects nest more than `NESTING_MAX` levels."""
    level: Iterable[object] = (value,) if _nests(value) else ()
    for _ in range(NESTING_MAX):
        # By identity: a value that is inside several others, or inside itself, is looked at once a level.
        level = {id(part): part for outer in level for part in _inside(outer) if _nests(part)}.values()
        if not level:
            return False
    return True


def _nests(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype == object
    # A scalar of Arrow nests as deep as its type, which `check_type` measures; some of them count as mappings.
    return isinstance(value, Mapping | list | tuple | set | frozenset) and not isinstance(value, pa.Scalar)


def _inside(value: Any) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value.ravel().tolist() if isinstance(value, np.ndarray) else value


def _may_nest(types: Iterable[type]) -> bool:
    return any(issubclass(kind, _LOOKED_INTO) for kind in types)


def _mixes_datetimes(values: Sequence[object]) -> bool:
    """True when `datetime64` lies beside other scalars of NumPy, in the column or in lists and dicts of it.

    Arrow reads the others as if they were datetimes, and ends the process. Values that are no deeper than
    `NESTING_MAX`; one that is inside several others is looked at once a level.
    """
    columns: list[Sequence[object]] = [values]
    while columns:
        below: list[Sequence[object]] = []
        for column in columns:
            types = set(map(type, column))
            if np.datetime64 in types and any(issubclass(kind, np.generic) for kind in types - {np.datetime64}):
                return True
            if not _may_nest(types):
                continue
            outer = {id(part): part for part in column if _nests(part)}.values()
            items, fields = list[object](), defaultdict[object, list[object]](list)
            for part in outer:
                if isinstance(part, Mapping):
                    for key, value in part.items():
                        fields[key].append(value)
                else:
                    items += _inside(part)
            below += [items, *fields.values()] if items else fields.values()
        columns = below
    return False


def check_values(name: str, values: Iterable[object]) -> None:
    """Refuse a column of Python values that nest too deep for Arrow to look at, or that would end it.

    Raises: `Invalid`; of one that is too deep, with the number of the row.
    """
    if not isinstance(values, list | tuple):
        values = list(values)
    _check_depth(name, values)
    if _mixes_datetimes(values):
        raise Invalid(
            "column holds values that cannot be read together", kind="column_values", column=name,
            reason="datetime64 beside other scalars of NumPy", hint="give each column values of one type",
        )  # fmt: skip


def _check_depth(name: str, values: Sequence[object]) -> None:
    if not _may_nest(set(map(type, values))):
        return
    for row, value in enumerate(values):
        if isinstance(value, pa.Scalar):
            check_type(name, value.type)
        elif is_deep_value(value):
            raise Invalid(
                f"a value {TOO_DEEP}", kind="nesting_deep", column=name, row=row, levels_max=NESTING_MAX,
                hint="flatten it, or leave the row or the column out",
            )  # fmt: skip


# -- Arrow types --------------------------------------------------------------------------------------


def check_type(name: str, kind: pa.DataType) -> None:
    """Refuse a column whose type nests too deep.

    Raises: `Invalid`.
    """
    level = [kind]
    for _ in range(NESTING_MAX + 1):
        level = [inner for outer in level for inner in _inner_types(outer)]
        if not level:
            return
    raise Invalid(
        f"the type of a column {TOO_DEEP}", kind="nesting_deep", column=name, levels_max=NESTING_MAX,
        hint="flatten it, or leave the column out",
    )  # fmt: skip


def _inner_types(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_dictionary(kind):
        return [kind.value_type]
    return [kind.field(number).type for number in range(kind.num_fields)]
