"""The definition of a new map, from the words of the person who makes it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from millpond.errors import Invalid
from millpond.maps.model.aggregate_fields import aggregated_type
from millpond.maps.model.aggregation import Form
from millpond.maps.model.catalogue import durations
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
from millpond.maps.model.store_limits import aggregate_unsupported, at_birth
from millpond.maps.model.tags import TAGS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ("KEY_TYPES", "born_in", "new_map")

KEY_TYPES = ("text", TAGS)
"""The types that keys may have."""


def new_map(
    name: str, kind: str | Kind, value: str | ValueType | None, incarnation: str, settings: Mapping[str, Any], *,
    resolution: str | None = None, time_zone: str | None = None, scheme: str | Scheme = "auto", key: str | None = None,
) -> MapDefinition:  # fmt: skip
    """The definition of a new map; `settings` are those that may be altered, and those of hashes.

    Raises: `Invalid` for a setting that is not understood, or that the kind does not have.
    """
    form = Form(kind) if kind in tuple(Form) else None
    its_kind, aggregation = Kind.AGGREGATE if form else _one_of((*Kind, *Form), kind, "kind"), None
    tagged = _is_tagged(name, its_kind, key)
    if its_kind is Kind.AGGREGATE:
        check_name(name)
        value, aggregation = aggregated_type(value, resolution, time_zone, tagged=tagged, form=form)
    elif resolution is not None or time_zone is not None:
        raise Invalid(
            "only aggregates have buckets of time", kind="resolution", map=name, resolution=resolution,
            time_zone=time_zone, hint="leave resolution and time_zone out, or say kind='aggregate'",
        )  # fmt: skip
    value = parse_value_type(value) if isinstance(value, str) else value
    for field, _ in value.fields if value is not None and aggregation is None else ():
        check_field(field)
    return MapDefinition(
        name=check_name(name), kind=its_kind, incarnation=incarnation, aggregation=aggregation, value=value,
        scheme=_one_of(tuple(Scheme), scheme, "scheme"), **durations(settings),
    )  # fmt: skip


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
    """The definition of a new map in the store that its maker stated, else as `at_birth` says.

    Raises: `Invalid` for a store that is not there, or that cannot keep to the settings or the kind.
    """
    stated = None if store is None else _one_of(tuple(Store), store, "store")
    if definition.kind is not Kind.AGGREGATE:
        return at_birth(definition, stated, preferred, served=served)
    if served:
        raise aggregate_unsupported(definition.name, "nodes")
    if stated is Store.SHARD:
        raise aggregate_unsupported(definition.name, "shard")
    return replace(definition, store=Store.LAYERS)


def _one_of(options: Sequence[Any], value: Any, name: str) -> Any:
    for option in options:
        if option == value:
            return option
    raise Invalid(f"{name} is not known", kind=f"{name}_unknown", hint=f"one of: {', '.join(options)}", value=value)
