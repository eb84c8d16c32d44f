"""The head of a layered map: the manifest that counts. It is the pointer of the map's snapshot, in the space.

    with layers.writing():                          what is written is nobody's, and yet not collected
        layer = …                                   files; nothing is visible
        head = layers.head()
        changed = layers.stored(on_top(head.manifest, …))
        space.write(lambda tx: layers.swap(tx, head, changed, entry))

Invariants:
* a manifest is stored, and all files that it names are durable, before the pointer names it;
* the pointer moves from the manifest that the new one was made of: a change never drops another's. Who comes late
  reads the head again, and puts the same layer on top of it;
* the version counts the changes of the map, from 1; a map that was never changed has version 0.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.errors import Conflict, Corrupt, Denied, NotFound
from millpond.maps.layered.history import put_change, put_fold
from millpond.maps.model.catalogue import same_map
from millpond.maps.model.definition import MapDefinition, folder_name
from millpond.maps.model.snapshot_pointer import Current, Pointer, move_pointer, read_pointer
from millpond.maps.snapshots.freeze import freeze
from millpond.maps.snapshots.leases import LeasedSnapshot, SnapshotLease, writing
from millpond.maps.snapshots.manifest import SnapshotManifest, load_manifest, store_manifest
from millpond.maps.snapshots.sorted_runs import SpillTo
from millpond.stores.objects import FolderObjects, Objects, at_once

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millpond.clock import Clock
    from millpond.kernel.space import Space, Transaction
    from millpond.maps.log.log import Entry

__all__ = ("Head", "Layers", "collected_at", "rewriting_maps")


@dataclass(frozen=True, slots=True)
class Head:
    """The pointer as it was read, and the manifest that it names; None before the first change."""

    pointer: Pointer
    manifest: SnapshotManifest | None

    @property
    def version(self) -> int:
        """The number of changes."""
        return 0 if self.manifest is None else self.manifest.shard_version

    def moved(self, manifest: SnapshotManifest) -> Head:
        """The head when a manifest has come to count in its place."""
        return Head(Pointer(self.pointer.revision + 1, _current(manifest)), manifest)


def _current(manifest: SnapshotManifest) -> Current:
    return Current(manifest.id, manifest.incarnation, manifest.shard_version)


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of one map. `memory_max`: the bytes of memory that one piece of work may take; `history_ms`: the age
    up to which its history is kept.
    """

    space: Space
    clock: Clock
    objects: Objects
    definition: MapDefinition
    memory_max: int
    history_ms: int

    def head(self) -> Head:
        """The head of now.

        Raises: `NotFound`, kind `map_dropped`; `Corrupt`, kind `layers_damaged`, when its manifest is gone.
        """
        pointer = self._pointer()
        while (current := pointer.current) is not None:
            try:
                return Head(pointer, load_manifest(self.objects, current.manifest))
            except NotFound as error:
                pointer, before = self._pointer(), pointer
                if pointer == before:
                    raise self._damaged(current, error) from error
        return Head(pointer, None)

    def _pointer(self) -> Pointer:
        with self.space.read() as tx:
            same_map(tx, self.definition)
            pointer = read_pointer(tx, self.definition.name)
        current = pointer.current
        if current is None or current.incarnation == self.definition.incarnation:
            return pointer
        return Pointer(pointer.revision)

    def _damaged(self, current: Current, error: NotFound) -> Corrupt:
        return Corrupt(
            "the manifest of a layered map is missing", kind="layers_damaged", map=self.definition.name,
            manifest=current.manifest, where=self.objects.where, reason=error.message,
            hint="restore the pond from a copy, or drop the map and load it again",
        )  # fmt: skip

    def spill(self) -> SpillTo:
        """The place for rows that memory may not hold while they are sorted."""
        return SpillTo.within(Path(self.objects.where), self.memory_max)

    @property
    def version(self) -> int:
        """The number of changes so far: what a snapshot is compared with."""
        current = self._pointer().current
        return 0 if current is None else current.shard_version

    # -- changing -------------------------------------------------------------------------------------

    def writing(self, *, rewrites: bool = False) -> AbstractContextManager[None]:
        """Keep files that no manifest names yet, until they are named or given up. `rewrites`: they are made of rows
        that are there.
        """
        if not self.objects.collected:
            # Imported here, and below: a `get` of one key writes nothing.
            from millpond.maps.layered.secured import begin_term, rewriting

            begin_term(self)
            if rewrites:
                return rewriting([self])
        return writing(self.objects)

    def loading(self) -> AbstractContextManager[None]:
        """As `writing`, for the files of a load: one of ranges is put together with the rows that are there."""
        return self.writing(rewrites=not self.definition.kind.keyed)

    def stored(self, manifest: SnapshotManifest) -> SnapshotManifest:
        """Store a manifest that is to count, whose files are there, and stay."""
        self.store([manifest])
        return manifest

    def store(self, manifests: Sequence[SnapshotManifest]) -> None:
        """Store manifests that are to count, one after another, as `stored`."""
        self.secure(manifests)
        at_once(self.objects, [partial(store_manifest, self.objects, manifest) for manifest in manifests])

    def secure(self, manifests: Sequence[SnapshotManifest]) -> None:
        """See that the files of manifests which are to count are there, and stay.

        Raises: as `secured.secure`.
        """
        if not self.objects.collected:
            from millpond.maps.layered.secured import secure

            secure(self, manifests)

    def swap(
        self, tx: Transaction, head: Head, manifest: SnapshotManifest, entry: Entry | None = None, *, loaded: str = ""
    ) -> None:  # fmt: skip
        """Let a stored manifest count in place of the head it was made of; `entry` is that of a change in the log, and
        `loaded`, of a load, the manifest whose newest layer has its rows.

        Raises: `Conflict`, kind `head_moved`, when another counts by now; `NotFound`, kind `map_dropped`.
        """
        assert (entry is not None) == (manifest.shard_version > head.version), "only a change is a version"
        same_map(tx, self.definition)
        if not self.objects.collected:
            from millpond.maps.layered.secured import check_secured

            check_secured(tx, folder_name(self.definition), manifest.id)
        move_pointer(tx, self.definition.name, _current(manifest), seen=head.pointer)
        if entry is None:
            put_fold(tx, self.definition.name, manifest.shard_version, manifest.id)
        else:
            put_change(tx, self.definition.name, manifest.shard_version, manifest.id, entry, loaded=loaded)

    # -- reading --------------------------------------------------------------------------------------

    def current(self) -> LeasedSnapshot:
        """The snapshot of all that was loaded, and the lease that keeps its files.

        Raises: as `head`.
        """
        while True:
            manifest = self.freeze()
            with suppress(NotFound):
                return LeasedSnapshot(manifest, SnapshotLease(self.objects, manifest.id))
            self._check_moved(manifest)

    def _check_moved(self, manifest: SnapshotManifest) -> None:
        """Somebody may have replaced the manifest before it was leased; else it was removed by hand."""
        current = self._pointer().current
        if current is not None and current.manifest == manifest.id:
            load_manifest(self.objects, manifest.id)

    def refreeze(self, *, wait_seconds: float | None = None) -> LeasedSnapshot:
        """As `current`: there is nothing to freeze.

        Raises: as `head`.
        """
        return self.current()

    def freeze(self, *, wait_seconds: float | None = None) -> SnapshotManifest:
        """The manifest that counts, without a lease; a map that was never changed gets an empty one.

        Raises: as `head`.
        """
        while True:
            head = self.head()
            if head.manifest is not None:
                return head.manifest
            try:
                manifest = freeze(self.objects, self.definition, (), shard_version=0, created_ms=self.clock.now_ms())
                self.secure([manifest])
                self.space.write(partial(self.swap, head=head, manifest=manifest))
            except Conflict:
                continue
            except Denied:
                if self.objects.collected:
                    raise
                # Who may only read has an empty snapshot of its own, and not in the bucket.
                return freeze(FolderObjects(self.objects.where), self.definition, (), shard_version=0, created_ms=0)
            return manifest


@contextmanager
def rewriting_maps(maps: Sequence[Layers]) -> Iterator[None]:
    """As `writing` that rewrites, for several maps of a pond."""
    with ExitStack() as stack:
        for layers in maps:
            stack.enter_context(layers.writing())
        if maps and not maps[0].objects.collected:
            from millpond.maps.layered.secured import rewriting

            stack.enter_context(rewriting(maps))
        yield


@contextmanager
def collected_at(name: str, ref: str) -> Iterator[None]:
    """Say of what is missing that it was collected, where it is that of a ref.

    Raises: `NotFound`, kind `ref_collected`.
    """
    try:
        yield
    except NotFound as error:
        if not ref:
            raise
        raise NotFound(
            "the rows of the map at this ref were collected", kind="ref_collected", map=name, ref=ref,
            hint="a commit is whole for as long as the history is kept; a tag keeps one",
        ) from error  # fmt: skip
