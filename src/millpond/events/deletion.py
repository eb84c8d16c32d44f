"""Deleting the events of one job: days are compressed, and their segments written anew without them.

    note the job and its last id ─▶ compress the days up to it ─▶ each segment is replaced ─▶ remove the note

Invariants:
* a reader finds all events of the job in a day, or none: a segment is replaced in one write, fenced by what was seen.
  In Redis, where a day has much to change, that is true of each batch;
* when the note is written the deletion is begun, and maintenance ends it, whoever was killed; before it, nothing is
  changed. To do it twice is harmless;
* ids, and the events of other jobs, stay as they are; what the job gets later is not meant.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from millpond.error_values import shown
from millpond.errors import Conflict, Fenced, MillpondError, NotFound, Unavailable
from millpond.events.compress import compress_stream
from millpond.events.erasure import is_erased
from millpond.events.ids import ID_MAX
from millpond.events.index import State
from millpond.events.job_index import forget_job
from millpond.events.names import StreamName
from millpond.events.protocol import NoteKind, StreamStore
from millpond.json_forms import FormError, JsonForm
from millpond.kernel.steps import step

__all__ = ("delete_job", "finish_deletions", "note_name")

_TURNS_MAX = 100
"""Others may compress or drop days meanwhile, each of them once."""


@dataclass(frozen=True, slots=True)
class _Erasure:
    """The note about a deletion: the events of the job up to an id go."""

    queue: str
    job_set: str
    job_id: str
    last_id: int

    @property
    def stream(self) -> StreamName:
        return StreamName(self.queue, self.job_set)

    @property
    def name(self) -> str:
        return note_name(self.queue, self.job_set, self.job_id, self.last_id)


_FORM = JsonForm(_Erasure)


def note_name(*parts: object) -> str:
    """The name of a note about these parts: no two lists of parts share one."""
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


def delete_job(store: StreamStore, stream: StreamName, job_id: str) -> int:
    """Delete the events that a stream has of a job; how many.

    Raises:
        NotFound: it has none.
        Unavailable, Conflict: the store is out of reach, or its days change all the time; maintenance ends this.
        Corrupt: what is stored is damaged.
    """
    last_id = _last_of(store, stream, job_id)
    if not last_id:
        raise NotFound(
            "the job set has no events of this job", kind="job_not_found", queue=shown(stream.queue),
            job_set=shown(stream.job_set), job=shown(job_id), hint="a job is named by the header job_id of its events",
        )  # fmt: skip
    erasure = _Erasure(*stream, job_id, last_id)
    store.notes.put(NoteKind.ERASURE, erasure.name, _FORM.encode(erasure))
    step("events.erasure_noted")
    return _finish(store, erasure)


def finish_deletions(store: StreamStore) -> list[str]:
    """End the deletions of jobs that were interrupted; the faults of those that cannot be ended.

    Raises:
        Unavailable: the store is out of reach.
    """
    faults: list[str] = []
    for name, row in store.notes.read(NoteKind.ERASURE).items():
        try:
            _finish(store, _FORM.decode(row))
        except Unavailable:
            raise
        except (FormError, MillpondError) as error:
            faults.append(f"the deletion of a job, note {name[:16]}: {error}")
    return faults


def _last_of(store: StreamStore, stream: StreamName, job_id: str) -> int:
    """The id of the last event of a job; 0 when there is none."""
    last_id, page = 0, store.read(stream)
    while page.events:
        last_id = max((event.number for event in page.events if is_erased(event, job_id, ID_MAX)), default=last_id)
        page = store.read(stream, page.after)
    return last_id


def _finish(store: StreamStore, erasure: _Erasure) -> int:
    count = 0
    for _ in range(_TURNS_MAX):
        index = store.index(erasure.stream)
        segments = [] if index is None else index.segments
        meant = [
            listed for listed in segments if listed.first_id <= erasure.last_id and listed.state is not State.EXPIRED
        ]
        try:
            if any(segment.state is not State.COMPRESSED for segment in meant):
                compress_stream(store, erasure.stream, meant[-1].days[-1].day)
                continue
            for segment in meant:
                count += store.erase(erasure.stream, segment, erasure.job_id, erasure.last_id)
        except Fenced:
            continue  # days were compressed or dropped meanwhile
        forget_job(store, erasure.stream, erasure.job_id)
        store.notes.remove(NoteKind.ERASURE, erasure.name)
        return count
    raise Conflict(
        "the days of the stream change all the time", kind="events_busy", stream=erasure.stream,
        hint="maintenance goes on with the deletion",
    )  # fmt: skip
