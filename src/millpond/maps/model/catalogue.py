"""The catalogue: the maps of a pond. One row per map in the space, its definition as JSON.

Dropping a map and making one of the same name gives another incarnation: parts written for the first are refused, and
handles of the first say so (`same_map`) instead of showing the second, or nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from millpond.error_values import shown
from millpond.errors import AlreadyExists, Conflict, Invalid, NotFound
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.maps.model.aggregation import Aggregation
from millpond.maps.model.definition import MapDefinition, Store, check_name
from millpond.maps.model.field_changes import CHANGES
from millpond.maps.model.keyspaces import CATALOGUE
from millpond.maps.model.store_limits import sharded_as_can_be
from millpond.times.durations import is_off, optional_duration

__all__ = (
    "ALTERABLE", "altered", "altered_map", "check_map", "as_stored", "created_map", "dropped_map", "find_map",
    "in_store", "known_map", "list_maps", "map_key", "map_names", "near_names", "no_such_map", "put_map", "remove_map",
    "same_map",
)  # fmt: skip

ALTERABLE = ("overwrite", "condense", "condense_by", "retain", "retain_by", "roll_up", "maintenance_suspended")
_TYPES: dict[str, Any] = {
    "overwrite": bool, "maintenance_suspended": bool, "condense_by": str, "retain_by": str, "roll_up": str | None,
}  # fmt: skip
_TYPE_HINTS = {
    "overwrite": "write true or false", "maintenance_suspended": "write true or false",
    "condense_by": "write effective_time or update_time", "retain_by": "write effective_time or update_time",
    "roll_up": "write a resolution, such as 1 day, or off",
}  # fmt: skip


def list_maps(tx: ReadTransaction) -> list[MapDefinition]:
    """All maps, by name."""
    return [MapDefinition.from_json(value) for _, value in tx.scan(CATALOGUE.range())]


def map_names(tx: ReadTransaction) -> list[str]:
    """The names of all maps, in order: for whoever need not know what they are."""
    return [str(CATALOGUE.unpack(key)[0]) for key in tx.keys(CATALOGUE.range())]


def find_map(tx: ReadTransaction, name: str) -> MapDefinition:
    """The map of that name, in any case of letters.

    Raises: `NotFound` naming maps with a similar name.
    """
    if not isinstance(name, str):
        raise Invalid("a map's name is text", kind="map_name", name=shown(name))
    lowered = name.lower()
    similar = known_map(tx, lowered) if lowered else None
    if similar is not None:
        return similar
    raise no_such_map(name, map_names(tx))


def no_such_map(name: str, names: Sequence[str]) -> NotFound:
    """The refusal of a name that none of the maps has."""
    near = near_names(name.lower(), names)
    if near:
        return NotFound("no such map", kind="map_not_found", map=name, hint=f"there is: {', '.join(near)}")
    return NotFound("no such map", kind="map_not_found", map=name, hint="the pond has no maps yet: create one first")


def near_names(name: str, names: Sequence[str]) -> Sequence[str]:
    """The names that are like one, or the first few."""
    return difflib.get_close_matches(name, names, n=3) or names[:5]


@lru_cache(maxsize=1024)
def map_key(name: str) -> bytes:
    """The key of a map's row."""
    return CATALOGUE.pack(name)


def known_map(tx: ReadTransaction, name: str) -> MapDefinition | None:
    """The map of exactly that name; None when there is none."""
    row = tx.get(map_key(name))
    return None if row is None else _definition(row)


def same_map(tx: ReadTransaction, definition: MapDefinition) -> MapDefinition:
    """The map of a handle, with the settings that it has now: the one rule for handles of maps that were dropped.

    Raises: `NotFound`, kind `map_dropped`, when it was dropped, also when another map has its name now; `Conflict`,
    kind `map_converted`, when its rows are in the other store now.
    """
    current = known_map(tx, definition.name)
    if current is None or current.incarnation != definition.incarnation:
        raise dropped_map(definition.name)
    return in_store(current, definition.store)


def in_store(definition: MapDefinition, store: Store) -> MapDefinition:
    """A map whose rows are in this store.

    Raises: `Conflict`, kind `map_converted`.
    """
    if definition.store is not store:
        raise Conflict(
            "the map went over to its other store", kind="map_converted", map=definition.name, store=definition.store,
            hint="open it by its name again, and send what was not entered once more",
        )  # fmt: skip
    return definition


def check_map(space: Space, definition: MapDefinition) -> None:
    """See that the map of a handle is still there.

    Raises: as `same_map`.
    """
    with space.read() as tx:
        same_map(tx, definition)


def dropped_map(name: str) -> NotFound:
    """The error of a handle whose map was dropped."""
    return NotFound(
        "the map was dropped", kind="map_dropped", map=name,
        hint="open it by its name again: another map may have that name now",
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _definition(row: bytes) -> MapDefinition:
    """A definition from its row: every question asks for one, and it is a value."""
    return MapDefinition.from_json(row)


def put_map(tx: Transaction, definition: MapDefinition) -> None:
    """Enter a map, or its altered settings."""
    tx.put(CATALOGUE.pack(definition.name), definition.to_json())


def remove_map(tx: Transaction, name: str) -> None:
    """Take a map out."""
    tx.delete(CATALOGUE.pack(name))


def created_map(tx: ReadTransaction, definition: MapDefinition, *, exist_ok: bool) -> MapDefinition | None:
    """The map that is there already when a new one is wanted; None when the way is free.

    Raises: `AlreadyExists` when there is one, unless `exist_ok` and both have the same shape.
    """
    current = known_map(tx, check_name(definition.name))
    if current is None or (exist_ok and current.same_shape(definition)):
        return current
    reason = "it has another shape" if exist_ok else "drop it first, or choose another name"
    raise AlreadyExists("the map exists", kind="map_exists", map=definition.name, hint=reason)


def altered_map(tx: ReadTransaction, name: str, settings: Mapping[str, Any]) -> MapDefinition:
    """A map with other settings, such as do not shape bytes.

    Raises: as `altered`; `NotFound`.
    """
    return altered(find_map(tx, name), settings)


def altered(definition: MapDefinition, settings: Mapping[str, Any]) -> MapDefinition:
    """A definition with other settings.

    Raises: `Invalid` for a setting that is fixed at creation.
    """
    name = definition.name
    unknown = [setting for setting in settings if setting not in ALTERABLE]
    if unknown:
        raise Invalid(
            "this cannot be altered", kind="setting_fixed", map=name, setting=unknown[0],
            hint=f"alterable are: {', '.join((*ALTERABLE, 'store', *CHANGES))}; for others create a new map",
        )  # fmt: skip
    for setting, value in settings.items():
        if not isinstance(value, _TYPES.get(setting, str | int | None)):
            raise Invalid(
                "the setting cannot have such a value", kind="setting_type", map=name, setting=setting,
                value=repr(value)[:100], hint=_TYPE_HINTS.get(setting, "write a duration, such as 30d"),
            )  # fmt: skip
    return sharded_as_can_be(replace(definition, **as_stored(settings, definition.aggregation)))


def as_stored(settings: Mapping[str, Any], aggregation: Aggregation | None) -> dict[str, Any]:
    """Settings with `condense` and `retain` in milliseconds, and the width of `roll_up`; None where they are off.

    Raises: `Invalid`, kinds `duration`, `resolution`, `resolution_finer`.
    """
    values = dict(settings)
    if (roll_up := values.get("roll_up")) is not None:
        values["roll_up"] = None if is_off(roll_up) else roll_up
        if aggregation is not None and not is_off(roll_up):
            # Imported here: opening a pond needs no calendar.
            from millpond.maps.model.rolled_up import roll_up_width

            values["roll_up"] = roll_up_width(roll_up, aggregation.resolution)
    for name in ("condense", "retain"):
        if name in values:
            values[f"{name}_ms"] = optional_duration(values.pop(name))
    return values
