"""Removing the files of a map from a bucket that hold purged rows, whatever their age.

| file | |
|---|---|
| of a manifest that is named now | stays; its rows are looked at afterwards |
| put long before the newest one | goes |
| of a layer that was put since, and has such rows, or hides some | goes |
| of another layer | stays: a load may be about to enter it |
| of none, put since | stays, and is counted: it cannot be read |

Invariants:
* nobody makes new files of rows that are there while files are removed, and who begins later reads what is left: so no
  file comes that was made of rows of before (`layered/secured.py`);
* what was removed is noted in the write that ends it: each machine removes its copies from before (`PURGED`);
* what is cut off removes fewer files. Done again, it removes the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from millpond import ranges
from millpond.errors import MillpondError
from millpond.kernel.steps import step
from millpond.kernel.worker import repeating
from millpond.maps.layered.history import forget_aged
from millpond.maps.layered.secured import LEASE_SECONDS, collecting_lease, map_busy, take_unwatched
from millpond.maps.loads.garbage import Sweep
from millpond.maps.model.definition import folder_name
from millpond.maps.model.keyspaces import PURGED, UNNAMED
from millpond.maps.search.visible import tombstones
from millpond.maps.snapshots.manifest import Layer, SnapshotManifest, load_manifest
from millpond.stores.objects import originals

if TYPE_CHECKING:
    from millpond.kernel.lease import Lease, LeaseRow
    from millpond.kernel.space import Transaction
    from millpond.maps.layered.head import Layers
    from millpond.maps.loads.loading import Loading
    from millpond.stores.objects import ObjectInfo

__all__ = ("purge_files",)

LOADING_MS = 3_600_000
"""A layer is entered sooner after it was put."""
_MANIFESTS, _INDEXES, _RANGES = "manifests/", "indexes/", "ranges/"


def purge_files(loading: Loading, layers: Layers, count: Callable[[SnapshotManifest], int]) -> int:
    """Remove the files of a map that nothing names, its history before, but for those of loads under way; the number of
    those that could not be read. `count` says of a manifest how many rows its files have
    that are to go.

    Raises: `Unavailable`, kind `map_busy`, while somebody makes new files of its rows, or removes some; `Corrupt`,
    `NotFound`, naming the file; `Denied`.
    """
    space, clock, folder = loading.space, loading.clock, folder_name(layers.definition)
    objects = loading.map_files(folder)
    sweep, row = Sweep(loading, folder, objects, originals(objects)), collecting_lease(folder, clock)
    lease = take_unwatched(layers, row, clock.random_id())
    held: Lease | None = lease
    renew = partial(row.renew, held=lease)
    unread, done = 0, False
    step("purge.leased")
    try:
        forget_aged(space, layers.definition, clock.now_ms())
        step("purge.history_forgotten")
        with repeating("the lease of a purge", lambda: space.write(renew), LEASE_SECONDS / 3, clock):
            files = sweep.listed()
            with space.read() as tx:
                named = sweep.named(tx)
            needed = sweep.files(named)
            unneeded = [info for info in files if info.name not in needed]
            spared, unread = _loads_under_way(layers, files, unneeded, count)
        due = [info for info in unneeded if info.name not in spared]
        # The other way round a range without its index would be left, which nobody can read, when this is cut off.
        held = sweep.delete(due, {}, row, lease, ranges_first=True)
        done = True
    finally:
        if held is not None:
            space.write(partial(_end, row, held, folder, done))
    if held is None:
        raise map_busy(layers.definition.name)
    step("purge.swept")
    return unread


def _end(row: LeaseRow, lease: Lease, folder: str, done: bool, tx: Transaction) -> None:
    row.give_back(tx, lease)
    if done:
        tx.put(PURGED.pack(folder), b"%d" % lease.term)
        tx.delete_range(UNNAMED[folder].range())


def _loads_under_way(
    layers: Layers, listed: Iterable[ObjectInfo], unneeded: Iterable[ObjectInfo],
    count: Callable[[SnapshotManifest], int],
) -> tuple[set[str], int]:  # fmt: skip
    """The files that loads may be about to enter, and how many of them were not read."""
    since_ms = max((info.modified_ms for info in listed), default=0) - LOADING_MS
    young = {info.name for info in unneeded if info.modified_ms > since_ms}
    alone = _layers_alone(layers, young)
    spared, of_layers = set[str](), set[str]()
    for name in sorted(young):
        if not name.startswith(_INDEXES):
            continue
        try:
            index = ranges.load_index(layers.objects, _id(name))
        except MillpondError:
            continue  # damaged: it goes
        files = {name, *(ranges.range_name(entry.id) for entry in index.entries)}
        of_layers |= files
        manifest = alone.get(index.id)
        if manifest is None:
            empty = SnapshotManifest.empty(layers.definition, created_ms=0)
            manifest = replace(empty, layers=(Layer.of(index, layers.definition),))
        try:
            if not (count(manifest) or _hides(layers, index)):
                spared |= files
        except (MillpondError, pa.ArrowInvalid, KeyError):  # its ranges went, or are of other fields
            continue
    unread = {name for name in young - of_layers if name.startswith(_RANGES)}
    return spared | unread, len(unread)


def _hides(layers: Layers, index: ranges.Index) -> bool:
    """True for a layer that says of keys that they have no rows: none of a load."""
    return any(tombstones(ranges.open_range(layers.objects, entry)).any() for entry in index.entries)


def _layers_alone(layers: Layers, names: Iterable[str]) -> dict[str, SnapshotManifest]:
    """Each layer of manifests as a manifest of its own, by its index."""
    alone = dict[str, SnapshotManifest]()
    for name in names:
        if name.startswith(_MANIFESTS):
            try:
                manifest = load_manifest(layers.objects, _id(name))
            except MillpondError:
                continue
            alone |= {layer.index: replace(manifest, layers=(layer,), sections=None) for layer in manifest.layers}
    return alone


def _id(name: str) -> str:
    return name.partition("/")[2].partition(".")[0]
