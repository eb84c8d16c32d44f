"""`main`: the state of a map there is the head of the map, which loads move; commits say what it was.

Loads on `main` pay nothing for commits. Whoever needs one (a branch, a tag, a merge, a log) first *records* `main`:
one commit of all maps whose heads are not what the last commit says. A merge into `main` is recorded with it.

Invariants:
* a recorded commit is what the heads of all maps were at one moment;
* a fold is no change: its head has the version that was recorded;
* a commit that is merged into `main` moves the heads of its maps, the branch and the log in one write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from millpond.errors import Conflict, Invalid
from millpond.kernel.steps import step
from millpond.maps.layered.head import Head
from millpond.maps.loads.layered_load import LayerContent
from millpond.maps.log.apply import load_body, record
from millpond.maps.model.catalogue import created_map, known_map, list_maps
from millpond.maps.model.definition import Store
from millpond.maps.model.snapshot_pointer import Pointer, read_pointer
from millpond.ranges.files import content_id
from millpond.refs.changes import StateChange, Tree, commit_changes
from millpond.refs.map_entries import MapEntry, maps_of

if TYPE_CHECKING:
    from millpond.kernel.space import ReadTransaction, Transaction
    from millpond.maps.layered.head import Layers
    from millpond.maps.loads.loading import Loading
    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.snapshots.manifest import SnapshotManifest
    from millpond.versions.graph.commits import Commit

__all__ = ("MAIN", "LayersFor", "NewHead", "heads_now", "publish", "record_main")

MAIN = "main"
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
    """The head of `main`, after a commit of what loads changed since.

    Raises: as `commit_changes`.
    """
    site = tree.site
    while True:
        changes = _unrecorded(tree)
        if not changes:
            with site.space.read() as tx:
                return site.graph.commit(tx, MAIN)
        with ExitStack() as held:
            for change in changes:
                if change.state is not None:
                    held.enter_context(layers_for(change.state.definition).writing())
            # Read again: what counts now stays, whoever folds, until it is named.
            changes = [_sized(change, layers_for) for change in _unrecorded(tree)]
            names = sorted({(change.state or change.seen).name for change in changes})  # type: ignore[union-attr]
            words = replace(tree.message, text=tree.message.text or f"Change {', '.join(names)}")
            try:
                return commit_changes(replace(tree, message=words), MAIN, changes)
            except Conflict as error:
                if error.kind != "head_moved":
                    raise
            except Invalid as error:
                if error.kind != "no_changes":
                    raise


def _unrecorded(tree: Tree) -> list[StateChange]:
    """The maps whose heads are not what the head commit of `main` says."""
    recorded = maps_of(tree.site, f"{MAIN}@")
    with tree.site.space.read() as tx:
        heads = {name: entry for name, (entry, _) in heads_now(tx).items()}
    changed = [StateChange(recorded.get(name), entry) for name, entry in heads.items()
               if not entry.same_state(recorded.get(name))]  # fmt: skip
    return changed + [StateChange(entry, None) for name, entry in recorded.items() if name not in heads]


def _sized(change: StateChange, layers_for: LayersFor) -> StateChange:
    if change.state is None or not change.state.manifest:
        return change
    manifest = layers_for(change.state.definition).head().manifest
    if manifest is None or manifest.id != change.state.manifest:
        return change
    return StateChange(change.seen, change.state.with_manifest(manifest))


@dataclass(frozen=True, slots=True)
class NewHead:
    """A map that a commit changes on `main`: its definition; its head before and after, None where it is not there."""

    definition: MapDefinition
    before: Head | None
    manifest: SnapshotManifest | None
    rows: int = 0


def publish(
    tree: Tree, loading: Loading, layers_for: LayersFor, changes: Sequence[StateChange],
    heads: Mapping[str, NewHead], *, source: str, parents: Callable[[Commit], list[Commit]], allow_empty: bool = False,
    rest: Callable[[str], str] = str,
) -> Commit:  # fmt: skip
    """Commit states of maps on `main`, and let them count, all together.

    Raises: `Conflict`, kind `head_moved`, when one of the maps was changed meanwhile; as `commit_changes`.
    """

    def move(tx: Transaction, commit: Commit) -> None:
        for head in heads.values():
            _define(tx, loading, head)
        now = loading.clock.now_ms()
        contents = [
            LayerContent(
                content_id(f"{commit.id} {head.manifest.id}".encode()), name, head.definition.incarnation, head.rows, 0
            )
            for name, head in heads.items() if head.manifest is not None
        ]  # fmt: skip
        if not contents:
            return
        body = load_body(tx, loading.clock.random_id(), contents, source=source, rejected=0, stream=None)
        entry = record(tx, "load", tuple(body["maps"]), body, now)
        for head in heads.values():
            if head.manifest is not None:
                layers = layers_for(head.definition)
                layers.swap(tx, _seen(head), head.manifest, entry)

    commit = commit_changes(
        tree, MAIN, changes, allow_empty=allow_empty, parents=parents, clean=True, rest=rest, besides=move
    )  # fmt: skip
    step("refs.published")
    loading.loads.announce()
    return commit


def _seen(head: NewHead) -> Head:
    return Head(Pointer(), None) if head.before is None else head.before


def _define(tx: Transaction, loading: Loading, head: NewHead) -> None:
    """Let the catalogue have the definition of a map that is new, or has other settings."""
    definition = head.definition
    if head.before is None:
        created_map(tx, definition, exist_ok=False)
    elif known_map(tx, definition.name) == definition:
        return
    act = "create" if head.before is None else "alter"
    record(tx, act, (definition.name,), {"definition": definition.to_dict()}, loading.clock.now_ms())
