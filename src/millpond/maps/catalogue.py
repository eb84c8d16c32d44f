"""The catalogue: which maps a pond has. One row per map in the space, `maps/<name>` → its definition as JSON.

Dropping a map and making one of the same name gives another incarnation: parts written for the first are refused.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from millpond.errors import AlreadyExists, Invalid, NotFound
from millpond.kernel.keys import Prefix
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.maps.kinds import MapDefinition, check_name, parse_duration

__all__ = ("ALTERABLE", "alter_map", "create_map", "drop_map", "durations", "find_map", "list_maps")

MAPS = Prefix("maps")
ALTERABLE = ("overwrite", "condense", "retain", "retain_by", "care_suspended")


def list_maps(tx: ReadTransaction) -> list[MapDefinition]:
    """All maps, by name."""
    return [MapDefinition.from_dict(json.loads(value)) for _, value in tx.scan(MAPS.range())]


def find_map(tx: ReadTransaction, name: str) -> MapDefinition:
    """The map of that name, in any case of letters.

    Raises: `NotFound` naming maps with a similar name.
    """
    lowered = name.lower()
    told = tx.get(MAPS.pack(lowered)) if lowered else None
    if told is not None:
        return MapDefinition.from_dict(json.loads(told))
    known = [each.name for each in list_maps(tx)]
    near = difflib.get_close_matches(lowered, known, n=3) or known[:5]
    hint = f"there is: {', '.join(near)}" if near else "the pond has no maps yet: create one first"
    raise NotFound("no such map", kind="map_not_found", map=name, hint=hint)


def create_map(tx: Transaction, definition: MapDefinition, *, exist_ok: bool) -> MapDefinition:
    """Enter a new map.

    Raises: `AlreadyExists` when there is one, unless `exist_ok` and both have the same shape.
    """
    told = tx.get(MAPS.pack(check_name(definition.name)))
    if told is not None:
        known = MapDefinition.from_dict(json.loads(told))
        if exist_ok and known.same_shape(definition):
            return known
        reason = "it has another shape" if exist_ok else "drop it first, or choose another name"
        raise AlreadyExists("the map exists", kind="map_exists", map=definition.name, hint=reason)
    tx.put(MAPS.pack(definition.name), json.dumps(definition.to_dict()).encode())
    return definition


def alter_map(tx: Transaction, name: str, settings: Mapping[str, Any]) -> MapDefinition:
    """Change settings that do not shape bytes.

    Raises: `Invalid` for a setting that is fixed at creation; `NotFound`.
    """
    unknown = [setting for setting in settings if setting not in ALTERABLE]
    if unknown:
        raise Invalid(
            "this cannot be altered", kind="setting_fixed", map=name, setting=unknown[0],
            hint=f"alterable are: {', '.join(ALTERABLE)}; for others create a new map",
        )  # fmt: skip
    altered = replace(find_map(tx, name), **durations(settings))
    tx.put(MAPS.pack(altered.name), json.dumps(altered.to_dict()).encode())
    return altered


def durations(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with `condense` and `retain` in milliseconds."""
    told = dict(settings)
    for name in ("condense", "retain"):
        if name in told:
            value = told.pop(name)
            told[f"{name}_ms"] = None if value is None else parse_duration(value)
    return told


def drop_map(tx: Transaction, name: str) -> MapDefinition:
    """Take a map out.

    Raises: `NotFound`.
    """
    definition = find_map(tx, name)
    tx.delete(MAPS.pack(definition.name))
    return definition
