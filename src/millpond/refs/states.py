"""The states of maps at refs: found, recorded, and put in place of others, in the repository `pond`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from millpond.errors import AlreadyExists, Invalid, MillpondError, NotFound
from millpond.maps.layered.head import Layers
from millpond.maps.model.catalogue import known_map
from millpond.maps.model.definition import MapDefinition, Store, folder_name
from millpond.refs.changes import StateChange, Tree, commit_changes, entry_at_ref, moment_of, stage_change
from millpond.refs.face import MAIN, POND, is_instant, names_main, sharded_map
from millpond.refs.main import record_main
from millpond.refs.map_entries import MapEntry, maps_of
from millpond.times.instants import parse_instant
from millpond.versions.commits import Message
from millpond.versions.graph.commits import Commit, get_commit
from millpond.versions.graph.history import Window, log

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.kernel.job_reports import JobReports
    from millpond.kernel.space import Space, Transaction
    from millpond.maps.loads.loading import Loading
    from millpond.maps.loads.pond_folder import StorageLocation
    from millpond.maps.pond_catalogue import PondCatalogue
    from millpond.versions.repositories import Repositories
    from millpond.versions.repository import Repository

__all__ = ("OpenPond", "RefStates", "map_exists", "missing_map")


class OpenPond(Protocol):
    """The part of an open pond that refs stand on."""

    folder: Path
    clock: Clock
    space: Space
    loading: Loading
    catalogue: PondCatalogue

    @property
    def location(self) -> StorageLocation: ...

    @property
    def repositories(self) -> Repositories: ...

    @property
    def reports(self) -> JobReports: ...


class RefStates:
    """The states of a pond's layered maps.

    Methods raise `NotFound` for a ref that is not there, `Invalid` for text that is no ref.
    """

    def __init__(self, pond: OpenPond) -> None:
        self._pond = pond
        self.loading, self.folder, self.clock = pond.loading, pond.folder, pond.clock

    @property
    def repository(self) -> Repository:
        """The repository `pond`, made when it is first asked for.

        Raises: `Invalid`, kind `refs_place`, where the repositories of the pond are in a database of their own.
        """
        repositories = self._pond.repositories
        if repositories.space is not self._pond.space:
            raise Invalid(
                "maps have branches where the repositories are in the pond's own folder", kind="refs_place",
                folder=self.folder, hint="leave versions_space out",
            )  # fmt: skip
        with suppress(NotFound):
            return repositories.get(POND)
        with suppress(AlreadyExists):
            repositories.create(POND, default_branch=MAIN)
        return repositories.get(POND)

    def tree(self, words: Message | None = None) -> Tree:
        """The repository, to change maps in, with the words of a commit."""
        context = replace(self.repository.context, composed="")  # maps are written here, and nowhere else
        return Tree(context, self._pond.location.address, words or Message())

    def layers_for(self, definition: MapDefinition) -> Layers:
        """The layers of `main` of a map, which others share the files of."""
        layers = None
        with suppress(NotFound):
            layers = self.loading.layers_of(definition.name)
        if layers is not None and layers.definition == definition:
            return layers
        loading = self.loading
        objects = loading.map_files(folder_name(definition))
        return Layers(loading.space, loading.clock, objects, definition, loading.memory_max, loading.history_ms)

    # -- reading --------------------------------------------------------------------------------------

    def record(self) -> Commit:
        """The head commit of `main`, after a commit of what loads changed since the last."""
        return record_main(self.tree(), self.layers_for)

    def resolve(self, ref: str) -> str:
        """The id of the commit of a ref: `main~3`, a tag, a commit; or an instant: the last commit of `main` by then.

        Raises: `NotFound`, kind `ref_not_found`, for an instant before the first commit.
        """
        if names_main(ref) or is_instant(ref):
            self.record()
        context = self.repository.context
        if is_instant(ref):
            return self._at_instant(parse_instant(ref), ref)
        with context.space.read() as tx:
            return context.graph.commit(tx, ref).id

    def _at_instant(self, instant: int, ref: str) -> str:
        for commit in self.log(MAIN, first_parent=True):
            if moment_of(commit) <= instant and commit.parents:
                return commit.id
        raise NotFound("there was no commit yet", kind="ref_not_found", ref=ref, hint="ask of a later time")

    def log(self, ref: str = MAIN, *, first_parent: bool = False) -> Iterator[Commit]:
        """The commits from a ref back, the newest first."""
        context = self.repository.context
        with context.space.read() as tx:
            start = context.graph.commit(tx, ref).id
            commits = context.graph.load(tx)
            yield from list(log(commits, start, Window(first_parent=first_parent)))

    def maps(self, ref: str) -> dict[str, MapEntry]:
        """The states of all maps at a ref; of a branch with what is staged."""
        return maps_of(self.repository.context, ref)

    def map(self, ref: str, name: str) -> MapEntry | None:
        """The state of a map at a ref; None when it is not there."""
        return entry_at_ref(self.repository.context, ref, name)

    def map_at(self, ref: str, name: str) -> MapEntry:
        """The state of a map at a ref.

        Raises: as `missing_map`.
        """
        entry = self.map(ref, name)
        if entry is None:
            raise missing_map(self.loading, name, ref=ref)
        return entry

    def create_map(self, branch: str, definition: MapDefinition, *, commit: bool, exist_ok: bool = False) -> None:
        """Enter a map on a branch; with `exist_ok` not where one of the same shape is.

        Raises: `AlreadyExists`.
        """
        there = self.map(branch, definition.name)
        if there is not None and exist_ok and there.definition.same_shape(definition):
            return
        if there is not None:
            raise map_exists(definition.name)
        change = StateChange(None, MapEntry(definition))
        self.change(branch, [change], Message(f"Create {definition.name}"), commit=commit)

    def change(
        self, branch: str, changes: Sequence[StateChange], words: Message, *, commit: bool,
        besides: Callable[[Transaction, Commit], None] | None = None,
    ) -> Commit | None:  # fmt: skip
        """Put new states of maps on a branch: staged, or as one commit, with what is staged; that commit.

        `besides` is done in the write that moves the branch.

        Raises: `Conflict`, kind `head_moved`; `Invalid`, kind `no_changes`.
        """
        with ExitStack() as stack:
            for change in changes:
                state = change.state or change.seen
                assert state is not None, "nothing becomes nothing"
                stack.enter_context(self.layers_for(state.definition).writing())
            if commit:
                return commit_changes(self.tree(words), branch, changes, besides=besides)
            for change in changes:
                stage_change(self.tree(), branch, change)
            return None

    def commit(self, ref: str) -> Commit:
        """The commit of a ref, see `resolve`."""
        id_, context = self.resolve(ref), self.repository.context
        with context.space.read() as tx:
            return get_commit(tx, context.graph.commits, id_)


def map_exists(name: str) -> AlreadyExists:
    """The error for a map that is to be made where one of its name is."""
    return AlreadyExists("the map exists", kind="map_exists", map=name, hint="choose another name")


def missing_map(loading: Loading, name: str, **refs: str | None) -> MillpondError:
    """The error for a map that is not at refs: `NotFound`; `Invalid`, kind `refs_store`, for one in a shard."""
    with loading.space.read() as tx:
        current = known_map(tx, name)
    if current is not None and current.store is Store.SHARD:
        return sharded_map(name)
    details: dict[str, Any] = {**refs}
    return NotFound("the map is not there at this ref", kind="map_not_found", map=name, **details)
