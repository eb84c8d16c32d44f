"""The registry, and the list of streams: sorted sets of each shard, read side by side.

Each shard gives some entries at a time; the next are fetched from those shards whose entries are used up.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice

from millpond.events.days import DAY_MAX
from millpond.events.names import StreamName
from millpond.events.protocol import Due, Work
from millpond.events.redis.keys import SHARDS, Place, due_member, escaped, is_hashed, parse_name
from millpond.events.redis.rows import Head
from millpond.events.redis.servers import Call, Servers

__all__ = ("due_streams", "list_streams")

_DAY_DIGITS = 7


def due_streams(servers: Servers, place: Place, work: Work, day: int, after: Due | None, limit: int) -> list[Due]:
    """As `StreamStore.due`."""
    start = b"-" if after is None else b"(" + due_member(after.day, place.keys_of(after.stream).name)
    stop = b"(" + due_member(min(max(day, -1), DAY_MAX) + 1, b"")
    keys = [place.due(work, shard) for shard in range(SHARDS)]
    members = list(islice(_merged(servers, keys, start, stop, limit), limit))
    streams = _streams(servers, place, [member[_DAY_DIGITS:] for member in members])
    return [
        Due(int(member[:_DAY_DIGITS]), stream)
        for member, stream in zip(members, streams, strict=True) if stream is not None
    ]  # fmt: skip


def list_streams(
    servers: Servers, place: Place, queue: str | None, after: StreamName | None, limit: int
) -> list[StreamName]:
    """As `StreamStore.streams`."""
    start, stop = b"-", b"+"
    if queue is not None:
        part = escaped(queue).encode()
        start, stop = b"[" + part + b"/", b"(" + part + b"0"  # 0 is what follows / in ASCII
    if after is not None:
        start = b"(" + place.keys_of(after).name
    keys = [place.names(shard) for shard in range(SHARDS)]
    names = list(islice(_merged(servers, keys, start, stop, limit), limit))
    return [stream for stream in _streams(servers, place, names) if stream is not None]


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


def _streams(servers: Servers, place: Place, names: Sequence[bytes]) -> list[StreamName | None]:
    """The streams of names; None for one that was forgotten meanwhile."""
    hashed = [name for name in names if is_hashed(name)]
    rows = servers.run([Call(place.shard_of(name), (b"GET", place.head(name))) for name in hashed], repeat=True)
    in_full = {name: Head.decode(row).names if row else None for name, row in zip(hashed, rows, strict=True)}
    return [in_full[name] if name in in_full else parse_name(name) for name in names]
