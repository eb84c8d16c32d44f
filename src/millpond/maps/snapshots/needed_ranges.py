"""A snapshot whose range files are far away: those blocks of them are fetched that questions need, and no others.

The index of a layer says which block of which range file may have a key, and the file's filter, for most keys that the
layer lacks, that none has. So a cold question fetches a block of each layer that may have its key, and a key that is
nowhere costs none. Files that have a copy on this machine, or no blocks, are opened whole; so is one of which much is
needed.

Invariants:
* a snapshot that is given has all pieces that may have the keys it was given for: of other keys it may not be asked;
* what was opened stays open, together with what comes next, up to `PIECES_MAX`: to open them again takes time.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from millpond import ranges
from millpond.maps.snapshots.condition_span import order_key
from millpond.maps.snapshots.shown_layers import shown_layer
from millpond.maps.snapshots.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from millpond.maps.snapshots.freeze import Piece
    from millpond.maps.snapshots.manifest import SnapshotManifest
    from millpond.stores.objects import Objects

__all__ = ("KEYS_MAX", "NeededRanges")

KEYS_MAX = 1000
"""A question of more keys opens all files: it would need most of them."""
PIECES_MAX = 64
"""With more pieces, those of the last question alone stay open; the others have copies on this machine."""


class NeededRanges:
    """The pieces of the range files of one keyed snapshot that were needed so far."""

    def __init__(self, objects: Objects, manifest: SnapshotManifest) -> None:
        self.manifest = manifest
        self._objects = objects
        self._indexes = [shown_layer(objects, manifest, layer) for layer in manifest.layers]
        self._lasts = [[entry.last for entry in index.entries] for index in self._indexes]
        self._entries = {entry.id: entry for index in self._indexes for entry in index.entries}
        self._bytes_half = sum(entry.size for entry in self._entries.values()) // 2
        self._needed: set[Piece] = set()
        self._open: tuple[frozenset[Piece], Snapshot | None] = frozenset(), None

    def of_keys(self, keys: Sequence[bytes]) -> Snapshot | None:
        """A snapshot to ask for these keys; None when all files should be opened, as half of their bytes were needed.

        Raises: as `Snapshot.open`.
        """
        held, snapshot = self._open
        needed = self._joined(self._pieces(keys, held))
        if snapshot is not None and needed <= held:
            return snapshot
        self._needed |= needed
        if len(self._needed) > 1 and sum(map(self._size, self._needed)) > self._bytes_half:
            return None
        together = self._joined(held | needed)
        opened = needed if len(together) > PIECES_MAX else together
        snapshot = Snapshot.open(self._objects, self.manifest, only=opened)
        self._open = opened, snapshot
        return snapshot

    def _pieces(self, keys: Sequence[bytes], held: frozenset[Piece]) -> Iterator[Piece]:
        """The pieces that may have one of the keys."""
        order_keys = [order_key(self.manifest.definition, key) for key in keys]
        for index, lasts in zip(self._indexes, self._lasts, strict=True):
            for key in order_keys:
                at = bisect_left(lasts, key)
                if at == len(lasts) or key < index.entries[at].first:
                    continue
                entry = index.entries[at]
                if (entry.id, None) in held:
                    yield entry.id, None
                elif ranges.may_have(entry.filter, key):
                    yield entry.id, self._block(entry, key)

    def _block(self, entry: ranges.RangeEntry, key: bytes) -> int | None:
        """The block that may have a key; None where the file is to be opened whole."""
        if entry.blocks is None or self._objects.local_path(ranges.range_name(entry.id)) is not None:
            return None
        return entry.blocks.number(key)

    def _joined(self, pieces: Iterable[Piece]) -> frozenset[Piece]:
        """The pieces, and in place of those of one file the file, where they are half of it."""
        pieces, bytes_of = set(pieces), dict[str, int]()
        for piece in pieces:
            bytes_of[piece[0]] = bytes_of.get(piece[0], 0) + self._size(piece)
        whole = {id_ for id_, size in bytes_of.items() if (id_, None) in pieces or 2 * size > self._entries[id_].size}
        return frozenset((id_, None if id_ in whole else number) for id_, number in pieces)

    def _size(self, piece: Piece) -> int:
        id_, number = piece
        entry = self._entries[id_]
        return entry.size if number is None or entry.blocks is None else entry.blocks.size(number)
