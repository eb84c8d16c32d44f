"""Freezing a map's rows into a snapshot, and removing the files of snapshots that nobody needs.

A snapshot is layers of groups (`commit_ranges.py`), newest first. A full freeze writes one layer, the base. A refreeze
writes the groups of the touched keys as one small layer on top, whole groups and tombstones; a layer that has grown to
more than an eighth of the one under it is merged into that one. So a lookup has few layers to ask, and a refreeze
writes in proportion to what changed.

Invariants:
* Each layer holds at least `LAYER_RATIO` times as many groups as all above it together.
* The base holds no tombstones.
* Files are named by their content and never change; a snapshot's files stay while its manifest is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pyarrow as pa

from millpond import ranges
from millpond.errors import Corrupt, NotFound
from millpond.kernel.steps import step
from millpond.maps.model.definition import MapDefinition
from millpond.maps.search.groups import Groups
from millpond.maps.search.intervals import ALWAYS, Intervals
from millpond.maps.search.sections import OpenSections, group_counts, pieces_of
from millpond.maps.search.visible import tombstones
from millpond.maps.snapshots.bounds import SnapshotBounds
from millpond.maps.snapshots.groups_of_rows import freeze_groups, group_schema
from millpond.maps.snapshots.leases import end_lease
from millpond.maps.snapshots.manifest import (
    Layer,
    SnapshotManifest,
    list_manifests,
    load_manifest,
    manifest_name,
    store_manifest,
)
from millpond.maps.snapshots.pieces import open_file
from millpond.maps.snapshots.rows_of_groups import GroupSpan
from millpond.maps.snapshots.section_list import (
    INTERVALS,
    Section,
    SectionList,
    interval_files,
    intervals_name,
    load_section,
    load_sections,
)
from millpond.maps.snapshots.sections_of_layers import write_sections
from millpond.maps.snapshots.shown_layers import shown_layers
from millpond.maps.snapshots.sorted_runs import SpillTo
from millpond.ranges.merge import merge
from millpond.ranges.writer import BYTES_AT_ONCE_MAX
from millpond.stores.objects import FolderObjects, Objects, sweep_partial
from millpond.stores.verified import is_verified

__all__ = (
    "KEEP_MS", "Collected", "SnapshotManifest", "collect", "freeze", "load_manifest",
    "bytes_at_once", "files_of", "layers_to_fold", "open_indexes", "open_layers", "open_sections", "sections_over",
    "write_groups",
)  # fmt: skip

LAYER_RATIO = 8
"""Smaller: fewer layers for a lookup to ask; larger: a refreeze writes less."""

KEEP_MS = 10 * 60_000
"""The time for which a replaced snapshot stays, for readers who got its id but have not opened it yet."""

OPENING_THREADS_MAX = 8
"""The number of files of a snapshot that are verified concurrently."""


# -- freezing -----------------------------------------------------------------------------------------


def freeze(
    objects: Objects,
    definition: MapDefinition,
    rows: Iterable[pa.RecordBatch],
    *,
    base: SnapshotManifest | None = None,
    touched: pa.Array | None = None,
    shard_version: int,
    created_ms: int,
    subset: SnapshotBounds | None = None,
    spill: SpillTo | None = None,
) -> SnapshotManifest:
    """Write a snapshot: of all `rows`; or, on top of `base`, of the rows of just the `touched` keys.

    `rows` are canonical and unique by address, in any order; a touched key without rows is gone. Ranged maps name
    what was touched by `frozen.range_order_keys`. `subset` says for which questions the rows suffice, when they are
    not those of the whole map. `spill` says where rows wait that memory may not hold; without it all are held.

    Raises: `Unavailable` when the place is full; the snapshots before it are untouched then.
    """
    assert (base is None) == (touched is None), "a refreeze needs the touched keys"
    if base is None:
        groups = freeze_groups(definition, rows, spill=spill)
        layers = _without_empty([write_groups(objects, definition, groups, spill)])
    else:
        # A tombstone hides what lies under it: on nothing it says nothing.
        gone = touched if base.layers else None
        groups = freeze_groups(definition, rows, touched=gone, spill=spill)
        overlay = write_groups(objects, definition, groups, spill)
        below = (_index(objects, layer) for layer in base.layers)
        layers = _fold(objects, _without_empty([overlay, *below]), bytes_at_once(spill))
    step("freeze.layers_written")
    manifest = replace(
        SnapshotManifest.empty(definition, shard_version=shard_version, created_ms=created_ms),
        layers=tuple(Layer.of(index, definition) for index in layers), bounds=subset,
        sections=sections_over(objects, definition, layers, base, touched, spill),
    )  # fmt: skip
    store_manifest(objects, manifest)
    return manifest


def sections_over(
    objects: Objects, definition: MapDefinition, layers: Sequence[ranges.Index], base: SnapshotManifest | None,
    touched: pa.Array | None, spill: SpillTo | None,
) -> str | None:  # fmt: skip
    """Work out which range answers for each number, over all layers, where that changed; None for keyed maps."""
    if definition.kind.keyed:
        return None
    earlier = None
    if base is not None and base.sections is not None:
        with suppress(NotFound, Corrupt):  # then all are worked out
            earlier = load_sections(objects, base)
    return write_sections(
        objects, layers, lambda indexes: open_indexes(objects, definition, indexes, verify=False),
        temporal=definition.kind.temporal, earlier=earlier, touched=touched,
        bytes_max=None if spill is None else spill.bytes_max,
    )  # fmt: skip


def write_groups(
    objects: Objects, definition: MapDefinition, groups: Iterable[pa.RecordBatch], spill: SpillTo | None, *,
    updates: bool = False,
) -> ranges.Index:  # fmt: skip
    """Write one layer of groups in order; with `updates`, their rows tell when they were put."""
    schema = group_schema(definition, updates=updates)
    return ranges.write(objects, groups, schema=schema, bytes_at_once=bytes_at_once(spill))


def bytes_at_once(spill: SpillTo | None) -> int:
    """The bytes of ranges that are written at once."""
    return BYTES_AT_ONCE_MAX if spill is None else min(BYTES_AT_ONCE_MAX, spill.bytes_max)


def _index(objects: Objects, layer: Layer) -> ranges.Index:
    return ranges.load_index(objects, layer.index)


def _without_empty(layers: list[ranges.Index]) -> list[ranges.Index]:
    return [index for index in layers if index.count]


def layers_to_fold(groups: Sequence[int]) -> int:
    """The number of the newest layers to make one, so that each holds enough more than all above it.

    >>> layers_to_fold([1, 100]), layers_to_fold([1, 2, 100]), layers_to_fold([13, 100]), layers_to_fold([5])
    (1, 2, 2, 1)
    """
    above = 0
    fold = 1
    for number, count in enumerate(groups):
        if number and above * LAYER_RATIO > count:
            fold = number + 1
        above += count
    return fold


def _fold(objects: Objects, layers: list[ranges.Index], bytes_at_once_max: int) -> list[ranges.Index]:
    """Merge the newest layers into one where they have grown too large for those under them."""
    fold = layers_to_fold([index.count for index in layers])
    if fold < 2:
        return layers
    drop = tombstones if fold == len(layers) else None
    merged = merge(objects, layers[:fold], drop_tombstones=drop, bytes_at_once=bytes_at_once_max)
    return _without_empty([merged, *layers[fold:]])


# -- what a reader opens ------------------------------------------------------------------------------


def open_layers(
    objects: Objects, manifest: SnapshotManifest, *, verify: bool = False, span: GroupSpan | None = None,
    before: Groups | None = None,
) -> Groups:  # fmt: skip
    """All layers of a snapshot, mapped where they lie; of a `span` of order keys, the range files that it needs.

    Every file is read whole and compared with its name when this process opens it first; `verify`: also if it did.
    Files that groups of `before` have open are taken over.

    Raises: `NotFound`, `Corrupt`, naming the file.
    """
    indexes = shown_layers(objects, [(manifest, layer) for layer in manifest.layers])
    return open_indexes(objects, manifest.definition, indexes, verify=verify, span=span, before=before)


def _within(index: ranges.Index, span: GroupSpan) -> ranges.Index:
    """The index of the ranges alone that hold keys of a span."""
    entries = tuple(
        entry
        for entry in index.entries
        if (span.lower is None or entry.last >= span.lower) and (span.upper is None or entry.first < span.upper)
    )
    return replace(index, entries=entries)


def open_indexes(
    objects: Objects, definition: MapDefinition, indexes: Sequence[ranges.Index], *, verify: bool = False,
    span: GroupSpan | None = None, before: Groups | None = None,
) -> Groups:  # fmt: skip
    """The layers with these indexes, mapped as `open_layers` does.

    Raises: as `open_layers`.
    """
    if span is not None:
        indexes = [_within(index, span) for index in indexes]
    files = [(index, entry) for index in indexes for entry in index.entries]
    names = [ranges.range_name(entry.id) for _, entry in files]
    held = {} if before is None else dict(zip(before.names, before.batches, strict=True))
    new = [file for file, name in zip(files, names, strict=True) if name not in held]
    # Files that are read whole, to be verified, are read side by side: checksums are worked out without Python's lock.
    unread = len(names) > 1 and (verify or not all(_is_verified(objects, name) for name in names))
    with ThreadPoolExecutor(OPENING_THREADS_MAX if unread else 1) as threads:
        opening = threads.map if unread else map
        opened = iter(list(opening(lambda file: open_file(objects, *file, verify=verify), new)))
    batches = iter([held[name] if name in held else next(opened) for name in names])
    return Groups.of(definition.kind, [list(islice(batches, len(index.entries))) for index in indexes], names)


def _is_verified(objects: Objects, name: str) -> bool:
    file = objects.local_path(name)
    return file is not None and file.exists() and is_verified(file)


def open_sections(objects: Objects, manifest: SnapshotManifest, groups: Groups) -> OpenSections:
    """The index over the ranges of a ranged map; each section is mapped, and checked, when it is needed.

    Raises: `NotFound`, `Corrupt`, naming the file.
    """
    names = [name.removeprefix("ranges/").removesuffix(".arrow") for name in groups.names]
    sections = load_sections(objects, manifest, names)
    if sections is None:  # of a map without rows, as an alteration or a revert leaves it
        assert not manifest.layers, "ranged maps have one"
        sections = SectionList((Section(int(ALWAYS), 0, 0, "", ()),), {})
    listed = intervals_name(manifest.sections or manifest.intervals or "")
    uses = pieces_of(
        groups, [[ranges.range_name(id_) for id_ in section.uses] for section in sections.sections], listed
    )

    def load(number: int) -> tuple[Intervals, str]:
        id_ = sections.sections[number].id
        if not id_:
            return Intervals.build((0, 0), *[np.zeros(0, np.int64)] * 4), listed
        return load_section(objects, id_), intervals_name(id_)

    breaks = min(section.first for section in sections.sections), max(section.last for section in sections.sections)
    return OpenSections(sections.lower, breaks, uses, group_counts(groups), load)


# -- collecting ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Collected:
    """Counts of removed files: manifests, other files, and their bytes."""

    snapshots: int
    files: int
    bytes: int


def collect(
    objects: Objects, manifest: SnapshotManifest | None, *, now_ms: int, keep_ms: int = KEEP_MS,
    reachable: Collection[str] = (),
) -> Collected:  # fmt: skip
    """Remove the files that neither `manifest`, the one that counts (None: none does), nor one still needed refers to.
    Manifests whose ids are in `reachable` are needed.

    A replaced snapshot is needed while somebody has it open, while it is pinned, and for `keep_ms` from when it was
    replaced.
    Never call it while another freezes here: the files of a freeze that is under way look like nobody's.

    Raises: `NotFound`, `Corrupt`, when what is needed cannot be read: then nothing is removed that it may refer to.
    """
    retained, ended = [] if manifest is None else [manifest], 0
    retained += [load_manifest(objects, id_) for id_ in reachable if manifest is None or id_ != manifest.id]
    others = sorted(list_manifests(objects), key=lambda manifest: (manifest.created_ms, manifest.shard_version))
    for number, other in enumerate(others):
        if other == manifest or other.id in reachable:
            continue
        replaced_ms = others[number + 1].created_ms if number + 1 < len(others) else other.created_ms
        if now_ms < replaced_ms + keep_ms or not end_lease(objects, other.id, now_ms):
            retained.append(other)
        else:
            ended += 1
    for info in list(objects.list("leases")):  # of those who came too late
        id_ = info.name.removeprefix("leases/").removesuffix(".lock")
        if id_ not in {manifest.id for manifest in retained}:
            end_lease(objects, id_, now_ms)
    step("collect.manifests_removed")
    needed = files_of(objects, retained)
    files = size = 0
    for folder in ("ranges", "indexes", INTERVALS):
        for info in list(objects.list(folder)):
            if info.name not in needed:
                objects.delete(info.name)
                files, size = files + 1, size + info.size
    if isinstance(objects, FolderObjects):
        sweep_partial(objects)
    return Collected(ended, files, size)


def files_of(objects: Objects, manifests: Sequence[SnapshotManifest]) -> set[str]:
    """The names of the files of manifests; they share layers, of which each is read once."""
    indexes = {layer.index for manifest in manifests for layer in manifest.layers}
    names = {manifest_name(manifest.id) for manifest in manifests} | {ranges.index_name(index) for index in indexes}
    for index in indexes:
        names.update(ranges.range_name(entry.id) for entry in ranges.load_index(objects, index).entries)
    return names.union(*(interval_files(objects, manifest) for manifest in manifests))
