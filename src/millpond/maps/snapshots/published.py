"""Snapshots of maps in a place that machines share: a bucket, or a folder that several of them see.

    <place>/<map>/current.json     the head: which snapshot counts
    <place>/<map>/manifests/ …     its files, as a pond has them: docs/format/snapshot.md

Invariants:
* What the head names is whole: files are there before the manifest, the manifest before the head.
* The head is changed by `swap` alone. It goes forward: to a later version of the same map, or, when that is said, to
  another map of the name. Of several who publish at once, the latest version stands in the end.
* Files are named by their content, and nothing is removed here: who read the head can read what it names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa

from millpond import ranges
from millpond.errors import Conflict, Corrupt, Invalid, NotFound
from millpond.json_forms import FormError, JsonForm, OtherFormat
from millpond.kernel.steps import step
from millpond.maps.snapshots.manifest import SnapshotManifest, manifest_name
from millpond.maps.snapshots.section_list import INTERVALS, interval_files
from millpond.ranges.files import put_content
from millpond.ranges.index import Source, index_name
from millpond.ranges.transfer import FetchReport
from millpond.ranges.verify import check_file
from millpond.stores.objects import Objects, ObjectStore, fsync_below, open_objects
from millpond.stores.objects.bringing import bring

__all__ = ("Head", "PublishedLocation", "copy_snapshot", "damage_of", "publish", "read_head")

HEAD = "current.json"
FORMAT = 1
_OF_FILES = frozenset(
    ("snapshot_damaged", "snapshot_not_found", "index_damaged", "index_not_found", "range_damaged", "range_not_found")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The snapshot of a map that counts in a place. `shard_version` orders those of one incarnation."""

    map: str
    incarnation: str
    manifest: str
    shard_version: int
    published_ms: int


_HEAD = JsonForm(Head, format=FORMAT)


@dataclass(frozen=True, slots=True)
class PublishedLocation:
    """A place for published snapshots, and how it is reached."""

    where: str
    config: Mapping[str, Any] = field(default_factory=dict)

    def of(self, name: str) -> ObjectStore:
        """The objects of one map."""
        return open_objects(f"{self.where.rstrip('/')}/{name}", **self.config)

    def heads(self) -> list[Head]:
        """The heads of all maps that were published here, by name.

        Raises: `Corrupt`, `Denied`, `Unavailable`.
        """
        maps = [prefix.rstrip("/") for prefix in open_objects(self.where, **self.config).level().prefixes]
        heads = [read_head(self.of(name)) for name in maps]
        return [head[0] for head in heads if head is not None]


def read_head(location: ObjectStore) -> tuple[Head, str] | None:
    """The head of a map's place and the tag to swap it by; None when nothing was published.

    Raises: `Corrupt`; `Invalid` for a format that is newer than this reader.
    """
    try:
        row = location.get_tagged(HEAD)
    except NotFound as error:
        if error.kind != "object_not_found":
            raise
        return None
    try:
        return _HEAD.decode(row.data.to_pybytes()), row.tag
    except FormError as error:
        if isinstance(error, OtherFormat) and error.format is not None:
            raise Invalid(
                "the head of published snapshots has a format this version does not know", kind="snapshot_format",
                found=error.format, known=FORMAT, where=location.where,
                hint="read it with the version that wrote it, or a newer one",
            ) from error  # fmt: skip
        raise Corrupt(
            "the head of published snapshots is not what was written", kind="published_damaged", object=HEAD,
            where=location.where, hint="remove it, and push the map again",
        ) from error  # fmt: skip


def publish(
    source: Objects, location: ObjectStore, manifest: SnapshotManifest, *, now_ms: int, replace: bool = False
) -> tuple[Head, FetchReport]:
    """Bring a snapshot to a place, only what is missing there, and let it count; the head in the end.

    When a later version counts there already, it stays. `replace` takes the place of whatever counts: of another map of
    that name, or of a later version, after a pond was restored from an older copy.
    Hold a lease of the snapshot meanwhile.

    Raises: `Conflict`, kind `published_other`, when the place holds another map of that name; `Corrupt`, `Denied`,
    `Unavailable`.
    """
    _outdated(read_head(location), manifest, location.where, replace)  # before anything is sent
    report = copy_snapshot(source, location, manifest)
    head = Head(
        map=manifest.map, incarnation=manifest.incarnation, manifest=manifest.id, shard_version=manifest.shard_version,
        published_ms=now_ms,
    )  # fmt: skip
    data = _HEAD.encode(head)
    while True:
        held = read_head(location)
        if held is not None and _outdated(held, manifest, location.where, replace):
            return held[0], report
        try:
            location.swap(HEAD, data, None if held is None else held[1])
        except Conflict:
            continue  # another published meanwhile: its head is read, and compared
        step("publish.head_swapped")
        return head, report


def _outdated(held: tuple[Head, str] | None, manifest: SnapshotManifest, where: str, replace: bool) -> bool:
    """True when what counts is the same snapshot, or a later one of the map.

    Raises: `Conflict` when it is of another map, which may not be replaced.
    """
    if held is None:
        return False
    head = held[0]
    if replace or head.manifest == manifest.id:
        return head.manifest == manifest.id
    if head.incarnation != manifest.incarnation:
        raise Conflict(
            "another map of this name was published here", kind="published_other", map=manifest.map, where=where,
            hint="publish to another place, or replace what is there",
        )  # fmt: skip
    return head.shard_version > manifest.shard_version


@contextmanager
def damage_of(location: str, way_out: str) -> Iterator[None]:
    """Errors of files that are damaged or missing within a place get a way out: nothing there is replaced."""
    try:
        yield
    except (Corrupt, NotFound) as error:
        if error.kind in _OF_FILES and str(error.values.get("where", "")).startswith(location):
            error.hint = way_out
        raise


def copy_snapshot(
    source: Source, target: Objects, manifest: SnapshotManifest, names: set[str] | None = None, *, verify: bool = True,
    whole: bool = True,
) -> FetchReport:  # fmt: skip
    """Bring a snapshot's files, only those missing there, each checked against its name; the manifest goes last.

    `names`: the layers and files of intervals that are known to be there, with those that this brings. `verify` False:
    as of `ranges.fetch`. Unless `whole`, of the layers only the lists of their ranges come.

    Raises: `NotFound` when a file is gone, `Corrupt` when one is damaged, naming it; `Denied`, `Unavailable`.
    """
    names = set() if names is None else names
    layers = [layer.index for layer in manifest.layers if layer.index not in names]
    parts = [ranges.fetch(source, target, index, verify=verify) for index in layers] if whole else []
    names.update(layers)

    def bring_file(name: str) -> None:
        if name not in names and not target.exists(name):
            data = source.get(name)
            if verify:
                check_file(data, name, source.where)
            target.put(name, data)
        names.add(name)

    intervals = interval_files(target, manifest)
    for name in (*(() if whole else map(index_name, layers)), *islice(intervals, 1)):  # the list names the others
        bring_file(name)
    deque(bring(bring_file, intervals), 0)
    step("publish.files_copied")
    # What lay there already may be the work of one who died before it was durable; a head is about to name it.
    fsync_below(target, INTERVALS)
    if not put_content(target, manifest_name(manifest.id), pa.py_buffer(manifest.to_bytes())):
        fsync_below(target, "manifests")
    step("publish.manifest_written")
    return FetchReport(
        sum(part.ranges for part in parts), sum(part.bytes for part in parts),
        sum(part.ranges_reused for part in parts), sum(part.bytes_reused for part in parts),
    )  # fmt: skip
