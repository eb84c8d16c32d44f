"""The definition of a new map, from the words of the person who makes it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from millpond.errors import Invalid
from millpond.maps.model.aggregate_fields import aggregated_type
from millpond.maps.model.catalogue import durations
from millpond.maps.model.definition import Kind, MapDefinition, Scheme, Store, ValueType, check_name, parse_value_type
from millpond.maps.model.store_limits import aggregate_unsupported, at_birth

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("born_in", "new_map")


def new_map(
    name: str, kind: str | Kind, value: str | ValueType | None, incarnation: str, settings: Mapping[str, Any], *,
    resolution: str | None = None, time_zone: str | None = None, scheme: str | Scheme = "auto",
) -> MapDefinition:  # fmt: skip
    """The definition of a new map; `settings` are those that may be altered, and those of hashes.

    Raises: `Invalid` for a setting that is not understood, or that the kind does not have.
    """
    its_kind, aggregation = _one_of(Kind, kind, "kind"), None
    if its_kind is Kind.AGGREGATE:
        check_name(name)
        value, aggregation = aggregated_type(value, resolution, time_zone)
    elif resolution is not None or time_zone is not None:
        raise Invalid(
            "only aggregates have buckets of time", kind="resolution", map=name, resolution=resolution,
            time_zone=time_zone, hint="leave resolution and time_zone out, or say kind='aggregate'",
        )  # fmt: skip
    return MapDefinition(
        name=check_name(name), kind=its_kind, incarnation=incarnation, aggregation=aggregation,
        value=parse_value_type(value) if isinstance(value, str) else value, scheme=_one_of(Scheme, scheme, "scheme"),
        **durations(settings),
    )  # fmt: skip


def born_in(definition: MapDefinition, store: str | Store | None, preferred: str, *, served: bool) -> MapDefinition:
    """The definition of a new map in the store that its maker stated, else as `at_birth` says.

    Raises: `Invalid` for a store that is not there, or that cannot keep to the settings or the kind.
    """
    stated = None if store is None else _one_of(Store, store, "store")
    if definition.kind is not Kind.AGGREGATE:
        return at_birth(definition, stated, preferred, served=served)
    if served:
        raise aggregate_unsupported(definition.name, "nodes")
    if stated is Store.SHARD:
        raise aggregate_unsupported(definition.name, "shard")
    return replace(definition, store=Store.LAYERS)


def _one_of(options: Any, value: Any, name: str) -> Any:
    try:
        return options(value)
    except ValueError:
        raise Invalid(
            f"{name} is not known", kind=f"{name}_unknown", hint=f"one of: {', '.join(options)}", value=value
        ) from None
