"""Enriching a DataFrame: what maps know about each row, as of its time. One pass, no shuffle.

Only the columns that are asked about travel to Python, and only answers travel back; Spark keeps the rest of each
row where it is. That is why this is a column function and not a `mapInArrow`, which would carry every column both ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import broadcast, col, lit
from pyspark.sql.types import DataType, StructField, StructType

from millpond.maps.enrich import Lookup, check_new, features_of, lookups_of
from millpond.maps.inputs.key_columns import OnInvalid, check_on_invalid
from millpond.maps.inputs.spans import Buckets
from millpond.spark.locations import PondLike, location_of, opened
from millpond.spark.question_types import check_key, check_time
from millpond.times.instants import parse_instant

if TYPE_CHECKING:
    from millpond.spark.partition_by_key import PartitionBy
    from millpond.spark.udf import Question

__all__ = ("Lookup", "enrich", "training_set")

ColumnLike: TypeAlias = "Column | str"

_ANSWERS = "__millpond_answers"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def enrich(
    frame: DataFrame, lookups: Lookup | Iterable[Lookup] | None = None, *, pond: PondLike | None = None,
    map: str | None = None, key: ColumnLike | None = None, at: ColumnLike | None = None, into: str | None = None,
    on_invalid: OnInvalid = "error", known_at: object = None, window: str | None = None, overwrite: bool = False,
    partition: PartitionBy | None = None, partitions: int | None = None, refresh: str = "batch",
    branch: str | None = None, ref: str | None = None,
) -> DataFrame:  # fmt: skip
    """The rows of `frame` with a column for each lookup; null where a map has no value.

    `map, key, at, into` and `on_invalid` describe one lookup (see `Lookup`); `lookups` takes several, and one
    pass answers them. A map of structs gives a struct (`select("weather.*")` spreads it); sessions give a struct of
    `start` and `end`. The snapshots are those of the moment of this call, however late Spark runs the query.
    `overwrite=True` replaces an existing column. `known_at`, a column or a time, asks layered maps as they were known
    then; nodes answer that themselves. `window`, such as `7 days`, combines the buckets of an aggregate before the one
    that holds the row's time. `branch` or `ref` asks layered maps
    as they are on a branch, or at a ref such as `main~3`, a tag, a commit or a time; with `known_at`
    as the commits of that history tell.

    A stream takes the newest snapshots at the begin of each micro-batch, and holds them for that batch. `refresh` may
    be a duration, the age from which a newer one is taken (nodes give the newest layers at any time), or `"never"`:
    those of this call serve for ever.

    `partition="key"` shuffles the rows by key first, so that each of `partitions` tasks fetches and maps only its share
    of the snapshots: for maps that are larger than the memory of a machine. All lookups must have the same key then,
    and the order of the rows is lost. Without `partitions` there are as many tasks as run at once, or more, so that
    none needs more than 256 MiB.

    Raises: `Invalid` for keys or times of a type that no lookup takes, or for an existing column; `NotFound` for a map
    that does not exist; as `Map.lookup` for one time in `known_at`. A stream ends with `Conflict`, kind `map_replaced`,
    when a map's kind or type is another.
    """
    # Imported late: whatever runs in a Python process of Spark imports this module, and few of them ask a map.
    from millpond.spark.partition_by_key import SHARE, by_share, check_partition, one_key, partition_count
    from millpond.spark.planned_past import past_of
    from millpond.spark.refresh import CHOICES, choices, refresh_ms
    from millpond.spark.udf import question_to

    age_ms = refresh_ms(refresh)
    check_partition(partition, partitions)
    lookup_list = lookups_of(
        lookups, map=map, key=key, at=at, into=into, on_invalid=on_invalid, known_at=known_at, window=window
    )
    moments = [(lookup.map, lookup.known_at) for lookup in lookup_list if _is_one_time(frame, lookup.known_at)]
    lookup_list = [_with_moments(frame, lookup) for lookup in lookup_list]
    for lookup in lookup_list:
        check_on_invalid(lookup.on_invalid)
    location = location_of(pond, frame.sparkSession, refs=True).at(branch, ref)
    with opened(pond, location) as open_:
        for name, moment in moments:
            location.map(open_, name).lookup([], known_at=moment)
        questions = [
            replace(
                question, on_invalid=lookup.on_invalid, key=_named(lookup.key),
                time=None if lookup.at is None else _named(lookup.at), window=lookup.window,
                past=None if lookup.known_at is None else past_of(open_, location, lookup.map, question.shelf),
            )
            for lookup in lookup_list
            for question in [question_to(open_, location, lookup.map)]
        ]  # fmt: skip
    for lookup, question in zip(lookup_list, questions, strict=True):
        _check_types(frame, lookup, question)
    if not overwrite:
        check_new(frame.columns, ((lookup.name, lookup.map) for lookup in lookup_list))
    shares = None
    if partition is not None:
        one_key([_named(lookup.key) for lookup in lookup_list], [question.definition for question in questions])
        shares = partition_count(frame.sparkSession, sum(question.size for question in questions), partitions)
        frame = by_share(frame, _column(lookup_list[0].key), questions[0], shares)
    chosen = age_ms is not None and frame.isStreaming
    for question in questions if age_ms is None and frame.isStreaming else ():
        question.shelf.keep(question.snapshot)
    if age_ms is not None and chosen:
        maps = [(question.definition, question.past) for question in questions]
        frame = frame.crossJoin(broadcast(choices(frame.sparkSession, location, maps, age_ms)))
    return _with_answers(frame, lookup_list, questions, shares, chosen).drop(SHARE, CHOICES)


def training_set(
    events: DataFrame, maps: Mapping[str, str | Lookup], *, pond: PondLike | None = None, at: str | None = None,
    known_at: object = None, on_invalid: OnInvalid = "error",
) -> DataFrame:  # fmt: skip
    """The events with the features that layered maps had for each, in one pass, see `Pond.training_set`.

    Raises: as `enrich`.
    """
    return enrich(events, features_of(maps, at, known_at, on_invalid), pond=pond)


def _with_moments(frame: DataFrame, lookup: Lookup) -> Lookup:
    """The lookup with the column of its moments, also where that is one time.

    Raises: `Invalid` for a time that is not understood.
    """
    if not _is_one_time(frame, lookup.known_at):
        return lookup
    return replace(lookup, known_at=lit(_EPOCH + timedelta(milliseconds=parse_instant(lookup.known_at))))


def _is_one_time(frame: DataFrame, known_at: object) -> bool:
    if known_at is None or isinstance(known_at, Column):
        return False
    names = {name.lower() for name in frame.columns}  # Spark does not tell cases apart
    return not isinstance(known_at, str) or known_at.strip("`").lower() not in names


def _check_types(frame: DataFrame, lookup: Lookup, question: Question) -> None:
    if lookup.window is not None:
        Buckets(window=lookup.window).check(question.definition, lookup.at)
    check_key(question.definition, _type_of(frame, lookup.key), lookup.key)
    if lookup.at is not None and question.definition.kind.timed:
        check_time(question.definition, _type_of(frame, lookup.at), lookup.at)
    if lookup.known_at is not None:
        check_time(question.definition, _type_of(frame, lookup.known_at), lookup.known_at)


def _type_of(frame: DataFrame, column: ColumnLike) -> DataType:
    return frame.select(_column(column)).schema[0].dataType


def _named(column: ColumnLike) -> str:
    return column if isinstance(column, str) else str(column)


def _column(column: ColumnLike) -> Column:
    return col(column) if isinstance(column, str) else column


def _with_answers(
    frame: DataFrame, lookups: Sequence[Lookup], questions: Sequence[Question], shares: int | None, chosen: bool
) -> DataFrame:
    from millpond.spark.partition_by_key import SHARE
    from millpond.spark.refresh import CHOICES
    from millpond.spark.udf import ask_all, in_batches

    columns: list[ColumnLike] = []
    columns_of = [
        (
            lookup.name,
            question,
            _position(columns, lookup.key),
            _time_position(columns, lookup, question),
            None if lookup.known_at is None else _position(columns, lookup.known_at),
        )
        for lookup, question in zip(lookups, questions, strict=True)
    ]
    inputs = [*map(_column, columns), *([col(CHOICES)] if chosen else []), *([] if shares is None else [col(SHARE)])]
    if len(columns_of) == 1:
        only = in_batches(ask_all(columns_of, alone=True, shares=shares, chosen=chosen), questions[0].spark)
        return frame.withColumn(columns_of[0][0], only(*inputs))
    fields = [StructField(name, question.spark) for name, question, *_ in columns_of]
    together = in_batches(ask_all(columns_of, alone=False, shares=shares, chosen=chosen), StructType(fields))
    answered = frame.withColumn(_ANSWERS, together(*inputs))
    return answered.withColumns({name: answered[_ANSWERS][name] for name, *_ in columns_of}).drop(_ANSWERS)


def _position(columns: list[ColumnLike], sought: ColumnLike) -> int:
    """The index of a column among those that are sent; each name is sent once."""
    for position, column in enumerate(columns):
        if column is sought or (isinstance(sought, str) and isinstance(column, str) and column == sought):
            return position
    columns.append(sought)
    return len(columns) - 1


def _time_position(columns: list[ColumnLike], lookup: Lookup, question: Question) -> int | None:
    return _position(columns, lookup.at) if lookup.at is not None and question.definition.kind.timed else None
