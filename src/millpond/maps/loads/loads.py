"""The life of a load in one pond: from sealed parts to merged rows.

    writer/<host>-<pid>-<id>/…    parts being written; leftovers of dead processes are removed
    receive/<load id>/<part id>/  parts handed over, checked whole
    staging/<number>/             the sequential store: one entry a part, taken in order
    merging/<map>/<number>/       the part being merged
    retained/<part id>/           a merged part, as it came, where the pond keeps them
    quarantine/<number>-<map>/    a part that cannot be merged, with `reason.json`

What counts is the space (`queue.py`). One write of it appends the load to the log and lets all its parts wait: before
it nothing of the load is visible, after it nothing of it can be lost. Folders follow the space: `recover` moves what a
crash left behind to where it belongs.

Invariants:
* a part that waits, or is kept, lies whole in one of its places (`PartFolders.of`), and nowhere else than in those;
* a load id, or an epoch of a stream, is entered once: a repetition returns the first result and changes nothing;
* parts whose load may have been entered are never taken back: when the space cannot say, they stay in `receive/` until
  it can, for the same load to come again or for `recover`;
* `loads.lock` is held from the moment parts move to `receive/` until they are staged, and while recovering, so that
  nobody of several processes takes another's load, half-way, for what a crash left.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from millpond.clock import Clock
from millpond.errors import Conflict, Corrupt, Invalid, Unavailable, Uncertain
from millpond.kernel.outcomes import write_certainly
from millpond.kernel.segments import Segment
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.kernel.steps import step
from millpond.maps.loads.committed import Committed
from millpond.maps.loads.folders import PartFolders
from millpond.maps.loads.part_queue import PartQueue
from millpond.maps.log.apply import follow, load_body, record, remembered
from millpond.maps.log.failures import MergeFailures
from millpond.maps.log.log import Entry, entry_at, follows, head_of
from millpond.maps.log.queue import NUMBER, MaintenanceOrder, Quarantined, Queued, queued_part, series_of
from millpond.maps.model.catalogue import find_map
from millpond.maps.model.keyspaces import MAINTENANCE, QUARANTINE, RETAINED
from millpond.maps.parts.part import PartFile, PartManifest, read_manifest, verify_part
from millpond.stores.files import move, remove_tree, sweep_leftovers, sync, write_file_atomically
from millpond.stores.locks import alone

__all__ = ("FOLDERS", "NUMBER", "Loads", "Quarantined", "Queued", "series_of", "sweep_pond")

LOCK_SECONDS = 120.0
REASON = "reason.json"
FOLDERS = ("writer", "receive", "staging", "merging", "retained", "shards", "snapshots", "quarantine")
_SWEPT = (".", *FOLDERS, "merging/*", "shards/*", "snapshots/*", "quarantine/*")
"""The folders where files are written and folders removed; what lies deeper goes with its folder."""
_LOAD_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


T = TypeVar("T")


class Loads:
    """The life of loads: a queue of parts, and the folders that follow it.

    `keep_ms`: so long merged parts stay in `retained/`.
    """

    def __init__(self, space: Space, folder: Path, clock: Clock, *, keep_ms: int = 0) -> None:
        self.space, self.folder, self.clock, self.keep_ms = space, folder, clock, keep_ms
        self.queue, self.places = PartQueue(space), PartFolders(folder)
        self.changed = threading.Condition()
        self.failures = MergeFailures()
        self.expired_ms = 0
        self.listeners: list[Callable[[], None]] = []

    @property
    def keep(self) -> bool:
        """True when parts are retained after they were merged."""
        return self.keep_ms > 0

    def announce(self) -> None:
        """Wake those who wait for an entry, or for one to be applied."""
        with self.changed:
            self.changed.notify_all()
        for listener in tuple(self.listeners):
            listener()

    @contextmanager
    def alone(self, seconds: float = LOCK_SECONDS) -> Iterator[None]:
        """Be the only one who enters loads, or clears up, among all processes of the machine.

        Raises: `Unavailable` when somebody else keeps at it for long.
        """
        busy = Unavailable("another load is being entered", kind="pond_busy", folder=self.folder, hint="try again")
        with alone(self.folder / "loads.lock", seconds, busy):
            yield

    # -- commit ---------------------------------------------------------------------------------------

    def commit(
        self, parts: Sequence[PartFile], source: str, *, rejected: int = 0, load_id: str | None = None,
        stream: tuple[str, int] | None = None,
    ) -> Committed:  # fmt: skip
        """Enter all parts as one load, or none. Their folders are taken: moved, or removed when they are known.

        Raises:
            Corrupt: a part is damaged; its file is named.
            Conflict: a part was written for a map that was dropped or has another shape now.
            Invalid: the load id is no name.
            Uncertain: the answer of the commit was lost, and the space cannot be asked. Commit them again under its id.
        """
        load = self.clock.random_id() if load_id is None else load_id
        if not _LOAD_ID.fullmatch(load):
            raise Invalid("a load id is letters, digits, and - _ . between", kind="load_id", load=repr(load))
        places = {part.manifest.id: Path(part.folder) for part in parts}
        self._recall(load, places)
        with self.space.read() as tx:
            remembered_load = remembered(tx, load, stream)
        if remembered_load is not None:
            _remove_parts([Path(part.folder) for part in parts])
            return Committed.of(remembered_load)
        for part in parts:
            verify_part(Path(part.folder))
        with self.space.read() as tx:
            self._check_maps(tx, [part.manifest for part in parts])
        manifests = [part.manifest for part in parts]

        def enter(tx: Transaction) -> Committed:
            return self._enter(tx, load, manifests, source, rejected, stream)

        def entered(tx: ReadTransaction) -> Committed | None:
            known = remembered(tx, load, None)
            return None if known is None else Committed.of(known)

        with self.alone():
            committed = self._received(load, places, enter, entered)
        self.announce()
        return committed

    def _received(
        self, load: str, places: Mapping[str, Path], enter: Callable[[Transaction], T],
        entered: Callable[[ReadTransaction], T | None],
    ) -> T:  # fmt: skip
        """Move parts to `receive/`, enter them, and let them follow; when they are not entered, move them back."""
        received = self.folder / "receive" / load
        remove_tree(received)
        received.mkdir(parents=True)
        moved: list[tuple[Path, Path]] = []
        try:
            for part, place in places.items():
                place.rename(received / part)
                moved.append((place, received / part))
            sync(received)
            sync(received.parent)
            step("load.received")
            result = self._certainly(load, enter, entered)
        except Uncertain:
            raise  # they may be entered: whoever moved them back would lose them
        except Exception:
            for place, target in moved:
                with suppress(OSError):
                    target.rename(place)
            remove_tree(received)
            raise
        step("load.committed")
        self.settle(load)
        _remove_parts(list(places.values()))
        return result

    def _certainly(
        self, load: str, enter: Callable[[Transaction], T], entered: Callable[[ReadTransaction], T | None]
    ) -> T:
        """Enter a load; when the answer is lost, what the space has `entered` of it.

        Raises: `Uncertain` when the space does not answer that either; what `enter` raises.
        """
        try:
            return write_certainly(self.space, enter, entered)
        except Uncertain as error:
            raise Uncertain(
                "the space does not say whether the load is entered", kind="load_uncertain", load=load,
                reason=error.values.get("reason", error.message),
                hint="load the same parts again under this load id: what is entered is not entered twice",
            ) from error  # fmt: skip
        except Unavailable as error:
            if error.kind != "write_not_made":
                raise
            raise Unavailable(
                "the load was not entered", kind="load_not_entered", load=load, hint="load it again"
            ) from error

    def _recall(self, load: str, places: Mapping[str, Path]) -> None:
        """See to what an earlier attempt at a load left in `receive/`, because its outcome was not known."""
        received = self.folder / "receive" / load
        if not received.exists():
            return
        with self.alone():
            with self.space.read() as tx:
                known = remembered(tx, load, None)
            if known is not None:
                self.settle(load)
                return
            for part, place in places.items():
                if (received / part).exists() and not place.exists():
                    place.parent.mkdir(parents=True, exist_ok=True)
                    (received / part).rename(place)

    def _check_maps(self, tx: ReadTransaction, manifests: Sequence[PartManifest]) -> None:
        for manifest in manifests:
            definition = find_map(tx, manifest.map)
            if definition.incarnation != manifest.incarnation:
                raise Conflict(
                    "the part was written for an earlier map of this name", kind="map_incarnation", map=manifest.map,
                    hint="write the rows again",
                )  # fmt: skip

    def _enter(
        self, tx: Transaction, load: str, manifests: Sequence[PartManifest], source: str, rejected: int,
        stream: tuple[str, int] | None,
    ) -> Committed:  # fmt: skip
        known = remembered(tx, load, stream)
        if known is not None:
            return Committed.of(known)
        self._check_maps(tx, manifests)
        body = load_body(tx, load, manifests, source=source, rejected=rejected, stream=stream)
        position = head_of(tx).position
        if body["parts"] or stream is not None:
            position = record(tx, "load", tuple(body["maps"]), body, self.clock.now_ms()).position
        return Committed.of(body | {"position": position, "parts": len(body["parts"])})

    def follow(self, entry: Entry, parts: Mapping[str, Path]) -> bool:
        """Enter an entry of the primary's log, with the folders of its parts, which are moved away.

        Raises: `Conflict`, see `log.accept`; `Invalid` when a part is missing or is another one.
        """
        wanted = {part["id"] for part in entry.body["parts"]} if entry.kind == "load" else set()

        def enter(tx: Transaction) -> bool:
            return follow(tx, entry, keep=self.keep)

        def here(tx: ReadTransaction) -> bool | None:
            found = entry_at(tx, entry.position)
            return True if found is not None and found.chain == entry.chain else None

        with self.alone():
            with self.space.read() as tx:
                known = not follows(tx, entry)
            if known or not wanted:
                entered = self.space.write(enter)
            else:
                self._recall(entry.body["load"], {part: parts[part] for part in wanted & parts.keys()})
                _check_parts(entry, parts)
                places = {part: parts[part] for part in wanted}
                entered = self._received(entry.body["load"], places, enter, here)
        self.announce()
        return bool(entered)

    def settle(self, load: str) -> None:
        """Move the parts of a committed load into `staging/`; duplicates are removed."""
        received = self.folder / "receive" / load
        for place in sorted(_folders(received)):
            queued = self._entered_as(place, load)
            if queued is not None:
                place.rename(self.places.staged(queued.number))
                step("load.part_staged")
        sync(self.folder / "staging")
        remove_tree(received)

    def _entered_as(self, place: Path, load: str) -> Queued | None:
        try:
            manifest = read_manifest(place)
        except Corrupt:
            # Its folder tells which it is; before there was a log, by its place in the load.
            names = ((part, (part.part, str(part.index))) for part in self.queue.parts() if part.load == load)
            return next((part for part, known in names if place.name in known), None)
        with self.space.read() as tx:
            queued = queued_part(tx, manifest.map, manifest.id)
        return queued if queued is not None and queued.load == load else None

    # -- the queue ------------------------------------------------------------------------------------

    def take(self, queued: Queued) -> Path:
        """Move a part from `staging/` to `merging/`; where it lies now.

        The move need not outlive a power cut: wherever of its places a part is found then, it is taken from there.

        Raises: `Corrupt` when the part is nowhere.
        """
        place, retained = self.places.merging(queued.map, queued.number), self.places.retained(queued.part)
        if place.exists() or retained.exists():
            return place if place.exists() else retained
        staged, quarantined = self.places.staged(queued.number), self.places.quarantine(queued.map, queued.number)
        source = staged
        if not staged.exists() and queued.again and quarantined.exists():
            source = quarantined
        elif not staged.exists():
            # Another process has entered the load but not staged all of it yet, or died before it could.
            with self.alone():
                self.settle(queued.load)
        if not source.exists():
            raise Corrupt("a staged part is missing", kind="part_missing", map=queued.map, folder=staged)
        (source / REASON).unlink(missing_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        source.rename(place)
        step("merge.part_taken")
        return place

    def finish(self, parts: Sequence[Queued]) -> None:
        """Let merged parts wait no more; then they are kept, or taken off the disk.

        Raises: `Conflict` when the map was dropped meanwhile.
        """
        now = self.clock.now_ms()
        if self.keep:
            self._keep(parts)

        def leave(tx: Transaction) -> None:
            for name in {queued.map for queued in parts}:
                series_of(name).retire(tx, [queued.number for queued in parts if queued.map == name])
            for queued in parts:
                if self.keep:
                    tx.put(RETAINED.pack(queued.part), replace(queued, queued_ms=now, again=False).to_json())

        self.space.write(leave)
        step("merge.dequeued")
        for queued in parts:
            remove_tree(self.places.merging(queued.map, queued.number))
        self.announce()

    def _keep(self, parts: Sequence[Queued]) -> None:
        """Move merged parts to where they are kept, durably: all of them, then the names of all."""
        shelf = self.folder / "retained"
        shelf.mkdir(exist_ok=True)
        left: set[Path] = set()
        for queued in parts:
            place, retained = self.places.merging(queued.map, queued.number), self.places.retained(queued.part)
            if place.exists():
                remove_tree(retained)
                place.rename(retained)
                left.add(place.parent)
                step("merge.part_kept")
        for folder in (shelf, *left) if left else ():
            sync(folder)

    def carried_out(self, order: MaintenanceOrder) -> None:
        """Let a maintenance order wait no more."""
        self.space.write(lambda tx: tx.delete(MAINTENANCE.pack(order.map, order.position)))
        step("maintenance.dequeued")
        self.announce()

    def quarantine(self, queued: Queued, reason: str) -> Quarantined:
        """Quarantine a part that cannot be merged, with its reason."""
        target = self.places.quarantine(queued.map, queued.number)
        # Of a map that was dropped meanwhile nothing is quarantined.
        here = queued in self.queue.parts(queued.map)
        quarantined = Quarantined(
            queued.map, queued.number, queued.part, reason, str(target), self.clock.now_ms(),
            {"map": queued.map, "number": queued.number, "part": queued.part, "rows": queued.rows} | queued.about(),
        )  # fmt: skip

        def leave(tx: Transaction) -> None:
            tx.delete(RETAINED.pack(queued.part))
            if series_of(queued.map).remove(tx, Segment(queued.part, queued.number)):
                tx.put(QUARANTINE.pack(queued.map, queued.number), quarantined.to_json())

        if not here:
            return quarantined
        taken, staged = self.places.merging(queued.map, queued.number), self.places.staged(queued.number)
        for place in (taken, staged, self.places.retained(queued.part)):
            if place.exists():
                write_file_atomically(place / REASON, quarantined.to_json())
                remove_tree(target)
                move(place, target)
        if (target / REASON).exists():
            # When a crash came after the move, the reason is the one that was found then.
            quarantined = Quarantined.from_json((target / REASON).read_bytes())
        else:
            target.mkdir(exist_ok=True)
            write_file_atomically(target / REASON, quarantined.to_json())
        step("merge.quarantine_moved")
        self.space.write(leave)
        self.announce()
        return quarantined

    # -- after a crash --------------------------------------------------------------------------------

    def recover(self, alive: Callable[[str], bool]) -> bool:
        """Bring the folders in line with the queue; False when another process is at it, or entering a load.

        `alive` says of the name of a folder in `writer/` whether its process lives.
        """
        try:
            with self.alone(seconds=0):
                for received in _folders(self.folder / "receive"):
                    self.settle(received.name)
                self.clear()
                for written in _folders(self.folder / "writer"):
                    if not alive(written.name):
                        remove_tree(written)
        except Unavailable:
            return False
        return True

    def clear(self) -> None:
        """Remove parts that nothing waits for, or move them to where they are kept. Call it while `alone`."""
        queue = self.queue.parts()
        numbers = {f"{part.number:012d}" for part in queue}
        with self.space.read() as tx:
            retained = {str(RETAINED.unpack(key)[0]) for key in tx.keys(RETAINED.range())}
        merging = [place for name in _folders(self.folder / "merging") for place in _folders(name)]
        for place in _folders(self.folder / "staging") + merging:
            if place.name not in numbers:
                self._clear_one(place, retained)
        known = retained | {part.part for part in queue}
        for place in _folders(self.folder / "retained"):
            if place.name not in known:
                remove_tree(place)

    def _clear_one(self, place: Path, retained: set[str]) -> None:
        with suppress(Corrupt):
            part = read_manifest(place).id
            if part in retained and not self.places.retained(part).exists():
                move(place, self.places.retained(part))
                return
        remove_tree(place)


def sweep_pond(folder: Path) -> None:
    """Remove what a crash, or a removal that could not end, left half written or half removed in a pond's folder."""
    for within in _SWEPT:
        sweep_leftovers(folder, within)


def _remove_parts(places: Sequence[Path]) -> None:
    for place in places:
        remove_tree(place)
    for folder in {place.parent for place in places}:
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
        wanted = (part["id"], part["map"], entry.body["maps"][part["map"]]["incarnation"])
        if (manifest.id, manifest.map, manifest.incarnation) != wanted:
            raise Invalid("the part is another one", kind="part_other", folder=place, part=part["id"])


def _folders(parent: Path) -> list[Path]:
    if not parent.exists():
        return []
    return [entry for entry in parent.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
