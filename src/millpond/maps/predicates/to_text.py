"""Conditions put into text again, for a map that lies elsewhere: what cannot be said there is asked here.

Text travels as it is. Tuples and pyarrow's expressions are said in the text that `predicate_text.py` reads, as far as
that goes: the text may take rows that the condition refuses, never the other way round. What is left is filtered where
the rows arrive. Expressions are always filtered there, for only Arrow knows all that they mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.longs import LONG_MAX, LONG_MIN
from millpond.arrays.matching import matching
from millpond.errors import Invalid
from millpond.maps.model.columns import INSTANT, askable_schema
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.display import check_columns
from millpond.maps.model.tags import TAGS, tag_of
from millpond.maps.predicates.predicate import Where, columns_tested, condition_of, predicate, type_of
from millpond.maps.predicates.tree import (
    PATTERN_CHARACTERS_MAX,
    All,
    Any_,
    Compare,
    Condition,
    Like,
    Not,
    Null,
    OneOf,
)
from millpond.times.instants import INSTANT_MAX, INSTANT_MIN, clear_instant

__all__ = ("Worded", "scan_elsewhere", "worded")

Read = Callable[[str | None, Sequence[str]], pa.RecordBatchReader]
"""Reads the rows that a text takes, with these columns."""


@dataclass(frozen=True, slots=True)
class Worded:
    """A condition as text (None: every row), and what of it is still to be asked, of which columns."""

    text: str | None
    rest: pc.Expression | None = None
    columns: tuple[str, ...] = ()


def worded(definition: MapDefinition, where: Where) -> Worded:
    """A condition in words.

    Raises: as `predicates.predicate`, but for text, which is judged by who reads it.
    """
    if where is None or isinstance(where, str):
        return Worded(where)
    parsed = predicate(definition, where)
    if parsed.expression is None:
        return Worded(None)
    condition = condition_of(definition, where)
    schema = askable_schema(definition)
    text, exact = _Words(schema).of(condition)
    if isinstance(where, pc.Expression):
        return Worded(text, parsed.expression, tuple(columns_tested(where, schema)))
    return Worded(text) if exact else Worded(text, parsed.expression, parsed.columns)


def scan_elsewhere(
    read: Read, definition: MapDefinition, where: Where, columns: Sequence[str] | None
) -> pa.RecordBatchReader:
    """The rows a condition takes of a map that is read by text, see `Map.scan`.

    Raises: `Invalid` for a column the map does not have, or a condition that is not understood.
    """
    names = check_columns(definition, columns)
    words = worded(definition, where)
    if words.rest is None:
        return read(words.text, names)
    needed = names + [name for name in words.columns if name not in names]
    reader = read(words.text, needed)
    schema = pa.schema([reader.schema.field(name) for name in names])
    return pa.RecordBatchReader.from_batches(schema, _filtered(reader, words.rest, names))


def _filtered(reader: pa.RecordBatchReader, rest: pc.Expression, names: list[str]) -> Iterator[pa.RecordBatch]:
    with reader:
        for batch in reader:
            try:
                taken = matching(batch, rest)
            except (pa.ArrowException, TypeError) as error:
                raise Invalid("condition does not go with the map's columns", kind="condition", reason=error) from error
            if taken.num_rows:
                yield taken.select(names)


class _Words:
    """Says a tree in text: `(text, exact)`. Text None takes every row; what is not exact takes too many."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def of(self, condition: Condition) -> tuple[str | None, bool]:
        match condition:
            case All(parts):
                said = [self.of(part) for part in parts]
                texts = [text for text, _ in said if text is not None]
                return (_joined(texts, "and") if texts else None), all(exact for _, exact in said)
            case Any_(parts):
                said = [self.of(part) for part in parts]
                texts = [text for text, _ in said if text is not None]
                if not parts or len(texts) < len(said):
                    return None, False
                return _joined(texts, "or"), all(exact for _, exact in said)
            case Not(part):
                # Taking too many of what is not wanted would take too few.
                text, exact = self.of(part)
                sure = exact and isinstance(part, OneOf | Null | Like) and text is not None
                return (f"not {text}", True) if sure else (None, False)
            case Null(column) if self._is_column(column):
                return f"({_quoted(column)} is null)", True
            case Like(column, pattern) if len(pattern) <= PATTERN_CHARACTERS_MAX and self._fits(column, pattern):
                return f"({_quoted(column)} like {_literal(pattern)})", True
            case Compare(column, comparison, value) if self._fits(column, value):
                return f"({_quoted(column)} {comparison} {_literal(value)})", True
            case OneOf(column, values) if values and all(self._fits(column, value) for value in values):
                return f"({_quoted(column)} in ({', '.join(map(_literal, values))}))", True
        return None, False

    def _is_column(self, column: str) -> bool:
        return column in self.schema.names or (TAGS in self.schema.names and tag_of(column) is not None)

    def _fits(self, column: str, value: Any) -> bool:
        """True when text can say the value so that it is read as one of the column's."""
        if not self._is_column(column):
            return False
        kind, types = type_of(self.schema, column), pa.types
        match value:
            case bool():
                return types.is_boolean(kind)
            case int():
                if types.is_timestamp(kind):
                    # A number in text is milliseconds; what compares microseconds, or could be seconds, is asked
                    # where the rows arrive.
                    said = kind == INSTANT and INSTANT_MIN <= value <= INSTANT_MAX
                    return said and clear_instant(value) == value
                return LONG_MIN <= value <= LONG_MAX and (types.is_integer(kind) or types.is_floating(kind))
            case float():
                return math.isfinite(value) and types.is_floating(kind)
            case str():
                return types.is_string(kind)
            case bytes():
                return types.is_binary(kind)
        return False


def _joined(texts: Sequence[str], word: str) -> str:
    return texts[0] if len(texts) == 1 else f"({f' {word} '.join(texts)})"


def _quoted(column: str) -> str:
    return column if tag_of(column) is not None else '"' + column.replace('"', '""') + '"'


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)
