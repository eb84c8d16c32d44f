"""Reading maps of nodes from snapshots: one copy for all processes of a machine, as fresh as wanted.

    cache = SnapshotCache("cache", nodes, settings, clock)
    cache.reader("weather").snapshot().lookup(keys, at=times)

| a read finds | it |
|---|---|
| nothing | waits for the first fetch, at most five times `client.read_timeout` |
| a snapshot that a node confirmed less than `client.min_time_to_keep_snapshots` ago | takes it; no request to a node |
| one confirmed less than twice as long ago | takes it, and one refresh begins in the background |
| an older one | waits for a refresh, and takes the old one when that fails |
| that a fetch failed in `client.snapshot_retry_interval` | takes what there is, else fails with that cause |

A node that says that the snapshot is still the same confirms it. A node that says that there is no such map, or that
we may not read it, ends it: what was fetched before is not shown any more. When no node can be reached, what is there
keeps being shown.

A reader that is not used for `FILES_IDLE_MS` lets go of its files; they stay in the cache, and are mapped
again by the next read. The files of a replaced snapshot go when its last reader, of any process, lets go of it.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import TYPE_CHECKING

from millpond.client.snapshots.cache import FetchedSnapshot, SnapshotStore
from millpond.client.snapshots.fetch import FILE_LOST, SnapshotFetch, SnapshotRequest
from millpond.clock import Clock
from millpond.errors import Closed, Denied, Internal, Invalid, MillpondError, NotFound, Unavailable
from millpond.kernel.worker import begin_thread
from millpond.maps.snapshots.bounds import pair_of
from millpond.times.instants import clear_instant, parse_instant

if TYPE_CHECKING:
    from millpond.client.transport import Nodes
    from millpond.maps.snapshots.snapshot import Snapshot
    from millpond.settings import Settings

__all__ = ("SnapshotCache", "SnapshotReader", "bounds_query")

_LOG = logging.getLogger(__name__)
FILES_IDLE_MS = 60_000
"""A reader that is not used for so long lets go of its files."""
STALE_TIMES = 2
"""A snapshot that was not confirmed for so many times `client.min_time_to_keep_snapshots` is not shown without
asking."""

SWEEP_MS = 3_600_000
"""The interval of looking for copies that nobody wants any more."""


@dataclass(slots=True)
class _Fetch:
    """One fetch on its way, in a thread of its own."""

    fresh: bool
    process: int = field(default_factory=os.getpid)
    done: threading.Event = field(default_factory=threading.Event)
    error: MillpondError | None = None


class SnapshotReader:
    """The current snapshot of one map, or of a subset of it. Threads may share it; get it from a cache."""

    def __init__(self, fetch: SnapshotFetch, request: SnapshotRequest, replaced: Callable[[], None]) -> None:
        self.request = request
        self._fetch, self._settings, self._clock = fetch, fetch.settings, fetch.clock
        self._replaced = replaced
        self._lock = threading.Lock()
        self._held: FetchedSnapshot | None = None
        self._running: _Fetch | None = None
        self._failed: tuple[int, MillpondError] | None = None
        self._outdated = False
        self._used_ms = self._clock.now_ms()

    # -- reading --------------------------------------------------------------------------------------

    def snapshot(self, *, fresh: bool = False) -> Snapshot:
        """The snapshot to read, open. It stays usable for who holds it, whatever comes after it.

        `fresh`: it must hold all that is applied on the node that answers, now.

        Raises: `Unavailable` when there is none and no node can be reached, or the fetch takes too long; what a node
        answers, such as `NotFound` for a map that is not there.
        """
        with self._lock:
            self._used_ms = now = self._clock.now_ms()
            current = self._current(now)
            failing = None if fresh else self._failed_lately(now)
            fresh = fresh or self._outdated
            if current is not None and not fresh:
                if failing is not None or self._age(current, now) < self._settings.client.min_time_to_keep_snapshots:
                    return current.snapshot.another()
            elif failing is not None:
                raise _again(failing)
            running = self._begin(fresh)
            if current is not None and not fresh and self._age(current, now) < self._stale_ms:
                return current.snapshot.another()
        return self._awaited(running, None if fresh else current)

    @property
    def cached(self) -> bool:
        """True when a current snapshot is cached, so that a read needs no fetch."""
        with self._lock:
            now = self._clock.now_ms()
            current = self._current(now)
            return (
                current is not None and not self._outdated
                and self._age(current, now) < self._settings.client.min_time_to_keep_snapshots
            )  # fmt: skip

    def outdate(self) -> None:
        """Let the next read ask for a fresh snapshot: the map was changed by this process, which wants to see it."""
        with self._lock:
            self._outdated = True

    @property
    def _stale_ms(self) -> int:
        return STALE_TIMES * self._settings.client.min_time_to_keep_snapshots

    def _age(self, current: FetchedSnapshot, now: int) -> float:
        """Seconds since the snapshot was confirmed; infinite when a clock was set back."""
        return now - current.confirmed_ms if current.confirmed_ms <= now else float("inf")

    def _failed_lately(self, now: int) -> MillpondError | None:
        if self._failed is None or not 0 <= now - self._failed[0] < self._settings.client.snapshot_retry_interval:
            return None
        return self._failed[1]

    def _current(self, now: int) -> FetchedSnapshot | None:
        """The snapshot held; or, when that is due, a newer one fetched meanwhile by another process of this machine."""
        current = self._held
        if current is not None and self._age(current, now) < self._settings.client.min_time_to_keep_snapshots:
            return current
        confirmed = self._fetch.confirmation(self.request)
        if confirmed is None or (current is not None and confirmed.confirmed_ms <= current.confirmed_ms):
            return current
        if current is not None and confirmed.manifest == current.snapshot.manifest.id:
            self._hold(FetchedSnapshot(current.snapshot, confirmed.confirmed_ms))
        else:
            snapshot = self._fetch.open_known(self.request)
            if snapshot is not None:
                self._hold(snapshot)
        return self._held

    def _hold(self, brought: FetchedSnapshot) -> None:
        old = self._held
        self._held = brought
        if old is None or old.snapshot is not brought.snapshot:
            # The callback runs wherever the last holder lets go: it only leaves a note.
            assert brought.snapshot.lease is not None, "it is open"
            weakref.finalize(brought.snapshot.lease, self._replaced).atexit = False
            self._replaced()  # processes that are dead left no note of what they read

    # -- fetching -------------------------------------------------------------------------------------

    def _begin(self, fresh: bool) -> _Fetch:
        """The fetch that is on its way, or a new one; one that began before `fresh` was wanted does not count."""
        running = self._running
        if running is not None and running.process != os.getpid():
            running = None  # a fork has no threads of its parent
        if running is not None and not fresh:
            return running
        begun = self._running = _Fetch(fresh)
        begin_thread("snapshot", partial(self._run, begun, running))
        return begun

    def _run(self, fetch: _Fetch, before: _Fetch | None) -> None:
        if before is not None:
            before.done.wait()
        brought = None
        try:
            brought = self._fetch.bring(self.request, fresh=fetch.fresh)
        except MillpondError as error:
            fetch.error = error
        except BaseException as error:
            _LOG.exception("fetching a snapshot failed")
            fetch.error = Internal("fetching a snapshot failed", map=self.request.map, reason=repr(error))
        with self._lock:
            self._ended(fetch, brought)
        brought = None
        fetch.done.set()

    def _ended(self, fetch: _Fetch, brought: FetchedSnapshot | None) -> None:
        if self._running is fetch:
            self._running = None
        if brought is not None:
            self._hold(brought)
            self._failed = None
            self._outdated = self._outdated and not fetch.fresh
            return
        assert fetch.error is not None
        self._failed = (self._clock.now_ms(), fetch.error)
        if _final(fetch.error):
            self._held = None
            self._fetch.forget(self.request)
        _LOG.warning("the snapshot of %s was not refreshed: %s", self.request.map, fetch.error)

    def _awaited(self, fetch: _Fetch, old: FetchedSnapshot | None) -> Snapshot:
        """The result of the fetch; `old` when it fails without a final answer."""
        seconds = self._settings.client.snapshot_fetch_timeout / 1000
        ended = self._clock.wait(fetch.done, self._clock.monotonic() + seconds)
        error = fetch.error if ended else self._too_slow(seconds)
        with self._lock:
            current = self._held
        if error is None and current is not None:
            return current.snapshot.another()
        error = error or Closed("the reader was closed meanwhile", kind="snapshot_closed", map=self.request.map)
        if old is not None and not _final(error):
            return old.snapshot.another()
        raise _again(error)

    def _too_slow(self, seconds: float) -> MillpondError:
        error = Unavailable(
            "the snapshot was not fetched in time", kind="snapshot_fetch_slow", map=self.request.map, seconds=seconds,
            hint="it is still being fetched; wait longer for it with client.read_timeout",
        )  # fmt: skip
        with self._lock:
            self._failed = (self._clock.now_ms(), error)
        return error

    # -- letting go -----------------------------------------------------------------------------------

    def tend(self, now_ms: int) -> bool:
        """Let go of a snapshot that was not used for `FILES_IDLE_MS`; true if so."""
        with self._lock:
            idle = not 0 <= now_ms - self._used_ms < FILES_IDLE_MS
            if not idle or self._held is None:
                return False
            self._held = None
            return True

    def close(self) -> None:
        """Let go. A read after this opens it again."""
        with self._lock:
            self._held = None


def _final(error: MillpondError) -> bool:
    """True when a node answered that the map cannot be read: it does not exist, or is not ours to see."""
    return isinstance(error, NotFound | Denied) and error.kind not in FILE_LOST


def _again(error: MillpondError) -> MillpondError:
    """The same error for another caller: each has its own trace."""
    raised = type(error)(error.message, kind=error.kind, hint=error.hint, **error.values)
    raised.__cause__ = error
    return raised


class SnapshotCache:
    """The readers of one pond's maps in this process, over the folder that all processes share.

    A thread of its own closes idle readers and removes files that nobody needs, as long as the cache is used; unless
    `tending` is False: then somebody calls `tend`.
    """

    def __init__(
        self, folder: str | Path, nodes: Nodes, settings: Settings, clock: Clock, *, tending: bool = True
    ) -> None:  # fmt: skip
        self.settings, self.clock = settings, clock
        self.fetch = SnapshotFetch(nodes, SnapshotStore(Path(folder)), settings, clock)
        self._readers: dict[SnapshotRequest, SnapshotReader] = {}
        self._changed: set[str | None] = set()
        self._lock = threading.Lock()
        self._notes: SimpleQueue[SnapshotRequest | None] = SimpleQueue()
        self._left: set[SnapshotRequest] = set()
        self._swept_ms: int | None = None
        self._tending = tending
        self._tender: threading.Thread | None = None
        self._stop = threading.Event()

    def reader(
        self, map: str, *, keys: Sequence[str | int | None] | None = None, window: Sequence[object] | None = None,
        at: Mapping[str, str] = MappingProxyType({}),
    ) -> SnapshotReader:  # fmt: skip
        """A reader of a map; of its `keys` `[lower, upper)` (numbers, for ranged maps) or a `window` of time only; `at`
        a branch or a ref.

        Nothing is fetched before it is read. A question outside of the bounds is an error, never a null.

        Raises: `Invalid` for bounds that are no pair, or no times.
        """
        request = SnapshotRequest(map, bounds_query(keys, window), tuple(at.items()))
        with self._lock:
            reader_ = self._readers.get(request)
            if reader_ is None:
                reader_ = self._readers[request] = SnapshotReader(self.fetch, request, self._noting(request))
                if not self._changed.isdisjoint((map, None)):
                    reader_.outdate()
            self._begin_tending()
            return reader_

    def outdate(self, map: str | None) -> None:
        """Let the next read of a map, within whatever bounds, ask for a fresh snapshot; None: of any."""
        with self._lock:
            self._changed.add(map)
            readers = [reader for reader in self._readers.values() if map in (reader.request.map, None)]
        for reader in readers:
            reader.outdate()

    def _noting(self, request: SnapshotRequest) -> Callable[[], None]:
        notes = self._notes

        def note() -> None:
            notes.put(request)  # safe wherever garbage is collected

        return note

    def tend(self) -> None:
        """Close idle readers, remove the files of snapshots that were let go of. A thread does it in its time."""
        with self._lock:
            readers = list(self._readers.values())
        now = self.clock.now_ms()
        for reader in readers:
            reader.tend(now)
        while True:
            try:
                noted = self._notes.get_nowait()
            except Empty:
                break
            if noted is not None:
                self._left.add(noted)
        # A snapshot that somebody else still reads is tried again when its turn comes.
        self._left = {request for request in self._left if not self.fetch.collect(request)}
        if self._swept_ms is None or not 0 <= now - self._swept_ms < SWEEP_MS:
            self._swept_ms = now
            self.fetch.store.sweep(now)

    def _begin_tending(self) -> None:
        if self._tending and (self._tender is None or not self._tender.is_alive()):
            self._stop = threading.Event()
            seconds = FILES_IDLE_MS / 1000
            arguments = (weakref.ref(self), self._notes, seconds, self._stop)
            self._tender = begin_thread("snapshot-tender", partial(_maintain_maps, *arguments))

    def close(self) -> None:
        """Let go of all files. Readers open them again when they are read."""
        with self._lock:
            readers, self._tender = list(self._readers.values()), None
        for reader in readers:
            reader.close()
        self._stop.set()
        self._notes.put(None)


def _maintain_maps(
    cache: weakref.ref[SnapshotCache], notes: SimpleQueue[SnapshotRequest | None], seconds: float, stop: threading.Event
) -> None:
    """Tend a cache now and then, and when a snapshot was let go of, until it is closed or garbage."""
    while True:
        try:
            noted = notes.get(timeout=seconds)
        except Empty:
            pass
        else:
            notes.put(noted)
        tended = cache()
        if tended is None or stop.is_set():
            return
        try:
            tended.tend()
        except Exception:
            _LOG.exception("tending the snapshots of this machine failed")
        del tended


def bounds_query(
    keys: Sequence[str | int | None] | None, window: Sequence[object] | None
) -> tuple[tuple[str, str], ...]:
    """The query parameters of bounds; it checks whether the map can have them."""
    lower, upper = pair_of(keys, "keys")
    for bound in (lower, upper):
        if bound is not None and not isinstance(bound, str | int):
            raise Invalid("a key is text, or a number", kind="snapshot_bounds", bound=repr(bound))
    window = pair_of(window, "window")
    since, until = (None if instant is None else clear_instant(parse_instant(instant)) for instant in window)
    bounds = {"key_from": lower, "key_to": upper, "since": since, "until": until}
    return tuple((name, str(value)) for name, value in bounds.items() if value is not None)
