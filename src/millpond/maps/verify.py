"""Checking a pond on the data itself: catalogue, queue, parts, shards and snapshots, and what lies about.

Reads beside loads, lookups and freezes. What is damaged and can be had again is quarantined: a part into
`quarantine/` with its reason, the files of a snapshot into its own `quarantine/`, after which the next lookup
freezes the map in full. Readers that have it open keep it. Of a layered map the snapshot is all there is: it goes on to
count, so readers refuse to answer until its files are there again. A damaged shard or space is left as it is and named.

Invariants checked, on top of what each file says of itself:
* positions of the log are dense up to the head, times never fall, and every chain follows from the one before
  (`kernel/log.py`);
* every part that is kept for those who follow lies where it should, and is whole: `full` reads it through;
* every part in the queue belongs to a map that exists, is numbered below the counter, is known as absorbed,
  and lies where the queue says;
* a shard absorbed no load that was never entered, and holds the tables of its map's scheme and no others;
* a snapshot is of this incarnation of its map, and of no later version than the shard has; its files, and those of the
  states that history, branches, tags and commits name, are named by their content: each is read and compared with it;
* folders of shards and snapshots belong to maps;
* every row of the space belongs to a registered keyspace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from millpond.errors import Conflict, Corrupt, MillpondError, NotFound
from millpond.kernel.keyspace import REGISTRY
from millpond.kernel.space import ReadTransaction, Space
from millpond.kernel.verify import Report, attempt, checked, problem
from millpond.maps.layered.history import named_manifests
from millpond.maps.loads.loads import NUMBER, Loads, series_of
from millpond.maps.log.log import ENTRIES
from millpond.maps.log.queue import Queued, queued_parts
from millpond.maps.map import Map
from millpond.maps.model.catalogue import list_maps
from millpond.maps.model.definition import MapDefinition, folder_name
from millpond.maps.model.keyspaces import ABSORBED, CATALOGUE, HISTORY, QUEUE, RETAINED, SNAPSHOT
from millpond.maps.model.snapshot_pointer import move_pointer, read_pointer
from millpond.maps.parts.part import read_manifest, verify_part
from millpond.maps.shard.check import check_shard
from millpond.maps.snapshots.manifest import SnapshotManifest, load_manifest, manifest_name
from millpond.maps.snapshots.section_list import interval_files
from millpond.ranges import Verifier
from millpond.stores.lmdb.probe import read_through
from millpond.stores.objects import Objects, forget_copies

__all__ = ("LAYERS_REMEDY", "check_snapshot", "check_states", "verify_maps")

_COPY = "make the node a copy of another: millpond repair --from URL"
LAYERS_REMEDY = "put it back from a copy or a backup: millpond repair POND --from PLACE"
_REMEDY = "the next lookup freezes the map in full"
_OURS = "report this; it should not be possible"
_STRAY_ROWS_MAX = 10


def verify_maps(
    loads: Loads, maps: Sequence[Map], folder: Path, files_of: Callable[[str], Objects], *, full: bool = False,
    going: Callable[[], bool] = lambda: True,
) -> Report:  # fmt: skip
    """Check everything; `full` also decodes every row of every shard, instead of a sample of each table.

    `files_of` has the snapshots of a map by its folder. `going` is asked before each map: when it says no, the problems
    found until then are returned.
    """
    report = attempt("space", folder / "space", lambda: _check_space(loads, folder), "restore the folder from a copy")
    # Earlier quarantine is reported before anything is quarantined now.
    report += (
        _sum(_check_retained(loads, full=full)) + _sum(_check_quarantine(loads)) + _sum(_check_folders(maps, folder))
    )
    read: dict[str, set[str]] = {}
    for pond_map in maps:
        if not going():
            return report
        seen = read.setdefault(folder_name(pond_map.definition), set())
        report += _check_map(loads, pond_map, seen, full=full)
    return report + _sum(_check_named(loads.space, files_of, read, going))


def _check_named(
    space: Space, files_of: Callable[[str], Objects], read: Mapping[str, set[str]], going: Callable[[], bool]
) -> Iterator[Report]:
    """The states that rows name beside those that count; `read`: the files of each folder that were read already."""
    try:
        with space.read() as tx:
            named = named_manifests(tx)
    except Corrupt as error:
        yield problem("history", error.values.get("map", ""), error, "restore the pond from a copy")
        return
    for folder, ids in named.items():
        if not going():
            return
        objects = files_of(folder)
        forget_copies(objects)
        for id_, report in check_states(objects, ids, read.get(folder, set())):
            if not report.ok:
                with space.read() as tx:  # whoever collects may have taken it meanwhile
                    report = report if id_ in named_manifests(tx).get(folder, ()) else Report()
            yield report


def _sum(reports: Iterable[Report]) -> Report:
    return sum(reports, Report())


def _check_map(loads: Loads, pond_map: Map, seen: set[str], *, full: bool) -> Report:
    report = _sum(_check_part(loads, pond_map, queued) for queued in loads.queue.parts(pond_map.name))
    if pond_map.layers is not None:
        forget_copies(pond_map.objects)  # what is in a bucket is checked, not what was fetched from it
        return report + check_snapshot(loads.space, pond_map, None, seen)
    shard = attempt(
        "shard",
        pond_map.shard.folder,
        lambda: check_shard(pond_map.shard, last_load=_counter(loads), full=full),
        "restore the folder from a copy, or drop the map and load it again",
    )
    # Of a shard that is damaged nothing more is asked: it may end the process.
    version = pond_map.shard.version if shard.ok else None
    return report + shard + check_snapshot(loads.space, pond_map, version, seen)


# -- the space ----------------------------------------------------------------------------------------


def _check_space(loads: Loads, folder: Path) -> Iterator[Report]:
    if (folder / "space").exists():
        # Damaged pages may kill the process that reads them: a child goes first.
        yield checked("row of the space", sum(read_through(folder / "space").values()))
    with loads.space.read() as tx:
        yield from _check_keyspaces(tx)
        yield from _check_catalogue(tx)
        yield from _check_queue(tx)
        yield from _check_log(tx)


def _check_keyspaces(tx: ReadTransaction) -> Iterator[Report]:
    for key in islice(REGISTRY.unregistered(tx), _STRAY_ROWS_MAX):
        remedy = "open the pond with the version of Millpond that wrote it; without it no node can be a copy"
        yield problem("row of the space", key.hex(), "it belongs to no known keyspace", remedy, counted=False)


def _check_catalogue(tx: ReadTransaction) -> Iterator[Report]:
    names = set()
    for key, value in tx.scan(CATALOGUE.range()):
        (name,) = CATALOGUE.unpack(key)
        try:
            definition = MapDefinition.from_json(value)
        except Corrupt as error:
            yield problem(
                "map", name, f"its definition cannot be read: {error.__cause__}", "drop the map and make it again"
            )
            continue
        names.add(name)
        yield checked("map")
        if definition.name != name:
            yield problem("map", name, f"its row tells of {definition.name}", _OURS, counted=False)
    for prefix, what in ((QUEUE, "queue"), (ABSORBED, "absorbed part"), (HISTORY, "history"), (SNAPSHOT, "snapshot")):
        for key in tx.keys(prefix.range()):
            about = prefix.unpack(key)
            if about[0] not in names and not (prefix == SNAPSHOT and _is_cleared(tx, str(about[0]))):
                yield problem(what, about, "it speaks of a map that does not exist", _OURS)


def _is_cleared(tx: ReadTransaction, name: str) -> bool:
    """True when a snapshot's register holds nothing: that of a dropped map remembers how often it was swapped."""
    try:
        return read_pointer(tx, name).current is None
    except Corrupt:
        return False


def _check_queue(tx: ReadTransaction) -> Iterator[Report]:
    last = int.from_bytes(tx.get(NUMBER) or b"", "big")
    for name in (definition.name for definition in list_maps(tx)):
        series = series_of(name)
        for listed in series.listed(tx):
            yield checked("queue")
            queued = Queued.of(name, listed)
            if not 0 < queued.load_number <= queued.number <= last:
                yield problem(
                    "queue", (name, queued.number), f"its numbers do not agree: {queued}", _OURS, counted=False
                )
            absorbed = tx.get(ABSORBED.pack(name, queued.part))
            if absorbed is None or int.from_bytes(absorbed, "big") != queued.number:
                yield problem("queue", (name, queued.number), "its part is not remembered", _OURS, counted=False)


def _counter(loads: Loads) -> int:
    with loads.space.read() as tx:
        return int.from_bytes(tx.get(NUMBER) or b"", "big")


# -- parts --------------------------------------------------------------------------------------------


def _check_part(loads: Loads, pond_map: Map, queued: Queued) -> Report:
    if _whole(loads, pond_map, queued) is None:
        return checked("part")
    # Looked at again where nobody merges: it may have been merged, or moved, while it was read.
    with pond_map.shard.exclusive():
        if queued not in loads.queue.parts(pond_map.name):
            return Report()
        damage = _whole(loads, pond_map, queued)
        if damage is None:
            return checked("part")
        quarantined = loads.quarantine(queued, str(damage.without("file")))
    return problem("part", loads.places.quarantine(quarantined), damage, f"it was quarantined; {_again(queued.source)}")


def _whole(loads: Loads, pond_map: Map, queued: Queued) -> Corrupt | None:
    """The fault of a queued part; None when there is none."""
    places = loads.places.of(queued)
    place = next((place for place in places if place.exists()), None)
    if place is None:
        return Corrupt("a queued part is missing", kind="part_missing", map=queued.map, file=places[0])
    try:
        manifest = verify_part(place)
    except Corrupt as error:
        return error
    stated = (manifest.id, manifest.map, manifest.incarnation, manifest.rows)
    if stated != (queued.part, queued.map, pond_map.definition.incarnation, queued.rows):
        return Corrupt("the part is another one than was queued", kind="part_damaged", file=place)
    return None


def _again(source: str) -> str:
    return f"load its rows again, from {source}" if source else "load its rows again"


def _check_quarantine(loads: Loads) -> Iterator[Report]:
    for quarantined in loads.queue.quarantined():
        yield problem(
            "quarantine",
            loads.places.quarantine(quarantined),
            f"a part of map {quarantined.map} was quarantined: {quarantined.reason}",
            "load its rows again, then delete the file",
        )


def _check_folders(maps: Sequence[Map], folder: Path) -> Iterator[Report]:
    folders = {folder_name(pond_map.definition) for pond_map in maps}
    # Snapshots of a map that was dropped answer until they are closed, so only shards are looked at. The folder itself
    # may be missing: not everything that copies a pond copies folders without files.
    for entry in sorted((folder / "shards").glob("[!.]*")):
        if entry.is_dir() and entry.name not in folders:
            yield problem("folder", entry, "it belongs to no map", "delete it: it is left of a map that was dropped")


def _check_log(tx: ReadTransaction) -> Iterator[Report]:
    """The log from its oldest entry to its head."""
    try:
        yield from ENTRIES.check(tx, _COPY)
    except MillpondError as error:
        yield problem("log", ENTRIES.prefix, error, _COPY)


def _check_retained(loads: Loads, *, full: bool) -> Iterator[Report]:
    with loads.space.read() as tx:
        retained = [Queued.from_json(row) for _, row in tx.scan(RETAINED.range())]
    for part in retained:
        damage = _damage(loads, part, full=full)
        if damage is None:
            yield checked("kept part")
        elif _still_retained(loads, part):
            remedy = "its rows are in the map; those who follow take it from another node, and it goes when it expires"
            yield problem("kept part", loads.places.part(part.part), damage, remedy)


def _damage(loads: Loads, retained: Queued, *, full: bool) -> Corrupt | None:
    places = loads.places.of(retained)
    place = next((place for place in places if place.exists()), places[0])
    try:
        manifest = verify_part(place) if full else read_manifest(place)
    except Corrupt as error:
        return error
    return None if manifest.id == retained.part else Corrupt("it is another part", kind="part_other", found=manifest.id)


def _still_retained(loads: Loads, retained: Queued) -> bool:
    """Looked at again: it may have expired, or been quarantined, while it was read."""
    with loads.space.read() as tx:
        return tx.get(RETAINED.pack(retained.part)) is not None and retained.part not in {
            part.part for part in queued_parts(tx, retained.map)
        }


def check_snapshot(space: Space, pond_map: Map, version: int | None, seen: set[str]) -> Report:
    """Check the snapshot that counts, if the map was ever frozen; `version` is the shard's, if it is known.

    What is read is `seen` then.
    """
    with space.read() as tx:
        pointer = read_pointer(tx, pond_map.name)
    if pointer.current is None:
        return Report()
    report = Report()
    for fault in _check_files(pond_map, pointer.current.manifest, version, seen):
        report += fault
    if not report.ok and pond_map.layers is None:
        with suppress(Conflict):  # another freeze may have put a whole snapshot in its place meanwhile
            space.write(lambda tx: move_pointer(tx, pond_map.name, None, seen=pointer))
    return report


def _check_files(pond_map: Map, id_: str, version: int | None, seen: set[str]) -> Iterator[Report]:
    objects = pond_map.objects
    remedy = _REMEDY if pond_map.layers is None else LAYERS_REMEDY
    verifier = Verifier(objects, "snapshot file", remedy, quarantine_folder=True)
    seen.add(manifest_name(id_))
    report = verifier.file(manifest_name(id_))
    yield report
    if not report.ok:
        return
    manifest = load_manifest(objects, id_)
    yield checked("snapshot")
    yield from _check_manifest(pond_map, manifest, version)
    yield from _check_state(verifier, manifest, seen)


def check_states(objects: Objects, ids: Iterable[str], seen: set[str]) -> Iterator[tuple[str, Report]]:
    """The files of some states, each with what is wrong with it. Damaged ones go to quarantine: they are missing then.

    What is `seen` is not read again.
    """
    verifier = Verifier(objects, "snapshot file", LAYERS_REMEDY, quarantine_folder=True)
    for id_ in sorted(ids):
        if (name := manifest_name(id_)) in seen:
            continue
        seen.add(name)
        report = verifier.file(name)
        with suppress(NotFound, Corrupt):  # of the manifest is told already
            for of_file in _check_state(verifier, load_manifest(objects, id_), seen):
                report += of_file
        yield id_, report


def _check_state(verifier: Verifier, manifest: SnapshotManifest, seen: set[str]) -> Iterator[Report]:
    """The layers and files of intervals of a state, each read once; what is `seen` is not read again."""
    for layer in manifest.layers:
        if layer.index not in seen:
            seen.add(layer.index)
            yield verifier.index(layer.index)
    with suppress(NotFound, Corrupt):  # that the list of the files is damaged is told then
        for name in interval_files(verifier.objects, manifest):
            if name not in seen:
                seen.add(name)
                yield verifier.file(name)


def _check_manifest(pond_map: Map, manifest: SnapshotManifest, version: int | None) -> Iterator[Report]:
    place = f"{pond_map.objects.where}/{manifest_name(manifest.id)}"
    if (manifest.map, manifest.incarnation) != (pond_map.name, pond_map.definition.incarnation):
        yield problem("snapshot", place, f"it is of another map: {manifest.map}.{manifest.incarnation}", _REMEDY)
    elif version is not None and manifest.shard_version > version:
        yield problem("snapshot", place, f"it is of version {manifest.shard_version}, the shard of {version}", _REMEDY)
