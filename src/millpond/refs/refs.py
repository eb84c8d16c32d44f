"""The refs of a pond's maps: the repository `pond`, what is committed there, and merges between its branches.

refs = pond.refs
refs.create_branch("fix", "main")
refs.merge("fix", into="main")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from types import NoneType

import pyarrow as pa

from millpond.argument_types import need_count, need_type
from millpond.deferred import opened_once
from millpond.errors import Conflict, Invalid
from millpond.kernel.listed import Listed
from millpond.maps.layered.head import Head, rewriting_maps
from millpond.maps.layered.secured import collected_terms
from millpond.maps.model.definition import check_name
from millpond.maps.snapshots.manifest import SnapshotManifest
from millpond.refs.changes import StateChange, commit_changes, moment_of, tree_with
from millpond.refs.diffs import compared, difference_page, map_differences
from millpond.refs.epochs import epochs_brought, without_epochs
from millpond.refs.face import MAIN
from millpond.refs.layers import manifest_of
from millpond.refs.main import NewHead, heads_now, publish, record_main
from millpond.refs.map_entries import MapEntry, maps_of, states_in
from millpond.refs.merges import MapMergeConflict, MergedMap, Sides, merge_maps
from millpond.refs.named import release
from millpond.refs.repository import MapsRepository, reset_main
from millpond.refs.states import OpenPond, RefStates, missing_map
from millpond.refs.unrecorded import RENAMED, rows_in, rows_of
from millpond.versions.commits import Message, no_changes
from millpond.versions.graph.commits import Commit, get_commit
from millpond.versions.graph.history import Load, is_ancestor
from millpond.versions.merges import STRATEGY_NAME, Merging, Resolutions, Strategy, common_base, merge_trees, pick
from millpond.versions.repository import Repository
from millpond.versions.resets import reset_all, reset_hard

__all__ = ("Need", "Refs", "guarded")

TRIES_MAX = 100
Need = Callable[..., None]
"""Insists on a right on maps: its arguments are the right and their names."""


@dataclass(frozen=True, slots=True)
class _Merge:
    """A merge into a branch: from its head, the base, the other side, and the parents of the commit besides the head.

    `words` name base, ours and theirs for people. `only`: no other maps, and no files. `brings`: its rows are of
    epochs that the other side has, all, or those `since` a commit.
    """

    sides_at: Callable[[Commit], tuple[Commit, Commit, list[Commit]]]
    words: tuple[str, str, str]
    options: Merging = field(default_factory=Merging)
    only: frozenset[str] | None = None
    brings: bool = False
    since: str | None = None

    def epochs(self, load: Load, ours: str, theirs: str) -> dict[str, str]:
        """The metadata of the commit about the epochs of streams that it brings."""
        return epochs_brought(load, ours, theirs, since=self.since, maps=self.only) if self.brings else {}

    def sides(self, states: Sequence[Mapping[str, MapEntry]]) -> Sides:
        """The states of the maps that are merged, on base, ours and theirs."""
        base, ours, theirs = (
            {name: state for name, state in side.items() if self.only is None or name in self.only} for side in states
        )  # fmt: skip
        return Sides(base, ours, theirs, self.words)


@dataclass(frozen=True, slots=True)
class _Parents:
    """The parents of a merge commit: the head by then, and `more`; `exact`: only the head that it was planned on."""

    head: Commit
    more: list[Commit]
    exact: bool

    def __call__(self, head: Commit) -> list[Commit]:
        if self.exact and head.id != self.head.id:  # epochs may have come, which the commit would have to tell
            raise Conflict("the branch moved meanwhile", kind="head_moved", hint="make the change again")
        return [head, *self.more]


class Refs:
    """Branches, commits and tags of a pond's layered maps.

    Methods raise `NotFound` for a ref that is not there, `Invalid` for text that is no ref.
    """

    def __init__(self, pond: OpenPond, need: Need = lambda _right, *_maps: None) -> None:
        """`need` refuses whoever lacks a right on maps: to write those that a merge into `main` changes, to read those
        of which a merge elsewhere may name keys.
        """
        self.states, self.pond, self._need = RefStates(pond), pond, need
        self.folder, self.clock = pond.folder, pond.clock

    @opened_once
    def repository(self) -> Repository:
        """The repository `pond`, made when it is first asked for."""
        return self.states.repository

    def resolve(self, ref: str) -> str:
        """The id of the commit of a ref: `main~3`, a tag, a commit; or a time: the last commit of `main` by then."""
        return self.states.resolve(ref)

    def log(self, ref: str = MAIN, *, first_parent: bool = False) -> Iterator[Commit]:
        """The commits from a ref back, the newest first."""
        commits = self.states.log(self.states.resolve(ref), first_parent=first_parent)
        return Listed(f"the log of {ref}", commits)

    def create_branch(self, name: str, source: str = MAIN) -> None:
        """A new branch at the commit of a ref. Nothing is copied.

        Raises: `AlreadyExists`; `Invalid` for a name.
        """
        commit = self.states.resolve(source)
        self.states.repository.create_branch(name, commit)

    def delete_branch(self, name: str) -> None:
        """Delete a branch with what is staged on it. Tasks that read it end with `NotFound`, or what they hold open.

        Raises: `Denied` for `main`.
        """
        self.states.repository.delete_branch(name)
        release(self.states.repository.context)

    def commit(self, branch: str, message: str = "", *, allow_empty: bool = False) -> Commit:
        """Commit what is staged on a branch; on `main`, what loads changed.

        Raises: `Invalid`, kind `no_changes`.
        """
        need_type("branch", branch, str)
        tree = self.states.tree(Message(message or "Commit"))
        return record_main(tree, self.states.layers_for) if branch == MAIN else commit_changes(
            tree, branch, [], allow_empty=allow_empty
        )  # fmt: skip

    def merge(
        self, source: str, into: str = MAIN, *, message: str = "", strategy: str | Strategy = Strategy.DEFAULT,
        resolutions: Resolutions = (), metadata: Mapping[str, str] | None = None,
        committer: str = "", squash: bool = False, allow_empty: bool = False,
    ) -> Commit:  # fmt: skip
        """Merge the commits of a ref into a branch, each map by key, files by path; the merge commit.

        A resolution whose path or prefix is `maps/weather` is about a map, `maps/weather/JFK` about a key, and others
        about files; `{"maps/weather/JFK": "source"}` is one, too. The rest is as in `Branch.merge`.

        Raises: `MapMergeConflict`; `Invalid`, kinds `maps_differ`, `branch_dirty`, `no_changes`.
        """
        merging = Merging.of(strategy, resolutions)

        def sides(head: Commit) -> tuple[Commit, Commit, list[Commit]]:
            context = self.states.repository.context
            theirs = self.states.commit(source)
            base = common_base(context, theirs.id, head.id)
            if theirs.id == base.id and not allow_empty:
                raise no_changes(into, head.id)
            return base, theirs, [] if squash or theirs.id == head.id else [theirs]

        need_type("metadata", metadata, Mapping, NoneType)
        about = {**(metadata or {}), STRATEGY_NAME: merging.strategy.value}
        words = Message(message or f"Merge '{source}' into '{into}'", committer, about)
        named = f"{source} and {into}", into, source
        return self._merged(into, _Merge(sides, named, merging, brings=True), words)

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
        before = f"{ref}^{parent_number or ''}"
        with _ways_out(
            f"load what these keys shall be, or restore the map from {before}",
            f"on a branch from {before} load what else came since, and restore the map from it",
        ):
            return self._merged(branch, _Merge(lambda _: (commit, parent, []), (ref, branch, before)), words)

    def cherry_pick(
        self, ref: str, branch: str = MAIN, *, message: str | None = None, parent_number: int | None = None,
        metadata: Mapping[str, str] | None = None, committer: str = "",
    ) -> Commit:  # fmt: skip
        """Make the changes of a commit again on a branch.

        Raises: as `revert`.
        """
        commit, parent = self._picked(ref, parent_number, "cherry-pick")
        need_type("metadata", metadata, Mapping, NoneType)
        about = {**(without_epochs(commit) if metadata is None else metadata), "cherry-pick-origin": commit.id}
        words = Message(commit.message if message is None else message, committer, about)
        with _ways_out(
            f"load there what these keys shall be, or restore the map from {ref}", f"load there what {ref} brought"
        ):
            sides, named = (parent, commit, list[Commit]()), (f"{ref}^", branch, ref)
            return self._merged(branch, _Merge(lambda _: sides, named, brings=True, since=parent.id), words)

    def restore(self, ref: str, branch: str = MAIN, *, maps: Sequence[str] = (), message: str = "") -> Commit:
        """Let maps, all of the ref or some, be on a branch what they are at a ref, by a new commit.

        Raises: `NotFound` for a map that is not there; `Invalid`, kinds `branch_dirty`, `no_changes`.
        """
        need_type("maps", maps, Iterable)
        commit, states = self.states.resolve(ref), self.states.maps(self.states.resolve(ref))
        for name in maps:
            need_type("maps", name, str)
            if name not in states:
                raise missing_map(self.states.loading, name, ref=ref)
        chosen = set(maps or states)
        words = Message(message or f"Restore {', '.join(sorted(chosen))} from {ref}")
        context = self.states.repository.context
        with context.space.read() as tx:
            theirs = get_commit(tx, context.graph.commits, commit)
        words_of = branch, branch, ref
        merge = _Merge(lambda head: (head, theirs, []), words_of, only=frozenset(chosen), brings=True)
        return self._merged(branch, merge, words)

    def reset(self, branch: str, ref: str | None = None) -> None:
        """Take back what is staged on a branch; with a `ref`, also move its head there: `main` is restored instead.

        Raises: `Invalid`, kind `reset_main`.
        """
        context = self.states.repository.context
        if ref is not None and branch == MAIN:
            raise reset_main(ref)
        if ref is None:
            reset_all(context, branch, force=True)
        else:
            reset_hard(context, branch, self.states.resolve(ref), force=True)
        release(context)

    def _picked(self, ref: str, parent_number: int | None, act: str) -> tuple[Commit, Commit]:
        def refused() -> Conflict:
            return Conflict(f"to {act} a merge, say the number of a parent", kind="revert_parent", ref=ref)

        picked = pick(self.states.repository.context, self.states.resolve(ref), parent_number, refused)
        if picked.parent is None:
            raise Invalid("the first commit has no parent", kind="parent_number", ref=ref, hint="name a later commit")
        return picked.commit, picked.parent

    # -- comparing ------------------------------------------------------------------------------------

    def diff(
        self, left: str, right: str | None = None, *, map: str | None = None, three_dots: bool = False,
        limit: int | None = None, only_of: Callable[[str], bool] = lambda name: True,
    ) -> pa.Table:  # fmt: skip
        """The addresses that differ between two refs, see `diffs.py`; with a `map` of it alone, in its own types.

        `three_dots`: what `right` changed since both parted. Without `right`: what is staged on the branch `left`.
        `limit`: at most so many. `only_of`: says of the name of a map if its addresses count.

        Raises: `Invalid`, kind `maps_differ`; `NotFound` for a map that is at neither.
        """
        need_count("limit", limit, NoneType)
        sides = compared(self.states, left, right, map=map, three_dots=three_dots, only_of=only_of)
        return difference_page(map_differences(sides.old, sides.new, self.states.layers_for), sides, limit=limit)[0]

    def history(
        self, map: str, ref: str = MAIN, *, limit: int | None = None, only_of: Callable[[str], bool] = lambda name: True
    ) -> pa.Table:  # fmt: skip
        """The commits that changed a map, back from a ref along first parents, the newest first; behind a merge those
        that it brought.

        Columns: `time`, `commit`, `message`, `version` of the map, `rows` that were loaded or changed, those `removed`
        (null: not known, or none), `source`. A map that was renamed is followed to its old name, if `only_of` takes it.
        """
        need_count("limit", limit, NoneType)
        commits = self.log(ref, first_parent=True)
        rows = list(islice(self._changes_of(check_name(map), commits, only_of, ()), limit))
        return pa.Table.from_pylist([dict(zip(_HISTORY.names, row, strict=True)) for row in rows], _HISTORY)

    def _changes_of(
        self, map: str, commits: Iterable[Commit], only_of: Callable[[str], bool], there: tuple[str, ...]
    ) -> Iterator[tuple[object, ...]]:
        """The rows of these commits, of which the last is another's; what is `there` is told of by others."""
        later: Commit | None = None
        shown: MapEntry | None = None
        for commit in commits:
            entry = self.states.map(commit.id, map)
            if later is not None and shown is not None and not shown.same_state(entry):
                yield _row_of(later, shown)
                if len(later.parents) > 1:
                    before = (*there, later.parents[0])
                    yield from self._changes_of(map, self._brought(later.parents[1], before), only_of, before)
                renamed = later.metadata.get(RENAMED)
                if entry is None and renamed is not None and only_of(renamed):
                    map, entry = renamed, self.states.map(commit.id, renamed)
            later, shown = commit, entry

    def _brought(self, head: str, there: tuple[str, ...]) -> list[Commit]:
        """The commits from a head back along first parents, to the first that the commits `there` have."""
        context, commits = self.states.repository.context, list[Commit]()
        parents: tuple[str, ...] = (head,)
        with context.space.read() as tx:
            load = context.graph.load(tx)
            while parents:
                commits.append(load(parents[0]))
                parents = commits[-1].parents
                if any(is_ancestor(load, commits[-1].id, newer) for newer in there):
                    break
        return commits

    # -- merging --------------------------------------------------------------------------------------

    def _merged(self, branch: str, merge: _Merge, message: Message) -> Commit:
        """Merge maps, and files, into a branch, from the states that the merge names."""
        context = self.states.repository.context
        for _ in range(TRIES_MAX):
            terms = collected_terms(context.space)
            heads = self._heads(branch)
            with context.space.read() as tx:
                head = context.graph.commit(tx, f"{branch}@")
            base, theirs, more = merge.sides_at(head)
            with context.space.read() as tx:
                epochs = merge.epochs(context.graph.load(tx), head.id, theirs.id)
            sides = merge.sides([maps_of(context, commit.id) for commit in (base, head, theirs)])
            self._check_rights(branch, sides)
            try:
                with self._writing(sides):
                    if collected_terms(context.space) != terms:
                        continue  # files of these sides may have gone
                    merged = merge_maps(
                        sides, self.states.layers_for, partial(self._manifest, heads=heads, ref=branch),
                        strategy=merge.options.strategy, resolutions=merge.options.resolutions,
                    )  # fmt: skip
                    rest = partial(self._with_files, base.tree, theirs.tree, merge)
                    parents = _Parents(head, more, exact=bool(epochs))
                    return self._committed(branch, message, merged, heads, parents, epochs, rest)
            except Conflict as error:
                if error.kind != "head_moved":
                    raise
        raise Conflict("the branch changes too often", kind="branch_moved", branch=branch, hint="try again")

    def _check_rights(self, branch: str, sides: Sides) -> None:
        changed = [name for name in {*sides.base, *sides.theirs} if sides.base.get(name) != sides.theirs.get(name)]
        if branch != MAIN:
            changed = [name for name in changed if sides.base.get(name) != sides.ours.get(name)]
        if changed:
            self._need("write" if branch == MAIN else "read", *sorted(changed))
        gone = [name for name in changed if branch == MAIN and name in sides.ours and name not in sides.theirs]
        if gone:
            self._need("admin", *sorted(gone))

    def _heads(self, branch: str) -> dict[str, Head]:
        """The heads of the maps on `main`, all recorded; none for another branch."""
        if branch != MAIN:
            return {}
        self.states.record()
        with self.states.loading.space.read() as tx:
            states = heads_now(tx)
        heads = {}
        for name, (entry, pointer) in states.items():
            manifest = manifest_of(self.states.layers_for(entry.definition), entry, MAIN)
            heads[name] = Head(pointer, manifest)
        return heads

    def _writing(self, sides: Sides) -> AbstractContextManager[None]:
        """Keep the files of all maps that a merge may write."""
        definitions = {state.folder: state.definition for side in (sides.ours, sides.theirs) for state in side.values()}
        return rewriting_maps([self.states.layers_for(definition) for _, definition in sorted(definitions.items())])

    def _manifest(self, entry: MapEntry, heads: Mapping[str, Head], ref: str) -> SnapshotManifest | None:
        """The manifest of one of our states; on `main` that of the head, which may be folded since it was recorded."""
        head = heads.get(entry.name)
        if head is not None and head.version == entry.version:
            return head.manifest
        return manifest_of(self.states.layers_for(entry.definition), entry, ref)

    def _with_files(self, base: str, theirs: str, merge: _Merge, ours: str) -> str:
        """The index of ours, whose maps are those of the outcome, with what theirs changed of files."""
        context = self.states.repository.context
        outcome = states_in(context, ours)
        if merge.only is not None or all(
            context.index(index).count == len(states_in(context, index)) for index in (base, theirs)
        ):
            return ours  # there are no files

        def alike(index: str) -> str:
            states: dict[str, MapEntry | None] = dict.fromkeys(states_in(context, index))
            return tree_with(self.states.tree(), index, {**states, **outcome})

        return merge_trees(context, alike(base), ours, alike(theirs), merge.options)

    def _committed(
        self, branch: str, message: Message, merged: Sequence[MergedMap], heads: Mapping[str, Head],
        parents: _Parents, epochs: Mapping[str, str], rest: Callable[[str], str],
    ) -> Commit:  # fmt: skip
        counts = {change.name: change.changed for change in merged if change.changed is not None}
        about = {**message.metadata, **(rows_in(counts) if counts else {}), **epochs}
        tree = self.states.tree(replace(message, metadata=about))
        changes, empty = [_state_change(change) for change in merged], bool(parents.more)
        if branch != MAIN:
            return commit_changes(tree, branch, changes, allow_empty=empty, parents=parents, clean=True, rest=rest)
        new = {
            change.name: NewHead(
                change.definition, None if change.before is None else heads[change.name], change.manifest,
                change.changed or 0, change.gone,
            ) for change in merged
        }  # fmt: skip
        commit = publish(
            tree, self.states.loading, self.states.layers_for, changes, new, source=message.text, parents=parents,
            allow_empty=empty, rest=rest,
        )  # fmt: skip
        for change in merged:
            if change.gone is not None:
                self.pond.catalogue.dropped(change.gone)
        return commit


@contextmanager
def _ways_out(hint: str, of_aggregates: str) -> Iterator[None]:
    """Let a conflict say what can be done where nobody chooses a side; of aggregates, whose rules do not tell."""
    try:
        yield
    except MapMergeConflict as error:
        error.hint = of_aggregates if "inexact" in error.values else hint
        raise


def _state_change(change: MergedMap) -> StateChange:
    if change.definition is None:
        return StateChange(change.before, None)
    state = MapEntry(change.definition)
    return StateChange(change.before, state if change.manifest is None else state.with_manifest(change.manifest))


_HISTORY = pa.schema([
    ("time", pa.timestamp("ms", tz="UTC")), ("commit", pa.string()), ("message", pa.string()),
    ("version", pa.int64()), ("rows", pa.int64()), ("removed", pa.int64()), ("source", pa.string()),
])  # fmt: skip


def _row_of(commit: Commit, entry: MapEntry) -> tuple[object, ...]:
    removed = commit.metadata.get("rows_removed")
    return (
        moment_of(commit), commit.id, commit.message, entry.version, rows_of(commit, entry.name),
        None if removed is None else int(removed), commit.metadata.get("source"),
    )  # fmt: skip


def guarded(repository: Repository, need: Need) -> Repository:
    """The repository for somebody who may not change every map, see `Refs`; another one as it is."""
    if not isinstance(repository, MapsRepository):
        return repository
    pond = repository.refs().pond
    return MapsRepository(repository.context, repository.record, lambda: Refs(pond, need))
