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
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from millpond.client.location import FolderLocation, NodesLocation, parse_location
from millpond.clock import Clock, SystemClock
from millpond.copies.files import Secured, Sent, copy_snapshots, held_files
from millpond.copies.maps import MapsByName
from millpond.copies.nodes import copy_node
from millpond.copies.rows import WholePond
from millpond.errors import Corrupt, Invalid
from millpond.kernel.steps import step
from millpond.maps.model.definition import MapDefinition, Store, folder_name
from millpond.pond import Pond
from millpond.refs.face import POND
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
        names, fetched = copy_node(location.urls, folder.folder, clock, advance)
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
