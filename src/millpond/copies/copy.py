"""A pond, or some of its maps, copied to another place.

    source   rows as of one moment ─┬─ files that they name ──▶ only what is missing there ─┐
                                    └──────────────────────────▶ one write of all rows ◀────┘   target

The target says then what the source said when the copy began: of a whole pond its maps with their history, branches,
tags and repositories, its events, its log and its runs of workflows; of maps by name their `main`, with its history.

Invariants:
* Files go before the rows that name them, and all rows go in one write: nobody sees half a copy. Until then the lock of
  whoever writes keeps them; of a bucket the rows go in the term in which it was looked what is there, else it is again.
* Files have the names of their content, so a copy that was cut short is gone on with, and one that is made again sends
  what is new. Each file that comes is checked against its name.
* A target that was changed since the last copy is refused: nothing is written over.

A pond on nodes, or with parts that do not go so, goes to a new folder by a backup (`by_backup.py`). Of nodes what may
go so is copied on from there, to a bucket or a pond that is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from millpond.client.connections import node_urls
from millpond.client.location import BucketLocation, FolderLocation, NodesLocation, parse_location
from millpond.client.transport import Connection
from millpond.clock import Clock, SystemClock
from millpond.copies.by_backup import copy_to_new_folder, restored, takes_backup
from millpond.copies.files import Secured, Sent, copy_snapshots, held_files
from millpond.copies.maps import MapsByName, check_name
from millpond.copies.rows import WholePond, check_target
from millpond.copies.runs import runs_of_moment
from millpond.copies.selection import Selection
from millpond.errors import Corrupt, Invalid
from millpond.kernel.steps import step
from millpond.maps.model.definition import MapDefinition, folder_name
from millpond.nodes.backups.source import FolderSource
from millpond.nodes.replication.peer import Peer
from millpond.nodes.replication.source import BackupSource
from millpond.pond import Pond
from millpond.refs.face import POND
from millpond.settings import load_settings
from millpond.versions.keyspaces import REPOSITORY

__all__ = ("CopyReport", "copy_pond")


@dataclass(frozen=True, slots=True)
class CopyReport:
    """A copy: its maps, files and bytes that were sent, and files that were there already."""

    source: str
    target: str
    maps: tuple[str, ...]
    files: int
    bytes: int
    files_reused: int


def copy_pond(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, maps: Sequence[str] = (),
    without_runs: bool = False, clock: Clock | None = None, advance: Callable[[int], object] = lambda _bytes: None,
) -> CopyReport:  # fmt: skip
    """Copy a pond, or these `maps` of it, and verify the copy; see `millpond.copy`.

    Raises: as `millpond.copy`.
    """
    location, aim = parse_location(source), parse_location(target)
    if isinstance(aim, NodesLocation):
        raise Invalid(
            "a pond is not copied to a node", kind="copy_place", pond=target,
            hint="copy it to a folder or a bucket, and serve that: millpond serve --data PLACE; "
            "rows of a map come by millpond load",
        )  # fmt: skip
    selection = Selection(tuple(maps), without_runs)
    copying = _Copying((str(source), str(target)), aim, selection, clock or SystemClock(), advance)
    return copying.from_node(location) if isinstance(location, NodesLocation) else copying.from_place(location)


@dataclass(frozen=True, slots=True)
class _Copying:
    """A copy to a folder or a bucket."""

    places: tuple[str, str]
    target: FolderLocation | BucketLocation
    selection: Selection
    clock: Clock
    advance: Callable[[int], object]

    def from_node(self, location: NodesLocation) -> CopyReport:
        """Copy the pond of the first of these nodes."""
        peer = Peer(Connection(node_urls(location.urls)[0], load_settings()))
        if (new := self._new_folder()) is not None:
            return self._by_backup(peer, new)
        with location.open_existing() as remote:
            definitions = self.selection.definitions(remote)
        self.selection.refuse_shards(definitions, peer.url)
        facts = peer.node()
        with self._opened() as here, here.space.read() as tx:
            for definition in definitions if self.selection.maps else ():
                check_name(tx, definition)
            if not self.selection.maps:
                check_target(tx, here.location.address, str(facts["pond"]).encode())
        with restored(peer, self._beside(), self.selection, self.clock, self.advance) as (folder, _fetched):
            return self.from_place(FolderLocation(folder))

    def from_place(self, location: FolderLocation | BucketLocation) -> CopyReport:
        """Copy the pond in a folder or a bucket."""
        with location.open_existing() as there:
            definitions, new = self.selection.definitions(there), self._new_folder()
            if isinstance(location, FolderLocation) and new and self.selection.needs_backup(definitions):
                with closing(FolderSource(there, self.clock)) as source:
                    return self._by_backup(source, new)
            self.selection.refuse(there, definitions)
            with self._opened() as here:
                if there.location.address == here.location.address:
                    raise Invalid("a pond is not copied to itself", kind="copy_place", pond=self.places[1],
                                  hint="name another place")  # fmt: skip
                report = self._copied(there, here, definitions)
        with self.target.open_existing() as here:
            _verify(here, self.places[1])
        return report

    def _opened(self) -> Pond:
        return self.target.open(create=True, clock=self.clock)

    def _new_folder(self) -> Path | None:
        """The target, when a backup of the whole pond can be restored there."""
        location = self.target
        if self.selection.maps or not isinstance(location, FolderLocation) or not takes_backup(location.folder):
            return None
        return location.folder

    def _beside(self) -> Path:
        """A folder of this machine for what nodes give on its way to the target; the same when it is copied again."""
        from platformdirs import user_cache_path

        id_ = blake2b(" ".join(self.places).encode(), digest_size=10).hexdigest()
        return user_cache_path("millpond") / "copies" / id_

    def _by_backup(self, source: BackupSource, folder: Path) -> CopyReport:
        fetched = copy_to_new_folder(source, folder, self.clock, self.advance)
        with FolderLocation(folder).open_existing() as pond:
            maps = tuple(sorted(map_.name for map_ in pond.maps()))
        return CopyReport(*self.places, maps, fetched.files, fetched.bytes, fetched.files_reused)

    def _copied(self, source: Pond, target: Pond, definitions: Sequence[MapDefinition]) -> CopyReport:
        with ExitStack() as held:
            for definition in definitions:  # what they name now stays until it is copied
                held.enter_context(held_files(source, folder_name(definition)))
            _record_main(source)
            come = not (self.selection.maps or self.selection.without_runs)
            runs = held.enter_context(runs_of_moment(source)) if come else None
            tx = held.enter_context(source.space.read())
            rows = (
                MapsByName(tx, definitions) if self.selection.maps
                else WholePond(tx, source, runs and runs(tx))
            )  # fmt: skip
            rows.check(target)
            held.enter_context(rows.begin(target))
            sent, manifests = Sent(self.advance), rows.manifests()
            for folder in manifests:  # what comes is nobody's until the rows are there
                held.enter_context(held_files(target, folder))
            while True:
                secured = Secured.of(target, manifests)
                for folder, ids in manifests.items():
                    copy_snapshots(source, target, folder, ids, secured.named.get(folder, set()), sent)
                rows.bring(target, sent)
                step("copy.files_sent")
                if rows.enter(target, secured):
                    break
            step("copy.rows_entered")
            target.loading.loads.announce()
        maps = tuple(sorted(definition.name for definition in definitions))
        return CopyReport(*self.places, maps, sent.files, sent.bytes, sent.reused)


def _record_main(source: Pond) -> None:
    """Commit what loads changed since the last commit of `main`, where there are some: a copy has nothing to add."""
    with source.space.read() as tx:
        there = tx.get(REPOSITORY.pack(POND)) is not None
    if there:
        source.refs.states.record()


def _verify(target: Pond, place: str) -> None:
    report = target.verify()
    if not report.ok:
        raise Corrupt(
            "what was copied does not verify", kind="copy_damaged", pond=place,
            problems=[str(problem) for problem in report.problems[:5]], hint="look at the place, and copy again",
        )  # fmt: skip
