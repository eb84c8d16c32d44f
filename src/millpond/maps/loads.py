"""The life of a load in one pond: from sealed parts to merged rows.

    writer/<host>-<pid>-<id>/…        parts being written; leftovers of dead processes are removed
    receive/<load id>/<n>/        parts handed over, checked whole
    staging/<number>/             the sequential store: one entry a part, taken in order
    merging/<map>/<number>/       the part being merged
    quarantine/<number>-<map>/    a part that cannot be merged, with `reason.json`

What counts is the queue in the space, for each map a series of sealed segments (`kernel/series.py`):
`queue/<map>/<number>` → what the part is and where it comes from; merged, it is retired.
One write of the space enters all parts of a load: before it nothing of the load is visible, after it nothing
of it can be lost. Folders follow the queue: `recover` moves what a crash left behind to where it belongs.

`absorbed/<map>/<part id>` remembers every part ever merged: adopting one twice is harmless, also after it was
merged away.

Several processes share a pond: `loads.lock` is held from the moment parts move to `receive/` until they are staged,
and while recovering, so that nobody takes another's load, half-way, for what a crash left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millpond.clock import Clock
from millpond.errors import Conflict, Corrupt, Unavailable
from millpond.kernel.keys import Prefix
from millpond.kernel.segments import Segment
from millpond.kernel.series import Listed, Series
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.kernel.steps import step
from millpond.maps.catalogue import find_map, list_maps
from millpond.maps.current import current_snapshot
from millpond.maps.parts import PartFile, PartManifest, verify_part
from millpond.stores.files import move, remove_tree, sync, write_file_atomically
from millpond.stores.locks import alone

__all__ = ("Committed", "Loads", "Queued", "Quarantined", "series_of")

QUEUE, ABSORBED, QUARANTINE = Prefix("queue"), Prefix("absorbed"), Prefix("quarantine")
NUMBER = Prefix("counter").pack("part")
LOCK_SECONDS = 120.0
REASON = "reason.json"
FOLDERS = ("writer", "receive", "staging", "merging", "shards", "snapshots", "quarantine")


def series_of(name: str) -> Series:
    """The parts of a map that wait, and the ids of all it ever took."""
    return Series(QUEUE[name], ABSORBED[name])


@dataclass(frozen=True, slots=True)
class Queued:
    """A part that waits to be merged."""

    map: str
    number: int
    load: str
    index: int
    load_number: int
    part: str
    rows: int
    source: str
    queued_ms: int

    @classmethod
    def of(cls, name: str, listed: Listed) -> Queued:
        """What a map's series says of a part."""
        segment = listed.segment
        return cls(map=name, number=segment.position, part=segment.id, rows=segment.entries, **listed.about)


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A part that could not be merged, and why."""

    map: str
    number: int
    part: str
    reason: str
    folder: str


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit entered: the numbers of its parts, and how many were there already."""

    load: str
    numbers: tuple[int, ...]
    maps: tuple[str, ...]
    duplicates: int


class Loads:
    """The queue of parts and the folders that follow it."""

    def __init__(self, space: Space, folder: Path, clock: Clock) -> None:
        self.space, self.folder, self.clock = space, folder, clock

    # -- commit ---------------------------------------------------------------------------------------

    def commit(self, parts: Sequence[PartFile], source: str) -> Committed:
        """Enter all parts as one load, or none.

        Raises:
            Corrupt: a part is damaged; its file is named.
            Conflict: a part was written for a map that was dropped or has another shape now.
        """
        for part in parts:
            verify_part(Path(part.folder))
        with self.space.read() as tx:
            self._check_maps(tx, [part.manifest for part in parts])
        with self._alone():
            return self._commit(parts, source)

    def _commit(self, parts: Sequence[PartFile], source: str) -> Committed:
        load = self.clock.random_id()
        received = self.folder / "receive" / load
        received.mkdir(parents=True)
        for index, part in enumerate(parts):
            Path(part.folder).rename(received / str(index))
        for folder in {Path(part.folder).parent for part in parts}:
            with suppress(OSError):  # others may still write there
                folder.rmdir()
        sync(received)
        sync(received.parent)
        step("load.received")
        manifests = [part.manifest for part in parts]
        committed = self.space.write(lambda tx: self._enter(tx, load, manifests, source))
        step("load.committed")
        self.settle(load)
        return committed

    @contextmanager
    def _alone(self, seconds: float = LOCK_SECONDS) -> Iterator[None]:
        busy = Unavailable("another load is being entered", kind="pond_busy", folder=self.folder, hint="try again")
        with alone(self.folder / "loads.lock", seconds, busy):
            yield

    def _check_maps(self, tx: ReadTransaction, manifests: Sequence[PartManifest]) -> None:
        for manifest in manifests:
            definition = find_map(tx, manifest.map)
            if definition.incarnation != manifest.incarnation:
                raise Conflict(
                    "the part was written for an earlier map of this name", kind="map_incarnation", map=manifest.map,
                    hint="write the rows again",
                )  # fmt: skip

    def _enter(self, tx: Transaction, load: str, manifests: Sequence[PartManifest], source: str) -> Committed:
        self._check_maps(tx, manifests)
        last = int.from_bytes(tx.get(NUMBER) or b"", "big")
        numbers, duplicates, first = [], 0, last + 1
        for index, manifest in enumerate(manifests):
            about = {
                "load": load, "index": index, "load_number": first, "source": source, "queued_ms": self.clock.now_ms(),
            }  # fmt: skip
            # The same part twice in one load, or in the next, is one part.
            if not series_of(manifest.map).adopt(tx, Segment(manifest.id, last + 1, manifest.rows), about):
                duplicates += 1
                continue
            last += 1
            numbers.append(last)
        tx.put(NUMBER, last.to_bytes(8, "big"))
        maps = tuple(dict.fromkeys(manifest.map for manifest in manifests))
        return Committed(load, tuple(numbers), maps, duplicates)

    def settle(self, load: str) -> None:
        """Move the parts of a committed load into `staging/`; duplicates are removed."""
        received = self.folder / "receive" / load
        for queued in self.queued():
            place = received / str(queued.index)
            if queued.load == load and place.exists():
                move(place, self.staged(queued.number))
                step("load.part_staged")
        remove_tree(received)

    # -- the queue ------------------------------------------------------------------------------------

    def staged(self, number: int) -> Path:
        """Where a part waits."""
        return self.folder / "staging" / f"{number:012d}"

    def merging(self, name: str, number: int) -> Path:
        """Where a part lies while it is merged."""
        return self.folder / "merging" / name / f"{number:012d}"

    def queued(self, name: str | None = None) -> list[Queued]:
        """Parts that wait, in order; of one map or of all."""
        with self.space.read() as tx:
            names = [each.name for each in list_maps(tx)] if name is None else [name]
            found = [Queued.of(each, listed) for each in names for listed in series_of(each).listed(tx)]
        return sorted(found, key=lambda each: each.number)

    def next_loads(self, name: str) -> Iterator[list[Queued]]:
        """The parts that wait for one map, load by load, in order."""
        while waiting := self.queued(name):
            yield [each for each in waiting if each.load == waiting[0].load]

    def take(self, queued: Queued) -> Path:
        """Move a part from `staging/` to `merging/`; where it lies now.

        Raises: `Corrupt` when the part is nowhere.
        """
        place = self.merging(queued.map, queued.number)
        if not place.exists():
            staged = self.staged(queued.number)
            if not staged.exists():
                # Another process has entered the load but not staged all of it yet, or died before it could.
                with self._alone():
                    self.settle(queued.load)
            if not staged.exists():
                raise Corrupt("a staged part is missing", kind="part_missing", map=queued.map, folder=staged)
            place.parent.mkdir(parents=True, exist_ok=True)
            move(staged, place)
            step("merge.part_taken")
        return place

    def finish(self, parts: Sequence[Queued]) -> None:
        """Take merged parts out of the queue, then off the disk."""

        def leave(tx: Transaction) -> None:
            for name in {queued.map for queued in parts}:
                series_of(name).retire(tx, [queued.number for queued in parts if queued.map == name])

        self.space.write(leave)
        step("merge.dequeued")
        for queued in parts:
            remove_tree(self.merging(queued.map, queued.number))

    def quarantine(self, queued: Queued, reason: str) -> Quarantined:
        """Put a part that cannot be merged aside, with its reason."""
        target = self.folder / "quarantine" / f"{queued.number:012d}-{queued.map}"
        told = Quarantined(queued.map, queued.number, queued.part, reason, str(target))

        def leave(tx: Transaction) -> None:
            tx.put(QUARANTINE.pack(queued.map, queued.number), _to_json(told))
            series_of(queued.map).remove(tx, Segment(queued.part, queued.number))

        for place in (self.merging(queued.map, queued.number), self.staged(queued.number)):
            if place.exists():
                write_file_atomically(place / REASON, _to_json(told))
                move(place, target)
        if (target / REASON).exists():
            # When a crash came after the move, the reason is the one that was found then.
            told = Quarantined(**json.loads((target / REASON).read_bytes()))
        else:
            target.mkdir(exist_ok=True)
            write_file_atomically(target / REASON, _to_json(told))
        step("merge.quarantine_moved")
        self.space.write(leave)
        return told

    def quarantined(self) -> list[Quarantined]:
        """Parts that were put aside."""
        with self.space.read() as tx:
            return [Quarantined(**json.loads(value)) for _, value in tx.scan(QUARANTINE.range())]

    def forget(self, tx: Transaction, name: str) -> None:
        """Take everything of a dropped map out of the space."""
        current_snapshot(name).clear(tx)
        series_of(name).clear(tx)
        for key, _ in list(tx.scan(QUARANTINE[name].range())):
            tx.delete(key)

    # -- after a crash --------------------------------------------------------------------------------

    def recover(self, alive: Callable[[str], bool]) -> bool:
        """Bring the folders in line with the queue; False when another process is at it, or entering a load.

        `alive` says of the name of a folder in `writer/` whether its process lives.
        """
        try:
            with self._alone(seconds=0):
                self._recover(alive)
        except Unavailable:
            return False
        return True

    def _recover(self, alive: Callable[[str], bool]) -> None:
        for received in _folders(self.folder / "receive"):
            self.settle(received.name)
        waiting = {f"{each.number:012d}" for each in self.queued()}
        merging = [place for name in _folders(self.folder / "merging") for place in _folders(name)]
        for place in _folders(self.folder / "staging") + merging:
            if place.name not in waiting:
                remove_tree(place)
        for written in _folders(self.folder / "writer"):
            if not alive(written.name):
                remove_tree(written)


def _to_json(told: Any) -> bytes:
    return json.dumps({name: getattr(told, name) for name in told.__slots__}).encode()


def _folders(parent: Path) -> list[Path]:
    if not parent.exists():
        return []
    return [entry for entry in parent.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
