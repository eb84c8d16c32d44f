"""A snapshot whose range files are far away: those are opened that questions need, and no others.

The index of a layer says which range file may have a key. So a cold question fetches a file of each layer that may have
it, and a key that lies between two files costs none.

Invariants:
* a snapshot that is given has all files that may have the keys it was given for: of other keys it may not be asked;
* what was opened stays open, together with what comes next: a question that was asked needs no file again.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from millpond.maps.snapshots.condition_span import order_key
from millpond.maps.snapshots.shown_layers import shown_layer
from millpond.maps.snapshots.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millpond.maps.snapshots.manifest import SnapshotManifest
    from millpond.stores.objects import Objects

__all__ = ("KEYS_MAX", "NeededRanges")

KEYS_MAX = 1000
"""A question of more keys opens all files: it would need most of them."""


class NeededRanges:
    """The range files of one keyed snapshot that were needed so far."""

    def __init__(self, objects: Objects, manifest: SnapshotManifest) -> None:
        self.manifest = manifest
        self._objects = objects
        self._indexes = [shown_layer(objects, manifest, layer) for layer in manifest.layers]
        self._lasts = [[entry.last for entry in index.entries] for index in self._indexes]
        self._size = {entry.id: entry.size for index in self._indexes for entry in index.entries}
        self._open: tuple[frozenset[str], Snapshot | None] = frozenset(), None

    def of_keys(self, keys: Sequence[bytes]) -> Snapshot | None:
        """A snapshot to ask for these keys; None when all files should be opened, as half of their bytes are needed.

        Raises: as `Snapshot.open`.
        """
        held, snapshot = self._open
        needed = held.union(self._needed(keys))
        if snapshot is not None and needed == held:
            return snapshot
        if len(needed) > 1 and 2 * sum(self._size[id_] for id_ in needed) > sum(self._size.values()):
            return None
        snapshot = Snapshot.open(self._objects, self.manifest, only=needed)
        self._open = needed, snapshot
        return snapshot

    def _needed(self, keys: Sequence[bytes]) -> Iterator[str]:
        order_keys = [order_key(self.manifest.definition, key) for key in keys]
        for index, lasts in zip(self._indexes, self._lasts, strict=True):
            for key in order_keys:
                number = bisect_left(lasts, key)
                if number < len(lasts) and index.entries[number].first <= key:
                    yield index.entries[number].id
