"""Jobs that clients report to a node, and that end there when their client is lost.

    running/clients/<hash of the job>      {"job_set": …, "job_id": …, "heard_ms": …}

A client that is killed says nothing more. The node has a file for each job that a client began; once the stream has
had no event of the job for a while, the node appends `failed` with the error `lost`.

Invariants:
* the stream decides: events of the job that came through another node, or before a crash, count as well;
* a job of which there is no event any more was deleted, and gets none;
* a job gets one such event for each silence, whichever nodes notice it and however often they are killed: its source
  is the job, its position the time of the last event before. A client that comes back goes on with its story;
* files cost no sync, and none is written but for the first event of a job. After a power cut one may be missing: then
  the job's story just ends;
* at most `CLIENT_JOBS_MAX` jobs have a file; others are not noticed.

An end that a client reports at the very moment at which a node gives it up may stand before `failed`.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from millpond.clock import Clock
from millpond.errors import MillpondError
from millpond.events.event import Event, EventBatch, NewEvent
from millpond.events.ids import id_time_ms, position_before
from millpond.events.jobs.active import ends_job
from millpond.events.names import OWN_QUEUE, StreamName
from millpond.events.protocol import StreamStore
from millpond.json_forms import FormError, JsonForm
from millpond.kernel.steps import step
from millpond.reports.reporter import CLIENT_JOBS_MAX

__all__ = ("ClientJobs",)

SKEW_MS = 60_000
"""The clocks of two nodes differ by less."""
_JOB_ID_CHARS_MAX = 200
_JOB_ID = "job_id"


@dataclass(frozen=True, slots=True)
class _Mark:
    """A job that a client has begun, and when the node last knew of an event."""

    job_set: str
    job_id: str
    heard_ms: int


_FORM = JsonForm(_Mark)


class ClientJobs:
    """The open jobs of the clients of a node, in a folder of its pond."""

    def __init__(self, folder: Path, store: StreamStore, clock: Clock) -> None:
        self._folder, self._store, self._clock = folder / "running" / "clients", store, clock
        self._lock = threading.Lock()
        self._marked: set[str] | None = None

    def note(self, job_set: str, events: Sequence[NewEvent]) -> None:
        """Note events of jobs that a client has appended."""
        for event in events:
            job_id = event.headers.get(_JOB_ID, "")
            if not 0 < len(job_id) <= _JOB_ID_CHARS_MAX:
                continue
            with self._lock, suppress(OSError):
                if ends_job(event.kind, event.headers):
                    self._remove(_name(job_set, job_id))
                else:
                    self._add(_Mark(job_set, job_id, self._clock.now_ms()))

    def end_lost(self, silence_ms: int, stopping: threading.Event) -> tuple[int, list[str]]:
        """End the jobs without an event for so long: how many, and the faults of others."""
        ended, faults = 0, list[str]()
        for name in sorted(self._names()):
            if stopping.is_set():
                break
            try:
                ended += self._end(name, silence_ms)
            except MillpondError as error:
                faults.append(f"a job of a client: {error}")
            except OSError as error:
                faults.append(f"a file in {self._folder.name}: {error.strerror}")
        return ended, faults

    def _end(self, name: str, silence_ms: int) -> bool:
        """End a job, if it is silent; True when this did."""
        mark, now_ms = self._read(name), self._clock.now_ms()
        if mark is None or now_ms - mark.heard_ms < silence_ms:
            return False
        heard_ms, has_ended = self._heard(mark)
        has_ended = has_ended or heard_ms == 0
        if not has_ended and now_ms - heard_ms < silence_ms:
            with self._lock:
                self._write(name, replace(mark, heard_ms=heard_ms))
            return False
        appended = 0
        if not has_ended:
            headers = {_JOB_ID: mark.job_id, "error": "lost", "reason": "lost: its client reported nothing more"}
            event = NewEvent(now_ms, b"", "failed", headers)
            batch = EventBatch(StreamName(OWN_QUEUE, mark.job_set), [event], f"lost:{mark.job_id}", [heard_ms])
            appended = self._store.append([batch])[0].count
            step("events.lost_appended")
        with self._lock:
            self._remove(name)
        return appended > 0

    def _heard(self, mark: _Mark) -> tuple[int, bool]:
        """The time of the last event of a job, 0 when there is none any more; and if that ended it."""
        heard_ms, ended = 0, False
        for event in self._events(StreamName(OWN_QUEUE, mark.job_set), position_before(mark.heard_ms - SKEW_MS)):
            if event.headers.get(_JOB_ID) == mark.job_id:
                heard_ms, ended = max(id_time_ms(event.number), mark.heard_ms), ends_job(event.kind, event.headers)
        return heard_ms, ended

    def _events(self, stream: StreamName, after: int) -> Iterator[Event]:
        """The events after an id: a page is held at a time."""
        while (page := self._store.read(stream, after)).events:
            yield from page.events
            after = page.after

    # -- files ----------------------------------------------------------------------------------------

    def _names(self) -> set[str]:
        """The names of all files. They are listed once: no other process writes here."""
        with self._lock:
            return set(self._listed())

    def _listed(self) -> set[str]:
        if self._marked is None:
            files = self._folder.iterdir() if self._folder.is_dir() else ()
            self._marked = {file.name for file in files if not file.name.startswith(".")}
        return self._marked

    def _add(self, mark: _Mark) -> None:
        name, marked = _name(mark.job_set, mark.job_id), self._listed()
        if name not in marked and len(marked) < CLIENT_JOBS_MAX:
            self._write(name, mark)
            marked.add(name)

    def _write(self, name: str, mark: _Mark) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        beside = self._folder / f".{name}"
        beside.write_bytes(_FORM.encode(mark))
        beside.replace(self._folder / name)

    def _read(self, name: str) -> _Mark | None:
        """The mark in a file; one that cannot be read goes."""
        with self._lock:
            try:
                return _FORM.decode((self._folder / name).read_bytes())
            except (FileNotFoundError, FormError):
                self._remove(name)
                return None

    def _remove(self, name: str) -> None:
        if name in self._listed():
            (self._folder / name).unlink(missing_ok=True)
            self._listed().discard(name)


def _name(job_set: str, job_id: str) -> str:
    return hashlib.sha256(repr((job_set, job_id)).encode()).hexdigest()[:32]
