"""Loads on a branch: layers that were written, of one map or several, put on what the branch has by then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millpond.errors import Conflict, Invalid
from millpond.maps.layered.maintenance import LAYERS_AFTER_LOAD
from millpond.maps.snapshots.layers import fold, on_top
from millpond.refs.changes import StateChange
from millpond.refs.layers import manifest_of
from millpond.versions.commits import Message

if TYPE_CHECKING:
    from millpond.maps.layered.writer import WrittenLayer
    from millpond.maps.snapshots.manifest import SnapshotManifest
    from millpond.refs.map_entries import MapEntry
    from millpond.refs.states import RefStates

__all__ = ("load_words", "place_layers")


def load_words(layers: Sequence[WrittenLayer], source: str) -> Message:
    """The words of the commit of a load."""
    names = ", ".join(sorted({layer.map for layer in layers}))
    about = {"rows": str(sum(layer.rows for layer in layers))} | ({"source": source} if source else {})
    return Message(f"Load {names}" + (f" from {source}" if source else ""), metadata=about)


def place_layers(
    states: RefStates, branch: str, layers: Sequence[WrittenLayer], words: Message, *, again: bool, commit: bool
) -> int:
    """Put layers on their maps, staged or as one commit with what is staged; the number of those that are new.

    A layer that is the newest already changes nothing, unless `again`.

    Raises: `NotFound` when the branch, or a map on it, is gone.
    """
    while True:
        changes, fresh = [], 0
        for layer in layers:
            state = states.map_at(branch, layer.map)
            head = manifest_of(layer.layers, state, branch)
            if not again and head is not None and head.layers and head.layers[0].index == layer.layer.index:
                continue
            fresh += 1
            changes.append(StateChange(state, state.with_manifest(_stored(layer, head, state))))
        try:
            states.change(branch, changes, words, commit=commit)
        except Conflict as error:
            if error.kind != "head_moved":
                raise
            continue
        except Invalid as error:
            if fresh or error.kind != "no_changes":
                raise
        return fresh


def _stored(layer: WrittenLayer, head: SnapshotManifest | None, state: MapEntry) -> SnapshotManifest:
    """The manifest of a layer on a state; what that made due is folded."""
    layers, now = layer.layers, layer.layers.clock.now_ms()
    manifest = on_top(
        layers.objects, head, layers.definition, layer.layer, version=state.version + 1, created_ms=now,
        spill=layers.spill(),
    )  # fmt: skip
    if len(manifest.layers) > LAYERS_AFTER_LOAD:
        manifest = fold(layers.objects, manifest, created_ms=now, spill=layers.spill())
    return layers.stored(manifest)
