"""Files of a bucket that cannot be collected before the manifest counts that names them.

Names stand for content: a load may write again what nobody has needed for long, while a collection is about to remove
just that. Neither sees the other, but both write to the space:

    collection   lease taken: term + 1 ── reads what is named ── removes ── lease given back
    writer       puts files ── `secure`: puts again what went ── the manifest counts, if the term is that one still

A purge removes without a grace time, so it must know who makes new files of rows that are there: each of those puts a
mark before it reads them, and a purge waits, without the lease, until there are none.

Invariants:
* what a process put, or saw, while nobody held the lease, is there as long as the term stays;
* a manifest that a process stored counts only in the term in which its files were secured; in another one the write is
  run again, which secures them anew. A manifest that counts already needs none of it;
* where files were removed before, a manifest that neither counts nor was secured is not named: it may have gone;
* who has a mark when a purge takes the lease is seen by it; who puts one later reads what the purge left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from millpond.clock import Clock
from millpond.errors import Conflict, MillpondError, NotFound, Unavailable
from millpond.kernel.cache import Cache
from millpond.kernel.lease import Lease, LeaseRow, LeaseWatch
from millpond.kernel.signal import Signal, last_change_of
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.kernel.steps import step
from millpond.kernel.worker import repeating
from millpond.maps.layered.head import Layers
from millpond.maps.layered.history import changes_of
from millpond.maps.model.definition import folder_name
from millpond.maps.model.keyspaces import COLLECTING, NAMED, REWRITING, UNNAMED
from millpond.maps.model.snapshot_pointer import read_pointer
from millpond.maps.snapshots.freeze import files_of
from millpond.maps.snapshots.manifest import SnapshotManifest, manifest_name
from millpond.maps.snapshots.section_list import interval_files
from millpond.stores.objects import FolderBeforeBucket

__all__ = (
    "LEASE_SECONDS", "begin_term", "check_secured", "collected_terms", "collecting_lease", "map_busy", "rewriting",
    "secure", "take_unwatched", "wait_free",
)  # fmt: skip

LEASE_SECONDS = 30.0
"""A collection that says nothing for so long counts as dead."""
STORED_MAX = 10_000
_secured: Cache[str, int] = Cache(STORED_MAX)
"""The terms in which manifests were secured that this process stored."""


def collecting_lease(folder: str, clock: Clock) -> LeaseRow:
    """The lease of whoever removes files of a map, by its folder."""
    return LeaseRow(COLLECTING.pack(folder), LEASE_SECONDS, LeaseWatch(clock))


def wait_free(space: Space, row: LeaseRow, clock: Clock) -> Lease:
    """The lease of a map's files when nobody holds it; that of a collection that died is ended."""

    def look() -> Lease:
        with space.read() as tx:
            lease = row.read(tx)
        return space.write(row.end_dead) if lease.holder and row.over(lease) else lease

    return Signal(clock, last_change_of(space)).wait_for(look, None, lambda lease: not lease.holder)


@contextmanager
def rewriting(maps: Sequence[Layers]) -> Iterator[None]:
    """Be seen by purges of some maps of a pond, while new files are made of rows that are there."""
    space, clock = maps[0].space, maps[0].clock
    holder, watch = clock.random_id(), LeaseWatch(clock)
    folders = {folder_name(layers.definition) for layers in maps}
    rows = [LeaseRow(REWRITING.pack(folder, holder), LEASE_SECONDS, watch) for folder in sorted(folders)]

    def renew(tx: Transaction) -> None:
        for row in rows:
            row.take(tx, holder)

    def end(tx: Transaction) -> None:
        for row in rows:
            tx.delete(row.key)

    space.write(renew)
    step("files.rewriting")
    try:
        with repeating("the mark of a rewrite", lambda: space.write(renew), LEASE_SECONDS / 3, clock):
            yield
    finally:
        with suppress(MillpondError):  # a purge ends it, when it has stood still for long
            space.write(end)


def take_unwatched(layers: Layers, row: LeaseRow, holder: str) -> Lease:
    """The lease of a map's files, taken when nobody makes new ones of its rows.

    Raises: `Unavailable`, kind `map_busy`.
    """
    space, clock = layers.space, layers.clock
    marks, watch = REWRITING[folder_name(layers.definition)].range(), LeaseWatch(clock)
    due = clock.monotonic() + 2 * LEASE_SECONDS

    def take(tx: Transaction) -> Lease | None:
        for key in list(tx.keys(marks)):
            LeaseRow(key, LEASE_SECONDS, watch).end_dead(tx)
            if LeaseRow.state(tx.get(key)).holder:
                return None
            tx.delete(key)
        return row.take(tx, holder)

    lease = Signal(clock, last_change_of(space)).wait_for(lambda: space.write(take), due)
    if lease is None:
        raise map_busy(layers.definition.name)
    return lease


def map_busy(name: str) -> Unavailable:
    """The error for files that cannot be removed while somebody writes."""
    return Unavailable(
        "somebody writes into the map: its old files cannot be removed now", kind="map_busy",
        map=name, hint="delete again when the loads are done",
    )  # fmt: skip


def collected_terms(space: Space) -> dict[bytes, int]:
    """The number of collections of each map, by the keys of their leases."""
    with space.read() as tx:
        return {key: LeaseRow.state(row).term for key, row in tx.scan(COLLECTING.range())}


def begin_term(layers: Layers) -> None:
    """Let what is put from now on count as put in the term of now, if nobody collects: then `secure` asks nothing."""
    with layers.space.read() as tx:
        lease = LeaseRow.state(tx.get(COLLECTING.pack(folder_name(layers.definition))))
    if not lease.holder and isinstance(layers.objects, FolderBeforeBucket):
        layers.objects.presence.begin_term(lease.term)


def secure(layers: Layers, manifests: Sequence[SnapshotManifest]) -> None:
    """See that the files of manifests which are to count are in the bucket, and stay. What a purge removed has no copy
    that it could be put again from: those go when this process learns of its end, before it looks here.

    Raises: `Unavailable`, kind `files_collected`, for one that was removed and of which there is no copy.
    """
    objects, folder = layers.objects, folder_name(layers.definition)
    if not isinstance(objects, FolderBeforeBucket):
        return
    term = wait_free(layers.space, collecting_lease(folder, layers.clock), layers.clock).term
    objects.presence.begin_term(term)
    objects.presence.put_again(sorted(name for name in _new_files(layers, manifests) if name not in objects.presence))
    for manifest in manifests:
        _secured.put(manifest.id, term)
    step("files.secured")


def _new_files(layers: Layers, manifests: Sequence[SnapshotManifest]) -> set[str]:
    """The files of manifests that the head has not: those of the head stay longer than it counts."""
    objects, head = layers.objects, _head_now(layers)
    before = set() if head is None else {layer.index for layer in head.layers}
    fresh = [
        replace(manifest, layers=tuple(layer for layer in manifest.layers if layer.index not in before))
        for manifest in manifests
    ]
    names = files_of(objects, fresh) - {manifest_name(manifest.id) for manifest in fresh}
    return names if head is None else names - set(interval_files(objects, head))


def _head_now(layers: Layers) -> SnapshotManifest | None:
    try:
        return layers.head().manifest
    except NotFound as error:
        if error.kind != "map_dropped":
            raise
        return None  # it comes, or comes back, by a merge; others are refused by the write in which they would count


def check_secured(tx: Transaction, folder: str, id_: str) -> None:
    """Let a manifest count, or be named, in the write that does it; nobody has seen it unnamed from then on.

    Raises: `Conflict`, kind `head_moved`, when a collection came between its storing and this.
    """
    if tx.get(UNNAMED.pack(folder, id_)) is not None:
        tx.delete(UNNAMED.pack(folder, id_))
    term = _secured.get(id_)
    lease = LeaseRow.state(tx.get(COLLECTING.pack(folder)))
    if (lease.holder or lease.term != (term or 0)) and not _counts(tx, folder, id_):
        raise Conflict("files were collected meanwhile", kind="head_moved", folder=folder, hint="store it again")


def _counts(tx: ReadTransaction, folder: str, id_: str) -> bool:
    name = folder.rpartition(".")[0]
    current = read_pointer(tx, name).current
    if (current is not None and current.manifest == id_) or tx.get(NAMED.pack(folder, id_)) is not None:
        return True
    return any(id_ in (change.manifest, change.loaded) for change in changes_of(tx, name))
