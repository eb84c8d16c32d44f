"""The update times of layers: one for all rows of a layer, or one for each row, of maps that keep them.

manifest = with_updates(manifest, True, now)         no file is written: all rows count as put now
times = times_of(manifest, layers)                   of a layer that is written of these
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millpond.maps.snapshots.manifest import NO_TIMES, Layer, LayerTimes, SnapshotManifest

__all__ = ("times_of", "with_updates")


def with_updates(manifest: SnapshotManifest, updates: bool, instant: int) -> SnapshotManifest:
    """The same rows, whose update times are kept, or not; where none were kept, all count as put at an instant."""
    if manifest.updates == updates:
        return manifest
    layers = tuple(replace(layer, updated=instant if updates else None) for layer in manifest.layers)
    return replace(manifest, updates=updates, layers=layers)


def times_of(manifest: SnapshotManifest, layers: Sequence[Layer]) -> LayerTimes:
    """The update times of a layer that is written of some layers of a manifest."""
    if not manifest.updates:
        return NO_TIMES
    instants = {layer.updated for layer in layers}
    return LayerTimes(instants.pop()) if len(instants) == 1 and None not in instants else LayerTimes(updates=True)
