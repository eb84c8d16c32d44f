"""The life of a load in one pond: from sealed parts to merged rows.

    writer/<host>-<pid>-<id>/…    parts being written; leftovers of dead processes are removed
    parts/<part id>               a part of a load: handed over, queued, merged now or retained
    quarantine/<number>-<map>     a part that cannot be merged; beside it, with `.json` behind the name, the reason

What counts is the space (`queue.py`): a part is queued, retained or quarantined by the row it has there, and stays in
its place meanwhile. One write of the space appends the load to the log and queues all its parts: before it nothing of
the load is visible, after it nothing of it can be lost. A file in `parts/` without a row belongs to nothing.

Invariants:
* a part that is queued, or retained, lies whole in one of its places (`PartPlaces.of`), and nowhere else: its bytes
  and its name are durable before its row is, and go after its last row went;
* a load id, or an epoch of a stream, is entered once: a repetition returns the first result and changes nothing;
* parts whose load may have been entered are never taken back: when the space cannot say, they stay in `parts/` until
  it can, for the same load to come again or for `recover`. What lay in `parts/` before a load came stays there as well;
* `loads.lock` is held from the moment parts move to `parts/` until they are entered, while a part leaves it for
  another reason than that it was merged, and while recovering: nobody of several processes takes another's load,
  half-way, for what a crash left, or relies on a file that is about to go;
* threads of one process commit loads of different parts at the same time, holding that lock together. They share the
  sync of `parts/` and that of the space; loads with a part in common follow one another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from millpond.clock import Clock
from millpond.errors import Conflict, Corrupt, Invalid, Unavailable, Uncertain
from millpond.kernel.head import again_when_moved
from millpond.kernel.job_reports import NO_REPORTS, JobReports
from millpond.kernel.series import Segment
from millpond.kernel.signal import Signal
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.kernel.steps import step
from millpond.maps.alerts.alerted import Alerted, take_over
from millpond.maps.loads.committed import Committed
from millpond.maps.loads.layered_load import LayerContent, LayeredLoad, place_layers
from millpond.maps.loads.load_groups import LoadGroups, QueuedLoad
from millpond.maps.loads.outcomes import enter_load, write_certainly
from millpond.maps.loads.part_queue import PartQueue
from millpond.maps.log.apply import events_alone, follow, load_body, record
from millpond.maps.log.deduplication import RememberedLoad, check_epoch, check_load_id, last_epoch, remembered
from millpond.maps.log.failures import MergeFailures
from millpond.maps.log.log import Entry, entry_at, follows, head_of
from millpond.maps.log.queue import NUMBER, MaintenanceOrder, PartPlaces, Quarantined, Queued, queued_part, series_of
from millpond.maps.log.retained import put_retained
from millpond.maps.model.catalogue import find_map, known_map
from millpond.maps.model.keyspaces import ABSORBED, MAINTENANCE, QUARANTINE, QUEUE, RETAINED
from millpond.maps.parts.part import PART_FORMAT, PartFile, PartManifest, read_manifest
from millpond.maps.parts.tail import unknown_format
from millpond.maps.parts.verified_parts import AcceptedParts
from millpond.stores.files import disk_errors, move, remove_tree, sync, write_file_atomically
from millpond.stores.locks import alone, together
from millpond.stores.shared_sync import SharedSync
from millpond.stores.sync_threads import sync_all

__all__ = ("NUMBER", "Loads", "Quarantined", "Queued", "series_of")

LOCK_SECONDS = 120.0
VISIBLE = "[!.]*"
T = TypeVar("T")


class Loads:
    """The life of loads: a queue of parts, and the files that follow it.

    `keep_ms`: so long merged parts are retained. `open_reports` is called when something is reported, `tell_alerts`
    when merges left something to be told. `to_fold`: the layered maps whose layers loads made due, for the merger of a
    served pond; `collected_ms`: when the files of each were collected. `merging`: the ids of the parts that this
    process merges now; to write that down costs a sync.
    """

    def __init__(
        self, space: Space, folder: Path, clock: Clock, *, keep_ms: int = 0,
        open_reports: Callable[[], JobReports] = lambda: NO_REPORTS, tell_alerts: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.space, self.folder, self.clock, self.keep_ms = space, folder, clock, keep_ms
        self.queue, self.places = PartQueue(space), PartPlaces(folder)
        self.accepted, self.merging = AcceptedParts(), set[str]()
        self.to_fold, self.collected_ms = set[str](), dict[str, int]()
        self._parts_sync = SharedSync(folder / "parts")
        self._uncertain: set[str] = set()
        self.changed, self.settled = Signal(clock), Signal(clock)
        self.failures = MergeFailures()
        self.expired_ms = 0
        self._open_reports, self.tell_alerts = open_reports, tell_alerts
        self.groups = LoadGroups(space, clock, self._turn)

    @property
    def reports(self) -> JobReports:
        """The place that loads and merges report to."""
        return self._open_reports()

    @property
    def keep(self) -> bool:
        """True when parts are retained after they were merged."""
        return self.keep_ms > 0

    def announce(self) -> None:
        """Wake those who wait for an entry, or for one to be applied: they alone wait for `settled`."""
        self.changed.ring()
        self.settled.ring()

    @contextmanager
    def alone(self, seconds: float = LOCK_SECONDS) -> Iterator[None]:
        """Be the only one who enters loads, or clears up, among all processes of the machine.

        Raises: `Unavailable` when somebody else keeps at it for long.
        """
        with alone(self.folder / "loads.lock", seconds, self._busy()):
            yield

    def _turn(self, maps: AbstractSet[str]) -> AbstractContextManager[None]:
        """Change the heads of layered maps, while other threads of this process change those of others.

        Raises: `Unavailable` when somebody else keeps at it for long.
        """
        return self._together({f"map {name}" for name in maps})

    @contextmanager
    def _together(self, parts: AbstractSet[str]) -> Iterator[None]:
        """Commit a load of these parts, while other threads of this process commit loads of others.

        Raises: `Unavailable` when somebody else keeps at it for long.
        """
        with together(self.folder / "loads.lock", parts, LOCK_SECONDS, self._busy()):
            yield

    def _busy(self) -> Unavailable:
        return Unavailable("another load is being entered", kind="pond_busy", folder=self.folder, hint="try again")

    # -- commit ---------------------------------------------------------------------------------------

    def commit(
        self, parts: Sequence[PartFile], source: str, *, rejected: int = 0, load_id: str | None = None,
        stream: tuple[str, int] | None = None, unsynced: AbstractSet[str] = frozenset(),
        layered: LayeredLoad | None = None, void: bool = False,
    ) -> Committed:  # fmt: skip
        """Enter all parts as one load, or none. Their files are taken: moved, or removed when they are known.

        `layered` has the layers of the load, and takes its parts of layered maps. `unsynced`: the parts whose bytes are
        not durable yet; they are made so before the load is entered. `void`: it is entered though it brings nothing.

        Raises:
            Corrupt: a part is damaged, or holds what its map cannot have.
            Conflict: a part was written for a map that was dropped or has another shape now; or, `load_taken`, the id
                is of a load of other maps.
            Invalid: the load id is no name; or the epoch of the stream is far ahead of the last one.
            Uncertain: the answer of the commit was lost, and the space cannot be asked. Commit them again under its id.
        """
        load = self.clock.random_id() if load_id is None else load_id
        check_load_id(load)
        places = {part.manifest.id: part.file for part in parts}
        names = {part.manifest.map for part in parts} | {layer.map for layer in (layered.written if layered else ())}
        with self.space.read() as tx:
            remembered_load = remembered(tx, load, stream, names)
        if remembered_load is not None:
            self._uncertain -= places.keys()
            _remove_parts([part.file for part in parts], self.folder)
            return Committed.of(remembered_load)
        if stream is not None:
            with self.space.read() as tx:
                check_epoch(stream[1], last_epoch(tx, stream[0]))
        manifests = self._validated(parts, places)
        sharded, contents = manifests, list[LayerContent]()
        if layered is not None:
            sharded = [part for part in manifests if layered.layers_of(part.map) is None]
            contents += layered.take([part for part in manifests if part not in sharded], places, stream)
        maps = {manifest.id: manifest.map for manifest in sharded}

        def enter(tx: Transaction) -> Committed:
            return self._enter(tx, load, sharded, contents, layered, source, rejected, stream, void)

        def entered(tx: ReadTransaction) -> Committed | None:
            earlier = remembered(tx, load, None, names)
            return None if earlier is None else Committed.of(earlier)

        def adopted() -> Committed:
            with self._together({*places, *(f"map {name}" for name in (layered.names if layered else ()))}):
                if layered is not None:
                    place_layers([layered], self.space, self.clock.now_ms())
                moving = {part: places[part] for part in maps}
                return self._adopted(load, moving, maps, enter, entered, unsynced)

        if layered is not None and layered.names and not maps:
            committed = self.groups.commit(QueuedLoad(load, layered, enter, entered))
        else:
            committed = again_when_moved(adopted)
        _remove_parts([places[manifest.id] for manifest in manifests if manifest.id not in maps], self.folder)
        self.changed.ring()  # nothing was applied by it
        return committed

    def _validated(self, parts: Sequence[PartFile], places: Mapping[str, Path]) -> list[PartManifest]:
        """The manifests of parts, as they lie on the disk, when each is whole and of its map."""
        with self.space.read() as tx:
            self._check_maps(tx, [part.manifest for part in parts])
            definitions = {part.manifest.map: find_map(tx, part.manifest.map) for part in parts}

        def validate(part: PartFile) -> PartManifest:
            file = self._brought(part.manifest.id, places[part.manifest.id])
            manifest = self.accepted.verify(file, definitions[part.manifest.map])
            if manifest.id != part.manifest.id:
                raise Corrupt("it is another part", kind="part_other", file=file, wanted=part.manifest.id)
            if manifest.format != PART_FORMAT:
                raise unknown_format(file, manifest.format, PART_FORMAT)
            return manifest

        if len(parts) <= 1:
            return [validate(part) for part in parts]
        with ThreadPoolExecutor(min(len(parts), os.cpu_count() or 1), "validate") as pool:
            return list(pool.map(validate, parts))

    def _brought(self, part: str, place: Path) -> Path:
        """The file of a part that is handed over: an attempt whose outcome is not known may have moved it."""
        return place if place.exists() else self.places.part(part)

    def _adopted(
        self, load: str, places: Mapping[str, Path], maps: Mapping[str, str], enter: Callable[[Transaction], T],
        entered: Callable[[ReadTransaction], T | None], unsynced: AbstractSet[str] = frozenset(),
    ) -> T:  # fmt: skip
        """Move parts to `parts/` and enter them; when they are not entered, move them back."""
        moved: list[tuple[Path, Path]] = []
        loose: list[Path] = []
        try:
            for part, place in places.items():
                target = self.places.part(part)
                if self._has_row(part, maps[part]):
                    continue
                left = self._is_whole(part, maps[part])
                if not left:
                    place.rename(target)
                    moved.append((place, target))
                if left or part in unsynced:
                    loose.append(target)
            if moved or loose:
                self._make_durable(loose)
            step("load.received")
            result = enter_load(self.space, load, enter, entered)
        except Uncertain:
            self._uncertain |= places.keys()
            raise  # they may be entered: whoever moved them back would lose them
        except Exception:
            for place, target in moved:
                with suppress(OSError):
                    target.rename(place)
            raise
        step("load.committed")
        self._uncertain -= places.keys()
        _remove_parts(list(places.values()), self.folder)
        return result

    def _make_durable(self, files: Sequence[Path]) -> None:
        """Sync `parts/`, and at the same time the files of parts."""
        with disk_errors(self.folder):
            sync_all([*(partial(sync, file) for file in files), self._parts_sync.run])

    def _has_row(self, part: str, name: str) -> bool:
        """True when a part lies in `parts/` and is queued or retained."""
        if not self.places.part(part).exists():
            return False
        with self.space.read() as tx:
            return queued_part(tx, name, part) is not None or tx.get(RETAINED.pack(part)) is not None

    def _is_whole(self, part: str, name: str) -> bool:
        """True when a part lies in `parts/`, left by an attempt whose outcome is not known; it may not be synced."""
        place = self.places.part(part)
        if not place.exists():
            return False
        with self.space.read() as tx:
            definition = known_map(tx, name)
        with suppress(Corrupt):
            return definition is not None and self.accepted.verify(place, definition).id == part
        return False

    def _check_maps(self, tx: ReadTransaction, manifests: Sequence[PartManifest | LayerContent]) -> None:
        for manifest in manifests:
            definition = find_map(tx, manifest.map)
            if definition.incarnation != manifest.incarnation:
                raise Conflict(
                    "the part was written for an earlier map of this name", kind="map_incarnation", map=manifest.map,
                    hint="write the rows again",
                )  # fmt: skip

    def _enter(
        self, tx: Transaction, load: str, manifests: Sequence[PartManifest], contents: Sequence[LayerContent],
        layered: LayeredLoad | None, source: str, rejected: int, stream: tuple[str, int] | None, void: bool,
    ) -> Committed:  # fmt: skip
        maps = {manifest.map for manifest in manifests} | {content.map for content in contents}
        earlier = remembered(tx, load, stream, maps)
        if earlier is not None:
            return Committed.of(earlier)
        self._check_maps(tx, [*manifests, *contents])
        body = load_body(tx, load, [*manifests, *contents], source=source, rejected=rejected, stream=stream)
        position = head_of(tx).position
        if body["parts"] or body.get("layers") or stream is not None or void:
            entry = record(tx, "load", tuple(body["maps"]), body, self.clock.now_ms())
            position = entry.position
            if layered is not None:
                layered.enter(tx, entry)
        return Committed.of(RememberedLoad.of(body, position))

    def follow(self, entry: Entry, parts: Mapping[str, Path]) -> bool:
        """Enter an entry of the primary's log, with the files of its parts, which are moved away.

        Raises: `Conflict`, see `log.accept`; `Invalid` when a part is missing or is another one.
        """
        new_parts = {part["id"] for part in entry.body["parts"]} if entry.kind == "load" else set()

        def enter(tx: Transaction) -> bool:
            return follow(tx, entry, keep=self.keep)

        def here(tx: ReadTransaction) -> bool | None:
            stored_entry = entry_at(tx, entry.position)
            return True if stored_entry is not None and stored_entry.chain == entry.chain else None

        with self.alone():
            with self.space.read() as tx:
                applied = not follows(tx, entry)
            if applied or not new_parts:
                entered = self.space.write(enter)
            else:
                places = {part: parts[part] for part in new_parts & parts.keys()}
                _check_parts(entry, {part: self._brought(part, place) for part, place in places.items()})
                maps = {part["id"]: part["map"] for part in entry.body["parts"]}
                entered = self._adopted(entry.body["load"], places, maps, enter, here)
        self.announce()
        return bool(entered)

    # -- the queue ------------------------------------------------------------------------------------

    def take(self, queued: Queued) -> Path:
        """The file of a part that is to be merged; one that was quarantined comes back to `parts/`.

        Raises: `Corrupt` when the part is nowhere.
        """
        place = self.places.part(queued.part)
        if not place.exists():
            quarantined = self.places.quarantine(queued)
            if not (queued.again and quarantined.exists()):
                raise Corrupt("a queued part is missing", kind="part_missing", map=queued.map, file=place)
            self.places.reason(queued).unlink(missing_ok=True)
            move(quarantined, place)
        step("merge.part_taken")
        return place

    def finish(self, parts: Sequence[Queued], alerted: Sequence[Alerted] = ()) -> None:
        """Let merged parts wait no more; then they are retained, or taken off the disk. Their alerts are to be told.

        Raises: `Conflict` when the map was dropped meanwhile; as `write_certainly`.
        """
        now = self.clock.now_ms()

        def leave(tx: Transaction) -> list[str] | None:
            for name in {queued.map for queued in parts}:
                series_of(name).retire(tx, [queued.number for queued in parts if queued.map == name])
            for queued in parts if self.keep else ():
                put_retained(tx, replace(queued, queued_ms=now, again=False))
            take_over(tx, alerted)
            return left(tx)

        def left(tx: ReadTransaction) -> list[str] | None:
            waits = any(tx.get(QUEUE.pack(queued.map, queued.number)) is not None for queued in parts)
            return None if waits else [part.part for part in parts if tx.get(RETAINED.pack(part.part)) is None]

        gone = write_certainly(self.space, leave, left) or ()
        step("merge.dequeued")
        for part in gone:
            self.places.part(part).unlink(missing_ok=True)
        self.announce()

    def carried_out(self, order: MaintenanceOrder) -> None:
        """Let a maintenance order wait no more."""
        self.space.write(lambda tx: tx.delete(MAINTENANCE.pack(order.map, order.position)))
        step("maintenance.dequeued")
        self.announce()

    def quarantine(self, queued: Queued, reason: str) -> Quarantined:
        """Quarantine a part that cannot be merged, with its reason."""
        here = queued in self.queue.parts(queued.map)
        quarantined = Quarantined(queued.map, queued.number, queued.part, reason, self.clock.now_ms(), queued)
        if not here:
            return quarantined  # of a map that was dropped meanwhile nothing is quarantined
        # Nobody may enter a load meanwhile that finds the part known, and relies on its file.
        with self.alone():
            quarantined = self._put_into_quarantine(queued, quarantined)
        self.announce()
        return quarantined

    def _put_into_quarantine(self, queued: Queued, quarantined: Quarantined) -> Quarantined:
        place, reason = self.places.part(queued.part), self.places.reason(queued)
        here = place.exists()
        if here or not reason.exists():
            write_file_atomically(reason, quarantined.to_json())
        if here:
            move(place, self.places.quarantine(queued))
        else:
            # When a crash came after the move, the reason is the one that was found then.
            quarantined = Quarantined.from_json(reason.read_bytes())
        step("merge.quarantine_moved")

        def leave(tx: Transaction) -> None:
            tx.delete(RETAINED.pack(queued.part))
            if (events := events_alone(tx, queued)) is not None:
                tx.delete(ABSORBED.pack(queued.map, events))  # the same data may be loaded again
            if series_of(queued.map).remove(tx, Segment(queued.part, queued.number)):
                tx.put(QUARANTINE.pack(queued.map, queued.number), quarantined.to_json())

        self.space.write(leave)
        return quarantined

    # -- after a crash --------------------------------------------------------------------------------

    def recover(self, alive: Callable[[str], bool]) -> bool:
        """Bring the files in line with the queue; False when another process is at it, or entering a load.

        `alive` says of the name of a folder in `writer/` whether its process lives.
        """
        try:
            with self.alone(seconds=0):
                self.clear()
                for written in list((self.folder / "writer").glob(VISIBLE)):
                    if not alive(written.name):
                        remove_tree(written)
        except Unavailable:
            return False
        return True

    def clear(self) -> None:
        """Remove the parts in `parts/` and `quarantine/` that have no row. Call it while `alone`."""
        needed = self._uncertain | {part.part for part in self.queue.parts()}
        with self.space.read() as tx:
            needed |= {str(RETAINED.unpack(key)[0]) for key in tx.keys(RETAINED.range())}
        for place in list((self.folder / "parts").glob(VISIBLE)):
            if place.name not in needed:
                place.unlink(missing_ok=True)
        self._clear_quarantine()

    def _clear_quarantine(self) -> None:
        places = list((self.folder / "quarantine").glob(VISIBLE))
        if not places:
            return
        with self.space.read() as tx:
            retained = [Queued.from_json(row) for _, row in tx.scan(RETAINED.range())]
        # Also parts that still wait: a crash came after the move, or they are taken again from there.
        parts: list[Queued | Quarantined] = [*self.queue.parts(), *self.queue.quarantined(), *retained]
        needed = {place for part in parts for place in (self.places.quarantine(part), self.places.reason(part))}
        for place in places:
            if place not in needed:
                place.unlink(missing_ok=True)


def _remove_parts(places: Sequence[Path], pond: Path) -> None:
    """Remove what was brought, and the folders that it came in, but for the pond's own."""
    for place in places:
        place.unlink(missing_ok=True)
    for folder in {place.parent for place in places if place.parent.parent != pond}:
        with suppress(OSError):  # others may still write there
            folder.rmdir()


def _check_parts(entry: Entry, parts: Mapping[str, Path]) -> None:
    for part in entry.body["parts"]:
        place = parts.get(part["id"])
        if place is None:
            raise Invalid(
                "a part of the load is missing", kind="part_missing", load=entry.body["load"], part=part["id"]
            )
        manifest = read_manifest(place)
        expected = (part["id"], part["map"], entry.body["maps"][part["map"]]["incarnation"])
        if (manifest.id, manifest.map, manifest.incarnation) != expected:
            raise Invalid("the part is another one", kind="part_other", file=place, part=part["id"])
