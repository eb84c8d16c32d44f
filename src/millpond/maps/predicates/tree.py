"""Conditions as a tree: what every way of writing one is turned into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from millpond.errors import Invalid
from millpond.maps.predicates.bounds import Span, both, either, span_of

__all__ = (
    "All", "Any_", "Compare", "Condition", "Like", "Not", "Null", "OneOf", "Unknown", "check_size", "columns_of",
    "leaves", "nulls_of", "patterns_length", "spans_of", "values_count",
)  # fmt: skip

COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
TESTS_MAX = 1_000
"""Arrow works through a condition by calls within calls, and has a stack for so many."""
VALUES_MAX = 100_000
"""They are read in Python: so many take up to a second."""
PATTERN_CHARACTERS_MAX = 10_000
"""A pattern takes a hundred times its memory once it is compiled; of a longer one there are complaints without end."""


def check_size(tests: int, values: int, pattern_characters: int = 0) -> None:
    """Insist that a condition has no more tests, values and characters of patterns than one may.

    Raises: `Invalid`, kind `condition_large`.
    """
    if tests > TESTS_MAX:
        raise Invalid(
            "condition is too large", kind="condition_large", tests=tests, tests_max=TESTS_MAX,
            hint="write key in ('a', 'b', …) as one test, or look the keys up",
        )  # fmt: skip
    if values > VALUES_MAX:
        raise Invalid(
            "condition is too large", kind="condition_large", values=values, values_max=VALUES_MAX,
            hint="look the keys up, or ask in several questions",
        )  # fmt: skip
    if pattern_characters > PATTERN_CHARACTERS_MAX:
        raise Invalid(
            "condition is too large", kind="condition_large", pattern_characters=pattern_characters,
            pattern_characters_max=PATTERN_CHARACTERS_MAX, hint="write shorter patterns after like",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compare:
    """`column comparison value`, the comparison one of `COMPARISONS`."""

    column: str
    comparison: str
    value: Any


@dataclass(frozen=True, slots=True)
class OneOf:
    """`column in (values)`."""

    column: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """`column like pattern`: `%` stands for any text, `_` for one character."""

    column: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Null:
    """`column is null`."""

    column: str


@dataclass(frozen=True, slots=True)
class Not:
    """The negation of the part."""

    part: Condition


@dataclass(frozen=True, slots=True)
class All:
    """Every part holds."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Any_:  # noqa: N801 - a condition's word, and a builtin's
    """At least one part holds."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something else about these columns, which only the Arrow expression can tell."""

    columns: tuple[str, ...]


Leaf: TypeAlias = Compare | OneOf | Like | Null | Unknown
Condition: TypeAlias = Leaf | Not | All | Any_


def leaves(condition: Condition) -> Iterator[Leaf]:
    """The conditions within a condition that have no others within them."""
    match condition:
        case All(parts) | Any_(parts):
            for part in parts:
                yield from leaves(part)
        case Not(part):
            yield from leaves(part)
        case _:
            yield condition


def values_count(condition: Condition) -> int:
    """The number of values that a condition compares with."""
    return sum(len(leaf.values) if isinstance(leaf, OneOf) else 1 for leaf in leaves(condition))


def patterns_length(condition: Condition) -> int:
    """The characters of all patterns of a condition."""
    return sum(len(leaf.pattern) for leaf in leaves(condition) if isinstance(leaf, Like))


def columns_of(condition: Condition) -> Iterator[str]:
    """The columns a condition looks at, some more than once."""
    for leaf in leaves(condition):
        yield from leaf.columns if isinstance(leaf, Unknown) else (leaf.column,)


def nulls_of(condition: Condition) -> frozenset[str]:
    """The columns that are null wherever the condition holds.

    >>> sorted(nulls_of(Any_((Null("a"), All((Null("b"), Null("a")))))))
    ['a']
    """
    match condition:
        case Null(column):
            return frozenset({column})
        case All(parts):
            return frozenset().union(*map(nulls_of, parts))
        case Any_(parts) if parts:
            return frozenset.intersection(*map(nulls_of, parts))
        case _:
            return frozenset()


def spans_of(condition: Condition) -> dict[str, Span]:
    """The span of each column that the condition bounds."""
    match condition:
        case Compare(column, comparison, value):
            span = span_of(comparison, value) if value == value else None
            return {} if span is None else {column: span}
        case OneOf(column, values):
            return {column: Span.of_points(values)} if all(value == value for value in values) else {}
        case Like(column, pattern):
            return _prefix_span(column, pattern)
        case All(parts):
            return _every([spans_of(part) for part in parts])
        case Any_(parts):
            return _some([spans_of(part) for part in parts])
        case _:
            return {}


def _prefix_span(column: str, pattern: str) -> dict[str, Span]:
    wild = min((at for mark in "%_\\" if (at := pattern.find(mark)) >= 0), default=len(pattern))
    prefix = pattern[:wild]
    if wild == len(pattern):
        return {column: Span.of_points([pattern])}
    if not prefix:
        return {}
    # Whatever starts with the prefix sorts before the prefix with its last character raised by one.
    following = ord(prefix[-1]) + 1
    following = 0xE000 if following == 0xD800 else following
    return {column: Span(prefix, prefix[:-1] + chr(following) if following < 0x110000 else None)}


def _every(parts: list[dict[str, Span]]) -> dict[str, Span]:
    names = {name for spans in parts for name in spans}
    return {name: both(*(spans[name] for spans in parts if name in spans)) for name in names}


def _some(parts: list[dict[str, Span]]) -> dict[str, Span]:
    possible = [spans for spans in parts if not any(span.empty for span in spans.values())] or parts[:1]
    if not possible:
        return {}
    names = set.intersection(*(set(spans) for spans in possible))
    return {name: either(*(spans[name] for spans in possible)) for name in names}
