"""Submissions: jobs get an id and their first events, once, also when they are submitted again.

A job with an id of its client takes three steps, for its events may lie in another place than the rows of jobs:

    claim      a row: queue, client id → job id, and the last id of the stream before the append
    append     the events of all jobs of the submission, in one batch
    confirm    the row says that the events are stored

Invariants:
* whoever submits a client's id again gets the first job's id; its events are appended only if they are not there;
* a row that was claimed and not confirmed, because the node died, is settled by whoever comes next: the stream is read
  from where it ended before the append;
* a row is settled by one submission at a time. In a process those to one queue take turns; machines that share rows
  take each claim for `TURN_SECONDS`, and end what they are at in half of that, or leave it.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from millpond.error_values import shown
from millpond.errors import Unavailable, Uncertain
from millpond.events.days import day_of
from millpond.events.event import EventBatch, NewEvent
from millpond.events.job_ids import draw_job_id
from millpond.events.names import StreamName
from millpond.events.shared_jobs import TURN_SECONDS, Claim, JobPlace

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.events.protocol import StreamStore
    from millpond.events.shared_jobs import JobTables
    from millpond.events.volumes import Append

__all__ = ("JOB_ID", "NewJob", "Submissions")

JOB_ID = "job_id"
"""The header of an event that names its job."""
PATIENCE_SECONDS = 45.0
"""For how long a submission waits for claims that others settle, or died at."""
_PAUSE_SECONDS = 0.02
_TURNS = 64

FirstEvents: TypeAlias = Callable[[str], Sequence[NewEvent]]


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be submitted: its events as a function of its id; the client's id and external URI for it, if any."""

    events: FirstEvents
    client_id: str = ""
    uri: str = ""


class Submissions:
    """Submissions to the streams of a store."""

    def __init__(self, tables: JobTables, store: StreamStore, clock: Clock, append: Append | None = None) -> None:
        self._claims, self._jobs, self._store, self._clock = tables.claims, tables.jobs, store, clock
        self._append = append or store.append
        self._turns = tuple(threading.Lock() for _ in range(_TURNS))

    def submit(self, stream: StreamName, jobs: Sequence[NewJob]) -> list[str]:
        """Submit jobs, all or none; their ids, in their order.

        Raises:
            Invalid: an event is not acceptable.
            Unavailable: the storage is full or out of reach, or other submissions do not end. `Uncertain`: the jobs may
                be stored; submit those again that have ids of the client.
        """
        clients = [job.client_id for job in jobs if job.client_id]
        if not clients:
            return self._stored(stream, jobs, {})
        with self._turns[zlib.crc32(stream.queue.encode()) % _TURNS], self._claimed(stream, clients) as claims:
            ids = self._stored(stream, jobs, claims)
            new = {client: replace(claim, stored=True) for client, claim in claims.items() if not claim.stored}
            if new:
                self._claims.confirm(stream.queue, new)
            return ids

    def _stored(self, stream: StreamName, jobs: Sequence[NewJob], claims: Mapping[str, Claim]) -> list[str]:
        """The ids of jobs, after the events of those that are not stored were appended."""
        ids = [claims[job.client_id].job_id if job.client_id else draw_job_id(self._clock) for job in jobs]
        events: list[NewEvent] = []
        begun: dict[str, NewJob] = {}
        for job, job_id in zip(jobs, ids, strict=True):
            if job_id in begun or (job.client_id and claims[job.client_id].stored):
                continue
            begun[job_id] = job
            events += job.events(job_id)
        if events:
            self._note(stream, begun)
            self._append([EventBatch(stream, events)])
        return ids

    def _note(self, stream: StreamName, jobs: Mapping[str, NewJob]) -> None:
        index = self._store.index(stream)
        after, day = 0 if index is None else index.last_id, day_of(self._clock.now_ms())
        self._jobs.note({job_id: JobPlace(*stream, after, day, job.uri) for job_id, job in jobs.items()})

    @contextmanager
    def _claimed(self, stream: StreamName, clients: Sequence[str]) -> Iterator[dict[str, Claim]]:
        """The claims of ids of clients, to be settled inside; those that are `stored` have their events."""
        index = self._store.index(stream)
        after, day = 0 if index is None else index.last_id, day_of(self._clock.now_ms())
        drawn = {client: Claim(draw_job_id(self._clock), stream.job_set, day, after) for client in clients}
        claims = self._taken(stream.queue, drawn)
        due = self._clock.monotonic() + TURN_SECONDS / 2
        taken = [claim.job_id for claim in claims.values() if not claim.stored]
        try:
            old = {client: claim for client, claim in claims.items() if not claim.stored and claim != drawn[client]}
            found = self._found(stream.queue, old)
            self._check_time(stream.queue, due)
            yield {
                client: replace(claim, stored=True) if client in found else claim for client, claim in claims.items()
            }
        except Uncertain:
            raise  # what may yet come is waited for
        except BaseException:
            self._claims.give_back(stream.queue, taken)
            raise

    def _check_time(self, queue: str, due: float) -> None:
        if self._clock.monotonic() >= due:
            raise _busy(queue)

    def _taken(self, queue: str, drawn: Mapping[str, Claim]) -> dict[str, Claim]:
        """The claims of clients, when each is stored, or this submission's to settle."""
        holder, due = self._clock.random_id(), self._clock.monotonic() + PATIENCE_SECONDS
        pause = _PAUSE_SECONDS * (1 + int(holder, 16) % 5)  # two that take some of the same do not meet for ever
        claims = self._claims.claim(queue, drawn)
        while True:
            wanted = {claim.job_id for claim in claims.values() if not claim.stored}
            taken = self._claims.take(queue, wanted, holder)
            if taken == wanted:
                return claims
            self._claims.give_back(queue, taken)
            self._check_time(queue, due)
            self._clock.wait(threading.Event(), self._clock.monotonic() + pause)
            claims = self._claims.claim(queue, claims)

    def _found(self, queue: str, unsettled: Mapping[str, Claim]) -> set[str]:
        """The clients' ids, of some that were claimed before, whose jobs are in their streams."""
        found: set[str] = set()
        by_job_set: dict[str, dict[str, str]] = {}
        for client, claim in unsettled.items():
            by_job_set.setdefault(claim.job_set, {})[claim.job_id] = client
        for job_set, wanted in by_job_set.items():
            after = min(claim.after for claim in unsettled.values() if claim.job_set == job_set)
            page = self._store.read(StreamName(queue, job_set), after)
            while page.events:
                found.update(wanted[job] for event in page.events if (job := event.headers.get(JOB_ID, "")) in wanted)
                page = self._store.read(StreamName(queue, job_set), page.after)
        return found


def _busy(queue: str) -> Unavailable:
    return Unavailable(
        "jobs with these ids of the client are being submitted elsewhere", kind="submission_busy", queue=shown(queue),
        hint="submit them again in a moment",
    )  # fmt: skip
