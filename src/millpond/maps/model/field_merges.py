"""Merging two definitions of a map that came from a common one: settings together, fields one by one, by their ids.

| since base | outcome |
|---|---|
| one side changed it | as that side says: added, dropped, renamed, widened |
| both changed it alike | so |
| both changed it, and not alike; or two fields come to one name | none: the merge is refused |

Name and type of a field are looked at apart: one side may rename what the other widens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from millpond.maps.model.definition import MapDefinition, ScalarType, ValueType
from millpond.maps.model.field_changes import WIDER
from millpond.maps.model.field_ids import FieldDefault, FieldIds

__all__ = ("merged_definition", "with_wider_types")

T = TypeVar("T")


class _Field(NamedTuple):
    name: str
    type: ScalarType
    default: str | None


class _Clash(Exception):
    """Both sides changed the same, and not alike."""


def merged_definition(base: MapDefinition, ours: MapDefinition, theirs: MapDefinition) -> MapDefinition | None:
    """The definition of the outcome; None where both sides changed the same differently."""
    sides = base, ours, theirs
    try:
        settings = _chosen(*(replace(side, value=None, fields=None) for side in sides))
        value, fields = _chosen_fields(base, ours, theirs)
    except _Clash:
        return None
    return replace(settings, value=value, fields=fields)


def with_wider_types(definition: MapDefinition, other: MapDefinition) -> MapDefinition:
    """A definition whose fields are as wide as those of another one, so that it tells the values of both."""
    if definition.value is None or other.value is None or definition.value_id == other.value_id:
        return definition
    there, value = _fields_of(other), definition.value
    types = [
        _wider(scalar, there[id_].type) if id_ in there else scalar
        for id_, (_, scalar) in zip(definition.field_ids, value.parts, strict=True)
    ]
    if not value.fields:
        shown = ValueType(scalar=types[0])
    else:
        shown = ValueType(fields=tuple((name, kind) for (name, _), kind in zip(value.fields, types, strict=True)))
    ids = definition.fields or FieldIds(definition.field_ids, len(types) + 1)
    return definition if shown == value else replace(definition, value=shown, fields=ids)


def _wider(scalar: ScalarType, other: ScalarType) -> ScalarType:
    if scalar == other or other in WIDER.get(scalar, ()):
        return other
    return scalar if scalar in WIDER.get(other, ()) else ScalarType.STRING


def _chosen(base: T, ours: T, theirs: T) -> T:
    if theirs in (base, ours):
        return ours
    if ours == base:
        return theirs
    raise _Clash


def _chosen_fields(
    base: MapDefinition, ours: MapDefinition, theirs: MapDefinition
) -> tuple[ValueType | None, FieldIds | None]:
    sides = base, ours, theirs
    try:
        return _chosen(*((side.value, side.fields) for side in sides))
    except _Clash:
        if base.value is None or ours.value is None or theirs.value is None:
            raise
    parts = _merged(*map(_fields_of, sides))
    names = [field.name for field in parts.values()]
    if len(set(names)) < len(names) or not names:
        raise _Clash
    (first, *_), named = parts.values(), tuple((field.name, field.type) for field in parts.values())
    value = ValueType(fields=named) if ours.value.fields else ValueType(scalar=first.type)
    defaults = tuple(FieldDefault(id_, field.default) for id_, field in parts.items() if field.default is not None)
    following = max(side.fields.next for side in (ours, theirs) if side.fields is not None)
    return value, FieldIds(tuple(parts), following, defaults)


def _fields_of(definition: MapDefinition) -> Mapping[int, _Field]:
    assert definition.value is not None, "its fields are merged"
    defaults = (
        {} if definition.fields is None else {default.field: default.value for default in definition.fields.defaults}
    )
    return {
        id_: _Field(name, scalar, defaults.get(id_))
        for id_, (name, scalar) in zip(definition.field_ids, definition.value.parts, strict=True)
    }


def _merged(base: Mapping[int, _Field], ours: Mapping[int, _Field], theirs: Mapping[int, _Field]) -> dict[int, _Field]:
    merged = {}
    for id_ in dict.fromkeys((*ours, *theirs)):
        before, mine, other = base.get(id_), ours.get(id_), theirs.get(id_)
        if mine is None or other is None or before is None:
            field = _chosen(before, mine, other)
        else:
            field = _Field(
                _chosen(before.name, mine.name, other.name), _chosen(before.type, mine.type, other.type), mine.default
            )
        if field is not None:
            merged[id_] = field
    return merged
