"""Maintenance of a layered map: folding its layers, condensing and retaining them, collecting files.

| act | what it does |
|---|---|
| fold | replaces neighbouring layers by one that answers the same |
| condense, retain, delete | write all layers as one, without the rows that go; rolled up, with those in wider buckets |
| compact | folds all layers to one, and collects |

Invariants:
* an act replaces layers by one, where they lie, in one write of the space: readers see the map before or after it, and
  loads meanwhile stay on top. When another act replaced them first, it is looked at again what is to be done;
* an act that is cut off leaves files that nobody names, which the next collecting removes;
* running an act twice does nothing the second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from millpond.errors import Conflict, Corrupt, NotFound, Unavailable
from millpond.kernel.steps import step
from millpond.maps.layered.deletion import Deletion
from millpond.maps.layered.history import forget_aged, manifests_named
from millpond.maps.layered.retained import retained
from millpond.maps.layered.rows import check_fields
from millpond.maps.log.apply import record
from millpond.maps.log.queue import settings_of
from millpond.maps.maintenance.maintenance import MaintenanceReport
from millpond.maps.model.catalogue import same_map
from millpond.maps.predicates.predicate import predicate
from millpond.maps.snapshots.freeze import KEEP_MS, Collected, collect
from millpond.maps.snapshots.layers import LayerFold, bytes_after_load, fold_layers, layers_due, substitute
from millpond.maps.snapshots.leases import collecting
from millpond.maps.snapshots.manifest import Layer, SnapshotManifest
from millpond.maps.snapshots.stretches import Writes, write_here
from millpond.maps.snapshots.subset import collect_subsets
from millpond.stores.locks import alone
from millpond.stores.objects import FolderObjects

if TYPE_CHECKING:
    from millpond.kernel.space import Transaction
    from millpond.maps.layered.head import Head, Layers
    from millpond.maps.loads.loading import Loading
    from millpond.maps.log.log import Entry
    from millpond.maps.shard.shard import ShardStats

__all__ = (
    "LAYERS_AFTER_LOAD",
    "LAYERS_LATER",
    "carry_out",
    "collect_files",
    "compact",
    "delete",
    "fold_due",
    "fold_loaded",
    "folds_due",
    "has_many",
    "maintain",
    "maintaining",
    "tidy",
)

ACT_SECONDS = 600.0
"""The time limit of an act that waits for another one on the same map."""
LAYERS_AFTER_LOAD = 4
"""A lookup asks each of them; with fewer, small loads would spend their time folding."""
LAYERS_LATER = 12
"""The same on branches: differences and merges skip the layers that they share with others. And where files are far
away: a fold puts three, and those who ask fetch them; of most keys the filter of a layer says that it lacks them.
"""
COLLECT_EVERY_MS = 60_000

Turn: TypeAlias = Callable[[], AbstractContextManager[None]]
Shared: TypeAlias = "Callable[[SnapshotManifest], int]"


def fold_loaded(loading: Loading, names: Iterable[str], writes: Writes = write_here) -> None:
    """Fold what loads made due, where nobody else does; what fails is done by the next load. The node that serves a
    pond folds all that is due, in the background; a load itself only so much as follows what it brought.
    """
    for name in names:
        layers = loading.layers_of(name)
        with suppress(Unavailable, NotFound, Corrupt):
            head = None if layers is None else layers.head().manifest
            if layers is not None and head is not None and has_many(layers, head):
                turn = partial(loading.loads.groups.turn, {name})
                bytes_max = None if loading.served else bytes_after_load(head)
                folds = fold_due(
                    layers, bytes_max=bytes_max, wait_seconds=0, turn=turn, writes=writes,
                    shared=loading.shared_layers,
                )  # fmt: skip
                if folds and _collecting_due(loading, name):
                    collect_files(layers)


def folds_due(loading: Loading, name: str) -> bool:
    """True when so many layers lie on a map that some are folded after a load; False when that cannot be seen."""
    layers = loading.layers_of(name)
    with suppress(Unavailable, NotFound, Corrupt):
        if layers is not None and (head := layers.head().manifest) is not None:
            return has_many(layers, head)
    return False


def has_many(layers: Layers, manifest: SnapshotManifest, *, branch: bool = False) -> bool:
    """True for so many layers that some are folded after a load, on main or a branch."""
    return len(manifest.layers) > (LAYERS_LATER if branch or layers.objects.in_blocks else LAYERS_AFTER_LOAD)


def _collecting_due(loading: Loading, name: str) -> bool:
    """True now and then: to collect takes a look at all manifests of the last minutes."""
    now, collected_ms = loading.clock.now_ms(), loading.loads.collected_ms
    due = now - collected_ms.get(name, 0) >= COLLECT_EVERY_MS
    if due:
        collected_ms[name] = now
    return due


def fold_due(
    layers: Layers, *, everything: bool = False, bytes_max: int | None = None, wait_seconds: float = ACT_SECONDS,
    turn: Turn = nullcontext, writes: Writes = write_here, shared: Shared = lambda _: 0,
) -> int:  # fmt: skip
    """Fold the layers that are due, see `layers_due`; how many folds were made. In its `turn` no load of this process
    moves the head of the map, so that none is placed in vain. `writes` has the ranges written. `shared` tells of a
    state of an aggregate how many of its oldest layers another branch has: above them alone, folds leave merges what
    both sides brought.

    Raises: `Unavailable` when the disk is full, or another act keeps at the map; `Corrupt`, naming the file.
    """
    due = partial(_due, layers, everything=everything, bytes_max=bytes_max, shared=shared)
    if not due()[1]:
        return 0
    folds = 0
    with maintaining(layers, wait_seconds), layers.writing(rewrites=True):
        while True:
            head, inputs = due()
            if head.manifest is None or not inputs:
                return folds
            done = fold_layers(layers.objects, head.manifest, inputs, spill=layers.spill(), writes=writes)
            step("fold.written")
            with turn(), suppress(Conflict):  # another replaced them first: look again what is due
                _put_in_place(layers, done)
                folds += 1


def _due(
    layers: Layers, *, everything: bool, bytes_max: int | None, shared: Shared
) -> tuple[Head, Sequence[Layer]]:  # fmt: skip
    head = layers.head()
    if head.manifest is None:
        return head, ()
    apart = 0 if everything or head.manifest.aggregation is None else shared(head.manifest)
    return head, layers_due(head.manifest, everything=everything, bytes_max=bytes_max, shared=apart)


def maintaining(layers: Layers, seconds: float) -> AbstractContextManager[None]:
    """Be the only one who replaces layers of a map, among all processes of the machine; loads put theirs on top.

    Raises: `Unavailable`, kind `map_busy`, when somebody else keeps at it for long.
    """
    busy = Unavailable(
        "somebody else maintains the map", kind="map_busy", map=layers.definition.name, hint="try again when it is done"
    )
    assert isinstance(layers.objects, FolderObjects), "a pond is a folder"
    return alone(layers.objects.root / "fold.lock", seconds, busy)


def _put_in_place(
    layers: Layers, done: LayerFold, entry: Callable[[Transaction], Entry] | None = None, *, only: str = ""
) -> None:  # fmt: skip
    """Let one layer count in the place of others, over whatever the head is by now, or `only` over one manifest. With
    an `entry`, which is made in the same write, the map is changed; a fold changes nothing, and the version stays.

    Raises: `Conflict` when the others are not in the head any more as they were; kind `map_moved` when another counts.
    """

    def swap(tx: Transaction) -> None:
        layers.swap(tx, head, manifest, None if entry is None else entry(tx))

    while True:
        head, now = layers.head(), layers.clock.now_ms()
        before = head.manifest or SnapshotManifest.empty(layers.definition, created_ms=now)
        if only and before.id != only:
            raise Conflict("a load came in between", kind="map_moved", map=layers.definition.name, hint="try again")
        changed = substitute(layers.objects, before, done, created_ms=now, spill=layers.spill())
        manifest = layers.stored(replace(changed, shard_version=head.version + (entry is not None)))
        try:
            layers.space.write(swap)
        except Conflict as error:
            if error.kind != "head_moved":
                raise
            continue
        step("fold.switched")
        return


def collect_files(layers: Layers, *, purge: bool = False) -> Collected | None:
    """Remove the files that no manifest needs; None while somebody writes. `purge`: also those of the history.

    Raises: `Corrupt` when what is retained cannot be read: then nothing is removed.
    """
    with collecting(layers.objects) as free:
        if not free:
            return None
        manifest, now = layers.head().manifest, layers.clock.now_ms()
        forget_aged(layers.space, layers.definition, now - (0 if purge else layers.history_ms))
        step("collect.history_forgotten")
        with layers.space.read() as tx:
            manifests = manifests_named(tx, layers.definition)
        keep_ms = 0 if purge else KEEP_MS
        collected = collect(layers.objects, manifest, now_ms=now, keep_ms=keep_ms, reachable=manifests)
    if manifest is not None and isinstance(layers.objects, FolderObjects):
        collect_subsets(layers.objects, manifest, now_ms=now, keep_ms=keep_ms)
    return collected


def tidy(layers: Layers, shared: Shared) -> bool:
    """Fold what is due, see `fold_due`, and collect; True when something was folded.

    Raises: as `fold_due`.
    """
    folds = 0 if layers.definition.maintenance_suspended else fold_due(layers, shared=shared)
    with suppress(Corrupt, NotFound):  # what only an older manifest names stays, until that can be read
        collect_files(layers)
    return folds > 0


# -- acts that people order ---------------------------------------------------------------------------


def compact(
    loading: Loading, layers: Layers, stats: Callable[[], ShardStats], writes: Writes = write_here
) -> MaintenanceReport:
    """Fold all layers to one, and collect.

    Raises: as `fold_due`.
    """
    began, before = loading.clock.monotonic(), stats()
    with loading.writing():
        folds = fold_due(layers, everything=True, writes=writes)
        with suppress(Corrupt, NotFound):
            collect_files(layers)
    return _report(loading, layers, began, before, stats(), changes=folds)


def maintain(
    loading: Loading, layers: Layers, what: str, before_ms: int, stats: Callable[[], ShardStats],
    act: Callable[[], object] | None = None,
) -> MaintenanceReport:  # fmt: skip
    """Condense or retain a map: all its layers as one, without the rows that go; an entry of the log, or, on a branch,
    what `act` does.

    Raises: `Unavailable` when another act keeps at the map, or the disk is full; `Corrupt`; `NotFound`.
    """
    definition, began, before = layers.definition, loading.clock.monotonic(), stats()
    due = what == "retain" or definition.kind.timed
    if not due or definition.maintenance_suspended:
        return replace(_report(loading, layers, began, before, before), suspended=due)

    with loading.reports.job("maintenance", act=what, map=definition.name) as job:
        job.running()
        if act is None:
            carry_out(loading, layers, what, before_ms)
        else:
            act()
        after = stats()
        job.note(rows_removed=before.rows - after.rows)
    return _report(loading, layers, began, before, after, changes=1)


def carry_out(loading: Loading, layers: Layers, what: str, before_ms: int) -> Entry:
    """Condense, retain or roll up all layers as one; its entry in the log, made in the same write.

    Raises: as `maintain`.
    """

    with loading.space.read() as tx:
        layers = replace(layers, definition=same_map(tx, layers.definition))

    def written(manifest: SnapshotManifest) -> LayerFold:
        return retained(layers, manifest, what, before_ms)

    roll_up = layers.definition.roll_up
    facts = {"before": before_ms} | ({} if roll_up is None or what != "retain" else {"roll_up": roll_up})
    entry = _rewrite(loading, layers, what, written, lambda: facts)
    assert entry is not None, "it is entered, whatever it does"
    return entry


def delete(loading: Loading, layers: Layers, where: str) -> Entry | None:
    """Write all layers as one, without the rows for which a condition holds; its entry in the log, which says how many
    there were, made in the same write. None when there were none.

    Raises: `Invalid` for a condition that the map cannot have; as `maintain`.
    """
    deletion = Deletion(layers, predicate(layers.definition, where))

    def written(manifest: SnapshotManifest) -> LayerFold:
        return LayerFold(manifest.layers, deletion.output(manifest), oldest=True)

    with ExitStack() as stack:
        if not layers.definition.kind.keyed:
            # A load of ranges is put together with the groups under it, and would bring back what goes.
            stack.enter_context(loading.loads.alone())
        while True:
            try:
                return _rewrite(
                    loading, layers, "delete", written, lambda: {"where": where, "rows_removed": deletion.gone}
                )  # fmt: skip
            except Conflict as error:
                if error.kind != "map_moved":
                    raise


def _rewrite(
    loading: Loading, layers: Layers, what: str, written: Callable[[SnapshotManifest], LayerFold],
    facts: Callable[[], dict[str, Any]],
) -> Entry | None:  # fmt: skip
    """Let what is `written` take the place of all, with an entry in the log; a delete of no rows is none."""
    entries: list[Entry] = []

    def enter(tx: Transaction) -> Entry:
        current = same_map(tx, layers.definition)
        body = {"incarnation": current.incarnation, "settings": settings_of(current), **facts()}
        entries.append(record(tx, what, (current.name,), body, loading.clock.now_ms()))
        return entries[-1]

    with loading.writing(), maintaining(layers, ACT_SECONDS), layers.writing(rewrites=True):
        manifest = layers.head().manifest or SnapshotManifest.empty(layers.definition, created_ms=0)
        check_fields(layers.definition, manifest)
        done = None
        if manifest.layers or "roll_up" in facts():  # without rows it holds for those that come late
            done = written(manifest)
            step(f"{what}.written")
        if what == "delete" and not facts()["rows_removed"]:
            return None
        if done is not None:
            # The lock that keeps loads of ranges away is not seen by other machines.
            ranged = what == "delete" and not layers.definition.kind.keyed
            only = manifest.id if ranged else ""
            _put_in_place(layers, done, enter, only=only)
        else:
            loading.space.write(enter)
    loading.loads.announce()
    return entries[-1]


def _report(
    loading: Loading, layers: Layers, began: float, before: ShardStats, after: ShardStats, *, changes: int = 0
) -> MaintenanceReport:
    return MaintenanceReport(
        map=layers.definition.name, rows_before=before.rows, rows_removed=before.rows - after.rows,
        rows_after=after.rows, bytes_before=before.bytes, bytes_after=after.bytes, changes=changes, suspended=False,
        seconds=loading.clock.monotonic() - began,
    )  # fmt: skip
