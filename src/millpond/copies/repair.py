"""Files of layered maps that are damaged or missing, put back from a place that has them.

    each state that rows name: damaged files go to quarantine ─▶ what is missing comes ─▶ it is checked again
                                            ▲──────────────── while something comes ────────────────┘

The place is another pond (a copy, or what this one is a copy of), in a folder or a bucket, or a place of backups. Files
have the names of their content, so any place that has a file of the name has the right one: each is checked when it
comes.

Invariants:
* no row of the pond changes, and nothing is taken that its rows do not name;
* what the place lacks does not keep the rest from coming; whoever repairs is told of what is still missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from millpond.client.location import NodesLocation, parse_location
from millpond.client.snapshots.published import published_location
from millpond.copies.files import held_files
from millpond.errors import Corrupt, Invalid, NotFound
from millpond.kernel.steps import step
from millpond.kernel.verify import Report
from millpond.maps.layered.history import named_manifests
from millpond.maps.snapshots.manifest import SnapshotManifest, load_manifest, manifest_name
from millpond.maps.snapshots.published import copy_snapshot
from millpond.maps.verify import check_states
from millpond.nodes.backups.layout import list_backups, open_location
from millpond.nodes.backups.stored_layers import layers_below
from millpond.ranges.files import put_content
from millpond.settings import load_settings
from millpond.stores.objects import Objects, forget_copies, originals
from millpond.stores.objects.bringing import CountedObjects

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ("RepairReport", "repair_pond")

_FilesOf: TypeAlias = Callable[[str], Objects]
"""The files of a map in the place, by the name of its folder."""


@dataclass(frozen=True, slots=True)
class RepairReport:
    """A repair: the files and bytes that were put back, and the problems that are left."""

    pond: str
    source: str
    files: int
    bytes: int
    problems: tuple[str, ...]


def repair_pond(
    place: str | os.PathLike[str], source: str | os.PathLike[str], *,
    advance: Callable[[int], object] = lambda _bytes: None,
) -> RepairReport:  # fmt: skip
    """Put back files of the layered maps of a pond, see `millpond.repair`."""
    location = parse_location(place)
    if isinstance(location, NodesLocation):
        raise Invalid("a pond on nodes is repaired by its nodes", kind="repair_place", pond=place,
                      hint="millpond repair URL --from URL")  # fmt: skip
    with ExitStack() as held:
        pond = held.enter_context(location.open_existing())
        files_of = held.enter_context(_files_of(source))
        with pond.space.read() as tx:
            named = named_manifests(tx)
        files = size = 0
        left = Report()
        for folder, ids in named.items():
            held.enter_context(held_files(pond, folder))
            here = originals(pond.loading.map_files(folder))
            brought, new, came = dict[str, int](), dict[str, int](), True
            while not (report := _faults(here, ids)).ok and came:  # what was missing may name what is damaged
                new.clear()
                _bring(files_of(folder), CountedObjects(here, new.__setitem__), ids)
                advance(sum(new.values()))
                came = not new.keys() <= brought.keys()
                brought |= new
            forget_copies(pond.loading.map_files(folder))
            files, size, left = files + len(brought), size + sum(brought.values()), left + report
        step("repair.files_put_back")
        problems = dict.fromkeys(str(problem) for problem in (*left.problems, *pond.verify().problems))
    return RepairReport(str(place), str(source), files, size, tuple(problems))


def _faults(here: Objects, ids: Iterable[str]) -> Report:
    return sum((report for _, report in check_states(here, ids, set())), Report())


def _bring(there: Objects, here: Objects, ids: Iterable[str]) -> None:
    held = set[str]()
    for id_ in sorted(ids):
        try:
            copy_snapshot(there, here, _manifest(here, there, id_), held)
        except (NotFound, Corrupt):  # the place lacks a file of this state: it may have those of others
            held.clear()


def _manifest(here: Objects, there: Objects, id_: str) -> SnapshotManifest:
    try:
        return load_manifest(here, id_)
    except NotFound:  # it comes first: what it names is looked at only then
        manifest = load_manifest(there, id_)
        put_content(here, manifest_name(id_), pa.py_buffer(manifest.to_bytes()))
        return manifest


@contextmanager
def _files_of(source: str | os.PathLike[str]) -> Iterator[_FilesOf]:
    """The files of maps in a place.

    Raises: `NotFound` where there is neither a pond nor a backup; `Invalid` for nodes.
    """
    location = parse_location(source)
    if isinstance(location, NodesLocation):
        raise Invalid("files are put back from a folder or a bucket", kind="repair_place", source=source,
                      hint="name a copy of the pond, or a place of its backups")  # fmt: skip
    try:
        pond = location.open_existing()
    except (NotFound, Invalid):  # no pond; a place of backups holds something else
        settings = load_settings(said="the source", objects_place=os.fspath(source))
        place = open_location(published_location(settings).where)
        if not list_backups(place):
            raise
        yield lambda folder: layers_below(place, folder)
        return
    with pond:
        yield lambda folder: originals(pond.loading.map_files(folder))
