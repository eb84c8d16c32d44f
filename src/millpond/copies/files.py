"""The files of a copy: those of maps, and the objects of repositories; only what the target lacks is sent."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millpond.kernel.steps import step
from millpond.maps.model.definition import folder_name
from millpond.maps.snapshots.leases import writing
from millpond.maps.snapshots.manifest import load_manifest, manifest_name
from millpond.maps.snapshots.published import copy_snapshot, damage_of
from millpond.nodes.backups.layout import object_chunks
from millpond.stores.objects import FolderBeforeBucket, open_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from millpond.maps.model.definition import MapDefinition
    from millpond.pond import Pond
    from millpond.stores.objects import FolderObjects, Objects

__all__ = ("Sent", "copy_objects", "copy_snapshots", "held_files")

_WAY_OUT = "restore the source from a copy; 'millpond verify' names all that is damaged"


@dataclass(slots=True)
class Sent:
    """Counts of what was sent; `advance` is called with the bytes of each step."""

    advance: Callable[[int], object]
    files: int = 0
    bytes: int = 0
    reused: int = 0

    def add(self, files: int, size: int, reused: int = 0) -> None:
        """Count what was sent, and files that were there."""
        self.files += files
        self.bytes += size
        self.reused += reused
        self.advance(size)


@contextmanager
def held_files(pond: Pond, definition: MapDefinition) -> Iterator[None]:
    """Keep all files of a map from those who collect."""
    with writing(_files(pond, folder_name(definition))):
        yield


def _files(pond: Pond, folder: str) -> FolderObjects:
    return pond.place.open_files(pond.folder / "snapshots" / folder)


def _originals(objects: FolderObjects) -> Objects:
    """The place of the files themselves: what is copied needs no copy on this machine besides."""
    return objects.bucket if isinstance(objects, FolderBeforeBucket) else objects


def copy_snapshots(source: Pond, target: Pond, folder: str, manifests: Iterable[str], sent: Sent) -> None:
    """Bring snapshots of one map, and all their files; a manifest that is there has its files.

    Raises: `Corrupt`, `NotFound`, naming a file of the source; `Unavailable`, `Denied`.
    """
    files = _files(target, folder)
    here, there = _originals(files), _originals(_files(source, folder))
    manifests_held = {named.name for named in here.list("manifests")}
    held: set[str] = set()
    with writing(files), damage_of(there.where, _WAY_OUT):
        for id_ in sorted(manifests):
            if manifest_name(id_) in manifests_held:
                sent.add(0, 0, reused=1)
                continue
            report = copy_snapshot(there, here, load_manifest(there, id_), held)
            sent.add(report.ranges + 1, report.bytes, report.ranges_reused)
            step("copy.snapshot_sent")


def copy_objects(source: Pond, target: Pond, sent: Sent) -> None:
    """Bring the objects of all repositories: what has a name never changes.

    Raises: `NotFound` for one that was collected meanwhile; `Unavailable`, `Denied`.
    """
    there, here = open_objects(source.place.repositories), open_objects(target.place.repositories)
    held = {named.name: named.size for named in here.list()}
    for named in there.list():
        if held.get(named.name) == named.size:
            sent.add(0, 0, reused=1)
            continue
        here.put_stream(named.name, object_chunks(there, named.name))
        sent.add(1, named.size)
        step("copy.object_sent")
