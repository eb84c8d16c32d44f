"""The rows of jobs in Redis, beside the streams: every machine that uses the place sees the same queues and claims.

    place:{00}:queues                      hash: name → row
    place:{shard}:client:queue/client id   the claim of a client's id; it expires
    place:{shard}:turn:job id              the holder who settles a claim; it expires
    place:{shard}:job:job id               the row of a job
    place:{shard}:jobs                     sorted set: the ids of the jobs whose rows are in the shard, by their days
    place:{shard}:uri:queue/job set/SHA-256    set: the ids of the jobs of an external URI, in the shard of the queue

Each act is one command or one script, so there is nothing that a crash could cut; but a job is named in the sorted set
before it has a row, and leaves it after the row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from millpond.events import shared_jobs
from millpond.events.days import DAY_MS
from millpond.events.redis.keys import PondKeys, escaped
from millpond.events.redis.scripts import SWAP
from millpond.events.redis.servers import Call, Servers, script_call
from millpond.events.shared_jobs import (
    CLAIM,
    CLIENT_DAYS,
    JOB_LOCATION,
    TURN_SECONDS,
    Claim,
    JobLocation,
    JobTables,
    queues_full,
)
from millpond.events.turned_claims import TurnedClaims

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.events.names import StreamName
    from millpond.events.protocol import StreamStore
    from millpond.events.redis.connections import Argument

__all__ = ("RedisClaims", "RedisJobs", "RedisQueues", "redis_tables")

_QUEUES_SHARD = 0
_COLLECTED_AT_ONCE = 1_000
_CLAIM_MS = (CLIENT_DAYS + 1) * DAY_MS


def redis_tables(servers: Servers, pond_keys: PondKeys, store: StreamStore, clock: Clock) -> JobTables:
    """The rows of jobs in Redis, beside the streams of a store."""
    jobs = RedisJobs(servers, pond_keys)
    claims = TurnedClaims(RedisClaims(servers, pond_keys), jobs, store, clock)
    return JobTables(RedisQueues(servers, pond_keys), claims, jobs)


class RedisQueues:
    """Queues in one hash."""

    def __init__(self, servers: Servers, pond_keys: PondKeys) -> None:
        self._servers, self._key = servers, f"{pond_keys.tags[_QUEUES_SHARD]}:queues".encode()

    def get(self, name: str) -> bytes | None:
        row: bytes | None = self._servers.run([self._call(b"HGET", name.encode())], repeat=True)[0]
        return row

    def swap(self, name: str, before: bytes | None, row: bytes) -> bool:
        arguments = (name.encode(), before or b"", row, shared_jobs.QUEUES_MAX)
        (outcome,) = self._servers.run([script_call(SWAP, _QUEUES_SHARD, (self._key,), arguments)], repeat=False)
        if outcome == b"full":
            raise queues_full()
        return bool(outcome == b"done")

    def delete(self, name: str) -> None:
        self._servers.run([self._call(b"HDEL", name.encode())], repeat=True)

    def list(self, after: str | None, limit: int) -> list[bytes]:
        (names,) = self._servers.run([self._call(b"HKEYS")], repeat=True)
        start = b"" if after is None else after.encode()
        page = list(islice((name for name in sorted(names) if name > start), limit))
        rows = self._servers.run([self._call(b"HMGET", *page)], repeat=True)[0] if page else []
        return [row for row in rows if row is not None]

    def _call(self, command: bytes, *arguments: Argument) -> Call:
        return Call(_QUEUES_SHARD, (command, self._key, *arguments))


class RedisClaims:
    """Claims, each a key of its own."""

    def __init__(self, servers: Servers, pond_keys: PondKeys) -> None:
        self._servers, self._keys = servers, pond_keys

    def claim(self, queue: str, drawn: Mapping[str, Claim]) -> dict[str, Claim]:
        calls = [
            self._call(b"SET", queue, self._client(queue, client), CLAIM.encode(claim), *_UNLESS_THERE, _CLAIM_MS)
            for client, claim in drawn.items()
        ]
        there = self._servers.run(calls, repeat=True)
        return {
            client: claim if row is None else CLAIM.decode(row)
            for (client, claim), row in zip(drawn.items(), there, strict=True)
        }

    def take(self, queue: str, jobs: Iterable[str], holder: str) -> set[str]:
        job_ids, own = list(jobs), holder.encode()
        calls = [
            self._call(b"SET", queue, _turn(job), own, *_UNLESS_THERE, int(TURN_SECONDS * 1000)) for job in job_ids
        ]
        there = self._servers.run(calls, repeat=True)
        return {job for job, other in zip(job_ids, there, strict=True) if other in (None, own)}

    def give_back(self, queue: str, jobs: Iterable[str]) -> None:
        for job in jobs:
            self._servers.run_quietly(self._call(b"DEL", queue, _turn(job)))

    def confirm(self, queue: str, claims: Mapping[str, Claim]) -> None:
        calls = [
            self._call(b"SET", queue, self._client(queue, client), CLAIM.encode(claim), b"XX", b"KEEPTTL")
            for client, claim in claims.items()
        ]
        self._servers.run(calls, repeat=True)

    def _client(self, queue: str, client: str) -> str:
        return f"client:{escaped(queue)}/{escaped(client)}"

    def _call(self, command: bytes, queue: str, key: str, *arguments: Argument) -> Call:
        """A command about a key in the shard of a queue."""
        shard = self._keys.shard_of(escaped(queue).encode())
        return Call(shard, (command, f"{self._keys.tags[shard]}:{key}".encode(), *arguments))


class RedisJobs:
    """Jobs, each a key of its own in the shard of its id."""

    def __init__(self, servers: Servers, pond_keys: PondKeys) -> None:
        self._servers, self._keys = servers, pond_keys

    def note(self, jobs: Mapping[str, JobLocation]) -> None:
        days: dict[int, list[Argument]] = {}
        for job_id, job in jobs.items():
            days.setdefault(self._shard(job_id), []).extend((job.day, job_id.encode()))
        calls = [self._call(shard, b"ZADD", "jobs", *named) for shard, named in days.items()]
        for job_id, job in jobs.items():
            calls.append(self._call(self._shard(job_id), b"SET", f"job:{job_id}", JOB_LOCATION.encode(job)))
            if job.uri:
                calls.append(self._of_uri(b"SADD", job.stream, job.uri, job_id.encode()))
        self._servers.run(calls, repeat=True)

    def find(self, job_ids: Iterable[str]) -> dict[str, JobLocation]:
        ids = list(job_ids)
        rows = self._servers.run([self._call(self._shard(id_), b"GET", f"job:{id_}") for id_ in ids], repeat=True)
        return {job_id: JOB_LOCATION.decode(row) for job_id, row in zip(ids, rows, strict=True) if row is not None}

    def named(self, stream: StreamName, uri: str) -> list[str]:
        (ids,) = self._servers.run([self._of_uri(b"SMEMBERS", stream, uri)], repeat=True)
        return sorted(job_id.decode() for job_id in ids)

    def delete(self, jobs: Mapping[str, JobLocation]) -> None:
        shards: dict[int, list[Argument]] = {}
        for job_id in jobs:
            shards.setdefault(self._shard(job_id), []).append(job_id.encode())
        calls = [self._call(self._shard(job_id), b"DEL", f"job:{job_id}") for job_id in jobs]
        calls += [
            self._of_uri(b"SREM", job.stream, job.uri, job_id.encode()) for job_id, job in jobs.items() if job.uri
        ]
        self._servers.run(calls, repeat=True)
        self._servers.run([self._call(shard, b"ZREM", "jobs", *ids) for shard, ids in shards.items()], repeat=True)

    def collect(self, before: int, is_gone: Callable[[JobLocation], bool]) -> int:
        return sum(self._collect(shard, before, is_gone) for shard in range(len(self._keys.tags)))

    def _collect(self, shard: int, before: int, is_gone: Callable[[JobLocation], bool]) -> int:
        collected, start = 0, 0
        while True:
            limit = (b"BYSCORE", b"LIMIT", start, _COLLECTED_AT_ONCE)
            (page,) = self._servers.run([self._call(shard, b"ZRANGE", "jobs", 0, f"({before}", *limit)], repeat=True)
            jobs = self.find(job_id.decode() for job_id in page)
            gone = {job_id: job for job_id, job in jobs.items() if is_gone(job)}
            without = [job_id for job_id in page if job_id.decode() not in jobs]
            self.delete(gone)
            if without:
                self._servers.run([self._call(shard, b"ZREM", "jobs", *without)], repeat=True)
            collected += len(gone)
            if len(page) < _COLLECTED_AT_ONCE:
                return collected
            start += len(jobs) - len(gone)

    def _shard(self, job_id: str) -> int:
        return self._keys.shard_of(job_id.encode())

    def _of_uri(self, command: bytes, stream: StreamName, uri: str, *arguments: Argument) -> Call:
        summed = hashlib.sha256(uri.encode()).hexdigest()
        key = f"uri:{escaped(stream.queue)}/{escaped(stream.job_set)}/{summed}"
        return self._call(self._keys.shard_of(escaped(stream.queue).encode()), command, key, *arguments)

    def _call(self, shard: int, command: bytes, key: str, *arguments: Argument) -> Call:
        return Call(shard, (command, f"{self._keys.tags[shard]}:{key}".encode(), *arguments))


_UNLESS_THERE = (b"NX", b"GET", b"PX")
"""Sets a key that is not there, and gives what is; a call that is made again finds its own value."""


def _turn(job: str) -> str:
    return f"turn:{job}"
