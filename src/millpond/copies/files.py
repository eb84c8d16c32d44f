"""The files of a copy: those of maps, and the objects of repositories; only what the target lacks is sent."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from millpond.kernel.lease import LeaseRow
from millpond.kernel.space import Transaction
from millpond.kernel.steps import step
from millpond.maps.layered.history import named_manifests
from millpond.maps.layered.secured import collecting_lease, wait_free
from millpond.maps.model.keyspaces import COLLECTING, UNNAMED
from millpond.maps.snapshots.leases import writing
from millpond.maps.snapshots.manifest import load_manifest
from millpond.maps.snapshots.published import copy_snapshot, damage_of
from millpond.pond import Pond
from millpond.stores.objects import FolderObjects, ObjectInfo, open_objects, originals
from millpond.stores.objects.bringing import CountedObjects, bring, object_chunks

__all__ = (
    "Secured", "Sent", "copy_objects", "copy_snapshots", "held_files", "side_by_side",
)  # fmt: skip

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


@dataclass(frozen=True, slots=True)
class Secured:
    """The files of maps that stay in a target: those of the manifests that its rows `named`, and what is put, or seen,
    in the `terms` of those who collect the files of a folder.
    """

    terms: dict[str, int]
    named: dict[str, set[str]]

    @classmethod
    def of(cls, target: Pond, folders: Iterable[str]) -> Self:
        """Those of now, when nobody collects in these folders."""
        space, clock = target.space, target.clock
        terms = {folder: wait_free(space, collecting_lease(folder, clock), clock).term for folder in folders}
        with space.read() as tx:
            return cls(terms, named_manifests(tx))

    def stay(self, tx: Transaction) -> bool:
        """True when nobody has begun to collect since; what is about to be named was seen unnamed by nobody then."""
        leases = [(LeaseRow.state(tx.get(COLLECTING.pack(folder))), term) for folder, term in self.terms.items()]
        if any(lease.holder or lease.term != term for lease, term in leases):
            return False
        for folder in self.terms:
            tx.delete_range(UNNAMED[folder].range())
        return True


@contextmanager
def held_files(pond: Pond, folder: str) -> Iterator[None]:
    """Keep all files of a map from those who collect."""
    with writing(_files(pond, folder)):
        yield


def _files(pond: Pond, folder: str) -> FolderObjects:
    return pond.loading.map_files(folder)


def copy_snapshots(
    source: Pond, target: Pond, folder: str, manifests: Iterable[str], named: Container[str], sent: Sent
) -> None:  # fmt: skip
    """Bring snapshots of one map, and all their files; those of manifests that are `named` in the target are there.

    Raises: `Corrupt`, `NotFound`, naming a file of the source; `Unavailable`, `Denied`.
    """
    there = originals(_files(source, folder))
    here = CountedObjects(originals(_files(target, folder)), lambda _name, size: sent.add(0, size))
    held: set[str] = set()
    with damage_of(there.where, _WAY_OUT):
        for id_ in sorted(manifests):
            if id_ in named:
                sent.add(0, 0, reused=1)
                continue
            report = copy_snapshot(there, here, load_manifest(there, id_), held)
            sent.add(report.ranges + 1, 0, report.ranges_reused)
            step("copy.snapshot_sent")


def side_by_side(there: Iterable[ObjectInfo], here: Iterable[ObjectInfo]) -> Iterator[tuple[ObjectInfo, bool]]:
    """Each object of one listing, and if another has it, too; both ascend, and neither is held in memory."""
    others = iter(here)
    other = next(others, None)
    for named in there:
        while other is not None and other.name < named.name:
            other = next(others, None)
        yield named, other == named


def copy_objects(source: Pond, target: Pond, sent: Sent) -> None:
    """Bring the objects of all repositories: what has a name never changes.

    Raises: `NotFound` for one that was collected meanwhile; `Unavailable`, `Denied`.
    """
    there, here = open_objects(source.location.repositories), open_objects(target.location.repositories)

    def missing(reused: int) -> Iterator[ObjectInfo]:
        for named, is_held in side_by_side(there.list(), here.list()):
            if is_held:
                sent.add(0, 0, reused)
            else:
                yield named

    def send(named: ObjectInfo) -> int:
        here.put_stream(named.name, object_chunks(there, named.name))
        step("copy.object_sent")
        return named.size

    # A collection that looked for copies a moment before this one began may delete what the first look saw.
    for reused in (1, 0):
        for size in bring(send, missing(reused)):
            sent.add(1, size)
