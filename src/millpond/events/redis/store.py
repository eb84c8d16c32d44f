"""The backend in Redis.

Marks: a key of each shard that is there as long as its server has not lost its keys, as after `FLUSHALL`.

    place:{shard}:lost      the id up to which the streams of the shard were lost; 0 at first

Scripts store and read nothing in a shard without its mark. A process that knew the mark makes it anew, with the time of
then: readers from before it get a gap, and the process counts a loss. A process that began since makes it as at first.

The registry, and the list of streams: sorted sets of each shard, read side by side.

Each shard gives some entries at a time; the next are fetched from those shards whose entries are used up.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from millpond.clock import Clock, SystemClock
from millpond.errors import Unavailable
from millpond.events.days import DAY_MAX, latest_due_day
from millpond.events.erasure import Remains
from millpond.events.event import Appended, EventBatch, Page
from millpond.events.ids import position_before
from millpond.events.index import DaySegment, StreamIndex
from millpond.events.names import StreamName
from millpond.events.protocol import PAGE_BYTES, Due, Losses, NoteKind, StreamRules, Work, never
from millpond.events.redis.address import parse_location
from millpond.events.redis.append import append_batches
from millpond.events.redis.check import check_keys
from millpond.events.redis.day_switch import delete_days, erase_events, expire_days, switch_segments
from millpond.events.redis.jobs import redis_tables
from millpond.events.redis.keys import SHARDS, PondKeys, due_member, escaped, is_hashed, parse_name
from millpond.events.redis.read import read_index, read_page
from millpond.events.redis.references import References
from millpond.events.redis.rows import Head, id_bytes, index_of
from millpond.events.redis.scripts import CLOSE, PULL_BACK
from millpond.events.redis.servers import Call, Servers, script_call
from millpond.events.redis.shared_calls import SERVER_TIME
from millpond.events.redis.tail import Followers
from millpond.events.witness import NOTED_MS
from millpond.kernel.verify import Report

__all__ = ("RedisStore", "RedisNotes", "Marks")

_LOG = logging.getLogger(__name__)

_DAY_DIGITS = 7


class RedisStore:
    """A `StreamStore` in Redis: `redis://host:6379/0#pond_keys`, one server or a cluster.

    A password may stand in the URL or come beside it. The server is reached with the first call, which raises `Invalid`
    for one that evicts keys, or is older than Redis 7. `location` is the URL without its password.

    Raises:
        Invalid: this is no URL of Redis.
    """

    def __init__(
        self, url: str, clock: Clock, rules: StreamRules | None = None, *, password: str | None = None
    ) -> None:
        location = parse_location(url, password)
        self.location = location.shown
        self._clock = clock
        # Machines disagree about the time. One that is far ahead would take a stream with it, so the server's counts.
        self._is_real = isinstance(clock, SystemClock)
        self._rules = rules or StreamRules()
        self._keys = PondKeys(location.name)
        self._servers = Servers(location, self._keys, clock)
        self.losses = self._servers.losses
        marks = Marks(self._keys, clock, lambda calls: self._servers.run(calls, repeat=True), self.losses)
        self._servers.settle = marks.settle
        self.job_rows = redis_tables(self._servers, self._keys, self, clock)
        self._references = References()
        self._believed_ms = 0
        self._followers = Followers(self._servers, self._keys, clock)
        self.notes = RedisNotes(self._servers, self._keys)

    def append(self, batches: Sequence[EventBatch]) -> list[Appended]:
        """See `StreamStore.append`; each batch is stored wholly or not at all."""
        now_ms = SERVER_TIME if self._is_real else self._clock.now_ms()
        return append_batches(self._servers, self._references, self._keys, batches, now_ms, self._rules)

    def read(self, stream: StreamName, after: int = 0, *, bytes_max: int = PAGE_BYTES) -> Page:
        return read_page(self._servers, self._keys.keys_of(stream), after, bytes_max)

    def follow(
        self, cursors: Mapping[StreamName, int], due: float | None, interrupted: Callable[[], bool] = never
    ) -> set[StreamName]:
        """See `StreamStore.follow`.

        Raises:
            Closed: the store was closed meanwhile.
            Unavailable: Redis cannot be reached; what is lost later is waited for.
        """
        return self._followers.follow(cursors, due, interrupted)

    def wake(self) -> None:
        self._followers.wake()

    def index(self, stream: StreamName) -> StreamIndex | None:
        index = read_index(self._servers, self._keys.keys_of(stream))
        return None if index is None else index_of(stream, *index)

    def streams(self, queue: str | None = None, after: StreamName | None = None, *, limit: int) -> list[StreamName]:
        return _list_streams(self._servers, self._keys, queue, after, limit)

    def due(self, work: Work, day: int, after: Due | None = None, *, limit: int) -> list[Due]:
        return _due_streams(self._servers, self._keys, work, day, after, limit)

    def close_day(self, stream: StreamName, day: int) -> bool:
        keys = self._keys.keys_of(stream)
        call = script_call(CLOSE, keys.shard, (keys.head, keys.index), (day,))
        return bool(self._servers.run([call], repeat=False)[0])

    def pull_back(self, stream: StreamName, latest: int) -> bool:
        keys = self._keys.keys_of(stream)
        call = script_call(
            PULL_BACK, keys.shard, (keys.head, keys.index, keys.raw, *keys.due), (latest, keys.name, keys.batches)
        )
        return bool(self._servers.run([call], repeat=True)[0])

    def now_ms(self) -> int:
        if not self._is_real:
            return self._clock.now_ms()
        ((seconds, microseconds),) = self._servers.run([Call(0, (b"TIME",))], repeat=True)
        return int(seconds) * 1000 + int(microseconds) // 1000

    def believe(self, now_ms: int) -> None:
        """See `Believing.believe`; it matters little when it fails, as on a server that is full."""
        if abs(now_ms - self._believed_ms) >= NOTED_MS:
            calls = [Call(shard, (b"SET", self._keys.clock(shard), now_ms)) for shard in range(SHARDS)]
            with suppress(Unavailable):
                self._servers.run(calls, repeat=True)
                self._believed_ms = now_ms

    def switch(
        self, stream: StreamName, seen: Sequence[DaySegment], batches: Callable[[int], Iterable[bytes]]
    ) -> DaySegment:
        return switch_segments(self._servers, self._keys.keys_of(stream), seen, batches)

    def expire(self, stream: StreamName, day: int) -> int:
        forget_day = latest_due_day(self.now_ms(), self._rules.forget_ms)
        return expire_days(self._servers, self._keys.keys_of(stream), day, forget_day)

    def delete(self, stream: StreamName) -> int:
        now_ms = SERVER_TIME if self._is_real else self._clock.now_ms()
        return delete_days(self._servers, self._keys.keys_of(stream), now_ms)

    def erase(self, stream: StreamName, seen: DaySegment, job_id: str, last_id: int) -> int:
        return erase_events(self._servers, self._keys.keys_of(stream), Remains(seen, job_id, last_id))

    def check(self) -> Report:
        """Check that what is stored and what is listed belong together: heads, registry, names, and all other keys."""
        return check_keys(self._servers, self._keys)

    def close(self) -> None:
        """Let followers go, and close the connections."""
        self._followers.close()
        self._servers.close()


class RedisNotes:
    """The `Notes` of a place in Redis."""

    def __init__(self, servers: Servers, pond_keys: PondKeys) -> None:
        self._servers, self._keys = servers, pond_keys

    def read(self, kind: NoteKind) -> dict[str, bytes]:
        (pairs,) = self._servers.run([Call(0, (b"HGETALL", self._keys.notes(kind)))], repeat=True)
        return {name.decode(): row for name, row in zip(pairs[::2], pairs[1::2], strict=True)}

    def put(self, kind: NoteKind, name: str, row: bytes) -> None:
        self._servers.run([Call(0, (b"HSET", self._keys.notes(kind), name, row))], repeat=True)

    def remove(self, kind: NoteKind, name: str) -> None:
        self._servers.run([Call(0, (b"HDEL", self._keys.notes(kind), name))], repeat=True)


class Marks:
    """The marks of a place, as far as a process knows them; safe to share between threads."""

    def __init__(
        self, pond_keys: PondKeys, clock: Clock, run: Callable[[Sequence[Call]], list[Any]], losses: Losses
    ) -> None:
        self._keys, self._clock, self._run, self._losses = pond_keys, clock, run, losses
        self._marks: dict[int, bytes] = {}
        self._lock = threading.Lock()

    def settle(self) -> None:
        """Read the marks of all shards, and make those that are missing.

        Raises:
            Unavailable: a server is out of reach.
        """
        keys = {shard: self._keys.lost(shard) for shard in range(SHARDS)}
        rows = dict(zip(keys, self._run([Call(shard, (b"GET", key)) for shard, key in keys.items()]), strict=True))
        missing = [shard for shard, mark in rows.items() if mark is None]
        new = {shard: self._now(shard) if shard in self._marks else id_bytes(0) for shard in missing}
        there = self._run([Call(shard, (b"SET", keys[shard], mark, b"NX", b"GET")) for shard, mark in new.items()])
        rows |= {shard: other or new[shard] for shard, other in zip(missing, there, strict=True)}
        with self._lock:
            lost = [shard for shard, mark in rows.items() if self._marks.get(shard, mark) != mark]
            self._marks |= rows
            self._losses.count += bool(lost)
        if lost:
            _LOG.error("Redis lost all of its keys, and the streams of %s of %s shards", len(lost), SHARDS)

    def _now(self, shard: int) -> bytes:
        """The place before all that is appended from now on."""
        now_ms = self._clock.now_ms()
        if isinstance(self._clock, SystemClock):
            ((seconds, microseconds),) = self._run([Call(shard, (b"TIME",))])
            now_ms = int(seconds) * 1000 + int(microseconds) // 1000
        return id_bytes(position_before(now_ms))


def _due_streams(
    servers: Servers, pond_keys: PondKeys, work: Work, day: int, after: Due | None, limit: int
) -> list[Due]:
    start = b"-" if after is None else b"(" + due_member(after.day, pond_keys.keys_of(after.stream).name)
    stop = b"(" + due_member(min(max(day, -1), DAY_MAX) + 1, b"")
    keys = [pond_keys.due(work, shard) for shard in range(SHARDS)]
    members = list(islice(_merged(servers, keys, start, stop, limit), limit))
    streams = _streams(servers, pond_keys, [member[_DAY_DIGITS:] for member in members])
    return [
        Due(int(member[:_DAY_DIGITS]), stream)
        for member, stream in zip(members, streams, strict=True) if stream is not None
    ]  # fmt: skip


def _list_streams(
    servers: Servers, pond_keys: PondKeys, queue: str | None, after: StreamName | None, limit: int
) -> list[StreamName]:
    start, stop = b"-", b"+"
    if queue is not None:
        part = escaped(queue).encode()
        start, stop = b"[" + part + b"/", b"(" + part + b"0"  # 0 is what follows / in ASCII
    if after is not None:
        start = b"(" + pond_keys.keys_of(after).name
    keys = [pond_keys.names(shard) for shard in range(SHARDS)]
    names = list(islice(_merged(servers, keys, start, stop, limit), limit))
    return [stream for stream in _streams(servers, pond_keys, names) if stream is not None]


def _merged(servers: Servers, keys: Sequence[bytes], start: bytes, stop: bytes, limit: int) -> Iterator[bytes]:
    """The entries of all shards between two bounds, in order."""
    count = min(limit, 8 + 2 * limit // SHARDS)
    first = servers.run([_range(shard, key, start, stop, count) for shard, key in enumerate(keys)], repeat=True)

    def entries(shard: int, page: list[bytes]) -> Iterator[bytes]:
        while page:
            yield from page
            if len(page) < count:
                return
            (page,) = servers.run([_range(shard, keys[shard], b"(" + page[-1], stop, count)], repeat=True)

    return heapq.merge(*(entries(shard, page) for shard, page in enumerate(first)))


def _range(shard: int, key: bytes, start: bytes, stop: bytes, count: int) -> Call:
    return Call(shard, (b"ZRANGEBYLEX", key, start, stop, b"LIMIT", 0, count))


def _streams(servers: Servers, pond_keys: PondKeys, names: Sequence[bytes]) -> list[StreamName | None]:
    """The streams of names; None for one that was forgotten meanwhile."""
    hashed = [name for name in names if is_hashed(name)]
    rows = servers.run([Call(pond_keys.shard_of(name), (b"GET", pond_keys.head(name))) for name in hashed], repeat=True)
    in_full = {name: Head.decode(row).names if row else None for name, row in zip(hashed, rows, strict=True)}
    return [in_full[name] if name in in_full else parse_name(name) for name in names]
