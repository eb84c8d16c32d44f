"""The rows of jobs in a pond's space: see `shared_jobs.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from millpond.events import shared_jobs
from millpond.events.job_ids import job_id_day
from millpond.events.keyspaces import CLIENT, CLIENT_DAY, JOB, JOB_URI, QUEUE
from millpond.events.names import job_set_part, queue_part
from millpond.events.shared_jobs import CLAIM, CLIENT_DAYS, JOB_PLACE, JobTables, queues_full
from millpond.kernel.keys import KeyRange
from millpond.kernel.scans import put_rows

if TYPE_CHECKING:
    from millpond.events.names import StreamName
    from millpond.events.shared_jobs import Claim, JobPlace
    from millpond.kernel.space import Space, Transaction

__all__ = ("SpaceClaims", "SpaceJobs", "SpaceQueues", "space_tables")

_FORGOTTEN_AT_ONCE = 2
_COLLECTED_AT_ONCE = 1_000


def space_tables(space: Space) -> JobTables:
    """The rows of jobs in a space."""
    return JobTables(SpaceQueues(space), SpaceClaims(space), SpaceJobs(space))


class SpaceQueues:
    """Queues in a space."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def get(self, name: str) -> bytes | None:
        """See `QueueRows.get`."""
        with self._space.read() as tx:
            return tx.get(_queue_key(name))

    def swap(self, name: str, before: bytes | None, row: bytes) -> bool:
        """See `QueueRows.swap`."""
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
        """See `QueueRows.delete`."""
        self._space.write(lambda tx: tx.delete(_queue_key(name)))

    def list(self, after: str | None, limit: int) -> list[bytes]:
        """See `QueueRows.list`."""
        keys = QUEUE.range()
        if after is not None:
            keys = KeyRange(_queue_key(after) + b"\x00", keys.stop)
        with self._space.read() as tx:
            return [row for _, row in islice(tx.scan(keys), limit)]


class SpaceClaims:
    """Claims in a space, whose one process settles them in turns of its own."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def claim(self, queue: str, drawn: Mapping[str, Claim]) -> dict[str, Claim]:
        """See `Claims.claim`."""
        return self._space.write(lambda tx: _claim(tx, queue, drawn))

    def take(self, queue: str, jobs: Iterable[str], holder: str) -> set[str]:
        """See `Claims.take`."""
        return set(jobs)

    def give_back(self, queue: str, jobs: Iterable[str]) -> None:
        """See `Claims.give_back`."""

    def confirm(self, queue: str, claims: Mapping[str, Claim]) -> None:
        """See `Claims.confirm`."""
        rows: Sequence[tuple[bytes, bytes]] = [
            (_client_key(queue, client), CLAIM.encode(claim)) for client, claim in claims.items()
        ]
        self._space.write(lambda tx: put_rows(tx, rows))


class SpaceJobs:
    """Jobs in a space, in the order in which their ids were drawn."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def note(self, jobs: Mapping[str, JobPlace]) -> None:
        """See `JobRows.note`."""
        rows = [(JOB.pack(job_id), JOB_PLACE.encode(job)) for job_id, job in jobs.items()]
        rows += [(_uri_key(job, job_id), b"") for job_id, job in jobs.items() if job.uri]
        self._space.write(lambda tx: put_rows(tx, rows))

    def find(self, job_ids: Iterable[str]) -> dict[str, JobPlace]:
        """See `JobRows.find`."""
        ids = list(job_ids)
        with self._space.read() as tx:
            rows = tx.get_many([JOB.pack(job_id) for job_id in ids])
        return {job_id: JOB_PLACE.decode(row) for job_id, row in zip(ids, rows, strict=True) if row is not None}

    def named(self, stream: StreamName, uri: str) -> list[str]:
        """See `JobRows.named`."""
        with self._space.read() as tx:
            keys = tx.keys(JOB_URI[_uri_parts(stream.queue, stream.job_set, uri)].range())
            return [str(JOB_URI.unpack(key)[-1]) for key in keys]

    def delete(self, jobs: Mapping[str, JobPlace]) -> None:
        """See `JobRows.delete`."""
        if jobs:
            self._space.write(lambda tx: _delete_jobs(tx, jobs))

    def collect(self, before: int, is_gone: Callable[[JobPlace], bool]) -> int:
        """See `JobRows.collect`."""
        collected, keys = 0, JOB.range()
        while True:
            with self._space.read() as tx:
                page = list(islice(tx.scan(keys), _COLLECTED_AT_ONCE))
            jobs = {str(JOB.unpack(key)[0]): JOB_PLACE.decode(row) for key, row in page}
            gone = {job_id: job for job_id, job in jobs.items() if job.day < before and is_gone(job)}
            self.delete(gone)
            collected += len(gone)
            if len(page) < _COLLECTED_AT_ONCE or job_id_day(max(jobs)) >= before:
                return collected
            keys = KeyRange(page[-1][0] + b"\x00", keys.stop)


def _delete_jobs(tx: Transaction, jobs: Mapping[str, JobPlace]) -> None:
    for job_id, job in jobs.items():
        tx.delete(JOB.pack(job_id))
        if job.uri:
            tx.delete(_uri_key(job, job_id))


def _uri_key(job: JobPlace, job_id: str) -> bytes:
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
            tx.put(_client_key(queue, client), CLAIM.encode(new))
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
