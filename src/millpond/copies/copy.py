"""A pond, or some of its maps, copied to another place.

    source   rows as of one moment ─┬─ files that they name ──▶ only what is missing there ─┐
                                    └──────────────────────────▶ one write of all rows ◀────┘   target

The target says then what the source said when the copy began: of a whole pond its maps with their history, branches,
tags and repositories, its events and its log; of maps by name their `main`, with its history.

Invariants:
* Files go before the rows that name them, and all rows go in one write: nobody sees half a copy. Until then the lock of
  whoever writes keeps them; of a bucket the rows go in the term in which it was looked what is there, else it is again.
* Files have the names of their content, so a copy that was cut short is gone on with, and one that is made again sends
  what is new. Each file that comes is checked against its name.
* A target that was changed since the last copy is refused: nothing is written over.

A pond on nodes, copied to a new folder: a backup of it is taken beside the folder, and restored there.

    node ─▶ <folder>.copying, a place of backups ─▶ <folder>

The place stays until the copy is whole: one that was cut short is gone on with, and only what is missing comes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from millpond.client.connections import node_urls
from millpond.client.location import FolderLocation, NodesLocation, parse_location
from millpond.client.transport import Connection
from millpond.clock import Clock, SystemClock
from millpond.copies.files import Secured, Sent, copy_snapshots, held_files
from millpond.copies.maps import MapsByName
from millpond.copies.rows import WholePond
from millpond.errors import Corrupt, Invalid
from millpond.kernel.steps import step
from millpond.maps.model.definition import MapDefinition, Store, folder_name
from millpond.nodes.backups.create import BackupReport, create_backup
from millpond.nodes.backups.restore import restore_backup
from millpond.nodes.replication.peer import Peer
from millpond.pond import Pond
from millpond.refs.face import POND
from millpond.settings import load_settings
from millpond.stores.files import remove_tree
from millpond.stores.objects import FolderObjects
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
    clock: Clock | None = None, advance: Callable[[int], object] = lambda _bytes: None,
) -> CopyReport:  # fmt: skip
    """Copy a pond, or these `maps` of it, and verify the copy.

    Maps in shards, events in Redis and runs of workflows are refused; by their names, maps are copied from a pond that
    has such. A pond on nodes goes whole, with all of these that the nodes hold, to a new folder.

    Raises: as `millpond.copy`.
    """
    clock = clock or SystemClock()
    location = parse_location(source)
    if isinstance(location, NodesLocation):
        folder = parse_location(target)
        if maps or not isinstance(folder, FolderLocation):
            raise _of_nodes(source)
        names, fetched = _copy_node(location.urls, folder.folder, clock, advance)
        return CopyReport(str(source), str(target), names, fetched.files, fetched.bytes, fetched.files_reused)
    with _opened(source, clock, create=False) as there:
        with _opened(target, clock, create=True) as here:
            if there.place.address == here.place.address:
                raise Invalid(
                    "a pond is not copied to itself", kind="copy_place", pond=target, hint="name another place"
                )
            report = _copied(there, here, maps, advance, (str(source), str(target)))
        with _opened(target, clock, create=False) as here:
            _verify(here, str(target))
    return report


def _opened(place: str | os.PathLike[str], clock: Clock, *, create: bool) -> Pond:
    location = parse_location(place)
    if isinstance(location, NodesLocation):
        raise _of_nodes(place)
    return location.open(create=True, clock=clock) if create else location.open_existing()


def _of_nodes(place: str | os.PathLike[str]) -> Invalid:
    return Invalid(
        "a pond on nodes is copied whole, to a new folder", kind="copy_place", pond=place,
        hint="copy it to a folder, and from there; a node serves the folder of a copy: millpond serve --data FOLDER",
    )  # fmt: skip


def _copied(
    source: Pond, target: Pond, names: Sequence[str], advance: Callable[[int], object], places: tuple[str, str]
) -> CopyReport:  # fmt: skip
    with ExitStack() as held:
        definitions = [source.catalogue.find(name) for name in names] or list(source.catalogue.list())
        _refuse_shards(definitions, source)
        for definition in definitions:  # what they name now stays until it is copied
            held.enter_context(held_files(source, folder_name(definition)))
        _record_main(source)
        tx = held.enter_context(source.space.read())
        rows = MapsByName(tx, definitions) if names else WholePond(tx, source)
        rows.check(target)
        held.enter_context(rows.begin(target))
        sent, manifests = Sent(advance), rows.manifests()
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
    return CopyReport(*places, maps, sent.files, sent.bytes, sent.reused)


def _record_main(source: Pond) -> None:
    """Commit what loads changed since the last commit of `main`, where there are some: a copy has nothing to add."""
    with source.space.read() as tx:
        there = tx.get(REPOSITORY.pack(POND)) is not None
    if there:
        source.refs.states.record()


def _refuse_shards(definitions: Sequence[MapDefinition], source: Pond) -> None:
    sharded = [definition.name for definition in definitions if definition.store is Store.SHARD]
    if sharded:
        raise Invalid(
            "maps in shards are not copied", kind="copy_unsupported", part="shards", pond=source.place.address,
            maps=", ".join(sharded), hint=f"put them in layers first: millpond alter {sharded[0]} --store layers",
        )  # fmt: skip


def _verify(target: Pond, place: str) -> None:
    report = target.verify()
    if not report.ok:
        raise Corrupt(
            "what was copied does not verify", kind="copy_damaged", pond=place,
            problems=[str(problem) for problem in report.problems[:5]], hint="look at the place, and copy again",
        )  # fmt: skip


def _copy_node(
    urls: str, folder: Path, clock: Clock, advance: Callable[[int], object]
) -> tuple[tuple[str, ...], BackupReport]:  # fmt: skip
    """Copy the pond of the first of these nodes; its maps, and what was fetched.

    Raises: `Invalid`, kind `copy_unsupported`, for a part that lies elsewhere than on the node, and kind `copy_place`
    for a folder that holds something; as `create_backup`, `restore_backup`.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Invalid("a pond on nodes is copied to a new folder", kind="copy_place", pond=folder,
                      hint="name a folder that does not exist")  # fmt: skip
    beside = folder.with_name(f"{folder.name}.copying")
    scratch, place = beside / "scratch", FolderObjects(str(beside / "backup"), 0o700)
    remove_tree(scratch)
    scratch.mkdir(0o700, parents=True)
    source = Peer(Connection(node_urls(urls)[0], load_settings()))
    report = create_backup(source, place, scratch, clock, advance=advance)
    backup = report.backup
    assert backup is not None
    if backup.left_out:
        raise Invalid("a part of the pond is not copied", kind="copy_unsupported", part=", ".join(backup.left_out),
                      pond=urls, hint="copy maps by name, from the folder of a node")  # fmt: skip
    restore_backup(place, backup, folder, clock)
    remove_tree(beside)
    with FolderLocation(folder).open_existing() as pond:
        return tuple(sorted(map_.name for map_ in pond.maps())), report
