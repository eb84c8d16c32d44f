"""Changes of the fields of a map: added, dropped, renamed, widened. No row is rewritten, see `projection.py`.

| to a wider type | of | what a row shows |
|---|---|---|
| `double` | `long` | the same number; refused where one lies beyond ±2^53, which a double does not tell from others |
| `string` | `long` | its decimal digits |
| `string` | `boolean` | `true` or `false` |
| `string` | `json` | the same text |

Invariants:
* all names of one change but those of added fields are names before it;
* an id is never given to a second field: what is dropped and added again has nothing of the old one;
* the id of an added field follows from its name, type and default, and the number of changes that freed names, or of
  as many more as it takes where a revert gave back the id: two branches that add the same field give it one id;
* what a type is widened to is never widened further, so old rows show the same however many changes lie between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from millpond.errors import Invalid
from millpond.json_forms import stable_json
from millpond.maps.model.definition import Kind, MapDefinition, ScalarType, Store, ValueType, check_field, parse_scalar
from millpond.maps.model.field_ids import FieldDefault, FieldIds
from millpond.maps.model.store_limits import aggregate_unsupported

__all__ = ("CHANGES", "WIDER", "FieldChanges", "changed_fields", "need_layers")

CHANGES = ("add", "default", "drop", "rename", "widen")
"""The names of changes beside those of settings."""

WIDER = {
    ScalarType.LONG: (ScalarType.DOUBLE, ScalarType.STRING),
    ScalarType.BOOLEAN: (ScalarType.STRING,),
    ScalarType.JSON: (ScalarType.STRING,),
}


@dataclass(frozen=True, slots=True)
class FieldChanges:
    """Changes of the fields of one map. `default` holds encoded values, in hexadecimal."""

    add: Mapping[str, ScalarType]
    default: Mapping[str, str]
    drop: tuple[str, ...]
    rename: Mapping[str, str]
    widen: Mapping[str, ScalarType]

    @classmethod
    def of(cls, changes: Mapping[str, Any], encoded: Any) -> FieldChanges:
        """Changes as people write them; `encoded(value, type, name)` gives a default's bytes.

        Raises: `Invalid` for what is no change of fields.
        """
        added = {name: parse_scalar(kind) for name, kind in _mapping(changes, "add").items()}
        stated = _mapping(changes, "default")
        for name in stated:
            if name not in added:
                raise _refused("a default is for a field that is added", name, "name it in add as well")
        drop = changes.get("drop", ())
        if isinstance(drop, str) or not isinstance(drop, Iterable) or not all(isinstance(name, str) for name in drop):
            raise _refused("drop is a list of fields", repr(drop)[:100], 'write it as ["gust"]')
        return cls(
            add=added,
            default={
                name: encoded(value, added[name], name).hex() for name, value in stated.items() if value is not None
            },
            drop=tuple(drop),
            rename=_mapping(changes, "rename"),
            widen={name: parse_scalar(kind) for name, kind in _mapping(changes, "widen").items()},
        )


def _mapping(changes: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    stated = changes.get(name, {})
    texts = () if name == "default" or not isinstance(stated, Mapping) else stated.values()
    if not isinstance(stated, Mapping) or not all(isinstance(text, str) for text in (*stated, *texts)):
        raise _refused(f"{name} maps names of fields", repr(stated)[:100], 'write it as {"gust": …}')
    return stated


def _refused(message: str, field: str, hint: str) -> Invalid:
    return Invalid(message, kind="field_change", field=field, hint=hint)


def need_layers(definition: MapDefinition, operation: str) -> None:
    """Refuse an operation that only layered maps have.

    Raises: `Invalid`, kind `store_unsupported`; `aggregate_unsupported`, for which no store has it.
    """
    if definition.kind is Kind.AGGREGATE and operation == "fields":
        raise aggregate_unsupported(definition.name, operation)
    if definition.store is not Store.LAYERS:
        raise Invalid(
            "a map in a shard does not do this", kind="store_unsupported", map=definition.name, operation=operation,
            hint=f"first: millpond alter {definition.name} --store layers; or load its rows into a new map",
        )  # fmt: skip


def changed_fields(definition: MapDefinition, changes: FieldChanges, taken: Collection[int] = ()) -> MapDefinition:
    """The definition after the changes; `taken` are the ids of fields that the map had, which no new one gets.

    Raises: `Invalid` naming the field, and what would do.
    """
    if definition.kind is Kind.AGGREGATE:
        raise aggregate_unsupported(definition.name, "fields")
    value = definition.value
    if value is None:
        raise Invalid(
            "the values of this map have no declared type", kind="field_change", map=definition.name,
            hint="load its rows into a map that declares one",
        )  # fmt: skip
    _check_names(value, changes)
    parts = [
        (id_, changes.rename.get(name, name), _widened(name, scalar, changes.widen.get(name, scalar)))
        for id_, (name, scalar) in zip(definition.field_ids, value.parts, strict=True)
        if name not in changes.drop
    ]
    before = definition.fields or FieldIds(definition.field_ids, len(value.parts) + 1)
    following, added = before.next, _added(before.next, changes)
    while not {id_ for id_, _ in added}.isdisjoint(taken):
        following += 1
        added = _added(following, changes)
    freed = bool(changes.drop) or any(new != name for name, new in changes.rename.items())
    parts += [(id_, name, scalar) for id_, (name, scalar) in added]
    names = [name for _, name, _ in parts]
    if not names:
        raise _refused("a map keeps at least one field", ", ".join(changes.drop), "drop the map, or add a field")
    for name in names:
        if value.fields:
            check_field(name, taken=names.count(name) > 1)
    ids = tuple(id_ for id_, _, _ in parts)
    former = [default for default in before.defaults if default.field in ids]
    defaults = [FieldDefault(id_, changes.default[name]) for id_, (name, _) in added if name in changes.default]
    shown = (
        ValueType(fields=tuple((name, scalar) for _, name, scalar in parts))
        if value.fields
        else ValueType(scalar=parts[0][2])
    )
    fields = FieldIds(ids, following + freed, (*former, *defaults))
    return definition if shown == value and not added else replace(definition, value=shown, fields=fields)


def _added(following: int, changes: FieldChanges) -> list[tuple[int, tuple[str, ScalarType]]]:
    """The added fields with their ids."""
    return [
        (_added_id(following, name, scalar, changes.default.get(name)), (name, scalar))
        for name, scalar in changes.add.items()
    ]


def _added_id(following: int, name: str, scalar: ScalarType, default: str | None) -> int:
    """The id of an added field, beyond all that were counted from 1."""
    said = stable_json({"next": following, "name": name, "type": str(scalar), "default": default}, compact=True)
    return (1 << 32) + int.from_bytes(hashlib.sha256(said).digest()[:6], "big")


def _check_names(value: ValueType, changes: FieldChanges) -> None:
    names = [name for name, _ in value.parts]
    for name in (*changes.drop, *changes.rename, *changes.widen):
        if name not in names:
            raise Invalid(
                "value has no such field", kind="value_field_unknown", field=name,
                hint=f"fields are: {', '.join(names)}",
            )  # fmt: skip
        if name in changes.drop and (name in changes.rename or name in changes.widen):
            raise _refused("a field is dropped and changed", name, "do either")
    if not value.fields and (changes.add or changes.drop or changes.rename):
        field = next(iter((*changes.add, *changes.drop, *changes.rename)))
        raise _refused(
            "a map of single values has no fields to add, drop or rename", field,
            "widen it by the name value; or load its rows into a map of fields",
        )  # fmt: skip


def _widened(name: str, scalar: ScalarType, wider: ScalarType) -> ScalarType:
    if wider not in (scalar, *WIDER.get(scalar, ())):
        choices = " or ".join(WIDER.get(scalar, ()))
        raise Invalid(
            "values would be lost, or be others", kind="field_narrowed", field=name, type=str(scalar),
            wanted=str(wider), hint=f"{scalar} widens to {choices}" if choices else "add a field of that type instead",
        )  # fmt: skip
    return wider
