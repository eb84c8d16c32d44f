"""An alteration of a map in words, for people who read its history."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.maps.model.definition import MapDefinition, ValueType
from millpond.maps.model.one_value import python_value
from millpond.times.durations import format_duration

__all__ = ("alteration",)

_SETTINGS = (
    "overwrite", "condense_ms", "condense_by", "retain_ms", "retain_by", "roll_up", "maintenance_suspended", "store",
)  # fmt: skip


def alteration(before: MapDefinition, after: MapDefinition) -> str:
    """The differences between two definitions of a map: `rename temp to degrees, add gust double, retain 10y`."""
    return ", ".join((*_fields(before, after), *_settings(before, after)))


def _fields(before: MapDefinition, after: MapDefinition) -> Iterator[str]:
    old, new = (
        {} if side.value is None else dict(zip(side.field_ids, side.value.parts, strict=True))
        for side in (before, after)
    )
    defaults = {} if after.fields is None else {default.field: default.value for default in after.fields.defaults}
    for id_, (name, scalar) in old.items():
        if id_ not in new:
            yield f"drop {name}"
            continue
        renamed, wider = new[id_]
        if renamed != name:
            yield f"rename {name} to {renamed}"
        if wider != scalar:
            yield f"widen {renamed} to {wider}"
    for id_, (name, scalar) in new.items():
        if id_ in old:
            continue
        encoded = bytes.fromhex(defaults.get(id_, ""))
        value = f" default {python_value(encoded, ValueType(scalar=scalar))}" if encoded else ""
        yield f"add {name} {scalar}{value}"


def _settings(before: MapDefinition, after: MapDefinition) -> Iterator[str]:
    for setting in _SETTINGS:
        value, words = getattr(after, setting), setting.removesuffix("_ms").replace("_", " ")
        if value == getattr(before, setting):
            continue
        if value is None or isinstance(value, bool):
            yield f"{words} {'on' if value else 'off'}"
        else:
            yield f"{words} {format_duration(value) if setting.endswith('_ms') else value}"
