"""The maps of a branch, `pond.branch("fix").catalogue`: dropped, copied and renamed there, staged or as one commit."""

from __future__ import annotations

from dataclasses import replace

from millpond.kernel.head import again_when_moved
from millpond.maps.layered.copies import linked_files
from millpond.maps.model.definition import MapDefinition, check_name
from millpond.refs.changes import StateChange
from millpond.refs.layers import manifest_of
from millpond.refs.map_entries import MapEntry
from millpond.refs.states import RefStates, map_exists
from millpond.refs.unrecorded import RENAMED
from millpond.versions.commits import Message

__all__ = ("BranchCatalogue",)


class BranchCatalogue:
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
