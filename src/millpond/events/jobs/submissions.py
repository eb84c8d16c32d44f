"""Submissions: jobs get an id and their first events, once, also when they are submitted again.

A job with an id of its client has a claim: queue, client id → job id. In a space the claim, the row of the job and its
events are put in one transaction; machines that share streams in Redis take turns (`events/turned_claims.py`).

Invariant: whoever submits a client's id again gets the first job's id; its events are appended only if they are not
there, whichever processes and machines submit it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from millpond.events.days import day_of
from millpond.events.event import Appended, EventBatch, NewEvent
from millpond.events.job_ids import draw_job_id
from millpond.events.shared_jobs import Begun, Claim, JobLocation, JobTables, Settled

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.events.names import StreamName
    from millpond.events.protocol import StreamStore

__all__ = ("JOB_ID", "NewJob", "Submissions")

JOB_ID = "job_id"
"""The header of an event that names its job."""

FirstEvents: TypeAlias = Callable[[str], Sequence[NewEvent]]


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be submitted: its events as a function of its id; the client's id and external URI for it, if any."""

    events: FirstEvents
    client_id: str = ""
    uri: str = ""


def _count_none(_batches: Sequence[EventBatch], _outcomes: Sequence[Appended]) -> None:
    """Count nothing."""


class Submissions:
    """Submissions to the streams of a store; `count` is called with what was appended."""

    def __init__(
        self, tables: JobTables, store: StreamStore, clock: Clock,
        count: Callable[[Sequence[EventBatch], Sequence[Appended]], None] = _count_none,
    ) -> None:  # fmt: skip
        self._tables, self._store, self._clock, self._count = tables, store, clock, count

    def submit(self, stream: StreamName, jobs: Sequence[NewJob]) -> list[str]:
        """Submit jobs, all or none; their ids, in their order.

        Raises:
            Invalid: an event is not acceptable.
            Unavailable: the storage is full or out of reach, or other submissions do not end. `Uncertain`: the jobs may
                be stored; submit those again that have ids of the client.
        """
        ids = [draw_job_id(self._clock) for _ in jobs]
        clients = {job.client_id: job_id for job, job_id in zip(jobs, ids, strict=True) if job.client_id}
        index = self._store.index(stream)
        after, day = 0 if index is None else index.last_id, day_of(self._clock.now_ms())

        def begun_of(claims: Mapping[str, Claim]) -> Begun:
            new: dict[str, NewJob] = {}
            for job, job_id in zip(jobs, ids, strict=True):
                claim = claims[job.client_id] if job.client_id else None
                if claim is None or not claim.stored:
                    new.setdefault(job_id if claim is None else claim.job_id, job)
            events = [event for job_id, job in new.items() for event in job.events(job_id)]
            locations = {job_id: JobLocation(*stream, after, day, job.uri) for job_id, job in new.items()}
            return Begun(EventBatch(stream, events), locations)

        if clients:
            drawn = {client: Claim(job_id, stream.job_set, day, after) for client, job_id in clients.items()}
            settled = self._tables.claims.settle(stream, drawn, begun_of)
        else:
            settled = self._begin(*begun_of({}))
        self._count(settled.batches, settled.outcomes)
        return [
            settled.claims[job.client_id].job_id if job.client_id else job_id
            for job, job_id in zip(jobs, ids, strict=True)
        ]

    def _begin(self, batch: EventBatch, locations: Mapping[str, JobLocation]) -> Settled:
        """Store jobs that have no ids of clients."""
        if not batch.events:
            return Settled({})
        self._tables.jobs.note(locations)
        return Settled({}, [batch], self._store.append([batch]))
