"""A pond as it is at a ref: `pond.branch("fix")` to read and to load, `pond.at("main~3")` to read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from millpond.deferred import opened_once
from millpond.kernel.head import again_when_moved
from millpond.kernel.job_reports import JobReports
from millpond.maps.faces import PondFace
from millpond.maps.inputs.formats.files import find_files
from millpond.maps.inputs.formats.readers import read_piece
from millpond.maps.layered.copies import linked_files
from millpond.maps.layered.writer import WrittenLayer
from millpond.maps.loads.load import LoadResult
from millpond.maps.loads.load_files import (
    Advance,
    Intake,
    ReadPiece,
    file_reading,
    name_of,
    seal_files,
    with_file_fields,
)
from millpond.maps.loads.pond_folder import writer_folder
from millpond.maps.model.definition import Kind, MapDefinition, Store, ValueType, check_name
from millpond.maps.model.new_map import new_map
from millpond.refs.alters import alter_map
from millpond.refs.changes import StateChange
from millpond.refs.face import BranchFace
from millpond.refs.layers import manifest_of
from millpond.refs.loads import BranchLoad
from millpond.refs.map import MapAtRef, RefMap
from millpond.refs.map_entries import MapEntry
from millpond.refs.refs import Refs
from millpond.refs.states import RefStates, map_exists
from millpond.refs.unrecorded import RENAMED
from millpond.stores.files import remove_tree
from millpond.versions.commits import Message

__all__ = ("BranchPond", "RefPond")


class RefPond(PondFace):
    """A pond as it is at a ref, to read: maps, `sql` and `enrich`. It needs no closing."""

    def __init__(self, refs: Refs, ref: str) -> None:
        self.refs, self.ref, self.clock = refs, ref, refs.clock
        self._maps: dict[str, RefMap] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.refs.folder)!r}, {self.ref!r})"

    @opened_once
    def reports(self) -> JobReports:
        """The place that jobs report to: that of the pond."""
        return self.refs.pond.reports

    def map(self, name: str) -> RefMap:
        """A map as it is at the ref.

        Raises: `NotFound` when the map, or the ref, is not there.
        """
        return self._opened(self.refs.states.map_at(self.ref, check_name(name)))

    def maps(self) -> list[RefMap]:
        """All maps at the ref, by name.

        Raises: `NotFound` when the ref is not there.
        """
        return [self._opened(entry) for _, entry in sorted(self.refs.states.maps(self.ref).items())]

    def _opened(self, entry: MapEntry) -> RefMap:
        pond_map = self._maps.get(entry.name)
        if pond_map is None or pond_map.definition != entry.definition:
            pond_map = self._open(entry)
            self._maps[entry.name] = pond_map
        return pond_map

    def _open(self, entry: MapEntry) -> RefMap:
        folder = self.refs.folder / "snapshots" / entry.folder
        return RefMap(entry.definition, self.refs.states.loading, folder, self._at_ref(entry))

    def _at_ref(self, entry: MapEntry) -> MapAtRef:
        return MapAtRef(self.ref, lambda: entry, self.refs.states)  # a commit never changes

    def sql(self, text: str, *, known_at: object = None) -> pa.Table:
        """The result of a query in DuckDB's SQL over the maps at the ref, as `Pond.sql`; `known_at` counts its commits.

        Raises: `Invalid` when the query is not understood.
        """
        from millpond.maps.sql import query
        from millpond.refs.face import differences_here
        from millpond.tables.differences import difference_tables

        differing = difference_tables(differences_here(lambda: self.refs.states))
        return query(self, text, known_at=known_at, differing=differing)

    def close(self) -> None:
        """Let go of the maps that were opened here."""
        for pond_map in self._maps.values():
            pond_map.close()
        self._maps.clear()


class BranchPond(BranchFace, RefPond):
    """A pond of a branch: what is loaded here is seen on the branch, until it is merged.

    Every question is answered from the branch as it is by then, with what is staged.
    """

    def _at_ref(self, entry: MapEntry) -> MapAtRef:
        name = entry.name
        return MapAtRef(self.ref, lambda: self.refs.states.map_at(self.ref, name), self.refs.states, changes=True)

    def load_files(
        self, files: str | Path | Sequence[str | Path], map: str | None = None, *, commit: bool = True,
        max_rejects: int = 0, rejects: str | Path | None = None, source: str = "", again: bool = False,
        written: str | None = None, advance: Advance | None = None, load_id: str | None = None,
        read: ReadPiece = read_piece, **options: Any,
    ) -> LoadResult:  # fmt: skip
        """Load files, folders or patterns on the branch, as one commit; without `commit` they are staged.

        A load that commits takes along what is staged. Under a `load_id` it is entered once. `read` reads the files, by
        default in this process. The rest is as in `Pond.load_files`.

        Raises: as `Pond.load_files`.
        """
        options.pop("sent", None)  # of ponds on nodes
        loading = self.refs.states.loading
        began, definitions = loading.clock.monotonic(), {pond_map.name: pond_map.definition for pond_map in self.maps()}
        reading = file_reading(definitions, None if map is None else self.map(map).name, **options)
        listed = find_files([files] if isinstance(files, str | Path) else files, written)
        load = BranchLoad(states=self.refs.states, branch=self.ref, source=source or name_of(listed), again=again,
                          commit=commit, load_id=load_id)  # fmt: skip
        if reading.map is not None and (earlier := load.earlier({reading.map})) is not None:
            return earlier
        states = self.refs.states
        reading = with_file_fields(
            reading, listed, lambda name, changes: alter_map(states, self.ref, name, changes, commit=commit)
        )
        with ExitStack() as stack:
            folder = writer_folder(loading.folder, loading.clock)
            stack.callback(remove_tree, folder)
            intake = Intake(
                folder, source=load.source, memory_max=loading.memory_max,
                layers_of=lambda name: self.map(name).rows.layers,
            )  # fmt: skip
            stack.callback(intake.close)
            sealed = seal_files(
                listed, reading, intake, max_rejects=max_rejects, rejects=rejects, advance=advance, read=read
            )  # fmt: skip
            layers = [layer for layer in sealed.parts if isinstance(layer, WrittenLayer)]
            result = replace(load, rejected=sealed.rejected).enter(layers)
        return replace(result, seconds=loading.clock.monotonic() - began, empty=sealed.empty)

    def create_map(
        self, name: str, *, kind: str | Kind | None = None, value: str | ValueType | None = None,
        overwrite: bool = True, condense: str | int | None = None, retain: str | int | None = None,
        retain_by: str = "effective_time", exist_ok: bool = False, commit: bool = True, resolution: str | None = None,
        time_zone: str | None = None, key: str | None = None, roll_up: str | None = None, as_: str | None = None,
        condense_by: str = "effective_time",
    ) -> RefMap:  # fmt: skip
        """Create a layered map on the branch; it comes to other branches by a merge. Settings as in `Pond.create_map`.

        Raises: `AlreadyExists`; `Invalid` for a setting that is not understood.
        """
        settings = {
            "condense": condense,
            "condense_by": condense_by,
            "retain": retain,
            "retain_by": retain_by,
            "overwrite": overwrite,
            "roll_up": roll_up,
        }
        made = new_map(
            name, kind, value, self.refs.clock.random_id(), settings, resolution=resolution, time_zone=time_zone,
            key=key, query=as_,
        )  # fmt: skip
        definition = replace(made, store=Store.LAYERS)
        self.refs.states.create_map(self.ref, definition, commit=commit, exist_ok=exist_ok)
        return self.map(definition.name)

    def alter_map(self, name: str, /, *, commit: bool = True, **settings: Any) -> RefMap:
        """Change settings or fields of a map on the branch, as `Pond.alter_map`; without `commit` that is staged.

        Raises: `Invalid`; `NotFound`.
        """
        alter_map(self.refs.states, self.ref, check_name(name), settings, commit=commit)
        return self.map(name)

    @opened_once
    def catalogue(self) -> _BranchCatalogue:
        """The definitions of the branch's maps, to copy and to rename."""
        return _BranchCatalogue(self.refs.states, self.ref)


class _BranchCatalogue:
    """The definitions of a branch's maps, as `PondCatalogue` has a pond's; without `commit` changes are staged."""

    def __init__(self, states: RefStates, branch: str) -> None:
        self._states, self._branch = states, branch

    def drop(self, name: str, *, commit: bool = True) -> None:
        """Drop a map on the branch. Its files stay as long as a commit names them.

        Raises: `NotFound`.
        """
        name = check_name(name)

        def drop() -> None:
            change = StateChange(self._states.map_at(self._branch, name), None)
            self._states.change(self._branch, [change], Message(f"Drop {name}"), commit=commit)

        again_when_moved(drop)

    def copy(self, name: str, new: str, *, commit: bool = True) -> MapDefinition:
        """Copy a map under a new name: its files are shared, and no row is written.

        Raises: `AlreadyExists`; `NotFound`.
        """
        return self._copied(name, new, commit=commit, drop=False)

    def rename(self, name: str, new: str, *, commit: bool = True) -> MapDefinition:
        """Give a map another name, with which it comes to other branches.

        Raises: as `copy`.
        """
        return self._copied(name, new, commit=commit, drop=True)

    def _copied(self, name: str, new: str, *, commit: bool, drop: bool) -> MapDefinition:
        states, name, new = self._states, check_name(name), check_name(new)
        words = (
            Message(f"Rename {name} to {new}", metadata={RENAMED: name}) if drop else Message(f"Copy {name} to {new}")
        )

        def copied() -> MapDefinition:
            state = states.map_at(self._branch, name)
            if states.map(self._branch, new) is not None:
                raise map_exists(new)
            definition = replace(state.definition, name=new, incarnation=states.clock.random_id())
            layers, target = states.layers_for(state.definition), states.layers_for(definition)
            copy = MapEntry(definition)
            with layers.writing(), target.writing():
                manifest = manifest_of(layers, state, self._branch)
                if manifest is not None:
                    linked = linked_files(layers.objects, [manifest], target.objects, definition)[manifest.id]
                    copy = copy.with_manifest(target.stored(replace(linked, shard_version=min(state.version, 1))))
                changes = [StateChange(None, copy), *([StateChange(state, None)] if drop else ())]
                states.change(self._branch, changes, words, commit=commit)
            return definition

        return again_when_moved(copied)
