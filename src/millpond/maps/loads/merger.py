"""The merger of a pond that is served: it merges what waits, and folds layers, in the background, maps in parallel.

Invariants:
* a map is worked on by one thread at a time, in the order of the log; no map waits for another's work;
* a failure of one map is reported by `status`, and raised to those who wait for it; it is tried again later, or soon
  when somebody begins to wait; the others go on;
* `stop` waits for the transaction that runs, not for what waits;
* held (`pause`), it merges only while somebody keeps it awake; what is entered meanwhile waits.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, TypeAlias

from millpond.errors import MillpondError
from millpond.json_forms import plain
from millpond.kernel.cache import Cache
from millpond.kernel.worker import WorkerThread
from millpond.maps.layered.maintenance import fold_loaded, folds_due
from millpond.maps.loads.loading import Loading
from millpond.maps.loads.merge_queue import Merged, merge_map
from millpond.maps.loads.pause import Pause
from millpond.maps.log.log import head_of
from millpond.maps.log.queue import applied_position, queue_counts, waiting_maps
from millpond.maps.maintenance.maintenance import MaintenanceReport
from millpond.maps.model.catalogue import map_names

__all__ = ("MapProgress", "Merger", "Turns", "always")

_LOG = logging.getLogger(__name__)
LOOK_AGAIN_SECONDS = 1.0
"""The interval of looking at the queue when nobody nudges."""
TRY_AGAIN_SECONDS = 10.0
"""So long a map rests after an error: a full disk is not helped by trying at once."""
RESTS = 4
REST_SECONDS_MAX = 0.3
"""A map rests `RESTS` times as long as its last merge took, at most so long: so small loads that come one after another
share transactions, their syncs, and the pages that they change. A map that somebody waits for does not rest."""
REPORTS_MAX = 1000


class _Pond(Protocol):
    loading: Loading


Turns: TypeAlias = Callable[[str, threading.Event], AbstractContextManager[threading.Event | None]]
"""Gives the turn at a job, for a block: the event that says when it must end; None when another node has the turn."""


def always(_job: str, ending: threading.Event) -> AbstractContextManager[threading.Event | None]:
    """Have the turn: there is no other node that could."""
    return nullcontext(ending)


@dataclass(slots=True)
class MapProgress:
    """The state of merging of one map. Times are UTC milliseconds; `error` is empty after a success.

    `merged_rows` is of the last round, the totals are since the merger was made.
    """

    map: str
    working: bool = False
    merged_rows: int = 0
    rows_total: int = 0
    parts_total: int = 0
    merged_ms: int | None = None
    merge_took_ms: int = 0
    error: str = ""
    error_kind: str = ""
    error_ms: int | None = None
    rests_until: float = 0.0
    rests_at_least: float = 0.0


class Merger:
    """Merges in the background from `start` to `stop`; `nudge` it when something new waits (entering does)."""

    def __init__(
        self, pond: _Pond, *, try_again_seconds: float = TRY_AGAIN_SECONDS, turns: Turns = always
    ) -> None:  # fmt: skip
        """`turns` gives the turn to fold a map, or None: of several nodes on a bucket one has it."""
        self.loading = pond.loading
        self.loads = pond.loading.loads
        self._try_again_seconds, self._turns = try_again_seconds, turns
        self._progress: dict[str, MapProgress] = {}
        self._reports: Cache[int, MaintenanceReport] = Cache(REPORTS_MAX)
        self._lock = threading.Lock()
        self.worker = WorkerThread("the merger's look at what waits", self._begin_due, pond.loading.clock)
        self._pool: ThreadPoolExecutor | None = None
        self.pause = Pause(self.nudge)
        self._rested = inf

    def start(self) -> None:
        """Begin; starting twice is harmless."""
        if self.worker.started:
            return
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="millpond-merge")
        self.loads.changed.listeners.append(self.nudge)
        self.worker.start()

    def stop(self) -> None:
        """End after the transactions that run; stopping twice is harmless."""
        if self._pool is None:
            return
        self.worker.stop()
        self._pool.shutdown()
        self._pool = None
        self.loads.changed.listeners.remove(self.nudge)

    def nudge(self) -> None:
        """Look what waits, now."""
        self.worker.wake()

    def report(self, position: int) -> MaintenanceReport | None:
        """The report of the maintenance order at a position; None when another merger ran it, or it was long ago."""
        with self._lock:
            return self._reports.get(position)

    def wait_report(self, position: int, seconds: float) -> MaintenanceReport | None:
        """The report of the maintenance order at a position; None when there is none after so many seconds."""
        due = self.loading.clock.monotonic() + seconds
        return self.loads.changed.wait_for(lambda: self.report(position), due, lambda report: report is not None)

    def status(self) -> list[dict[str, Any]]:
        """For each map: what waits, up to where it is applied, the last merge, the last error."""
        with self.loads.space.read() as tx:
            head, queued = head_of(tx).position, set(waiting_maps(tx))
            waits: list[dict[str, Any]] = []
            for name in map_names(tx):
                # A page of metrics asks this of thousands of maps; for most of them nothing waits.
                parts, rows = queue_counts(tx, name) if name in queued else (0, 0)
                position = applied_position(tx, name) if name in queued else head
                waits.append({"map": name, "parts_queued": parts, "rows_queued": rows, "position": position})
        names = {row["map"] for row in waits}
        with self._lock:
            for name in self._progress.keys() - names:
                if not self._progress[name].working:
                    del self._progress[name]  # the map was dropped
            return [plain(self._progress.get(row["map"]) or MapProgress(row["map"])) | row for row in waits]

    # -- at work --------------------------------------------------------------------------------------

    def _begin_due(self) -> float:
        assert self._pool is not None, "started"
        for name in self._due():
            self._pool.submit(self._work, name)
        return min(self.loading.clock.monotonic() + LOOK_AGAIN_SECONDS, self._rested)

    def _due(self) -> Iterator[str]:
        """The maps that something waits for and nobody works on, marked as worked on.

        `_rested` is then the time at which the first of those that rest is due.
        """
        if not self._going():
            return
        now, self._rested = self.loading.clock.monotonic(), inf
        for name in sorted({*self.loads.queue.maps(), *self.loads.to_fold}):
            with self._lock:
                progress = self._progress.setdefault(name, MapProgress(name))
                demanded = self.loads.failures.requested(name) is not None
                rests_until = progress.rests_at_least if demanded else progress.rests_until
                if not progress.working and now < rests_until:
                    self._rested = min(self._rested, rests_until)
                if progress.working or now < rests_until:
                    continue
                progress.working = True
            yield name

    def _going(self) -> bool:
        return not self.worker.stopping.is_set() and self.pause.going

    def _work(self, name: str) -> None:
        merged, began = Merged(), self.loading.clock.monotonic()
        error: Exception | None = None
        attempt = self.loads.failures.begin(name)
        try:
            if self._going() and name in self.loads.to_fold:
                self.loads.to_fold.discard(name)
                if folds_due(self.loading, name):
                    with self._turns(f"compact/{name}", self.worker.stopping) as turn:
                        if turn is not None:
                            fold_loaded(self.loading, [name])
            elif self._going():
                with self.loads.space.read() as tx:
                    head = head_of(tx).position
                merge_map(
                    self.loads, self.loading.shard_of(name), merged, going=self._going,
                    # What came meanwhile waits until the map has rested, unless somebody waits for it.
                    up_to=lambda: max(head, self.loads.failures.requested(name) or 0),
                )  # fmt: skip
        except Exception as raised:
            error = raised
            if self._going():
                _LOG.warning("merging map %s: %s", name, raised, exc_info=not isinstance(raised, MillpondError))
        finally:
            self._tell(name, merged, began, error)
            self.loads.failures.ended(name, attempt, error)
        self.loads.announce()

    def _tell(self, name: str, merged: Merged, began: float, error: Exception | None) -> None:
        clock = self.loading.clock
        with self._lock:
            progress = self._progress[name]
            progress.working = False
            if merged.rows or merged.maintenance:
                progress.merged_rows = sum(merged.rows.values())
                progress.merged_ms, progress.merge_took_ms = clock.now_ms(), round(1000 * (clock.monotonic() - began))
                progress.rests_until = clock.monotonic() + min(RESTS * (clock.monotonic() - began), REST_SECONDS_MAX)
            progress.rows_total += sum(merged.rows.values())
            progress.parts_total += sum(merged.parts.values())
            progress.error = "" if error is None else str(error) or repr(error)
            progress.error_kind = "" if error is None else getattr(error, "kind", "internal")
            if error is not None:
                progress.error_ms = clock.now_ms()
                progress.rests_until = clock.monotonic() + self._try_again_seconds
                progress.rests_at_least = clock.monotonic() + min(LOOK_AGAIN_SECONDS, self._try_again_seconds)
            for refused in merged.refused.values():
                _LOG.warning("maintenance of map %s changed nothing more: %s", name, refused)
            for position, report in merged.maintenance.items():
                self._reports.put(position, report)
