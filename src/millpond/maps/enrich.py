"""Enriching a frame: what maps know about each of its rows, as of the row's time.

| frame | answer |
|---|---|
| pandas | a pandas frame with the same index; whole numbers are `Int64`, which holds a missing one |
| Polars | a Polars frame |
| whatever else Arrow reads: tables, batches, readers, DuckDB's relations | an Arrow table |

Only columns of keys and times are read; the others stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Protocol

import pyarrow as pa

from millpond.argument_types import need_type
from millpond.errors import Invalid
from millpond.maps.inputs.key_columns import OnInvalid
from millpond.maps.inputs.mapping import find_column
from millpond.maps.inputs.tables import batches_of, column_of
from millpond.maps.protocols import MapLike
from millpond.times.instants import parse_instant

__all__ = ("Lookup", "check_new", "enriched", "features_of", "lookups_of")


@dataclass(frozen=True, slots=True)
class Lookup:
    """One lookup for every row: the value of `key` in `map` (ranged maps: of a number), as of `at`.

    `key` and `at` are names of columns, in Spark also columns; without `at` it is now. `known_at`, a column or a time,
    asks a layered map as it was known then. `window` combines the buckets of an aggregate in so long a time before the
    bucket of the row's time, such as `7 days`: nothing that came later is in them. `into` names the answer's column, by
    default the map's name. A null key or time gives null. `on_invalid` decides about a key or time of the right type
    that is not a key or a time, such as the text `abc` for a ranged map: `error` fails and names column and value,
    `miss` answers null.
    """

    map: str
    key: Any
    at: Any = None
    into: str | None = None
    on_invalid: OnInvalid = "error"
    known_at: Any = None
    window: str | None = None

    @property
    def name(self) -> str:
        """The answer's column."""
        return self.into or self.map


def lookups_of(lookups: Lookup | Iterable[Lookup] | None, **single: Any) -> list[Lookup]:
    """The lookups that a call describes: those given, and the one that its own `map`, `key`, `at`, `into` tell.

    Raises: `Invalid` when there is none, when one is half told, or when two answers have one name.
    """
    need_type("lookups", lookups, Lookup, Iterable, NoneType)
    listed = [lookups] if isinstance(lookups, Lookup) else list(lookups or ())
    for lookup in listed:
        need_type("lookups", lookup, Lookup)
    map_, key, at, into = (single.get(name) for name in ("map", "key", "at", "into"))
    if map_ is not None and key is not None:
        listed.append(Lookup(**single))
    elif (
        not (map_ is None and key is None and at is None and into is None and single.get("known_at") is None)
        or not listed
    ):
        raise Invalid(
            "nothing is asked", kind="lookup_missing",
            hint="say map= and key=, or give lookups: Lookup(map, key, at, into)",
        )  # fmt: skip
    names = [lookup.name for lookup in listed]
    if len(set(names)) < len(names):
        raise Invalid(
            "two answers have one name", kind="lookup_names", names=", ".join(names), hint="tell them apart with into="
        )
    return listed


def features_of(
    maps: Mapping[str, str | Lookup], at: str | None, known_at: Any, on_invalid: OnInvalid
) -> list[Lookup]:  # fmt: skip
    """The lookups of a training set: for each map the column of its keys, or a `Lookup` of its own.

    Raises: `Invalid` when there is none, or no time from which on nothing is to be known.
    """
    need_type("maps", maps, Mapping)
    for key in maps.values():
        need_type("maps", key, str, Lookup)
    known_at = at if known_at is None else known_at
    lookups = [
        Lookup(name, key, at, on_invalid=on_invalid, known_at=known_at) if isinstance(key, str) else key
        for name, key in maps.items()
    ]
    if any(lookup.known_at is None for lookup in lookups):
        raise Invalid(
            "it is not said up to when a map is known", kind="known_at_missing", maps=", ".join(maps),
            hint="say at=, the column of the events' times, or known_at=",
        )  # fmt: skip
    return lookups_of(lookups)


def check_new(taken: Iterable[str], answers: Iterable[tuple[str, str]]) -> None:
    """Refuse answers (a column, and its map) whose column is there already: most often it is the key, soon missed.

    Raises: `Invalid`.
    """
    names = {name.lower() for name in taken}  # Spark does not tell cases apart
    for name, map_ in answers:
        if name.lower() in names:
            raise Invalid(
                "column is there already", kind="column_taken", column=name, map=map_,
                hint="name another with into=, or say overwrite=True",
            )  # fmt: skip


class _Maps(Protocol):
    """The part of a pond that is queried."""

    def map(self, name: str, /) -> MapLike: ...


def enriched(pond: _Maps, data: Any, lookups: Sequence[Lookup], *, overwrite: bool, flat: bool) -> Any:
    """The rows of `data` with a column for each lookup, see `Pond.enrich`."""
    frame = _frame_of(data)
    columns = frame.column_names if isinstance(frame, pa.Table) else list(frame.columns)
    names = list(map(str, columns))
    answers: dict[str, pa.Array[Any]] = {}
    for lookup in lookups:
        answer_of = dict(_answers(pond, lambda name: frame[columns[names.index(name)]], names, lookup, flat))
        if not overwrite:
            check_new([*names, *answers], ((name, lookup.map) for name in answer_of))
        answers |= answer_of
    return _with_columns(frame, answers)


def _answers(
    pond: _Maps, column: Callable[[str], Any], names: Sequence[str], lookup: Lookup, flat: bool
) -> Iterable[tuple[str, pa.Array[Any]]]:
    queried = pond.map(lookup.map)
    key = find_column(names, str(lookup.key))  # columns of pandas may be numbers, or tuples
    time = find_column(names, str(lookup.at)) if lookup.at is not None and queried.kind.timed else None
    try:
        at = None if time is None else column_of(time, column(time))
        known_at = _moments(lookup.known_at, names, column)
        answer = queried.lookup(
            column_of(key, column(key)), at, on_invalid=lookup.on_invalid, known_at=known_at, window=lookup.window
        )  # fmt: skip
    except Invalid as error:
        wrong = time if time is not None and error.kind.startswith("time_") else key
        of_column = {} if "known_at" in error.values else {"column": wrong}
        values = {"map": queried.name} | of_column | error.values
        raise Invalid(error.message, kind=error.kind, hint=error.hint, **values) from error
    if not flat or not pa.types.is_struct(answer.type):
        return [(lookup.name, answer)]
    return zip((f"{lookup.name}_{field.name}" for field in answer.type), answer.flatten(), strict=True)


def _moments(known_at: Any, names: Sequence[str], column: Callable[[str], Any]) -> Any:
    """The column that `known_at` names, or the one time that it is."""
    if not isinstance(known_at, str) or (known_at not in names and _is_time(known_at)):
        return known_at
    name = find_column(names, known_at)
    return column_of(name, column(name))


def _is_time(text: str) -> bool:
    try:
        return isinstance(parse_instant(text), int)
    except Invalid:
        return False


# -- frames -------------------------------------------------------------------------------------------


def _frame_of(data: Any) -> Any:
    """The frame itself, if it is one of pandas or Polars; else its rows as an Arrow table."""
    if hasattr(data, "collect"):
        raise Invalid(
            "a query is no frame", kind="data_unknown", type=type(data).__name__,
            hint="collect it first; a DataFrame of Spark is enriched by millpond.spark.enrich",
        )  # fmt: skip
    if _library(data) in ("pandas", "polars") and hasattr(data, "columns"):
        return data
    if isinstance(data, pa.Table):
        return data
    schema, batches = getattr(data, "schema", None), [*batches_of(data)]
    if not batches and not isinstance(schema, pa.Schema):
        return pa.table({name: pa.nulls(0) for name in (data if isinstance(data, Mapping) else ())})
    return pa.Table.from_batches(batches, schema if isinstance(schema, pa.Schema) else None)


def _library(data: Any) -> str:
    return type(data).__module__.partition(".")[0]


def _with_columns(frame: Any, answers: Mapping[str, pa.Array[Any]]) -> Any:
    if isinstance(frame, pa.Table):
        for name, column in answers.items():
            position = frame.column_names.index(name) if name in frame.column_names else -1
            frame = frame.append_column(name, column) if position < 0 else frame.set_column(position, name, column)
        return frame
    if _library(frame) == "polars":
        return frame.with_columns(*type(frame)(pa.table(dict(answers))))
    return frame.assign(**{name: _of_pandas(column, frame.index) for name, column in answers.items()})


def _of_pandas(column: pa.Array[Any], index: Any) -> Any:
    """An answer for pandas, every digit of it: Arrow would make floats of whole numbers beside a missing one."""
    if pa.types.is_struct(column.type):
        return column.to_pylist()
    series = column.to_pandas(integer_object_nulls=True).set_axis(index)
    return series.astype("Int64") if pa.types.is_integer(column.type) else series
