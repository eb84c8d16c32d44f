"""The manifests that commits and branches name: a row of each keeps its files from being collected.

    ("maps", "named", folder of the map, manifest)    a mark that is another with each naming

Invariants:
* a row is put in the write that names the manifest, while the writer keeps the files from being collected;
* a row goes only when no commit that is active, and nothing staged, names the manifest, and nobody named it meanwhile:
  then its mark would be another. To forget to look costs disk, and never a file that is needed.
"""

from __future__ import annotations

from collections.abc import Iterable

from millpond.kernel.space import Transaction
from millpond.kernel.steps import step
from millpond.maps.layered.secured import check_secured
from millpond.maps.model.keyspaces import NAMED
from millpond.refs.map_entries import MapEntry, maps_of
from millpond.refs.stand_ins import forget_stand_ins
from millpond.versions.collect import Marked
from millpond.versions.repository_context import RepositoryContext, Retention

__all__ = ("HISTORY_DAYS", "name_manifests", "release")

HISTORY_DAYS = 30
"""The days that a commit stays whole after another took its place on a branch, unless a tag names it."""


def name_manifests(tx: Transaction, entries: Iterable[MapEntry], mark: str) -> None:
    """Keep the files of some states, in the write that names them. `mark`: another one each time."""
    for entry in entries:
        if entry.manifest:
            check_secured(tx, entry.folder, entry.manifest)
            tx.put(NAMED.pack(entry.folder, entry.manifest), mark.encode())


def release(context: RepositoryContext) -> int:
    """Let go of the manifests that nothing names any more; how many.

    Raises: `NotFound`, `Corrupt` when a commit cannot be read: then all stay.
    """
    with context.space.read() as tx:
        rows = list(tx.scan(NAMED.range()))
    marked = Marked.read(context)  # later than the rows: what was named in between has another mark
    active = marked.active(context.seconds(), Retention(HISTORY_DAYS))
    needed: set[tuple[str, str]] = set()
    for expression in (*active, *marked.branches):
        needed |= {(entry.folder, entry.manifest) for entry in maps_of(context, expression).values()}
    gone = [(key, row) for key, row in rows if NAMED.unpack(key) not in needed]
    step("refs.released")

    def act(tx: Transaction) -> int:
        released = sum(tx.get(key) == row and tx.delete(key) for key, row in gone)
        forget_stand_ins(tx)
        return released

    return context.space.write(act) if gone else 0
