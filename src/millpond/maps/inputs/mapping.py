"""The mapping of input columns to a row's key, times and value."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from difflib import get_close_matches
from types import NoneType
from typing import Any

from millpond.argument_types import need_type
from millpond.errors import Invalid
from millpond.maps.model.aggregate_fields import MEASURE, measures
from millpond.maps.model.aggregation import Form, Rule
from millpond.maps.model.definition import Kind, MapDefinition, ScalarType
from millpond.maps.model.table_query import table_query
from millpond.maps.model.tags import TAGS

__all__ = (
    "EXTRA",
    "ColumnMapping",
    "Columns",
    "extra_columns",
    "find_column",
    "find_columns",
    "mapping_of",
    "nested_columns",
    "omitted_columns",
    "struct_fields",
    "value_columns",
)

_MISSING = "column_missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMapping:
    """Names of input columns; a name left out is the map's own.

    * `key`: also a single number for a ranged map, in place of `key_start` and `key_end`; for tags one column, or a
      column for each tag: `{"host": "hostname"}`, in text `host=hostname,dc`.
    * `time`: the effective time; for sessions the start; for aggregates that of the event.
    * `value`: one column, or for a map of several fields a column per field: `{"temp": "air_temperature"}`.
    * `timeout`: how long a session lasts when it has no `end`: text such as `15m`, or milliseconds.

    Columns that the map has no place for are refused, unless `extra` says to `ignore` them, or to `add` fields.
    Where `value` names a column, or one for each field, the others are not asked for.
    """

    key: str | Mapping[str, str] | None = None
    time: str | None = None
    value: str | Mapping[str, str] | None = None
    value_type: str | None = None
    start: str | None = None
    end: str | None = None
    key_start: str | None = None
    key_end: str | None = None
    timeout: str | None = None
    extra: str = "refuse"


EXTRA = ("refuse", "ignore", "add")
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
"""Columns that pandas writes, and takes for none."""
_PARAMETER = {"effective_time": "time"}
"""Columns that have another name in `ColumnMapping`."""
_NAMED = tuple(field.name for field in fields(ColumnMapping) if field.name != "extra")
_OWN = frozenset((*_PARAMETER, *_NAMED))


def value_columns(columns: Sequence[str]) -> str | dict[str, str] | None:
    """The value part of a column mapping: one column, or a column for each field.

    >>> value_columns(["country"])
    'country'
    >>> value_columns(["built=year", "seats"])
    {'built': 'year', 'seats': 'seats'}
    """
    if not columns:
        return None
    if len(columns) == 1 and "=" not in columns[0]:
        return columns[0]
    pairs = (piece.partition("=") for piece in columns)
    return {field.strip(): (column or field).strip() for field, _, column in pairs}


def mapping_of(columns: ColumnMapping | Mapping[str, Any] | None, extra: str | None = None) -> ColumnMapping:
    """The mapping that was given, also as a dict; with `extra`, if that is stated.

    Raises: `Invalid` for a name that is not one of `ColumnMapping`'s.
    """
    need_type("columns", columns, ColumnMapping, Mapping, NoneType)
    mapping = columns if isinstance(columns, ColumnMapping) else _mapping_of(columns or {})
    if extra is not None:
        mapping = replace(mapping, extra=extra)
    if mapping.extra not in EXTRA:
        raise Invalid(
            "extra is not understood", kind="column_mapping", extra=mapping.extra, hint=f"one of: {', '.join(EXTRA)}"
        )
    return mapping


def _mapping_of(columns: Mapping[str, Any]) -> ColumnMapping:
    for name in columns:
        if name not in _OWN:
            raise Invalid(
                "columns maps something that maps do not have", kind="column_mapping", name=name,
                hint=f"one of: {', '.join(_NAMED)}; each with the name of the input's column",
            )  # fmt: skip
    parameters = {_PARAMETER.get(name, name): column for name, column in columns.items()}
    if len(parameters) < len(columns):
        raise Invalid(
            "two columns are the time", kind="column_mapping", time=columns["time"],
            effective_time=columns["effective_time"], hint="name one",
        )  # fmt: skip
    return ColumnMapping(**parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The input's own columns for what a map stores; None where the map or the input has none."""

    key: str | None = None
    key_start: str | None = None
    key_end: str | None = None
    time: str | None = None
    start: str | None = None
    end: str | None = None
    timeout: str | None = None
    value: str | None = None
    value_type: str | None = None
    tags_beside: str | None = None
    """A second column of tags, which must say the same."""
    tags: tuple[tuple[str, str], ...] = ()
    """Name and column, for tags that have a column each."""
    fields: tuple[tuple[str, str], ...] = ()
    """Field and column, for a struct value that is spread over columns."""
    beside: tuple[str, ...] = ()
    """Columns that tell rows apart, of a table by query: all of the input whose names are their own."""

    @property
    def names(self) -> frozenset[str]:
        """All that are stored."""
        single = (name for name in astuple(self) if isinstance(name, str))
        return frozenset([*single, *(column for _, column in (*self.tags, *self.fields))])

    @property
    def read(self) -> frozenset[str]:
        """All of them: what a reader of files need not skip."""
        return self.names.union(self.beside)


def find_columns(names: Sequence[str], definition: MapDefinition, mapping: ColumnMapping | None = None) -> Columns:
    """The index of the input column for each thing that `definition` stores.

    Names given in `mapping` must be there; others are found by their canonical name. Case matters only
    between columns that differ in nothing else.

    Raises: `Invalid` naming the column that is not there, or could be several.
    """
    mapping = mapping or ColumnMapping()
    if definition.query is not None:
        return _named_by(definition.query, names, definition, mapping)
    columns = _find_columns(names, definition, mapping)
    extra = [] if mapping.extra == "ignore" else extra_columns(names, columns, definition, mapping)
    if extra:
        raise Invalid(
            "the map has no place for columns of the input", kind="column_extra", map=definition.name,
            columns=", ".join(extra), hint=_ways_out(definition, mapping.extra),
        )  # fmt: skip
    return columns


def extra_columns(
    names: Sequence[str], columns: Columns, definition: MapDefinition, mapping: ColumnMapping
) -> list[str]:  # fmt: skip
    """The columns of an input that would be lost; none where the load says which it wants."""
    value = definition.value
    chosen = isinstance(mapping.value, str) or (
        value is not None and mapping.value is not None and len(mapping.value) == len(_brought(definition))
    )
    if chosen and mapping.extra != "add":
        return []
    placed = columns.names
    return [name for name in names if name not in placed and not _PANDAS_INDEX.fullmatch(name)]


def _ways_out(definition: MapDefinition, extra: str = "refuse") -> str:
    fields = definition.value is not None and definition.value.fields
    if not fields or definition.kind is Kind.AGGREGATE:
        return 'say extra="ignore" to leave them out'
    if extra == "add":
        return f'their types are not told: first millpond alter {definition.name} --add "FIELD TYPE"'
    return 'say extra="ignore" to leave them out, or extra="add" to make them fields of a layered map'


def _named_by(query: str, names: Sequence[str], definition: MapDefinition, mapping: ColumnMapping) -> Columns:
    """The columns that the query of a table names."""
    stated = [name for name in _NAMED if getattr(mapping, name) is not None]
    if stated:
        raise Invalid(
            "the query of the table names the columns", kind="column_mapping", map=definition.name, name=stated[0],
            hint="load the rows as the query knows them",
        )  # fmt: skip
    fields = tuple((name, find_column(names, name)) for name in table_query(query).columns)
    return Columns(fields=fields, beside=tuple(name for name, count in Counter(names).items() if count == 1))


def _find_columns(names: Sequence[str], definition: MapDefinition, mapping: ColumnMapping) -> Columns:
    kind = definition.kind
    columns_of: dict[str, Any] = {}
    if definition.tagged:
        columns_of |= _tag_columns(names, mapping)
    elif isinstance(mapping.key, Mapping):
        raise Invalid(
            "key is a single column", kind="column_mapping", map=definition.name,
            hint="name the one column that holds it",
        )  # fmt: skip
    elif kind.keyed:
        columns_of["key"] = _find(names, mapping.key, "key")
    else:
        columns_of |= _range_columns(names, mapping)
    if kind.temporal:
        columns_of["time"] = _find(names, mapping.time, "effective_time", "time")
    if kind is Kind.AGGREGATE:
        columns_of["time"] = _find(names, mapping.time, "time")
    if kind is Kind.SESSION:
        columns_of["start"] = _find(names, mapping.start or mapping.time, "start", "time")
        columns_of["end"] = _find(names, mapping.end, "end", required=False)
        columns_of["timeout"] = _find(names, mapping.timeout, "timeout", required=False)
    if kind.valued:
        return _with_value(Columns(**columns_of), names, definition, mapping)
    return Columns(**columns_of)


def _tag_columns(names: Sequence[str], mapping: ColumnMapping) -> dict[str, Any]:
    """The columns of sets of tags: one, two that say the same as `scan` shows them, or one for each tag."""
    stated = mapping.key
    if isinstance(stated, str):
        stated = value_columns(stated.split(","))
    if isinstance(stated, Mapping):
        return {"tags": tuple((name, find_column(names, column)) for name, column in stated.items())}
    key = _find(names, stated, "key", TAGS)
    beside = _find(names, None, TAGS, required=False) if stated is None else None
    return {"key": key, "tags_beside": None if beside == key else beside}


def nested_columns(definition: MapDefinition, mapping: ColumnMapping | None = None) -> Callable[[str], str]:
    """The form of input columns whose values are objects or arrays: `json` that the map keeps, `tags`; or nothing."""
    value = definition.value
    if definition.tagged:
        sets = {"key", TAGS, *([str(mapping.key).lower()] if mapping is not None and mapping.key else [])}
        return lambda name: TAGS if name.lower() in sets else ""
    if value is None or value.scalar is not None:
        whole = "json" if value is not None and value.scalar is ScalarType.JSON else ""
        return lambda _: whole
    columns = mapping.value if mapping is not None and isinstance(mapping.value, Mapping) else {}
    names = {columns.get(name, name).lower() for name, scalar in value.fields if scalar is ScalarType.JSON}
    return lambda name: "json" if name.lower() in names else ""


def omitted_columns(definition: MapDefinition, mapping: ColumnMapping | None = None) -> frozenset[str]:
    """The columns that a row may lack and be stored: of the input, or of the objects in its column of values."""
    mapping = mapping or ColumnMapping()
    if definition.query is not None:
        return frozenset(table_query(definition.query).columns)
    if definition.kind is Kind.SESSION:
        return frozenset((mapping.end or "end", mapping.timeout or "timeout"))
    stated, fields = mapping.value, _brought(definition)
    if isinstance(stated, str):
        return frozenset((stated, *fields))
    if fields:
        return frozenset((stated or {}).get(name, name) for name in fields)
    return frozenset(("value", mapping.value_type or "value_type") if definition.value is None else ("value",))


def _range_columns(names: Sequence[str], mapping: ColumnMapping) -> dict[str, str | None]:
    assert not isinstance(mapping.key, Mapping), "only tags have several columns"
    start = _find(names, mapping.key_start, "key_start", required=False)
    if mapping.key is not None or (start is None and mapping.key_end is None):
        return {"key": _find(names, mapping.key, *(("key",) if "key" in map(str.lower, names) else ("key_start",)))}
    return {
        "key_start": _find(names, mapping.key_start, "key_start"),
        "key_end": _find(names, mapping.key_end, "key_end"),
    }


def _with_value(columns: Columns, names: Sequence[str], definition: MapDefinition, mapping: ColumnMapping) -> Columns:
    value = definition.value
    if value is not None and value.fields:
        return _with_struct(columns, names, definition, mapping)
    if isinstance(mapping.value, Mapping):
        raise Invalid(
            "value is a single column", kind="column_mapping", map=definition.name,
            hint="name the one column that holds it",
        )  # fmt: skip
    single = _find(names, mapping.value, "value")
    named = _find(names, mapping.value_type, "value_type", required=False) if value is None else None
    return replace(columns, value=single, value_type=named)


def _brought(definition: MapDefinition) -> list[str]:
    """The fields that an input has columns for."""
    if definition.aggregation is not None:
        return [name for name, _ in measures(definition)]
    return [] if definition.value is None else [name for name, _ in definition.value.fields]


def _with_struct(columns: Columns, names: Sequence[str], definition: MapDefinition, mapping: ColumnMapping) -> Columns:
    assert definition.value is not None
    form = definition.aggregation and definition.aggregation.form
    if isinstance(mapping.value, str) and form is not None:
        mapping = replace(mapping, value={MEASURE: mapping.value})
    if isinstance(mapping.value, str):
        if definition.kind is Kind.AGGREGATE:
            raise Invalid(
                "the measures of an event have a column each", kind="column_mapping", map=definition.name,
                value=mapping.value, hint="name one for each field: value={'total': 'price'}",
            )  # fmt: skip
        return replace(columns, value=_find(names, mapping.value))
    stated = mapping.value or {}
    fields = _brought(definition)
    for name in stated:
        if name not in fields:
            raise Invalid(
                "value has no such field", kind="value_field_unknown", field=name, map=definition.name,
                hint=f"fields are: {', '.join(fields)}",
            )  # fmt: skip
    if definition.kind is Kind.AGGREGATE:
        # An event without a column for a count counts once.
        absent = [
            name for name, rule in measures(definition)
            if rule is Rule.COUNT and name not in stated and _find(names, None, name, required=False) is None
        ]  # fmt: skip
        sources = {name: stated.get(name) for name in fields if name not in absent}
        if form is Form.METRIC and not _brings(names, [name for name in fields if name != MEASURE], stated):
            sources = dict.fromkeys(sources, stated.get(MEASURE, MEASURE))
        return replace(columns, fields=_find_fields(names, sources))
    whole = _find(names, None, "value", required=False)
    if whole is not None and not any(_find(names, stated.get(name), name, required=False) for name in fields):
        return replace(columns, value=whole)
    return replace(columns, fields=_find_fields(names, {name: stated.get(name) for name in fields}))


def _brings(names: Sequence[str], fields: Sequence[str], stated: Mapping[str, str]) -> bool:
    """True when an input has a column for one of these fields."""
    return any(name in stated or _find(names, None, name, required=False) is not None for name in fields)


def struct_fields(
    names: Sequence[str], definition: MapDefinition, column: str, extra: str = "refuse"
) -> tuple[tuple[str, str], ...]:  # fmt: skip
    """The map's fields, and what a struct column of fields `names` calls them: by the rule of columns.

    Raises: `Invalid` naming the fields that are missing, and those the map does not know: they would be lost.
    """
    assert definition.value is not None
    fields = [name for name, _ in definition.value.fields]
    columns = _find_fields(names, dict.fromkeys(fields), inside=column)
    unexpected = [] if extra == "ignore" else _beside(names, dict(columns))
    if unexpected:
        raise Invalid(
            "the struct has fields that the map has not", kind="value_field_unknown", column=column,
            unexpected=", ".join(unexpected), map=definition.name,
            hint=f"{_ways_out(definition)}; the map's fields are: {', '.join(fields)}",
        )  # fmt: skip
    return columns


def _beside(names: Sequence[str], columns: Mapping[str, str]) -> list[str]:
    """The fields of a struct that are none of those which were found."""
    return [name for name in names if name not in columns.values()]


def _find_fields(
    names: Sequence[str], fields: Mapping[str, str | None], inside: str | None = None
) -> tuple[tuple[str, str], ...]:
    """Every field of a struct and the name it has in the input: as given, else its own. All of them must be there."""
    columns: dict[str, str] = {}
    missing: list[str] = []
    for field, source in fields.items():
        try:
            columns[field] = str(_find(names, source, field))
        except Invalid as error:
            if error.kind != _MISSING:
                raise
            missing.append(source or field)
    if not missing:
        return tuple(columns.items())
    if inside is None:
        near = {field: alike for field in missing if field in fields and (alike := _alike(field, names))}
        raise _missing(names, *missing, meant={"value": near} if near else None)
    unexpected = _beside(names, columns)
    values = {"unexpected": ", ".join(unexpected)} if unexpected else {}
    raise Invalid(
        "the struct has not the fields of the map", kind=_MISSING, column=inside, missing=", ".join(missing), **values,
        hint=f"{_renamed(unexpected, missing)}the map's fields are: {', '.join(fields)}",
    )  # fmt: skip


def find_column(names: Sequence[str], name: str) -> str:
    """The column as its input writes it: case matters only between columns that differ in nothing else.

    Raises: `Invalid` naming those that are there.
    """
    return str(_find(names, name))


def _find(names: Sequence[str], stated: str | None, *defaults: str, required: bool = True) -> str | None:
    """The input's own name of a column: as `given`, else the first default that is there."""
    for candidate in (stated,) if stated is not None else defaults:
        if names.count(candidate) > 1:
            raise Invalid(
                "column is there more than once", kind="column_ambiguous", column=candidate, hint="rename one of them"
            )
        if candidate in names:
            return candidate
        alike = [name for name in names if name.lower() == candidate.lower()]
        if len(alike) == 1:
            return alike[0]
        if alike:
            raise Invalid(
                "column name could be several columns", kind="column_ambiguous", column=candidate,
                hint=f"write it as one of {', '.join(alike)}",
            )  # fmt: skip
    if stated is None and not required:
        return None
    if stated is not None:
        raise _missing(names, stated)
    near = next((similar for name in defaults if (similar := _alike(name, names))), None)
    raise _missing(names, defaults[0], meant=None if near is None else {_PARAMETER.get(defaults[0], defaults[0]): near})


def _missing(names: Sequence[str], *missing: str, meant: Mapping[str, Any] | None = None) -> Invalid:
    """The error for columns that are not there. `meant` maps columns that nobody named to what may hold them."""
    near = [repr(alike[0]) for name in missing if meant is None and (alike := get_close_matches(name, names, 1))]
    guess = f"did you mean {', '.join(near)}? " if near else ""
    mapping = f", perhaps columns={meant}" if meant else ""
    return Invalid(
        "input has no such column" if len(missing) == 1 else "input has no such columns", kind=_MISSING,
        column=", ".join(missing),
        hint=f"{guess}name the column to use{mapping}; there are: {', '.join(names) or 'none'}",
    )  # fmt: skip


def _alike(sought: str, names: Sequence[str]) -> str | None:
    """A column of nearly that name, but for those that are named as another part of a row."""
    others = {name.lower(): name for name in names if name.lower() not in _OWN}
    return next((others[near] for near in get_close_matches(sought.lower(), others, 1)), None)


def _renamed(unexpected: Sequence[str], missing: Sequence[str]) -> str:
    near = [(alike[0], name) for name in missing if (alike := get_close_matches(name, unexpected, 1))]
    return f"rename {', '.join(f'{actual!r} to {name!r}' for actual, name in near)}; " if near else ""
