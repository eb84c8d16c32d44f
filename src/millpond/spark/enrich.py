"""Enriching a DataFrame: what maps know about each row, as of its time. One pass, no shuffle.

Only the columns that are asked about travel to Python, and only answers travel back; Spark keeps the rest of each
row where it is. That is why this is a column function and not a `mapInArrow`, which would carry every column both ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import col
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegralType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millpond.errors import Invalid
from millpond.spark.answers import Question, ask_all, in_batches, question_to
from millpond.spark.ponds import PondLike, opened, place_of

__all__ = ("Lookup", "enrich")

ColumnLike: TypeAlias = "Column | str"

_ANSWERS = "__millpond_answers"


@dataclass(frozen=True, slots=True)
class Lookup:
    """One question for every row: what `map` knows of `key` (a number, for ranged maps), as of `at`.

    `key` and `at` are columns or their names; without `at` it is now. `into` names the answer's column, the map's
    name unless told.
    """

    map: str
    key: ColumnLike
    at: ColumnLike | None = None
    into: str | None = None

    @property
    def name(self) -> str:
        """The answer's column."""
        return self.into or self.map


def enrich(
    frame: DataFrame, lookups: Lookup | Iterable[Lookup] | None = None, *, pond: PondLike | None = None,
    map: str | None = None, key: ColumnLike | None = None, at: ColumnLike | None = None, into: str | None = None,
) -> DataFrame:  # fmt: skip
    """The rows of `frame`, each with what maps know about it; null where they know nothing.

    Ask one question with `map=, key=, at=, into=`, or several at once with `lookups`. A map that declares a struct
    gives a struct (`select("weather.*")` spreads it), sessions give a struct of start and end. The snapshots that
    answer are those of now, however late Spark runs the query.

    Raises: `Invalid` for keys or times of a type that cannot be asked with; `NotFound` for a map that is not there.
    """
    asked = _lookups(lookups, map, key, at, into)
    place = place_of(pond, frame.sparkSession)
    with opened(pond, place) as open_:
        questions = [question_to(open_, place, lookup.map) for lookup in asked]
    for lookup, question in zip(asked, questions, strict=True):
        _check_types(frame, lookup, question)
    return _with_answers(frame, asked, questions)


def _lookups(
    lookups: Lookup | Iterable[Lookup] | None, map: str | None, key: ColumnLike | None, at: ColumnLike | None,
    into: str | None,
) -> list[Lookup]:  # fmt: skip
    given = [lookups] if isinstance(lookups, Lookup) else list(lookups or ())
    if map is not None and key is not None:
        given.append(Lookup(map, key, at, into))
    elif not given or not (map is None and key is None and at is None and into is None):
        raise Invalid(
            "nothing is asked",
            kind="lookup_missing",
            hint="say map= and key=, or give lookups: Lookup(map, key, at, into)",
        )
    names = [lookup.name for lookup in given]
    if len(set(names)) < len(names):
        raise Invalid(
            "two answers have one name", kind="lookup_names", names=", ".join(names), hint="tell them apart with into="
        )
    return given


def _check_types(frame: DataFrame, lookup: Lookup, question: Question) -> None:
    kind = question.definition.kind
    key = _type_of(frame, lookup.key)
    if not isinstance(key, StringType | IntegralType | BinaryType):
        raise Invalid(
            "a key is text or a whole number", kind="key_type", map=lookup.map, column=lookup.key,
            type=key.simpleString(), hint="cast the column to string",
        )  # fmt: skip
    if lookup.at is None or not kind.timed:
        return
    at = _type_of(frame, lookup.at)
    if not isinstance(at, TimestampType | IntegralType | StringType):
        naive = isinstance(at, TimestampNTZType)
        raise Invalid(
            "a time without a zone names no instant" if naive else "a time is a timestamp",
            kind="time_naive" if naive else "time_type", map=lookup.map, column=lookup.at, type=at.simpleString(),
            hint="cast the column to timestamp: it is then in the session's time zone",
        )  # fmt: skip


def _type_of(frame: DataFrame, column: ColumnLike) -> DataType:
    return frame.select(_column(column)).schema[0].dataType


def _column(column: ColumnLike) -> Column:
    return col(column) if isinstance(column, str) else column


def _with_answers(frame: DataFrame, lookups: Sequence[Lookup], questions: Sequence[Question]) -> DataFrame:
    columns: list[ColumnLike] = []
    places = [
        (lookup.name, question, _place(columns, lookup.key), _time_place(columns, lookup, question))
        for lookup, question in zip(lookups, questions, strict=True)
    ]
    inputs = [_column(column) for column in columns]
    if len(places) == 1:
        only = in_batches(ask_all(places, alone=True), questions[0].spark)
        return frame.withColumn(places[0][0], only(*inputs))
    fields = [StructField(name, question.spark) for name, question, *_ in places]
    together = in_batches(ask_all(places, alone=False), StructType(fields))
    answered = frame.withColumn(_ANSWERS, together(*inputs))
    return answered.withColumns({name: answered[_ANSWERS][name] for name, *_ in places}).drop(_ANSWERS)


def _place(columns: list[ColumnLike], wanted: ColumnLike) -> int:
    """Where a column stands among those that are sent; each name is sent once."""
    for place, column in enumerate(columns):
        if column is wanted or (isinstance(wanted, str) and isinstance(column, str) and column == wanted):
            return place
    columns.append(wanted)
    return len(columns) - 1


def _time_place(columns: list[ColumnLike], lookup: Lookup, question: Question) -> int | None:
    return _place(columns, lookup.at) if lookup.at is not None and question.definition.kind.timed else None
