"""Letting go of manifests whose rows are to be purged: commits of the past lose them, what is in use keeps them.

| named by | | with a condition, for a purge of all refs |
|---|---|---|
| a branch, with what is staged | stays: its rows are deleted there | they are deleted, as a commit there |
| a tag | stays, until the tag is deleted | its commit has the map without the rows from then on |
| the merge base of two branches | stays: without it they could not be merged | as a tag |
| other commits | is let go: who asks there gets `ref_collected` | |
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import combinations

from millpond.errors import Invalid
from millpond.kernel.space import Transaction
from millpond.kernel.steps import step
from millpond.maps.loads.loading import LetGo
from millpond.maps.model.definition import MapDefinition, folder_name
from millpond.maps.model.keyspaces import NAMED
from millpond.maps.snapshots.layers import substitute
from millpond.maps.snapshots.manifest import load_manifest
from millpond.refs.changes import StateChange, commit_changes
from millpond.refs.face import MAIN
from millpond.refs.layers import RefLayers
from millpond.refs.map_entries import MapEntry
from millpond.refs.rewrites import delete_rows, without_rows
from millpond.refs.stand_ins import StandIn, put_stand_in
from millpond.refs.states import RefStates
from millpond.sizes import human_count
from millpond.versions.collect import Marked
from millpond.versions.commits import Message
from millpond.versions.merges import common_base

__all__ = ("let_go",)


def let_go(
    states: RefStates, definition: MapDefinition, manifests: Collection[str], where: str = ""
) -> LetGo:  # fmt: skip
    """Let go of those manifests of a map that only commits of the past name; the others, with who names each. `where`:
    what is in use loses the rows for which this condition holds.

    Raises: `Corrupt`, `NotFound` when a commit cannot be read: then all stay.
    """
    states.record()
    _record_fold(states, definition, manifests)
    changed = [*_deleted_on_branches(states, definition, manifests, where)] if where else []
    context, folder = states.repository.context, folder_name(definition)
    keys = [NAMED.pack(folder, id_) for id_ in sorted(manifests)]
    with context.space.read() as tx:
        rows = {key: tx.get(key) for key in keys}
    held: dict[str, MapEntry] = {}
    holders: dict[str, str] = {}
    for expression, words in _in_use(states):  # later than the rows: what was named in between has another mark
        state = states.map(expression, definition.name)
        if state is not None and state.folder == folder and state.manifest in manifests:
            held.setdefault(state.manifest, state)
            holders.setdefault(state.manifest, words)
    retained = {NAMED.pack(folder, id_) for id_ in holders}

    def act(tx: Transaction) -> None:
        for key, row in rows.items():
            if row is not None and key not in retained and tx.get(key) == row:
                tx.delete(key)

    context.space.write(act)
    step("refs.let_go")
    for id_, state in held.items() if where else ():
        if count := _written_anew(states, state, where):
            holder, _, _ = holders.pop(id_).partition(":")
            changed.append(f"{holder}: {human_count(max(count, 0), 'row')}")
    return LetGo(holders, tuple(changed))


def _deleted_on_branches(
    states: RefStates, definition: MapDefinition, manifests: Collection[str], where: str
) -> Iterator[str]:  # fmt: skip
    """Delete the rows on each branch but `main` whose state is one of those manifests; a line for each commit."""
    for name in sorted(Marked.read(states.repository.context).branches):
        state = None if name == MAIN else states.map(name, definition.name)
        if state is None or state.folder != folder_name(definition) or state.manifest not in manifests:
            continue
        with suppress(Invalid):  # the map is another there, and has no such field: it is named
            commit, count = delete_rows(states, _layers_on(states, name, state), where, purge=True)
            step("refs.deleted_on_branch")
            if commit is not None:
                yield f"branch {name}: {human_count(count, 'row')}, commit {commit.id[:12]}"


def _layers_on(states: RefStates, branch: str, state: MapEntry) -> RefLayers:
    layers = states.layers_for(state.definition)
    return RefLayers(
        space=layers.space, clock=layers.clock, objects=layers.objects, definition=layers.definition,
        memory_max=layers.memory_max, history_ms=layers.history_ms, ref=branch,
        state_now=lambda: states.map_at(branch, state.name),
    )  # fmt: skip


def _written_anew(states: RefStates, state: MapEntry, where: str) -> int:
    """Let the state of a map without the rows stand in for it; how many went, as `without_rows` says."""
    layers, context = states.layers_for(state.definition), states.repository.context
    with layers.writing(rewrites=True):
        manifest = load_manifest(layers.objects, state.manifest)
        try:
            done, count = without_rows(layers, manifest, where, purge=True)
        except Invalid:  # the map has no such field there: it is named
            return 0
        if count:
            changed = substitute(
                layers.objects, manifest, done, created_ms=layers.clock.now_ms(), spill=layers.spill()
            )  # fmt: skip
            new = state.with_manifest(layers.stored(replace(changed, shard_version=manifest.shard_version)))
            step("refs.written_anew")
            mark, stand_in = context.clock.random_id(), StandIn(new.manifest, new.size)
            context.space.write(lambda tx: put_stand_in(tx, state.folder, state.manifest, stand_in, mark))
            step("refs.stands_in")
    return count


def _record_fold(states: RefStates, definition: MapDefinition, manifests: Collection[str]) -> None:
    """Let the head commit of `main` name the fold that its map is by now, where it names one of the manifests."""
    entry, head = states.map(f"{MAIN}@", definition.name), states.layers_for(definition).head().manifest
    if entry is None or head is None or entry.manifest not in manifests or entry.version != head.shard_version:
        return
    if entry.manifest != head.id:
        words = Message(f"Purge {definition.name}")
        commit_changes(states.tree(words), MAIN, [StateChange(entry, entry.with_manifest(head))])


def _in_use(states: RefStates) -> Iterator[tuple[str, str]]:
    """The refs whose states are in use, and what is to be done there."""
    context = states.repository.context
    marked = Marked.read(context)
    for name in sorted(marked.branches):
        for expression in (name, f"{name}@"):
            yield expression, f"branch {name}: delete them there with --branch {name} --now, or delete the branch"
    for id_ in sorted(marked.tags):
        yield id_, f"a tag of commit {id_[:12]}: delete the tag"
    heads = {name: record.commit_id for name, record in sorted(marked.branches.items())}
    for (left, one_head), (right, other_head) in combinations(heads.items(), 2):
        with suppress(Invalid):  # they have none
            base = common_base(context, one_head, other_head)
            yield base.id, f"the merge base of {left} and {right}: merge or delete one of them"
