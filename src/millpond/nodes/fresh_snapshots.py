"""The open snapshots that answer bulk lookups: one of a map, showing all that has been applied to it.

    request ─▶ as new as the shard? ─yes─▶ it
                      └─no─▶ the snapshot that counts, with what was merged since as a layer in memory over it
                                 └─ too much was merged, or there is none ─▶ a new one, frozen first

Invariants:
* one thread makes the snapshot of a map, others that want it wait;
* a snapshot that nobody used in `idle_ms` is let go of, and with it all that is known of its map;
* one thread waits for that, while a snapshot is open; after `close` nothing is open, it ends, and none begins again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millpond.clock import Clock
from millpond.errors import Closed
from millpond.kernel.worker import WorkerThread

if TYPE_CHECKING:
    from millpond.maps.map import Map
    from millpond.maps.map_rows import MapRows
    from millpond.maps.snapshots.freeze import SnapshotManifest
    from millpond.maps.snapshots.snapshot import Snapshot
    from millpond.stores.objects import Objects

__all__ = ("OVERLAY_KEYS_MAX", "Fresh", "FreshSnapshots")

OVERLAY_KEYS_MAX = 50_000
"""A layer of so many keys is made in some tens of milliseconds; beyond that a freeze pays, for all who come later."""


@dataclass(slots=True)
class Fresh:
    """A snapshot of a version of a map, and what it lies on.

    The object of its rows is compared, too: a shard that was replaced by a copy may have a version again.
    """

    rows: MapRows
    version: int
    snapshot: Snapshot
    base: Snapshot
    objects: Objects

    def shows(self, map: Map) -> bool:
        """True when nothing was applied to the map since."""
        return self.rows is map.rows and self.version == map.rows.version


@dataclass(slots=True)
class _Slot:
    """The snapshot state of one map. `making` is held by the thread that makes its snapshot; the rest belongs to the
    owner's lock.
    """

    making: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    used: float = 0.0
    fresh: Fresh | None = None


class FreshSnapshots:
    """The open snapshots of one pond. Threads may share it."""

    def __init__(self, clock: Clock, idle_ms: int) -> None:
        self._clock, self._idle_ms = clock, idle_ms
        self._slots: dict[str, _Slot] = {}
        self._lock = threading.Lock()
        self._idle = WorkerThread("snapshots that nobody uses", self._release_in_time, clock)
        self._releasing = self._closed = False

    def current(self, map: Map) -> Fresh | None:
        """The snapshot that is open, when it shows the map as it is now."""
        slot = self._slots.get(map.name)
        fresh = None if slot is None else slot.fresh
        return fresh if fresh is not None and fresh.shows(map) else None

    def of(self, map: Map) -> Fresh:
        """The snapshot of a map as it is now.

        Raises: `Closed`; as `refreeze`.
        """
        with self._slot(map.name) as slot, slot.making:
            fresh = slot.fresh
            if fresh is None or not fresh.shows(map):
                fresh = _laid_over(map, fresh, self._clock.now_ms()) or _frozen(map)
                with self._lock:
                    slot.fresh = None if self._closed else fresh
        return fresh

    @contextmanager
    def _slot(self, name: str) -> Iterator[_Slot]:
        """The slot of a map, which is not let go of meanwhile."""
        with self._lock:
            if self._closed:
                raise Closed("the node is stopping", kind="node_stopping", hint="send it to another node")
            slot = self._slots.setdefault(name, _Slot())
            slot.users += 1
        try:
            yield slot
        finally:
            with self._lock:
                slot.users -= 1
                slot.used = self._clock.monotonic()
                if not self._releasing and self._slots and not self._closed:
                    self._releasing = True
                    self._idle.start()
                    self._idle.wake()

    def _release_in_time(self) -> float | None:
        """Let go of what is idle; look again in a while, as long as there is a snapshot."""
        with self._lock:
            self._release()
            self._releasing = bool(self._slots)
            return self._clock.monotonic() + max(self._idle_ms / 1000, 1.0) if self._releasing else None

    def release_idle(self) -> int:
        """Let go of the snapshots that nobody used lately; how many."""
        with self._lock:
            return self._release()

    def _release(self) -> int:
        before = self._clock.monotonic() - self._idle_ms / 1000
        idle = [name for name, slot in self._slots.items() if not slot.users and slot.used <= before]
        return sum(self._slots.pop(name).fresh is not None for name in idle)

    def close(self) -> None:
        """Let go of all of them, for good. Readers read to the end; closing twice is harmless."""
        with self._lock:
            self._closed = True
            self._slots.clear()
        self._idle.stop()


def _frozen(map: Map) -> Fresh:
    from millpond.maps.snapshots.snapshot import Snapshot

    with map.snapshots.refreeze() as leased:
        snapshot = Snapshot.open(map.objects, leased.manifest, memory_max=map.loading.memory_max)
    return Fresh(map.rows, leased.manifest.shard_version, snapshot, snapshot, map.objects)


def _laid_over(map: Map, earlier: Fresh | None, now_ms: int) -> Fresh | None:
    """The snapshot that counts with what was merged since on top; None when a freeze pays."""
    from millpond.maps.snapshots.snapshot import Snapshot

    if map.layers is not None:
        return None  # it is never behind
    leased = map.snapshots.current()
    if leased is None:
        return None
    with leased:
        base = earlier.base if earlier is not None and earlier.base.manifest.id == leased.manifest.id else None
        base = base or Snapshot.open(map.objects, leased.manifest, memory_max=map.loading.memory_max)
    return _lay_over(map, leased.manifest, base, now_ms)


def _lay_over(map: Map, manifest: SnapshotManifest, base: Snapshot, now_ms: int) -> Fresh | None:
    from millpond.maps.snapshots.freeze import freeze
    from millpond.maps.snapshots.overlay_objects import Overlay
    from millpond.maps.snapshots.snapshot import Snapshot

    with map.shard.view() as view:
        if view.version == manifest.shard_version:
            return Fresh(map.rows, view.version, base, base, map.objects)
        touched = view.touched_since(manifest.shard_version) if view.version > manifest.shard_version else None
        if touched is None or len(touched) > OVERLAY_KEYS_MAX:
            return None
        overlay = Overlay(map.objects)
        laid = freeze(
            overlay, view.definition, view.read_rows(touched), base=manifest, touched=touched,
            shard_version=view.version, created_ms=now_ms,
        )  # fmt: skip
        snapshot = Snapshot.open(overlay, laid, memory_max=map.loading.memory_max)
        return Fresh(map.rows, view.version, snapshot, base, overlay)
