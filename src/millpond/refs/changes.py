"""New states of maps on a branch: staged, or committed together with all that is staged.

Invariants:
* a state is put in place of the one that it was made of: who comes late makes it anew, on top of what is there by then;
* the states of a commit become visible together, with its record, in one write;
* the files of a state are kept by its name before anybody can read of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from millpond.errors import Conflict, Invalid, NotFound
from millpond.kernel.space import Transaction
from millpond.kernel.steps import step
from millpond.ranges import fold
from millpond.refs.map_entries import MapEntry, counting, map_path
from millpond.refs.named import name_manifests
from millpond.versions.commits import Message, fold_view, same_state
from millpond.versions.graph.commits import MOMENT, Commit
from millpond.versions.objects.entries import CHANGES, IDENTITY, Entry, batch_of
from millpond.versions.reference import Reference
from millpond.versions.repository_context import COMPRESSION, RepositoryContext
from millpond.versions.staging.branch_head import Built, Moving, move_head
from millpond.versions.staging.reads import find_in_index
from millpond.versions.staging.writes import Condition, delete_paths, put_entry

__all__ = (
    "StateChange", "Tree", "commit_changes", "dated", "entry_at_ref", "head_moved", "moment_of", "stage_change",
    "tree_with",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StateChange:
    """A map's new state, None when it goes; `seen` is the one that it was made of, None when there was none."""

    seen: MapEntry | None
    state: MapEntry | None


@dataclass(frozen=True, slots=True)
class Tree:
    """The repository of maps, and the address of its pond."""

    context: RepositoryContext
    address: str
    message: Message = field(default_factory=Message)


def dated(words: Message, moment_ms: int) -> Message:
    """The words of a commit of that moment: its date counts seconds, and a load is never known before its commit."""
    return replace(words, created=moment_ms // 1000, metadata={**words.metadata, MOMENT: str(moment_ms)})


def moment_of(commit: Commit) -> int:
    """The moment of a commit; of one that does not tell it, the last of its second."""
    return commit.created * 1000 + 999 if commit.moment_ms is None else commit.moment_ms


def head_moved(name: str) -> Conflict:
    """The error for a state that was made of one that is not there any more."""
    return Conflict("the map changed meanwhile", kind="head_moved", map=name, hint="make the change again")


def entry_at_ref(context: RepositoryContext, expression: str, name: str) -> MapEntry | None:
    """The state of one map at a ref, None when it is not there.

    Raises: `NotFound`, `Invalid` for the ref.
    """
    try:
        return counting(context, Reference(context, expression).stat(map_path(name)))
    except NotFound as error:
        if error.kind != "entry_not_found":
            raise
        return None


def stage_change(tree: Tree, branch: str, change: StateChange) -> None:
    """Stage the new state of a map on a branch.

    Raises: `Conflict`, kind `head_moved`; `NotFound` for the branch.
    """
    context, state, seen = tree.context, change.state, change.seen
    if state is None:
        assert seen is not None, "nothing becomes nothing"
        delete_paths(context, branch, [map_path(seen.name)], force=True)
        return
    condition = Condition(absent=True) if seen is None else Condition(checksum=seen.recorded or seen.manifest)
    entry, mark = state.to_entry(tree.address, context.seconds()), context.clock.random_id()
    try:
        put_entry(
            context, branch, entry, condition, force=True, besides=lambda tx: name_manifests(tx, [state], mark)
        )  # fmt: skip
    except Conflict as error:
        raise head_moved(state.name) from error
    step("refs.staged")


def tree_with(tree: Tree, index: str, states: Mapping[str, MapEntry | None]) -> str:
    """The index of a state with other states of some maps; None takes a map out."""
    context = tree.context
    rows = [(name, state) for name, state in sorted(states.items())]
    puts = [
        Entry(map_path(name), "") if state is None else state.to_entry(tree.address, context.seconds())
        for name, state in rows
    ]  # fmt: skip
    batch = batch_of(puts)
    gone = pa.array([state is None for _, state in rows])
    changes = pa.RecordBatch.from_arrays([*batch.columns, gone], schema=CHANGES)
    return fold(context.ranges, context.index(index), [changes], same=IDENTITY, compression=COMPRESSION).index.id


def commit_changes(
    tree: Tree, branch: str, changes: Iterable[StateChange], *, allow_empty: bool = False,
    parents: Callable[[Commit], list[Commit]] = lambda head: [head], clean: bool = False,
    rest: Callable[[str], str] = str, besides: Callable[[Transaction, Commit], None] | None = None,
) -> Commit:  # fmt: skip
    """Commit new states of maps, and what is staged on the branch, as one commit. `rest` makes of the index of that
    the one that is committed.

    Raises: `Conflict`, kind `head_moved`, when a map is not what its change was made of; `Invalid`, kinds `no_changes`
    and, with `clean`, `branch_dirty`; `NotFound`, `Denied`; what `besides` raises.
    """
    context, listed = tree.context, list(changes)
    mark = context.clock.random_id()

    def build(moving: Moving) -> Built:
        index = fold_view(context, moving.view).index.id
        for change in listed:
            _check_seen(context, index, change)
        if listed:
            index = tree_with(tree, index, {_name(change): change.state for change in listed})
        index = rest(index)
        if not allow_empty and same_state(context, moving.head.tree, index):
            raise Invalid("no changes", kind="no_changes", branch=branch, commit=moving.head.id)
        return Built(dated(tree.message, context.clock.now_ms()).commit(context, index, parents(moving.head)))

    def name(tx: Transaction, commit: Commit) -> None:
        name_manifests(tx, (change.state for change in listed if change.state is not None), mark)
        if besides is not None:
            besides(tx, commit)

    commit = move_head(context, branch, "commit to", build, clean=clean, force=True, besides=name)
    step("refs.committed")
    return commit


def _name(change: StateChange) -> str:
    state = change.seen if change.state is None else change.state
    assert state is not None, "nothing becomes nothing"
    return state.name


def _check_seen(context: RepositoryContext, index: str, change: StateChange) -> None:
    entry = find_in_index(context, index, map_path(_name(change)))
    there = None if entry is None else counting(context, entry)
    seen = change.seen
    if (None if there is None else (there.folder, there.manifest)) != (
        None if seen is None else (seen.folder, seen.manifest)
    ):
        raise head_moved(_name(change))
