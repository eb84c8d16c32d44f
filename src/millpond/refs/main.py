"""`main`: the state of a map there is the head of the map, which loads move; commits say what it was.

Loads on `main` pay nothing for commits. Whoever needs one (a branch, a tag, a merge, a log) first *records* `main`:
a commit of each entry of the log that changed maps since the last, with its time, from the history that maps keep. A
merge into `main` is recorded with it.

Invariants:
* a recorded commit is what the heads of all maps were after an entry of the log;
* a fold is no change: its head has the version that was recorded;
* a commit that is merged into `main` moves the heads of its maps, the branch and the log in one write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from millpond.kernel.head import again_when_moved
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.kernel.steps import step
from millpond.maps.alerts.alerted import put_alerted
from millpond.maps.alerts.judging import Judged, judged
from millpond.maps.layered.head import Head, Layers
from millpond.maps.layered.history import changes_of
from millpond.maps.loads.layered_load import LayerContent
from millpond.maps.loads.loading import Loading
from millpond.maps.log.apply import load_body, record
from millpond.maps.model.catalogue import created_map, known_map, list_maps
from millpond.maps.model.definition import MapDefinition, Store
from millpond.maps.model.snapshot_pointer import Pointer, read_pointer
from millpond.maps.snapshots.manifest import SnapshotManifest, load_manifest
from millpond.ranges.files import content_id
from millpond.refs.changes import StateChange, Tree, commit_changes, head_moved, tree_with
from millpond.refs.face import MAIN
from millpond.refs.map_entries import MapEntry, maps_of
from millpond.refs.named import name_manifests
from millpond.refs.unrecorded import Step, unrecorded
from millpond.versions.graph.commits import Commit
from millpond.versions.staging.branch_head import Built, Moving, move_head

__all__ = ("LayersFor", "NewHead", "heads_now", "publish", "record_main")

LayersFor = Callable[["MapDefinition"], "Layers"]


def heads_now(tx: ReadTransaction) -> dict[str, tuple[MapEntry, Pointer]]:
    """The states of all layered maps, with the pointers that they were read from."""
    heads = {}
    for definition in list_maps(tx):
        if definition.store is not Store.LAYERS:
            continue
        pointer = read_pointer(tx, definition.name)
        current = pointer.current
        if current is None or current.incarnation != definition.incarnation:
            heads[definition.name] = MapEntry(definition), Pointer(pointer.revision)
        else:
            heads[definition.name] = MapEntry(definition, current.manifest, current.shard_version), pointer
    return heads


def record_main(tree: Tree, layers_for: LayersFor) -> Commit:
    """The head of `main`, after a commit of each entry of the log that changed maps since.

    Of very many the first are one commit.

    Raises: `NotFound`, `Corrupt` for manifests; as `move_head`.
    """

    def recorded() -> Commit:
        head, steps = _unrecorded(tree)
        if not steps:
            return head
        names = {name for step_ in steps for name in step_.states}
        with ExitStack() as stack:
            for name, (entry, _) in sorted(_heads(tree).items()):
                if name in names:
                    stack.enter_context(layers_for(entry.definition).writing())
            # Read again: what counts now stays, whoever folds, until it is named.
            head, steps = _unrecorded(tree)
            return _recorded(tree, head, [_sized(step_, layers_for) for step_ in steps]) if steps else head

    return again_when_moved(recorded)


def _heads(tree: Tree) -> dict[str, tuple[MapEntry, Pointer]]:
    with tree.context.space.read() as tx:
        return heads_now(tx)


def _unrecorded(tree: Tree) -> tuple[Commit, list[Step]]:
    """The head commit of `main`, and what changed since, the oldest first."""
    with tree.context.space.read() as tx:
        head = tree.context.graph.commit(tx, MAIN)
        heads = {name: entry for name, (entry, _) in heads_now(tx).items()}
        history = {name: changes_of(tx, name) for name in heads}
    return head, unrecorded(tree, maps_of(tree.context, head.id), heads, history)


def _sized(step_: Step, layers_for: LayersFor) -> Step:
    """The step with the sizes of its manifests, which are there."""
    for name, state in step_.states.items():
        if state is not None and state.manifest:
            manifest = load_manifest(layers_for(state.definition).objects, state.manifest)
            # The fields that were in force then: they may have changed since.
            then = replace(state.definition, value=manifest.definition.value, fields=manifest.fields)
            step_.states[name] = replace(state, definition=then, size=len(manifest.to_bytes()))
    return step_


def _recorded(tree: Tree, head: Commit, steps: Sequence[Step]) -> Commit:
    context, mark = tree.context, tree.context.clock.random_id()

    def build(moving: Moving) -> Built:
        if moving.head.id != head.id:
            raise head_moved(", ".join(steps[0].states))
        commits, index = [head], head.tree
        for step_ in steps:
            index = tree_with(tree, index, step_.states)
            commits.append(step_.message().commit(context, index, [commits[-1]]))
        compacted = moving.record.compacted_index
        if compacted is not None:
            for step_ in steps:
                compacted = tree_with(tree, compacted, step_.states)
        return Built(commits[-1], moving.record.sealed, compacted, tuple(commits[1:-1]))

    def name(tx: Transaction, _: Commit) -> None:
        states = (state for step_ in steps for state in step_.states.values() if state is not None)
        name_manifests(tx, states, mark)

    commit = move_head(context, MAIN, None, build, force=True, besides=name)
    step("refs.recorded")
    return commit


@dataclass(frozen=True, slots=True)
class NewHead:
    """A map that a commit changes on `main`: its definition; its head before and after, None where it is not there.

    `gone`: the map that `before` is of, which is dropped; without a `definition` no other takes its name.
    """

    definition: MapDefinition | None
    before: Head | None
    manifest: SnapshotManifest | None
    rows: int = 0
    gone: MapDefinition | None = None

    @property
    def seen(self) -> Head | None:
        """The head that the map goes on from; None for a new map."""
        return self.before if self.gone is None else None


def publish(
    tree: Tree, loading: Loading, layers_for: LayersFor, changes: Sequence[StateChange],
    heads: Mapping[str, NewHead], *, source: str, parents: Callable[[Commit], list[Commit]], allow_empty: bool = False,
    rest: Callable[[str], str] = str,
) -> Commit:  # fmt: skip
    """Commit states of maps on `main`, and let them count, all together.

    Raises: `Conflict`, kind `head_moved`, when one of the maps was changed meanwhile; as `commit_changes`.
    """

    alerts = [outcome for head in heads.values() if (outcome := _judged(layers_for, head)) is not None]

    def move(tx: Transaction, commit: Commit) -> None:
        for head in heads.values():
            _drop(tx, loading, head)
            _define(tx, loading, head)
        now = loading.clock.now_ms()
        moved = {
            name: (head.definition, head.manifest, head) for name, head in heads.items()
            if head.definition is not None and head.manifest is not None
        }  # fmt: skip
        contents = [
            LayerContent(content_id(f"{commit.id} {manifest.id}".encode()), name, made.incarnation, head.rows, 0)
            for name, (made, manifest, head) in moved.items()
        ]  # fmt: skip
        if not contents:
            return
        body = load_body(tx, loading.clock.random_id(), contents, source=source, rejected=0, stream=None)
        entry = record(tx, "load", tuple(body["maps"]), body, now)
        for name, (made, manifest, head) in moved.items():
            # The pointer of a dropped map of that name stays, without one.
            seen = head.seen or Head(Pointer(read_pointer(tx, name).revision), None)
            layers_for(made).swap(tx, seen, manifest, entry)
        put_alerted(tx, entry, alerts)

    commit = commit_changes(
        tree, MAIN, changes, allow_empty=allow_empty, parents=parents, clean=True, rest=rest, besides=move
    )  # fmt: skip
    step("refs.published")
    if alerts:
        loading.tell_alerts()
    loading.loads.announce()
    return commit


def _judged(layers_for: LayersFor, head: NewHead) -> Judged | None:
    if head.manifest is None or head.definition is None:
        return None
    return judged(layers_for(head.definition), None if head.seen is None else head.seen.manifest, head.manifest)


def _drop(tx: Transaction, loading: Loading, head: NewHead) -> None:
    """Drop the map of the name, if it is still the one that goes."""
    gone, before = head.gone, head.before
    if gone is None or before is None:
        return
    if known_map(tx, gone.name) != gone or read_pointer(tx, gone.name).revision != before.pointer.revision:
        raise head_moved(gone.name)
    body = {"incarnation": gone.incarnation}
    record(tx, "drop", (gone.name,), body, loading.clock.now_ms(), keep=loading.loads.keep)


def _define(tx: Transaction, loading: Loading, head: NewHead) -> None:
    """Let the catalogue have the definition of a map that is new, or has other settings."""
    definition = head.definition
    if definition is None:
        return
    if head.seen is None:
        created_map(tx, definition, exist_ok=False)
    elif known_map(tx, definition.name) == definition:
        return
    act = "create" if head.seen is None else "alter"
    record(tx, act, (definition.name,), {"definition": definition.to_dict()}, loading.clock.now_ms())
