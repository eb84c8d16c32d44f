"""Hypothesis strategies for maps: definitions, rows and questions that find the corners.

A map's rows are drawn from small `Pools`, so that keys meet again, ranges nest and touch, sessions overlap and
values repeat; what is in a pool is as odd as the format allows. Questions ask for what is in the pools and for what
lies just beside it.

Times stay within the years 1 to 9999, which is what Python's datetime can tell; numbers use all of int64.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias, TypeVar

from hypothesis import strategies as st

from millpond.maps.model.definition import PLAIN_KINDS, Kind, MapDefinition, ScalarType, Scheme, ValueType
from tests.harness.models import Row

__all__ = (
    "TIME_MAX", "TIME_MIN", "Pools", "Question", "definitions", "keys", "numbers", "pools", "questions", "rows",
    "scalars", "schemes", "times", "value_types", "values",
)  # fmt: skip

Question: TypeAlias = tuple[str | int, int]
"""A key or a number, and the time that is asked for."""

T = TypeVar("T")

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME_MIN = (datetime.min.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
TIME_MAX = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)

# Lengths at which some scheme changes its mind: LMDB holds 511 bytes, less the times that follow a key.
_CORNER_LENGTHS = (1, 8, 29, 30, 31, 32, 63, 64, 65, 483, 487, 491, 494, 495, 496, 500, 503, 504, 507, 510, 511, 512)
_LONG = 10_240

# -- single columns -----------------------------------------------------------------------------------


def keys() -> st.SearchStrategy[str]:
    """Keys: empty, one byte, prefixes of each other, NUL bytes, around 511 bytes, non-ASCII, seldom 10 KB."""
    short = st.text(st.sampled_from("ab\0é\U0001f600"), max_size=4)
    corner = st.builds(_sized, st.sampled_from("kz"), st.sampled_from(_CORNER_LENGTHS), short)
    huge = st.builds(_sized, st.just("h"), st.just(_LONG), st.sampled_from(["", "x"]))
    return _weighted((6, short), (3, corner), (1, st.text(st.characters(codec="utf-8"), max_size=12)), (1, huge))


def _sized(letter: str, length: int, ending: str) -> str:
    """`length` bytes of a letter, of which the last few are `ending`: long keys differ only at their ends."""
    room = max(length - len(ending.encode()), 0)
    return letter * room + ending


def times() -> st.SearchStrategy[int]:
    """UTC milliseconds: around 1970 on both sides, around 2000, and the first and last that Python can tell.

    None of them, nor its neighbour, is a number that readers refuse because it could be seconds.
    """
    around_2000 = st.integers(-3, 3).map(lambda days: 946_684_800_000 + days * 86_400_000)
    anywhere = st.integers(TIME_MIN, TIME_MAX).filter(lambda ms: not 10**8 - 1 <= abs(ms) <= 10**10)
    ends = st.sampled_from((TIME_MIN, TIME_MIN + 1, TIME_MAX - 1, TIME_MAX))
    return _weighted((5, st.integers(-12, 12)), (2, around_2000), (1, anywhere), (1, ends))


def numbers() -> st.SearchStrategy[int]:
    """Numbers that ranges start and end at: small on both sides of 0, and all of int64 with its ends."""
    ends = st.sampled_from((INT64_MIN, INT64_MIN + 1, -(2**32), 2**32, INT64_MAX - 1, INT64_MAX))
    return _weighted((6, st.integers(-12, 12)), (1, st.integers(INT64_MIN, INT64_MAX)), (1, ends))


def scalars(scalar: ScalarType) -> st.SearchStrategy[object]:
    """Values of one scalar type, empty ones and longer ones than a duplicate row of LMDB among them."""
    doubles = st.sampled_from((0.0, -0.0, 1.5, float("nan"), float("inf"), 5e-324)) | st.floats(allow_nan=False)
    lengths = st.sampled_from((490, 505, 1_000, _LONG)).map(lambda length: "v" * length)
    texts = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(("", "\0")) | lengths
    return {
        ScalarType.STRING: texts,
        ScalarType.LONG: numbers(),
        ScalarType.DOUBLE: doubles,
        ScalarType.BOOLEAN: st.booleans(),
        ScalarType.TIMESTAMP: st.builds(_moment, times(), st.sampled_from((0, 1, 999)) | st.integers(0, 999)),
        ScalarType.BINARY: st.binary(max_size=6) | st.sampled_from((b"", b"\0", b"\xff" * 600)),
        ScalarType.JSON: st.sampled_from(("null", '""', "{}", '{"a":[1,null,"é"]}')),
    }[scalar]


def _moment(millis: int, micros: int) -> datetime:
    return EPOCH + timedelta(milliseconds=millis, microseconds=micros)


def values(value: ValueType) -> st.SearchStrategy[object]:
    """Values of a declared type, nulls and null fields among them."""
    if value.scalar is not None:
        return st.none() | scalars(value.scalar)
    return st.none() | st.fixed_dictionaries({name: st.none() | scalars(scalar) for name, scalar in value.fields})


def _weighted(*choices: tuple[int, st.SearchStrategy[T]]) -> st.SearchStrategy[T]:
    return st.one_of([choice for weight, choice in choices for _ in range(weight)])


# -- definitions --------------------------------------------------------------------------------------


def schemes() -> st.SearchStrategy[tuple[Scheme, int, int]]:
    """(scheme, hash_bytes, hash_bits): every scheme, with hashes so weak that keys clash half the time."""
    strong = [(Scheme.AUTO, 8), (Scheme.DIRECT, 8), (Scheme.HASH, 8), (Scheme.HASH, 4), (Scheme.LOOKUP, 8)]
    return st.builds(lambda pair, bits: (*pair, bits), st.sampled_from(strong), st.sampled_from((64, 64, 2, 1)))


def value_types() -> st.SearchStrategy[ValueType]:
    """Every scalar, and structs of up to three fields."""
    scalar = st.sampled_from(ScalarType)
    fields = st.lists(scalar, min_size=1, max_size=3).map(
        lambda drawn: tuple((f"f{i}", s) for i, s in enumerate(drawn))
    )
    return st.builds(lambda s: ValueType(scalar=s), scalar) | st.builds(lambda f: ValueType(fields=f), fields)


@st.composite
def definitions(draw: st.DrawFn, *, kind: Kind | None = None) -> MapDefinition:
    """A map of any (or the given) kind, value type and scheme."""
    chosen = kind or draw(st.sampled_from(PLAIN_KINDS))
    scheme, hash_bytes, hash_bits = draw(schemes())
    return MapDefinition(
        name="m",
        kind=chosen,
        incarnation="0" * 16,
        value=draw(st.none() | value_types()) if chosen.valued else None,
        scheme=scheme,
        hash_bytes=hash_bytes,
        hash_bits=hash_bits,
        overwrite=draw(st.sampled_from((True, True, False))),
    )


# -- rows and questions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools from which the rows of one map are made.

    `values` holds one tuple of values per value type: one for a declared map, several for an undeclared one, whose
    parts carry one type each.
    """

    keys: tuple[str, ...]
    numbers: tuple[int, ...]
    times: tuple[int, ...]
    values: tuple[tuple[object, ...], ...]


@st.composite
def pools(draw: st.DrawFn, definition: MapDefinition) -> Pools:
    """Pools for one map."""
    return Pools(
        keys=_some(draw, keys(), 6),
        numbers=_some(draw, numbers(), 6),
        times=_some(draw, times(), 6),
        values=_value_pools(draw, definition),
    )


def _some(draw: st.DrawFn, strategy: st.SearchStrategy[T], most: int) -> tuple[T, ...]:
    return tuple(draw(st.lists(strategy, min_size=1, max_size=most, unique=True)))


def _value_pools(draw: st.DrawFn, definition: MapDefinition) -> tuple[tuple[object, ...], ...]:
    if not definition.kind.valued:
        return ((None,),)
    if definition.value is not None:
        return (tuple(draw(st.lists(values(definition.value), min_size=1, max_size=4))),)
    drawn = draw(st.lists(st.sampled_from(_UNDECLARED), min_size=1, max_size=3, unique=True))
    return tuple((None, *draw(st.lists(scalars(scalar), min_size=1, max_size=3))) for scalar in drawn)


# An Arrow column cannot say that its text is JSON, so an undeclared map stores it as a string.
_UNDECLARED = tuple(scalar for scalar in ScalarType if scalar is not ScalarType.JSON)


@st.composite
def rows(draw: st.DrawFn, definition: MapDefinition, drawn: Pools, *, most: int = 12) -> list[Row]:
    """The rows of one part, in no order, with repeated addresses."""
    spans = st.tuples(st.sampled_from(drawn.numbers), st.sampled_from(drawn.numbers)).map(sorted)
    sessions = st.tuples(st.sampled_from(drawn.times), st.sampled_from(drawn.times)).map(sorted)
    key, time = st.sampled_from(drawn.keys), st.sampled_from(drawn.times)
    address = {
        Kind.STATE: st.tuples(key),
        Kind.TEMPORAL_STATE: st.tuples(key, time),
        Kind.RANGED_STATE: spans.map(tuple),
        Kind.TEMPORAL_RANGED_STATE: st.builds(lambda span, at: (*span, at), spans, time),
        Kind.SESSION: st.builds(lambda name, span: (name, *span), key, sessions),
    }[definition.kind]
    value = st.sampled_from(draw(st.sampled_from(drawn.values)))
    return draw(st.lists(st.tuples(address, value), min_size=1, max_size=most))


@st.composite
def questions(draw: st.DrawFn, definition: MapDefinition, drawn: Pools, *, most: int = 12) -> list[Question]:
    """Lookups of every pooled key and number, of their neighbours, and of keys that were never there."""
    if definition.kind.keyed:
        beside: st.SearchStrategy[object] = st.sampled_from(drawn.keys).flatmap(_keys_beside) | keys()
    else:
        beside = st.sampled_from(drawn.numbers).flatmap(lambda n: _beside(n, INT64_MIN, INT64_MAX))
    at = st.sampled_from(drawn.times).flatmap(lambda ms: _beside(ms, TIME_MIN, TIME_MAX))
    return draw(st.lists(st.tuples(beside, at), min_size=1, max_size=most))


def _keys_beside(key: str) -> st.SearchStrategy[str]:
    return st.sampled_from((key, key, key, key + "\0", key + "a", key[:-1], key[1:]))


def _beside(number: int, least: int, most: int) -> st.SearchStrategy[int]:
    return st.sampled_from((number, max(number - 1, least), min(number + 1, most)))
