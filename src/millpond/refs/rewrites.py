"""Rewriting a map on a branch: all its layers become one without the rows that go, as one commit.

Invariants:
* the commit has what the branch held when it was made, and what was staged: after a move meanwhile, rows are read anew;
* without such rows nothing is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from millpond.kernel.head import again_when_moved
from millpond.kernel.steps import step
from millpond.maps.layered.deletion import Deletion
from millpond.maps.layered.head import Layers
from millpond.maps.layered.retained import retained
from millpond.maps.layered.rows import count_layer, count_rows
from millpond.maps.predicates.predicate import predicate
from millpond.maps.snapshots.layers import LayerFold, fold_layers, substitute
from millpond.maps.snapshots.manifest import SnapshotManifest
from millpond.refs.changes import StateChange
from millpond.refs.layers import RefLayers, manifest_of
from millpond.refs.states import RefStates
from millpond.versions.commits import Message
from millpond.versions.graph.commits import Commit

__all__ = ("delete_rows", "maintain_rows", "without_rows")

Written = Callable[[RefLayers, "SnapshotManifest"], tuple[LayerFold, int]]
"""The layer of the rows that are left, and the number of those that go; below 0: none do, and yet it is to count."""


def delete_rows(
    states: RefStates, layers: RefLayers, where: str, *, purge: bool = False
) -> tuple[Commit | None, int]:  # fmt: skip
    """Delete the rows for which a condition holds; the commit, and how many there were. `purge`: rows that others hide
    go from the files, too.

    Raises: `Invalid` for a condition that the map cannot have; as `_rewritten`.
    """

    def written(layers: RefLayers, manifest: SnapshotManifest) -> tuple[LayerFold, int]:
        return without_rows(layers, manifest, where, purge=purge)

    words = f"Delete {layers.definition.name} where {where}"
    commit, count = _rewritten(states, layers, words, {"where": where}, written)
    return commit, max(count, 0)


def without_rows(layers: Layers, manifest: SnapshotManifest, where: str, *, purge: bool) -> tuple[LayerFold, int]:
    """The layer of the rows for which a condition does not hold, and how many go; -1 when a purge lets hidden ones go.

    Raises: as `delete_rows`.
    """
    deletion = Deletion(layers, predicate(layers.definition, where))
    output = deletion.output(manifest)
    if not deletion.gone and purge and len(manifest.layers) > 1:
        return fold_layers(layers.objects, manifest, manifest.layers, spill=layers.spill()), -1
    return LayerFold(manifest.layers, output, oldest=True), deletion.gone


def maintain_rows(states: RefStates, layers: RefLayers, what: str, before_ms: int) -> Commit | None:
    """Condense or retain a map before a time; the commit, None when no row goes.

    Raises: as `_rewritten`.
    """

    def written(layers: RefLayers, manifest: SnapshotManifest) -> tuple[LayerFold, int]:
        done = retained(layers, manifest, what, before_ms)
        left = 0 if done.output is None else count_layer(layers.objects, done.output)
        count = count_rows(layers.objects, manifest) - left
        return done, count or -int(done.rolled_up not in (None, manifest.aggregation))

    words = f"{what.capitalize()} {layers.definition.name}"
    return _rewritten(states, layers, words, {"before": str(before_ms)}, written)[0]


def _rewritten(
    states: RefStates, layers: RefLayers, words: str, about: Mapping[str, str], written: Written
) -> tuple[Commit | None, int]:
    """Let what is `written` count on the branch.

    Raises: `NotFound` when the branch, or the map on it, is gone; `Corrupt`; `Unavailable` when the disk is full.
    """

    def counted() -> tuple[Commit | None, int]:
        with replace(layers, definition=layers.state_now().definition).writing(rewrites=True):
            state = layers.state_now()  # again: a purge may have come in between
            here = replace(layers, definition=state.definition)
            manifest = manifest_of(here, state, here.ref)
            if (manifest is None or not manifest.layers) and here.definition.roll_up is None:
                return None, 0
            manifest = manifest or SnapshotManifest.empty(here.definition, created_ms=0)
            done, count = written(here, manifest)
            if not count:
                return None, 0
            step("refs.rewritten")
            changed = substitute(
                here.objects, manifest, done, created_ms=here.clock.now_ms(), spill=here.spill()
            )  # fmt: skip
            changed = here.stored(replace(changed, shard_version=state.version + 1))
            change = StateChange(state, state.with_manifest(changed))
            message = Message(words, metadata={**about, "rows_removed": str(max(count, 0))})
            return states.change(here.ref, [change], message, commit=True), count

    return again_when_moved(counted)
