"""The rows of jobs in a pond's space: see `shared_jobs.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TypeAlias

from millpond.events import shared_jobs
from millpond.events.embedded.read import read_page
from millpond.events.event import Appended, EventBatch
from millpond.events.job_ids import job_id_day
from millpond.events.keyspaces import CLIENT, CLIENT_DAY, JOB, JOB_URI, QUEUE
from millpond.events.names import StreamName, job_set_part, queue_part
from millpond.events.protocol import PAGE_BYTES
from millpond.events.shared_jobs import (
    CLAIM,
    CLIENT_DAYS,
    JOB_LOCATION,
    BegunOf,
    Claim,
    JobLocation,
    JobTables,
    Settled,
    queues_full,
)
from millpond.events.turned_claims import stored_clients
from millpond.kernel.page import behind
from millpond.kernel.scans import put_rows
from millpond.kernel.space import Space, Transaction

__all__ = ("SpaceClaims", "SpaceJobs", "SpaceQueues", "space_tables")

_FORGOTTEN_AT_ONCE = 2
_COLLECTED_AT_ONCE = 1_000

Change: TypeAlias = "Callable[[Transaction, Callable[[EventBatch], Appended]], Settled]"
AppendWithin: TypeAlias = Callable[[Change], Settled]


def space_tables(space: Space, append_within: AppendWithin) -> JobTables:
    """The rows of jobs in a space, and beside its streams, to which `append_within` appends."""
    return JobTables(SpaceQueues(space), SpaceClaims(append_within), SpaceJobs(space))


class SpaceQueues:
    """Queues in a space."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def get(self, name: str) -> bytes | None:
        with self._space.read() as tx:
            return tx.get(_queue_key(name))

    def swap(self, name: str, before: bytes | None, row: bytes) -> bool:
        key = _queue_key(name)

        def change(tx: Transaction) -> bool:
            if tx.get(key) != before:
                return False
            if (
                before is None
                and sum(1 for _ in islice(tx.keys(QUEUE.range()), shared_jobs.QUEUES_MAX)) == shared_jobs.QUEUES_MAX
            ):
                raise queues_full()
            tx.put(key, row)
            return True

        return self._space.write(change)

    def delete(self, name: str) -> None:
        self._space.write(lambda tx: tx.delete(_queue_key(name)))

    def list(self, after: str | None, limit: int) -> list[bytes]:
        keys = QUEUE.range() if after is None else behind(QUEUE.range(), _queue_key(after))
        with self._space.read() as tx:
            return [row for _, row in islice(tx.scan(keys), limit)]


class SpaceClaims:
    """Claims in the space of the streams: all that is settled is put in one transaction, so one settles a claim."""

    def __init__(self, append_within: AppendWithin) -> None:
        self._append_within = append_within

    def settle(self, stream: StreamName, drawn: Mapping[str, Claim], begun_of: BegunOf) -> Settled:
        expected = begun_of(drawn)  # as far as none is there: then nobody waits until it is made
        expected.batch.check()

        def change(tx: Transaction, append: Callable[[EventBatch], Appended]) -> Settled:
            claims = _claim(tx, stream.queue, drawn)
            settled = {client: replace(claim, stored=True) for client, claim in claims.items()}
            new = [client for client, claim in claims.items() if not claim.stored]
            put_rows(tx, [(_client_key(stream.queue, client), CLAIM.encode(settled[client])) for client in new])
            # Rows that were claimed before their events were appended, as they once were.
            old = {client: claims[client] for client in new if claims[client] != drawn[client]}
            for client in stored_clients(partial(read_page, tx, bytes_max=PAGE_BYTES), stream.queue, old):
                claims[client] = settled[client]
            batch, locations = expected if claims == drawn else begun_of(claims)
            batches = [batch.check()] if batch.events else []
            if batches:
                _note_jobs(tx, locations)
            return Settled(settled, batches, [append(batch) for batch in batches])

        return self._append_within(change)


class SpaceJobs:
    """Jobs in a space, in the order in which their ids were drawn."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def note(self, jobs: Mapping[str, JobLocation]) -> None:
        self._space.write(lambda tx: _note_jobs(tx, jobs))

    def find(self, job_ids: Iterable[str]) -> dict[str, JobLocation]:
        ids = list(job_ids)
        with self._space.read() as tx:
            rows = tx.get_many([JOB.pack(job_id) for job_id in ids])
        return {job_id: JOB_LOCATION.decode(row) for job_id, row in zip(ids, rows, strict=True) if row is not None}

    def named(self, stream: StreamName, uri: str) -> list[str]:
        with self._space.read() as tx:
            keys = tx.keys(JOB_URI[_uri_parts(stream.queue, stream.job_set, uri)].range())
            return [str(JOB_URI.unpack(key)[-1]) for key in keys]

    def delete(self, jobs: Mapping[str, JobLocation]) -> None:
        if jobs:
            self._space.write(lambda tx: _delete_jobs(tx, jobs))

    def collect(self, before: int, is_gone: Callable[[JobLocation], bool]) -> int:
        collected, keys = 0, JOB.range()
        while True:
            with self._space.read() as tx:
                page = list(islice(tx.scan(keys), _COLLECTED_AT_ONCE))
            jobs = {str(JOB.unpack(key)[0]): JOB_LOCATION.decode(row) for key, row in page}
            gone = {job_id: job for job_id, job in jobs.items() if job.day < before and is_gone(job)}
            self.delete(gone)
            collected += len(gone)
            if len(page) < _COLLECTED_AT_ONCE or job_id_day(max(jobs)) >= before:
                return collected
            keys = behind(keys, page[-1][0])


def _note_jobs(tx: Transaction, jobs: Mapping[str, JobLocation]) -> None:
    rows = [(JOB.pack(job_id), JOB_LOCATION.encode(job)) for job_id, job in jobs.items()]
    put_rows(tx, rows + [(_uri_key(job, job_id), b"") for job_id, job in jobs.items() if job.uri])


def _delete_jobs(tx: Transaction, jobs: Mapping[str, JobLocation]) -> None:
    for job_id, job in jobs.items():
        tx.delete(JOB.pack(job_id))
        if job.uri:
            tx.delete(_uri_key(job, job_id))


def _uri_key(job: JobLocation, job_id: str) -> bytes:
    return JOB_URI.pack(*_uri_parts(job.queue, job.job_set, job.uri), job_id)


def _uri_parts(queue: str, job_set: str, uri: str) -> tuple[str | bytes, ...]:
    return queue_part(queue), job_set_part(job_set), hashlib.sha256(uri.encode()).digest()


def _claim(tx: Transaction, queue: str, drawn: Mapping[str, Claim]) -> dict[str, Claim]:
    """The claims that hold: those that were there, or else new ones; as many old ones, and more, are forgotten."""
    claims: dict[str, Claim] = {}
    for client, new in drawn.items():
        row = tx.get(_client_key(queue, client))
        claim = new if row is None else CLAIM.decode(row)
        if row is not None and claim.day < new.day - CLIENT_DAYS:
            tx.delete(CLIENT_DAY.pack(claim.day, queue_part(queue), queue_part(client)))
            claim = new
        if claim is new:
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


def _queue_key(name: str) -> bytes:
    return QUEUE.pack(queue_part(name))


def _client_key(queue: str, client: str) -> bytes:
    return CLIENT.pack(queue_part(queue), queue_part(client))
