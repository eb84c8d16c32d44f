"""Deleting the rows of a map for which a condition holds, and purging what was deleted.

| store | the rows are gone | their bytes are gone |
|---|---|---|
| `shard` | in bounded changes, after the loads before it | when it is compacted, and parts and snapshots expired |
| `layers` | in one write: all layers become one without them | when nobody needs the snapshots of before |

Invariants:
* a delete is one entry of the log, with its condition and the number of rows that it held for then; none without rows;
* loads that are entered after it are not touched by it;
* a purge reads all files that are left, and names each place that has such rows still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import pyarrow as pa

from millpond.error_values import ShownAsTable
from millpond.errors import Invalid, Unavailable
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.kernel.steps import step
from millpond.maps.layered.head import Layers
from millpond.maps.layered.history import manifests_named
from millpond.maps.layered.maintenance import collect_files, fold_due
from millpond.maps.layered.maintenance import delete as delete_layers
from millpond.maps.layered.rows import batches_of_spans
from millpond.maps.layered.secured import map_busy
from millpond.maps.loads.bucket_purges import purge_files
from millpond.maps.loads.loading import LetGo, Loading
from millpond.maps.loads.merge_queue import Merged, merge_map
from millpond.maps.loads.retention import let_go
from millpond.maps.log.apply import record
from millpond.maps.log.log import Entry, head_of
from millpond.maps.log.queue import Queued, maintenance_orders, queued_parts, settings_of
from millpond.maps.maintenance.maintenance import compact
from millpond.maps.model.catalogue import same_map
from millpond.maps.model.definition import MapDefinition, folder_name
from millpond.maps.model.keyspaces import RETAINED
from millpond.maps.model.snapshot_pointer import move_pointer
from millpond.maps.predicates.predicate import Predicate, Where, predicate
from millpond.maps.predicates.taken import taken_rows
from millpond.maps.predicates.to_text import worded
from millpond.maps.shard.shard import Shard
from millpond.maps.snapshots.freeze import collect
from millpond.maps.snapshots.leased import MapSnapshots
from millpond.maps.snapshots.leases import collecting, pinned_until
from millpond.maps.snapshots.manifest import LayerMode, SnapshotManifest, list_manifests
from millpond.maps.snapshots.named import named_in
from millpond.maps.snapshots.rows_of_groups import GroupSpan
from millpond.maps.snapshots.subset import collect_subsets
from millpond.sizes import human_count, human_span
from millpond.stores.locks import alone
from millpond.stores.objects import FolderObjects, Objects

__all__ = ("DeleteReport", "Left", "condition_text", "delete_from_layers", "delete_from_shard", "purge_layers",
           "rows_held")  # fmt: skip

LOCK_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteReport(ShownAsTable):
    """The result of a delete. `position`: of its entry in the log, or of the last one when there were no such rows.

    `purged`: no file of the map has such rows any more; `left` names those that have, and who keeps them. `changed`: a
    line for each branch, tag and merge base that lost rows, too. `commit`: of a delete on a branch.
    """

    map: str
    rows_removed: int
    rows_after: int
    position: int
    purged: bool
    left: tuple[str, ...]
    seconds: float
    commit: str = ""
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """The outcome of a purge: a line for each place that has such rows still, and for each ref that lost some."""

    lines: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


def condition_text(definition: MapDefinition, where: Where) -> str:
    """A condition as text, as the log tells it.

    Raises: `Invalid` for no condition, for one that is not understood, and for one that text cannot say.
    """
    predicate(definition, where)
    words = worded(definition, where)
    if not words.text or words.rest is not None:
        raise Invalid(
            "a delete needs a condition that text can say", kind="delete_condition", map=definition.name,
            where=repr(where)[:200], hint="write text, as \"key = 'JFK'\"; to delete all rows, drop the map",
        )  # fmt: skip
    return words.text


def delete_from_shard(
    loading: Loading, shard: Shard, snapshots: MapSnapshots, where: str, *, now: bool, branches: bool
) -> DeleteReport:  # fmt: skip
    """Delete rows of a shard after the loads before it; `now`: purge them, `branches`: from all refs.

    Raises: `Unavailable` when somebody else keeps the map busy for long, or the disk is full; `NotFound`.
    """
    began, condition = loading.clock.monotonic(), predicate(shard.definition, where)
    left = Left()
    with loading.writing():
        entry = _ordered(loading, shard, where, condition)
        if now:
            left = _purge_shard(loading, shard, snapshots, condition, where if branches else "")
    return _report(loading, shard.definition, entry, shard.stats().rows, began, now, left)


def _report(
    loading: Loading, definition: MapDefinition, entry: Entry | None, rows: int, began: float, now: bool, left: Left
) -> DeleteReport:  # fmt: skip
    with loading.space.read() as tx:
        position = head_of(tx).position if entry is None else entry.position
    return DeleteReport(
        map=definition.name, rows_removed=0 if entry is None else entry.body["rows_removed"], rows_after=rows,
        position=position, purged=now and not left.lines, left=left.lines, changed=left.changed,
        seconds=loading.clock.monotonic() - began,
    )  # fmt: skip


def _ordered(loading: Loading, shard: Shard, where: str, condition: Predicate) -> Entry | None:
    """The entry of a delete that was carried out; None without such rows."""
    while True:
        merge_map(loading.loads, shard, Merged())
        with shard.exclusive():
            with shard.view() as view:
                rows = _count(shard.definition, condition, view.read_rows())
            if not rows:
                return None
            entry = loading.space.write(lambda tx, rows=rows: _enter(tx, loading, shard, where, rows))  # type: ignore[misc]
            if entry is None:
                continue  # a load came meanwhile, and stands before it
            step("delete.ordered")
            merge_map(loading.loads, shard, Merged())
        loading.loads.announce()
        return entry


def _enter(tx: Transaction, loading: Loading, shard: Shard, where: str, rows: int) -> Entry | None:
    current = same_map(tx, shard.definition)
    if _waits(tx, current.name):
        return None
    body = {"incarnation": current.incarnation, "where": where, "rows_removed": rows, "settings": settings_of(current)}
    return record(tx, "delete", (current.name,), body, loading.clock.now_ms())


def _waits(tx: ReadTransaction, name: str) -> bool:
    return next(chain(queued_parts(tx, name), maintenance_orders(tx, name)), None) is not None


def _count(definition: MapDefinition, condition: Predicate, rows: Iterator[pa.RecordBatch]) -> int:
    return sum(int(taken_rows(definition, condition, batch).sum()) for batch in rows)


def delete_from_layers(
    loading: Loading, layers: Layers, where: str, rows: Callable[[], int], *, now: bool, branches: bool
) -> DeleteReport:  # fmt: skip
    """Delete rows of layers, of all loads before it; `now`: purge them, `branches`: from all refs. `rows` counts those
    of the map.

    Raises: as `delete_from_shard`; `Corrupt`, naming the file.
    """
    began = loading.clock.monotonic()
    entry = delete_layers(loading, layers, where)
    left = purge_layers(loading, layers, where, branches=branches) if now else Left()
    return _report(loading, layers.definition, entry, rows(), began, now, left)


# -- purging ------------------------------------------------------------------------------------------


def purge_layers(loading: Loading, layers: Layers, where: str, *, branches: bool = False) -> Left:
    """Remove the files of a map that hold rows which a condition takes, from its history and past commits; `branches`:
    also from all that is in use.

    Raises: `Unavailable` while somebody writes into the map; `Corrupt`.
    """
    objects, unread = layers.objects, [0]
    condition = predicate(layers.definition, where)
    count = partial(_rows_in, objects, layers.definition, condition)

    def held() -> dict[str, int]:
        if not objects.collected:
            unread[:] = [purge_files(loading, layers, count)]
        elif collect_files(layers, purge=True) is None:
            raise map_busy(layers.definition.name)
        return rows_held(objects, layers.definition, condition)

    with loading.writing():
        fold_due(layers, everything=True)
        left, refs = _let_go_of_commits(loading, layers.definition, held, where if branches else "")
    lines = _lines(objects, left, refs.holders, loading.clock.now_ms())
    loads = [f"{human_count(unread[0], 'file')} of loads that have not been entered: not read; delete again then"]
    return Left((*lines, *(loads if unread[0] else ()), *loading.beyond_purges()), refs.changed)


def _let_go_of_commits(
    loading: Loading, definition: MapDefinition, held: Callable[[], dict[str, int]], where: str
) -> tuple[dict[str, int], LetGo]:
    """The snapshots that are `held`, with their rows, when only what is in use keeps some; and who keeps each. `where`:
    what is in use loses such rows.
    """
    left, refs = held(), LetGo()
    with loading.space.read() as tx:
        manifests = named_in(tx, folder_name(definition))
    if manifests & left.keys():
        refs = loading.let_go(definition, manifests & left.keys(), where)
        left = held()
    with loading.space.read() as tx:
        return left, replace(refs, holders=manifests_named(tx, definition) | dict(refs.holders))


def _purge_shard(
    loading: Loading, shard: Shard, snapshots: MapSnapshots, condition: Predicate, where: str
) -> Left:  # fmt: skip
    name, objects = shard.definition.name, snapshots.objects
    with shard.exclusive():
        if shard.stats().bytes:
            shard.change(lambda _: None, None)  # or the keys that changes touched stay listed
    compact(shard, clock=loading.clock)
    with loading.space.read() as tx:
        retained = [Queued.from_json(row) for _, row in tx.scan(RETAINED.range())]
    let_go(loading.loads, [part for part in retained if part.map == name])
    loading.space.write(lambda tx: move_pointer(tx, name, None))  # or its layers would hide such rows, and have them
    manifest, now = snapshots.freeze(), loading.clock.now_ms()
    busy = Unavailable("somebody else is freezing the map", kind="map_busy", map=name, hint="delete again")

    def held() -> dict[str, int]:
        with loading.space.read() as tx:
            manifests = manifests_named(tx, shard.definition)
        with alone(shard.folder / "freeze.lock", LOCK_SECONDS, busy), collecting(objects) as free:
            if not free:  # of a map that was layered, branches may still load into this folder
                raise map_busy(shard.definition.name)
            collect(objects, manifest, now_ms=now, keep_ms=0, reachable=manifests)
            if isinstance(objects, FolderObjects):
                collect_subsets(objects, manifest, now_ms=now, keep_ms=0)
        return rows_held(objects, shard.definition, condition)

    left, refs = _let_go_of_commits(loading, shard.definition, held, where)
    step("delete.purged")
    lines = _lines(objects, left, refs.holders, loading.clock.now_ms())
    return Left((*lines, *_elsewhere(loading, shard, condition)), refs.changed)


def _elsewhere(loading: Loading, shard: Shard, condition: Predicate) -> Iterator[str]:
    """A line for each place beside the snapshots of a shard that may have such rows."""
    name = shard.definition.name
    with shard.view() as view:
        rows = _count(shard.definition, condition, view.read_rows())
    if rows:
        yield f"{rows} rows that were loaded since"
    for part in loading.loads.queue.quarantined():
        if part.map == name:
            yield f"quarantine/{part.number:012d}-{name}: not read; retry it, or load what it brought again"
    copies = loading.folder / "copies"
    for copy in copies.rglob("*"):
        if copy.is_file():
            yield f"copies/{copy.relative_to(copies)}: not read; it goes minutes after a backup or node has it all"


def rows_held(objects: Objects, definition: MapDefinition, condition: Predicate) -> dict[str, int]:
    """The snapshots among objects whose files hold rows that a condition takes, and how many."""
    counted = {manifest.id: _rows_in(objects, definition, condition, manifest) for manifest in list_manifests(objects)}
    return {id_: rows for id_, rows in counted.items() if rows}


def _rows_in(objects: Objects, definition: MapDefinition, condition: Predicate, manifest: SnapshotManifest) -> int:
    """The rows in the files of a manifest that a condition takes, also those that others hide."""
    return sum(
        _count(definition, condition, chain.from_iterable(batches_of_spans(objects, layer, GroupSpan())))
        for layer in _alone(manifest.shown_as(definition))
    )


def _lines(objects: Objects, held: Mapping[str, int], holders: Mapping[str, str], now_ms: int) -> Iterator[str]:
    for id_, rows in held.items():
        until_ms = pinned_until(objects, id_)
        pinned = f"a backup or a job has pinned it for {human_span(until_ms - now_ms)} more: delete again then"
        holder = holders.get(id_, pinned if until_ms > now_ms else "somebody has it open")
        yield f"snapshot {id_[:12]}: {human_count(rows, 'row')}; {holder}"


def _alone(manifest: SnapshotManifest) -> Iterator[SnapshotManifest]:
    """Each layer as a snapshot of its own: rows that others hide count."""
    for layer in manifest.layers:
        yield replace(manifest, layers=(replace(layer, mode=LayerMode.WHOLE),), sections=None)
