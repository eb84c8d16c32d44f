"""The rows of jobs in Redis, beside the streams: every machine that uses the place sees the same queues and claims.

    place:{00}:queues                      hash: name → row
    place:{shard}:client:queue/client id   the claim of a client's id; it expires
    place:{shard}:turn:job id              the holder who settles a claim; it expires

Each act is one command or one script, so there is nothing that a crash could cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from millpond.events import shared_jobs
from millpond.events.days import DAY_MS
from millpond.events.redis.keys import escaped
from millpond.events.redis.scripts import SWAP
from millpond.events.redis.servers import Call, script_call
from millpond.events.shared_jobs import CLAIM, CLIENT_DAYS, TURN_SECONDS, queues_full

if TYPE_CHECKING:
    from millpond.events.redis.connections import Argument
    from millpond.events.redis.keys import Place
    from millpond.events.redis.servers import Servers
    from millpond.events.shared_jobs import Claim

__all__ = ("RedisClaims", "RedisQueues")

_QUEUES_SHARD = 0
_CLAIM_MS = (CLIENT_DAYS + 1) * DAY_MS


class RedisQueues:
    """Queues in one hash."""

    def __init__(self, servers: Servers, place: Place) -> None:
        self._servers, self._key = servers, f"{place.tags[_QUEUES_SHARD]}:queues".encode()

    def get(self, name: str) -> bytes | None:
        """See `QueueRows.get`."""
        row: bytes | None = self._servers.run([self._call(b"HGET", name.encode())], repeat=True)[0]
        return row

    def swap(self, name: str, before: bytes | None, row: bytes) -> bool:
        """See `QueueRows.swap`."""
        arguments = (name.encode(), before or b"", row, shared_jobs.QUEUES_MAX)
        (outcome,) = self._servers.run([script_call(SWAP, _QUEUES_SHARD, (self._key,), arguments)], repeat=False)
        if outcome == b"full":
            raise queues_full()
        return bool(outcome == b"done")

    def delete(self, name: str) -> None:
        """See `QueueRows.delete`."""
        self._servers.run([self._call(b"HDEL", name.encode())], repeat=True)

    def list(self, after: str | None, limit: int) -> list[bytes]:
        """See `QueueRows.list`."""
        (names,) = self._servers.run([self._call(b"HKEYS")], repeat=True)
        start = b"" if after is None else after.encode()
        page = list(islice((name for name in sorted(names) if name > start), limit))
        found = self._servers.run([self._call(b"HMGET", *page)], repeat=True)[0] if page else []
        return [row for row in found if row is not None]

    def _call(self, command: bytes, *arguments: Argument) -> Call:
        return Call(_QUEUES_SHARD, (command, self._key, *arguments))


class RedisClaims:
    """Claims, each a key of its own."""

    def __init__(self, servers: Servers, place: Place) -> None:
        self._servers, self._place = servers, place

    def claim(self, queue: str, drawn: Mapping[str, Claim]) -> dict[str, Claim]:
        """See `ClaimRows.claim`."""
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
        """See `ClaimRows.take`."""
        wanted, own = list(jobs), holder.encode()
        calls = [self._call(b"SET", queue, _turn(job), own, *_UNLESS_THERE, int(TURN_SECONDS * 1000)) for job in wanted]
        there = self._servers.run(calls, repeat=True)
        return {job for job, other in zip(wanted, there, strict=True) if other in (None, own)}

    def give_back(self, queue: str, jobs: Iterable[str]) -> None:
        """See `ClaimRows.give_back`."""
        for job in jobs:
            self._servers.run_quietly(self._call(b"DEL", queue, _turn(job)))

    def confirm(self, queue: str, claims: Mapping[str, Claim]) -> None:
        """See `ClaimRows.confirm`."""
        calls = [
            self._call(b"SET", queue, self._client(queue, client), CLAIM.encode(claim), b"XX", b"KEEPTTL")
            for client, claim in claims.items()
        ]
        self._servers.run(calls, repeat=True)

    def _client(self, queue: str, client: str) -> str:
        return f"client:{escaped(queue)}/{escaped(client)}"

    def _call(self, command: bytes, queue: str, key: str, *arguments: Argument) -> Call:
        """A command about a key in the shard of a queue."""
        shard = self._place.shard_of(escaped(queue).encode())
        return Call(shard, (command, f"{self._place.tags[shard]}:{key}".encode(), *arguments))


_UNLESS_THERE = (b"NX", b"GET", b"PX")
"""Sets a key that is not there, and gives what is; a call that is made again finds its own value."""


def _turn(job: str) -> str:
    return f"turn:{job}"
