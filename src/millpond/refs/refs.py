"""The refs of a pond's maps: the repository `pond`, what is committed there, and merges between its branches.

refs = pond.refs
refs.create_branch("fix", "main")
refs.merge("fix", into="main")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from millpond.errors import AlreadyExists, Conflict, Invalid, NotFound
from millpond.maps.layered.head import Head, Layers
from millpond.maps.model.definition import MapDefinition
from millpond.refs.changes import StateChange, Tree, commit_changes, entry_at_ref, stage_change, tree_with
from millpond.refs.face import POND
from millpond.refs.layers import manifest_of
from millpond.refs.main import MAIN, NewHead, heads_now, publish, record_main
from millpond.refs.map_entries import MapEntry, maps_of, states_in
from millpond.refs.merges import MergedMap, Sides, merge_maps
from millpond.refs.named import release
from millpond.refs.repository import reset_main
from millpond.stores.objects import open_objects
from millpond.times.instants import parse_instant
from millpond.versions.commits import Message, no_changes
from millpond.versions.graph.commits import get_commit
from millpond.versions.graph.history import Window, log
from millpond.versions.merges import STRATEGY_NAME, Merging, Resolution, Strategy, common_base, merge_trees, pick
from millpond.versions.resets import reset_all, reset_hard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.clock import Clock
    from millpond.kernel.space import Space
    from millpond.maps.loads.loading import Loading
    from millpond.maps.snapshots.manifest import SnapshotManifest
    from millpond.versions.graph.commits import Commit
    from millpond.versions.repositories import Repositories
    from millpond.versions.repository import Repository

__all__ = ("OpenPond", "Refs")

TRIES_MAX = 100


class OpenPond(Protocol):
    """The part of an open pond that refs stand on."""

    folder: Path
    clock: Clock
    space: Space
    loading: Loading

    @property
    def repositories(self) -> Repositories: ...


@dataclass(frozen=True, slots=True)
class _Merge:
    """A merge into a branch: from its head, the base, the other side, and the parents of the commit besides the head.

    `words` name base, ours and theirs for people. `only`: no other maps, and no files.
    """

    sides_at: Callable[[Commit], tuple[Commit, Commit, list[Commit]]]
    words: tuple[str, str, str]
    options: Merging = field(default_factory=Merging)
    only: frozenset[str] | None = None

    def sides(self, states: Sequence[Mapping[str, MapEntry]]) -> Sides:
        """The states of the maps that are merged, on base, ours and theirs."""
        base, ours, theirs = (
            {name: state for name, state in side.items() if self.only is None or name in self.only} for side in states
        )  # fmt: skip
        return Sides(base, ours, theirs, self.words)


class Refs:
    """Branches, commits and tags of a pond's layered maps.

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

    def _tree(self, words: Message | None = None) -> Tree:
        site = replace(self.repository.site, composed="")  # maps are written here, and nowhere else
        return Tree(site, self.folder, words or Message())

    def layers_for(self, definition: MapDefinition) -> Layers:
        """The layers of `main` of a map, which others share the files of."""
        layers = None
        with suppress(NotFound):
            layers = self.loading.layers_of(definition.name)
        if layers is not None and layers.definition == definition:
            return layers
        objects = open_objects(self.folder / "snapshots" / f"{definition.name}.{definition.incarnation}")
        loading = self.loading
        return Layers(loading.space, loading.clock, objects, definition, loading.memory_max, loading.history_ms)

    # -- reading --------------------------------------------------------------------------------------

    def record(self) -> Commit:
        """The head commit of `main`, after a commit of what loads changed since the last."""
        return record_main(self._tree(), self.layers_for)

    def resolve(self, ref: str) -> str:
        """The id of the commit of a ref: `main~3`, a tag, a commit; or an instant: the last commit of `main` by then.

        Raises: `NotFound`, kind `ref_not_found`, for an instant before the first commit.
        """
        if ref == MAIN or ref.startswith((f"{MAIN}~", f"{MAIN}^", f"{MAIN}@")) or _is_instant(ref):
            self.record()
        site = self.repository.site
        if _is_instant(ref):
            return self._at_instant(parse_instant(ref) // 1000, ref)
        with site.space.read() as tx:
            return site.graph.commit(tx, ref).id

    def _at_instant(self, seconds: int, ref: str) -> str:
        for commit in self.log(MAIN, first_parent=True):
            if commit.created <= seconds and commit.parents:
                return commit.id
        raise NotFound("there was no commit yet", kind="ref_not_found", ref=ref, hint="ask of a later time")

    def log(self, ref: str = MAIN, *, first_parent: bool = False) -> Iterator[Commit]:
        """The commits from a ref back, the newest first."""
        site = self.repository.site
        with site.space.read() as tx:
            start = site.graph.commit(tx, ref).id
            commits = site.graph.load(tx)
            yield from list(log(commits, start, Window(first_parent=first_parent)))

    def maps(self, ref: str) -> dict[str, MapEntry]:
        """The states of all maps at a ref; of a branch with what is staged."""
        return maps_of(self.repository.site, ref)

    def map(self, ref: str, name: str) -> MapEntry | None:
        """The state of a map at a ref; None when it is not there."""
        return entry_at_ref(self.repository.site, ref, name)

    # -- changing -------------------------------------------------------------------------------------

    def create_map(self, branch: str, definition: MapDefinition, *, commit: bool) -> None:
        """Enter a map on a branch.

        Raises: `AlreadyExists`.
        """
        if self.map(branch, definition.name) is not None:
            raise AlreadyExists("the map exists", kind="map_exists", map=definition.name, hint="choose another name")
        change = StateChange(None, MapEntry(definition))
        self.change(branch, change, commit, f"Create {definition.name}")

    def create_branch(self, name: str, source: str = MAIN) -> None:
        """A new branch at the commit of a ref. Nothing is copied.

        Raises: `AlreadyExists`; `Invalid` for a name.
        """
        commit = self.resolve(source)
        self.repository.create_branch(name, commit)

    def delete_branch(self, name: str) -> None:
        """Delete a branch with what is staged on it. Tasks that read it end with `NotFound`, or what they hold open.

        Raises: `Denied` for `main`.
        """
        self.repository.delete_branch(name)
        release(self.repository.site)

    def change(self, branch: str, change: StateChange, commit: bool, words: str) -> Commit | None:
        """Put a new state of a map on a branch; with `commit` as one commit, with what is staged.

        Raises: `Conflict`, kind `head_moved`.
        """
        state = change.state or change.seen
        assert state is not None, "nothing becomes nothing"
        with self.layers_for(state.definition).writing():
            if commit:
                return commit_changes(self._tree(Message(words)), branch, [change])
            stage_change(self._tree(), branch, change)
        return None

    def commit(self, branch: str, message: str = "", *, allow_empty: bool = False) -> Commit:
        """Commit what is staged on a branch; on `main`, what loads changed.

        Raises: `Invalid`, kind `no_changes`.
        """
        tree = self._tree(Message(message or "Commit"))
        return record_main(tree, self.layers_for) if branch == MAIN else commit_changes(
            tree, branch, [], allow_empty=allow_empty
        )  # fmt: skip

    def merge(
        self, source: str, into: str = MAIN, *, message: str = "", strategy: str | Strategy = Strategy.DEFAULT,
        resolutions: Sequence[Resolution] = (), metadata: Mapping[str, str] | None = None,
        committer: str = "", squash: bool = False, allow_empty: bool = False,
    ) -> Commit:  # fmt: skip
        """Merge the commits of a ref into a branch, each map by key, files by path; the merge commit.

        A resolution whose path or prefix is `maps/weather` is about a map, `maps/weather/JFK` about a key, and others
        about files. The rest is as in `Branch.merge`.

        Raises: `MapMergeConflict`; `Invalid`, kinds `maps_differ`, `branch_dirty`, `no_changes`.
        """
        chosen = Strategy.parse(strategy)

        def sides(head: Commit) -> tuple[Commit, Commit, list[Commit]]:
            site = self.repository.site
            with site.space.read() as tx:
                theirs = site.graph.commit(tx, source)
            base = common_base(site, theirs.id, head.id)
            if theirs.id == base.id and not allow_empty:
                raise no_changes(into, head.id)
            return base, theirs, [] if squash or theirs.id == head.id else [theirs]

        about = {**(metadata or {}), STRATEGY_NAME: chosen.value}
        words = Message(message or f"Merge '{source}' into '{into}'", committer, about)
        named = f"{source} and {into}", into, source
        return self._merged(into, _Merge(sides, named, Merging(chosen, resolutions)), words)

    def revert(
        self, ref: str, branch: str = MAIN, *, message: str = "", parent_number: int | None = None,
        metadata: Mapping[str, str] | None = None, committer: str = "",
    ) -> Commit:  # fmt: skip
        """Undo a commit by a new one: each address becomes what it was before, where it is still what the commit made.

        Raises: `MapMergeConflict`; `Conflict`, kind `revert_parent`, for a merge without a parent's number;
        `Invalid`, kinds `branch_dirty`, `no_changes`.
        """
        commit, parent = self._picked(ref, parent_number, "revert")
        words = Message(message or f"Revert {commit.id}", committer, metadata or {})
        return self._merged(branch, _Merge(lambda _: (commit, parent, []), (ref, branch, f"{ref}^")), words)

    def cherry_pick(
        self, ref: str, branch: str = MAIN, *, message: str | None = None, parent_number: int | None = None,
        metadata: Mapping[str, str] | None = None, committer: str = "",
    ) -> Commit:  # fmt: skip
        """Make the changes of a commit again on a branch.

        Raises: as `revert`.
        """
        commit, parent = self._picked(ref, parent_number, "cherry-pick")
        about = {**(commit.metadata if metadata is None else metadata), "cherry-pick-origin": commit.id}
        words = Message(commit.message if message is None else message, committer, about)
        return self._merged(branch, _Merge(lambda _: (parent, commit, []), (f"{ref}^", branch, ref)), words)

    def restore(self, ref: str, branch: str = MAIN, *, maps: Sequence[str] = (), message: str = "") -> Commit:
        """Let maps, all of the ref or some, be on a branch what they are at a ref, by a new commit.

        Raises: `NotFound` for a map that is not there; `Invalid`, kinds `branch_dirty`, `no_changes`.
        """
        commit, states = self.resolve(ref), self.maps(self.resolve(ref))
        for name in maps:
            if name not in states:
                raise NotFound("the map is not there at this ref", kind="map_not_found", map=name, ref=ref)
        chosen = set(maps or states)
        words = Message(message or f"Restore {', '.join(sorted(chosen))} from {ref}")
        site = self.repository.site
        with site.space.read() as tx:
            theirs = get_commit(tx, site.graph.commits, commit)
        merge = _Merge(lambda head: (head, theirs, []), (branch, branch, ref), only=frozenset(chosen))
        return self._merged(branch, merge, words)

    def reset(self, branch: str, ref: str | None = None) -> None:
        """Take back what is staged on a branch; with a `ref`, also move its head there: `main` is restored instead.

        Raises: `Invalid`, kind `reset_main`.
        """
        site = self.repository.site
        if ref is not None and branch == MAIN:
            raise reset_main(ref)
        reset_all(site, branch, force=True)
        if ref is not None:
            reset_hard(site, branch, self.resolve(ref), force=True)
        release(site)

    def _picked(self, ref: str, parent_number: int | None, act: str) -> tuple[Commit, Commit]:
        def refused() -> Conflict:
            return Conflict(f"to {act} a merge, say the number of a parent", kind="revert_parent", ref=ref)

        picked = pick(self.repository.site, self.resolve(ref), parent_number, refused)
        if picked.parent is None:
            raise Invalid("the first commit has no parent", kind="parent_number", ref=ref, hint="name a later commit")
        return picked.commit, picked.parent

    # -- merging --------------------------------------------------------------------------------------

    def _merged(self, branch: str, merge: _Merge, message: Message) -> Commit:
        """Merge maps, and files, into a branch, from the states that the merge names."""
        site = self.repository.site
        for _ in range(TRIES_MAX):
            heads = self._heads(branch)
            with site.space.read() as tx:
                head = site.graph.commit(tx, f"{branch}@")
            base, theirs, more = merge.sides_at(head)
            sides = merge.sides([maps_of(site, commit.id) for commit in (base, head, theirs)])
            try:
                with self._writing(sides):
                    merged = merge_maps(
                        sides, self.layers_for, partial(self._manifest, heads=heads, ref=branch),
                        strategy=merge.options.strategy, resolutions=merge.options.resolutions,
                    )  # fmt: skip
                    rest = partial(self._with_files, base.tree, theirs.tree, merge)
                    return self._committed(branch, message, merged, heads, more, rest)
            except Conflict as error:
                if error.kind != "head_moved":
                    raise
        raise Conflict("the branch changes too often", kind="branch_moved", branch=branch, hint="try again")

    def _heads(self, branch: str) -> dict[str, Head]:
        """The heads of the maps on `main`, all recorded; none for another branch."""
        if branch != MAIN:
            return {}
        self.record()
        with self.loading.space.read() as tx:
            states = heads_now(tx)
        heads = {}
        for name, (entry, pointer) in states.items():
            manifest = manifest_of(self.layers_for(entry.definition), entry, MAIN)
            heads[name] = Head(pointer, manifest)
        return heads

    @contextmanager
    def _writing(self, sides: Sides) -> Iterator[None]:
        """Keep the files of all maps that a merge may write."""
        definitions = {state.folder: state.definition for side in (sides.ours, sides.theirs) for state in side.values()}
        with ExitStack() as held:
            for _, definition in sorted(definitions.items()):
                held.enter_context(self.layers_for(definition).writing())
            yield

    def _manifest(self, entry: MapEntry, heads: Mapping[str, Head], ref: str) -> SnapshotManifest | None:
        """The manifest of one of our states; on `main` that of the head, which may be folded since it was recorded."""
        head = heads.get(entry.name)
        if head is not None and head.version == entry.version:
            return head.manifest
        return manifest_of(self.layers_for(entry.definition), entry, ref)

    def _with_files(self, base: str, theirs: str, merge: _Merge, ours: str) -> str:
        """The index of ours, whose maps are those of the outcome, with what theirs changed of files."""
        site = self.repository.site
        outcome = states_in(site, ours)
        if merge.only is not None or all(
            site.index(index).count == len(states_in(site, index)) for index in (base, theirs)
        ):
            return ours  # there are no files

        def alike(index: str) -> str:
            states: dict[str, MapEntry | None] = dict.fromkeys(states_in(site, index))
            return tree_with(self._tree(), index, {**states, **outcome})

        return merge_trees(site, alike(base), ours, alike(theirs), merge.options)

    def _committed(
        self, branch: str, message: Message, merged: Sequence[MergedMap], heads: Mapping[str, Head],
        more: list[Commit], rest: Callable[[str], str],
    ) -> Commit:  # fmt: skip
        tree, changes = self._tree(message), [_state_change(change) for change in merged]

        def parents(head: Commit) -> list[Commit]:
            return [head, *more]

        if branch != MAIN:
            return commit_changes(tree, branch, changes, allow_empty=bool(more), parents=parents, clean=True, rest=rest)
        new = {}
        for change in merged:
            if change.definition is None:
                raise Invalid(
                    "a map is not dropped by a merge", kind="merge_drops_map", map=change.name,
                    hint=f"drop it by itself: drop_map({change.name!r})",
                )  # fmt: skip
            before = None if change.before is None else heads[change.name]
            new[change.name] = NewHead(change.definition, before, change.manifest, change.changed or 0)
        return publish(
            tree, self.loading, self.layers_for, changes, new, source=message.text, parents=parents,
            allow_empty=bool(more), rest=rest,
        )  # fmt: skip


def _state_change(change: MergedMap) -> StateChange:
    if change.definition is None:
        return StateChange(change.before, None)
    state = MapEntry(change.definition)
    return StateChange(change.before, state if change.manifest is None else state.with_manifest(change.manifest))


def _is_instant(ref: str) -> bool:
    """True for a ref that is a time: it begins with a date, as no branch that people make does."""
    return re.match(r"\d{4}-\d{2}-\d{2}(T|$)", ref) is not None
