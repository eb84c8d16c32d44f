"""Merge: the parts of loads into the shard of their map, in one transaction.

Invariants:
* a load becomes visible in its map as a whole or not at all, and merging it again changes nothing:
  the shard remembers the last load it absorbed, and its position in the log, in the same transaction;
* several loads merged together leave the rows, and the times they were put, that one after another leave;
* rows of an aggregate are added to those that are there, once: a part that comes again is noted in table `added`, in
  the same transaction. They are added load by load, part by part: so doubles are rounded alike on all nodes;
* parts are merged in the order of the loads, and within a load in its order; of rows with the same address the later
  part's wins, or where the map said `overwrite=False` when the load was entered, the first stays;
* the first part of a map becomes its shard: the file is moved, or copied where parts are kept; many rows of several
  parts become one file in one pass (`first_merge.py`). Until the merge commits, the file has no table `info`, which
  distinguishes a crash in between from a finished merge;
* only the first part that waits may have given its file to a shard without a change (`gave_its_file`), and it takes it
  back before another part comes before it (`give_back_first`);
* the file of a part that comes again is copied: such a part is merged although the shard has its rows, so it needs its
  file until it waits no more.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import lmdb
import pyarrow as pa

from millpond.arrays.longs import unpack_long
from millpond.errors import Corrupt, Invalid
from millpond.kernel.steps import step
from millpond.maps.alerts.alerted import LoadOfShard, leave_alerted
from millpond.maps.alerts.judging import Judged
from millpond.maps.alerts.merged import judged_load
from millpond.maps.alerts.rules import AlertRule
from millpond.maps.loads.first_merge import BYTES_MIN, ROWS_MIN, combine
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.definition import MapDefinition
from millpond.maps.parts.part import PartManifest, open_part, read_manifest
from millpond.maps.parts.touched import read_touched
from millpond.maps.shard.bucket_tables import BucketStore, add_rows, is_added, note_added
from millpond.maps.shard.interned_tables import InternedStore
from millpond.maps.shard.layouts import decode_rows
from millpond.maps.shard.plain_tables import PlainStore
from millpond.maps.shard.range_widths import WIDTHS, width_class
from millpond.maps.shard.row_batches import column_of, gathered
from millpond.maps.shard.shard import Shard, ShardView, generation_folder, read_generation
from millpond.maps.shard.tables import OVERFLOW
from millpond.memory_bound import MEMORY_MAX
from millpond.stores.files import disk_errors, make_folder, move, remove_tree, sync

__all__ = (
    "Arrived", "MergeReport", "Received", "gave_its_file", "give_back_first", "merge_loads", "merge_parts",
    "part_rows", "rows_held",
)  # fmt: skip

ROWS_PER_BATCH = 65_536


@dataclass(frozen=True, slots=True)
class Received:
    """A part that is about to be merged: its folder, and what it holds."""

    folder: Path
    manifest: PartManifest


@dataclass(frozen=True, slots=True)
class Arrived:
    """The part one load brings to one map: its number, its time, and whether its rows win over existing ones.

    `again`: it is merged although the shard has absorbed it.
    """

    number: int
    stamp_ms: int
    overwrite: bool
    parts: tuple[Received, ...]
    position: int = 0
    again: bool = False


@dataclass(frozen=True, slots=True)
class MergeReport:
    """The result of a merge: rows brought, rows of the map afterwards, and a flag for a repeated merge."""

    rows: int
    rows_after: int
    repeated: bool


def merge_parts(shard: Shard, parts: Sequence[Received], load: int, now_ms: int) -> MergeReport:
    """Merge the parts of one load, in order, as `merge_loads` does; the first part of a map is moved, not copied."""
    return merge_loads(shard, [Arrived(load, now_ms, shard.definition.overwrite, tuple(parts))])


def merge_loads(
    shard: Shard, loads: Sequence[Arrived], *, keep: bool = False, memory_max: int = MEMORY_MAX,
    rules: Sequence[AlertRule] = (),
) -> MergeReport:  # fmt: skip
    """Merge loads of one map, in order, in one transaction. Call it while `shard.exclusive()`.

    `keep`: the files of the parts stay as they are. `memory_max`: the bytes of memory that a first merge may take.
    `rules`: those of the alerts that a load, which is alone, may make: they are left to be told.

    Raises:
        Corrupt: a part's file is missing or LMDB refuses it; nothing was merged.
        Unavailable: the disk is full; nothing was merged.
    """
    rows = sum(part.manifest.rows for load in loads for part in load.parts)
    has, before = rows_held(shard), shard.position
    due = [load for load in loads if load.again or not has(load.number, load.position)]
    if not due:
        return MergeReport(rows, shard.stats().rows, repeated=True)
    parts = [part for load in due for part in load.parts]
    combined = _combine_first(shard, due, memory_max)
    if rules:
        give_back_first(shard, parts[0].folder)  # it is read twice
    outcome, after = _judged(shard, due, rules) if rules else (None, None)
    keep = keep or due[0].again or bool(rules)
    there = parts if combined else parts[:1] if _adopt_first(shard, parts, keep) else []
    adopted, position = bool(there), max(before, *(load.position for load in due))

    def act(tx: lmdb.Transaction) -> None:
        for part in there:
            _put_rest(tx, shard.store, part, overflow=combined, overwrite=due[0].overwrite)
        for load in due:
            for part in load.parts:
                added = load.again and not _is_fresh(tx, shard.store, part, load)
                if added or any(part is merged for merged in there):
                    continue
                if after is not None and len(parts) == 1:  # more are added one after another
                    shard.put_rows(tx, after, load.stamp_ms, overwrite=True)
                    step("merge.part_put")
                else:
                    _merge_part(shard, tx, part, load)
        if outcome is not None and outcome.crossings:
            assert isinstance(shard.store, BucketStore), "it has rules"
            leave_alerted(shard.store, tx, outcome, LoadOfShard(due[0].number, due[0].stamp_ms, position))

    touched = None if adopted else _touched(parts)
    longest = max(part.manifest.longest_session for part in parts)
    shard.change(act, touched, absorbed=max(load.number for load in due), position=position, longest=longest)
    return MergeReport(rows, shard.stats().rows, repeated=False)


def _judged(
    shard: Shard, loads: Sequence[Arrived], rules: Sequence[AlertRule]
) -> tuple[Judged, pa.RecordBatch | None]:  # fmt: skip
    """Judge a load by rules: what is added of it; with the rows of its groups after it, of a load that is not large."""
    [load] = loads
    with shard.view() as view:
        parts = [part for part in load.parts if not (load.again and _was_added(view, part, load))]
        return judged_load(
            view, view.definition, rules,
            lambda: chain.from_iterable(part_rows(shard.definition, part) for part in parts),
            sum(part.manifest.rows for part in parts), sum(part.manifest.data_bytes for part in parts),
        )  # fmt: skip


def _was_added(view: ShardView, part: Received, load: Arrived) -> bool:
    store, tx = view.store, view.tx
    return tx is not None and isinstance(store, BucketStore) and is_added(store, tx, part.manifest.id, load.number)


def rows_held(shard: Shard) -> Callable[[int, int], bool]:
    """Tells of the number and position of a load whether the shard, as it is now, has its rows already."""
    with shard.view() as view:
        absorbed, last = view.number("absorbed"), view.number("position")
    return lambda number, position: number <= absorbed or 0 < position <= last


def _combine_first(shard: Shard, loads: Sequence[Arrived], memory_max: int) -> bool:
    """True when the rows of all parts are in a first generation that was made of them in one pass."""
    parts = [part for load in loads for part in load.parts]
    rows = sum(part.manifest.rows for part in parts)
    large = rows >= ROWS_MIN or sum(part.manifest.data_bytes for part in parts) >= BYTES_MIN
    if len(parts) < 2 or not large or isinstance(shard.store, InternedStore) or shard.tracking or shard.version:
        return False
    if shard.definition.aggregation is not None:
        return False
    if len({load.overwrite for load in loads}) > 1 or not all((part.folder / "data.mdb").exists() for part in parts):
        return False
    # What a crash left of a first merge may have the rows of other parts: the next generation is begun instead.
    number = int(read_generation(shard.folder) or 0) + 1
    place = generation_folder(shard.folder, number)
    make_folder(place)
    unfinished = place / ".data.mdb.tmp"
    sources = [(part.folder, part.manifest) for part in parts]
    combined = False
    try:
        combined = combine(shard.definition, sources, unfinished, overwrite=loads[0].overwrite, memory_max=memory_max)
    finally:
        if not combined:
            remove_tree(place)
    if not combined:
        return False
    move(unfinished, place / "data.mdb")
    sync(place.parent)
    step("merge.first_parts_combined")
    shard.switch(number)
    return True


def _adopt_first(shard: Shard, parts: Sequence[Received], keep: bool) -> bool:
    """True when the first part's file is, or was made, the shard's first generation."""
    first = parts[0].folder / "data.mdb"
    place = generation_folder(shard.folder, 1)
    if not first.exists():
        if shard.version or not (place / "data.mdb").exists():
            raise Corrupt("the part's data is missing", kind="part_file_missing", file=first.name, folder=first.parent)
    elif isinstance(shard.store, InternedStore) or shard.tracking or shard.version:
        return False
    elif keep or shard.exists():
        # What a crash left of a first merge may be another part's file: the next generation is begun instead.
        number = int(read_generation(shard.folder) or 0) + 1
        _copy(first, generation_folder(shard.folder, number))
        shard.switch(number)
    else:
        make_folder(place)
        move(first, place / "data.mdb")
        step("merge.first_part_moved")
    if not shard.exists():
        shard.switch(1)
    return True


def gave_its_file(shard: Shard, folder: Path, load: int, position: int, *, first: bool) -> bool:
    """True when a part has no data because the shard has it: a kill cut its merge off. `first`: it is before others."""
    if not folder.exists() or (folder / "data.mdb").exists():
        return False
    unfinished = first and not shard.version and (generation_folder(shard.folder, 1) / "data.mdb").exists()
    return unfinished or rows_held(shard)(load, position)


def give_back_first(shard: Shard, folder: Path) -> None:
    """Undo a first merge that was cut off before its commit: the part has its file again, as it was sealed.

    The merge only appended to the file, for a sealed part has no free pages. Call it while `shard.exclusive()`.
    """
    first, place = folder / "data.mdb", generation_folder(shard.folder, 1) / "data.mdb"
    if first.exists() or not place.exists() or not folder.exists() or shard.version:
        return
    shard.close()
    (shard.folder / "current").unlink(missing_ok=True)
    step("merge.first_part_withdrawn")
    os.truncate(place, read_manifest(folder).data_bytes)
    move(place, first)


def _copy(file: Path, folder: Path) -> None:
    make_folder(folder)
    unfinished = folder / ".data.mdb.tmp"
    with disk_errors(folder):
        shutil.copyfile(file, unfinished)
        sync(unfinished)
        move(unfinished, folder / "data.mdb")
    sync(folder.parent)
    step("merge.first_part_copied")


def _touched(parts: Sequence[Received]) -> pa.Array:
    touched = [read_touched(part.folder) for part in parts]
    return pa.concat_arrays(touched).unique() if len(parts) > 1 else touched[0]


def _put_rest(
    tx: lmdb.Transaction, store: PlainStore | InternedStore, part: Received, *, overflow: bool, overwrite: bool
) -> None:
    """Put the rows of a part that its table in the first generation does not have: widths, and clashing keys."""
    assert isinstance(store, PlainStore), "other maps put all rows"
    if WIDTHS in store.dbs:
        _put_widths(tx, store, part)
    if overflow and OVERFLOW in part.manifest.tables:
        with open_part(part.folder) as env:
            db = env.open_db(OVERFLOW.encode(), create=False)
            with env.begin(db=db) as reading:
                store.put_table(tx, OVERFLOW, reading.cursor().iternext(), overwrite)


def _put_widths(tx: lmdb.Transaction, store: PlainStore | InternedStore, part: Received) -> None:
    keys = (
        bytes([width_class(unpack_long(key[:8], plain=False), unpack_long(key[8:], plain=False))]) + key
        for key in read_touched(part.folder).to_pylist()
    )
    tx.cursor(db=store.dbs[WIDTHS]).putmulti((key, b"") for key in sorted(keys))


def _merge_part(shard: Shard, tx: lmdb.Transaction, part: Received, load: Arrived) -> None:
    definition = shard.definition
    if definition.aggregation is not None:
        _add_part(shard, tx, part)
        return
    if isinstance(shard.store, InternedStore) or shard.tracking:
        for rows in part_rows(definition, part):
            shard.put_rows(tx, rows, load.stamp_ms, overwrite=load.overwrite)
        return
    with open_part(part.folder) as env:
        for table in part.manifest.tables:
            db = env.open_db(table.encode(), create=False)
            with env.begin(db=db) as reading:
                shard.store.put_table(tx, table, reading.cursor().iternext(), load.overwrite)
    if WIDTHS in shard.store.dbs:
        _put_widths(tx, shard.store, part)
    step("merge.part_put")


def _is_fresh(tx: lmdb.Transaction, store: PlainStore | InternedStore, part: Received, load: Arrived) -> bool:
    """False for a part of an aggregate that was merged again before, when a kill cut off what follows; else it is
    noted.
    """
    return not isinstance(store, BucketStore) or note_added(store, tx, part.manifest.id, load.number)


def _add_part(shard: Shard, tx: lmdb.Transaction, part: Received) -> None:
    """Add the rows of a part of an aggregate.

    Raises: `Corrupt`, kind `part_sums`, when a sum becomes larger than its type holds.
    """
    assert isinstance(shard.store, BucketStore), "it is an aggregate"
    try:
        definition = shard.tables.definition(tx)
        for rows in part_rows(definition, part):
            add_rows(shard.store, tx, definition, rows)
    except Invalid as error:
        raise Corrupt(
            "the part cannot be added to what is there", kind="part_sums", part=part.manifest.id, map=part.manifest.map,
            reason=error, hint="count in a larger unit, and load it again",
        ) from error  # fmt: skip
    step("merge.part_put")


def part_rows(definition: MapDefinition, part: Received) -> Iterator[pa.RecordBatch]:
    """The canonical rows of a part, in bounded batches, each sorted by address."""
    schema = canonical_schema(definition)
    with open_part(part.folder) as env:
        for table in part.manifest.tables:
            db = env.open_db(table.encode(), create=False)
            with env.begin(db=db) as tx:
                for keys, values in gathered(tx.cursor().iternext(), ROWS_PER_BATCH):
                    rows = decode_rows(definition, table, column_of(keys), column_of(values))
                    assert rows.schema.equals(schema), "what was encoded decodes to the same columns"
                    yield rows
