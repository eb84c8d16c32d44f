"""Other fields and settings of a map on a branch: a manifest that says so, and no row is rewritten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from millpond.kernel.head import again_when_moved
from millpond.maps.layered.fields import encoded_default, stored_change
from millpond.maps.layered.head import Head
from millpond.maps.model.alteration import alteration
from millpond.maps.model.catalogue import altered
from millpond.maps.model.definition import MapDefinition, Store
from millpond.maps.model.field_changes import CHANGES, FieldChanges, changed_fields
from millpond.maps.model.snapshot_pointer import Pointer
from millpond.refs.changes import StateChange
from millpond.refs.layers import manifest_of, ref_unsupported
from millpond.refs.states import RefStates
from millpond.versions.commits import Message

__all__ = ("alter_map",)


def alter_map(states: RefStates, branch: str, name: str, settings: Mapping[str, Any], *, commit: bool) -> MapDefinition:
    """Change settings or fields of a map on a branch, staged or as one commit: no row is rewritten.

    Raises: `Invalid` naming the setting or field; `NotFound`.
    """
    fields = {change: settings[change] for change in CHANGES if settings.get(change)}
    others = {setting: value for setting, value in settings.items() if setting not in CHANGES}
    if others.pop("store", Store.LAYERS) != Store.LAYERS:
        raise ref_unsupported(name, "store")

    def changed() -> MapDefinition:
        state = states.map_at(branch, name)
        before = altered(state.definition, others)
        after = changed_fields(before, FieldChanges.of(fields, encoded_default)) if fields else before
        if after == state.definition:
            return after
        words = Message(f"Alter {name}: {alteration(state.definition, after)}")
        layers = states.layers_for(state.definition)
        with layers.writing():
            head = Head(Pointer(), manifest_of(layers, state, branch))
            manifest = stored_change(layers, head, state.definition, after)
            change = StateChange(state, replace(state, definition=after).with_manifest(manifest))
            states.change(branch, [change], words, commit=commit)
        return after

    return again_when_moved(changed)
