"""The definition of a new map, from the words of the person who makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from millpond.argument_types import need_type
from millpond.errors import Invalid
from millpond.maps.model.aggregate_fields import aggregated_type
from millpond.maps.model.aggregation import Form
from millpond.maps.model.catalogue import as_stored
from millpond.maps.model.definition import (
    Kind,
    MapDefinition,
    Scheme,
    Store,
    ValueType,
    check_field,
    check_name,
    parse_value_type,
)
from millpond.maps.model.store_limits import at_birth, sharded_as_can_be
from millpond.maps.model.table_query import table_query
from millpond.maps.model.tags import TAGS
from millpond.times.buckets import bucket_width

__all__ = ("KEY_TYPES", "born_in", "new_map")

KEY_TYPES = ("text", TAGS)
"""The types that keys may have."""
FINEST = "1 second"
"""The resolution of a table by query that says none."""


def new_map(
    name: str, kind: str | Kind | None, value: str | ValueType | None, incarnation: str, settings: Mapping[str, Any], *,
    resolution: str | None = None, time_zone: str | None = None, scheme: str | Scheme = "auto", key: str | None = None,
    query: str | None = None,
) -> MapDefinition:  # fmt: skip
    """The definition of a new map; `settings` are those that may be altered, and those of hashes.

    Raises: `Invalid` for a setting that is not understood, or that the kind does not have.
    """
    if query is not None:
        return _of_query(
            check_name(name), kind, value, incarnation, settings, resolution=resolution, time_zone=time_zone,
            scheme=scheme, key=key, query=query,
        )  # fmt: skip
    form = Form(kind) if kind in tuple(Form) else None
    its_kind, aggregation = Kind.AGGREGATE if form else _one_of((*Kind, *Form), kind, "kind"), None
    tagged = _is_tagged(name, its_kind, key)
    if its_kind is Kind.AGGREGATE:
        check_name(name)
        value, aggregation = aggregated_type(value, resolution, time_zone, tagged=tagged, form=form)
    elif resolution is not None or time_zone is not None:
        raise Invalid(
            "only aggregates have buckets of time", kind="resolution", map=name, resolution=resolution,
            time_zone=time_zone, hint="leave out resolution=… and time_zone=…, or say kind='aggregate'",
        )  # fmt: skip
    value = parse_value_type(value) if isinstance(value, str) else value
    for field, _ in value.fields if value is not None and aggregation is None else ():
        check_field(field)
    return MapDefinition(
        name=check_name(name), kind=its_kind, incarnation=incarnation, aggregation=aggregation, value=value,
        scheme=_one_of(tuple(Scheme), scheme, "scheme"), **as_stored(settings, aggregation),
    )  # fmt: skip


def _of_query(
    name: str, kind: str | Kind | None, value: str | ValueType | None, incarnation: str, settings: Mapping[str, Any], *,
    resolution: str | None, query: str, **options: Any,
) -> MapDefinition:  # fmt: skip
    """The definition of a table by query: of the aggregate that it says.

    Raises: `Invalid` for a query that says none, or something else than the other options.
    """
    if value is not None or kind not in (None, Kind.AGGREGATE):
        raise Invalid(
            "a query says what the map is", kind="table_query", map=name, map_kind=kind, value=value,
            hint="leave kind and value out",
        )  # fmt: skip
    need_type("as_", query, str)
    read = table_query(query)
    if None not in (read.resolution, resolution) and read.resolution != bucket_width(str(resolution)).text:
        raise Invalid("the query says another resolution", kind="table_query", map=name, query=read.resolution,
                      resolution=resolution, hint="leave resolution out")  # fmt: skip
    definition = new_map(
        name, Kind.AGGREGATE, read.fields, incarnation, settings,
        resolution=read.resolution or resolution or FINEST, **options,
    )  # fmt: skip
    assert definition.aggregation is not None, "it is an aggregate"
    computed = tuple(
        replace(field, name=read.single.get(field.of[0], field.name)) for field in definition.aggregation.computed
    )  # fmt: skip
    return replace(definition, query=query, aggregation=replace(definition.aggregation, computed=computed))


def _is_tagged(name: str, kind: Kind, key: str | None) -> bool:
    if _one_of(KEY_TYPES, KEY_TYPES[0] if key is None else key, "key_type") != TAGS:
        return False
    if kind is not Kind.AGGREGATE:
        raise Invalid(
            "only aggregates have tags as keys", kind="tags_unsupported", map=name, map_kind=kind,
            hint="leave key out, and write each set of tags as one text",
        )  # fmt: skip
    return True


def born_in(definition: MapDefinition, store: str | Store | None, preferred: str, *, served: bool) -> MapDefinition:
    """The definition of a new map in the store that its maker stated; else of an aggregate in layers, which do more for
    it, and of others as `at_birth` says.

    Raises: `Invalid` for a store that is not there, or that cannot keep to the settings.
    """
    stated = None if store is None else _one_of(tuple(Store), store, "store")
    if definition.kind is Kind.AGGREGATE:
        stated = stated or Store.LAYERS
    return sharded_as_can_be(at_birth(definition, stated, preferred, served=served))


def _one_of(options: Sequence[Any], value: Any, name: str) -> Any:
    for option in options:
        if option == value:
            return option
    raise Invalid(f"{name} is not known", kind=f"{name}_unknown", hint=f"one of: {', '.join(options)}", value=value)
