"""Submissions: jobs get an id and their first events, once, also when they are submitted again.

A job with an id of its client takes three steps, for its events may lie in another place than the pond's space:

    claim      a row: queue, client id → job id, and the last id of the stream before the append
    append     the events of all jobs of the submission, in one batch
    confirm    the row says that the events are stored

Invariants:
* whoever submits a client's id again gets the first job's id; its events are appended only if they are not there;
* a row that was claimed and not confirmed, because the node died, is settled by whoever comes next: the stream is read
  from where it ended before the append;
* submissions with ids of clients to one queue take turns, so no two settle the same row at once;
* a row is forgotten `CLIENT_DAYS` after it was claimed, by those who claim others.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from millpond.events.days import day_of
from millpond.events.event import EventBatch, NewEvent
from millpond.events.jobs.job_ids import draw_job_id
from millpond.events.keyspaces import CLIENT, CLIENT_DAY
from millpond.events.names import StreamName, queue_part
from millpond.json_forms import JsonForm
from millpond.kernel.scans import put_rows

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.events.protocol import StreamStore
    from millpond.events.volumes import Append
    from millpond.kernel.space import Space, Transaction

__all__ = ("CLIENT_DAYS", "JOB_ID", "NewJob", "Submissions")

CLIENT_DAYS = 14
"""The days for which the ids of clients are remembered."""
JOB_ID = "job_id"
"""The header of an event that names its job."""
_FORGOTTEN_AT_ONCE = 2
_TURNS = 64

FirstEvents: TypeAlias = Callable[[str], Sequence[NewEvent]]


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be submitted: its events as a function of its id, and the client's own id, if it has one."""

    events: FirstEvents
    client_id: str = ""


@dataclass(frozen=True, slots=True)
class _Claim:
    """The row of a client's id. `after` is the last id of the stream of `job_set` before the job's events."""

    job_id: str
    job_set: str
    day: int
    after: int
    stored: bool = False


_CLAIM = JsonForm(_Claim)


class Submissions:
    """Submissions to the streams of a store, with their rows in a pond's space."""

    def __init__(self, space: Space, store: StreamStore, clock: Clock, append: Append | None = None) -> None:
        self._space, self._store, self._clock = space, store, clock
        self._append = append or store.append
        self._turns = tuple(threading.Lock() for _ in range(_TURNS))

    def submit(self, stream: StreamName, jobs: Sequence[NewJob]) -> list[str]:
        """Submit jobs, all or none; their ids, in their order.

        Raises:
            Invalid: an event is not acceptable.
            Unavailable: the storage is full or out of reach. `Uncertain`: the jobs may be stored; submit those again
                that have ids of the client.
        """
        clients = [job.client_id for job in jobs if job.client_id]
        with self._turn(stream.queue) if clients else nullcontext():
            claims = self._claimed(stream, clients) if clients else {}
            ids = [claims[job.client_id].job_id if job.client_id else draw_job_id(self._clock) for job in jobs]
            events: list[NewEvent] = []
            begun: set[str] = set()
            for job, job_id in zip(jobs, ids, strict=True):
                if job_id in begun or (job.client_id and claims[job.client_id].stored):
                    continue
                begun.add(job_id)
                events += job.events(job_id)
            if events:
                self._append([EventBatch(stream, events)])
            self._confirm(stream.queue, {client: claim for client, claim in claims.items() if not claim.stored})
            return ids

    def _turn(self, queue: str) -> AbstractContextManager[object]:
        return self._turns[zlib.crc32(queue.encode()) % _TURNS]

    def _claimed(self, stream: StreamName, clients: Sequence[str]) -> dict[str, _Claim]:
        """The claims of ids of clients; those that are `stored` have their events."""
        index = self._store.index(stream)
        after, day = 0 if index is None else index.last_id, day_of(self._clock.now_ms())
        drawn = {client: _Claim(draw_job_id(self._clock), stream.job_set, day, after) for client in clients}
        claims = self._space.write(lambda tx: _claim(tx, stream.queue, drawn))
        unsettled = {client: claim for client, claim in claims.items() if not claim.stored and claim != drawn[client]}
        found = self._found(stream.queue, unsettled)
        return {client: replace(claim, stored=True) if client in found else claim for client, claim in claims.items()}

    def _found(self, queue: str, unsettled: Mapping[str, _Claim]) -> set[str]:
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

    def _confirm(self, queue: str, claims: Mapping[str, _Claim]) -> None:
        if claims:
            rows = {_key(queue, client): _CLAIM.encode(replace(claim, stored=True)) for client, claim in claims.items()}
            self._space.write(lambda tx: put_rows(tx, list(rows.items())))


def _claim(tx: Transaction, queue: str, drawn: Mapping[str, _Claim]) -> dict[str, _Claim]:
    """The claims that hold: those that were there, or else new ones; as many old ones, and more, are forgotten."""
    claims: dict[str, _Claim] = {}
    for client, new in drawn.items():
        row = tx.get(_key(queue, client))
        claim = new if row is None else _CLAIM.decode(row)
        if row is not None and claim.day < new.day - CLIENT_DAYS:
            tx.delete(CLIENT_DAY.pack(claim.day, queue_part(queue), queue_part(client)))
            claim = new
        if claim is new:
            tx.put(_key(queue, client), _CLAIM.encode(new))
            tx.put(CLIENT_DAY.pack(new.day, queue_part(queue), queue_part(client)), b"")
        claims[client] = claim
    today = max((claim.day for claim in drawn.values()), default=0)
    _forget(tx, today - CLIENT_DAYS, _FORGOTTEN_AT_ONCE * len(drawn))
    return claims


def _forget(tx: Transaction, before: int, limit: int) -> None:
    if before <= 0:
        return
    for key in list(islice(tx.keys(CLIENT_DAY.range((0,), (before,))), limit)):
        _, *client = CLIENT_DAY.unpack(key)
        tx.delete(CLIENT.pack(*client))
        tx.delete(key)


def _key(queue: str, client: str) -> bytes:
    return CLIENT.pack(queue_part(queue), queue_part(client))
