"""Predicates from pyarrow expressions, as far as they can be understood: for reading less than everything.

pyarrow has no way to look into an expression, but it pickles as an Arrow message: the calls in order, in the schema's
metadata, their literals and options as columns. What is not recognised becomes `Unknown` and bounds nothing, so a
change of that form would cost speed and never an answer.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millpond.maps.predicates.tree import All, Any_, Compare, Condition, Like, Not, Null, OneOf, Unknown, columns_of

__all__ = ("parts_of",)

_LINE = re.compile(r"^(call|field_ref|literal|options|end): '(.*)'$")
_COMPARISONS = {
    "equal": "=", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
}  # fmt: skip
_FLIPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def parts_of(expression: pc.Expression) -> Condition:
    """The condition an expression states; `Unknown` wherever it cannot be understood."""
    try:
        part = _Reader(expression).read()
    except (ValueError, LookupError, TypeError, AttributeError, pa.ArrowException):
        return Unknown(())
    return part if not isinstance(part, _Field | pa.Scalar) else Unknown(_names(part))


class _Field(str):
    """A reference to a column."""

    __slots__ = ()


class _Reader:
    """Reads the calls of one expression, depth first."""

    def __init__(self, expression: pc.Expression) -> None:
        _, (message,) = expression.__reduce__()
        self.literals = pa.ipc.open_file(message).get_batch(0)
        text = self.literals.schema.to_string(show_schema_metadata=True, truncate_metadata=False)
        _, _, metadata = text.partition("-- schema metadata --\n")
        matches = [_LINE.match(line) for line in metadata.splitlines()]
        self.lines = [(line[1], line[2]) for line in matches if line is not None]
        if len(self.lines) != len(matches):
            raise ValueError(text)
        self.at = 0

    def read(self) -> Any:
        word, name = self.lines[self.at]
        self.at += 1
        if word == "field_ref":
            return _Field(name)
        if word == "literal":
            return self.literals.column(int(name))[0]
        if word != "call":
            raise ValueError(word)
        parts: list[Any] = []
        options: Any = None
        while (following := self.lines[self.at])[0] != "end":
            if following[0] == "options":
                options = self.literals.column(int(following[1]))[0]
                self.at += 1
            else:
                parts.append(self.read())
        self.at += 1
        return _called(name, parts, options)


def _called(name: str, parts: list[Any], options: Any) -> Condition:
    conditions = tuple(part for part in parts if not isinstance(part, _Field | pa.Scalar))
    whole = len(conditions) == len(parts)
    if name in ("and_kleene", "and") and whole:
        return All(conditions)
    if name in ("or_kleene", "or") and whole:
        return Any_(conditions)
    if name == "invert" and whole:
        return Not(conditions[0])
    if name == "if_else" and len(conditions) == 2 and isinstance(parts[2], pa.Scalar) and not parts[2].is_valid:
        # True only where both the test and the first choice are.
        return All(conditions)
    return _of_column(name, parts, options)


def _of_column(name: str, parts: list[Any], options: Any) -> Condition:
    column, rest = parts[0], parts[1:]
    if name in _COMPARISONS and len(rest) == 1:
        comparison = _COMPARISONS[name]
        if isinstance(column, pa.Scalar):
            column, rest, comparison = rest[0], [column], _FLIPPED[comparison]
        if isinstance(column, _Field) and isinstance(rest[0], pa.Scalar) and rest[0].is_valid:
            return _compared(str(column), comparison, rest[0])
    elif isinstance(column, _Field) and not rest:
        if name == "is_in":
            values = options["value_set"].values
            if not values.null_count and not pa.types.is_timestamp(values.type):
                return OneOf(str(column), tuple(values.to_pylist()))
        if name == "is_null" and not options["nan_is_null"].as_py():
            return Null(str(column))
        if name == "is_valid":
            return Not(Null(str(column)))
        if name == "starts_with" and not options["ignore_case"].as_py():
            return _starts_with(str(column), options["pattern"].as_py())
    return Unknown(_names(*parts))


def _compared(column: str, comparison: str, value: pa.Scalar) -> Condition:
    if not pa.types.is_timestamp(value.type):
        return Compare(column, comparison, value.as_py())
    per_ms, rest = divmod(_PER_SECOND[value.type.unit], 1_000)
    millis, rest = divmod(value.value, per_ms) if per_ms else (value.value * 1_000, 0)
    if not rest:
        return Compare(column, comparison, millis)
    # Between two milliseconds: the bound moves outwards.
    if comparison in ("<", "<="):
        return Compare(column, "<=", millis + 1)
    return Compare(column, ">=", millis) if comparison in (">", ">=") else Unknown((column,))


def _starts_with(column: str, prefix: bytes | str) -> Condition:
    text = prefix.decode() if isinstance(prefix, bytes) else prefix
    if any(mark in text for mark in "%_\\"):
        return Unknown((column,))
    return Like(column, text + "%")


def _names(*parts: Any) -> tuple[str, ...]:
    names: list[str] = []
    for part in parts:
        if isinstance(part, _Field):
            names.append(str(part))
        elif not isinstance(part, pa.Scalar):
            names += columns_of(part)
    return tuple(names)
