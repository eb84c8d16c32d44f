"""Reading: pages and indexes, each as it stands at one moment, by one script."""

from __future__ import annotations

from dataclasses import replace

from millpond.errors import Corrupt
from millpond.events.codec import decode, read_header
from millpond.events.event import Event, Page
from millpond.events.ids import restart_position
from millpond.events.redis.keys import StreamKeys
from millpond.events.redis.rows import Head, Listed, id_bytes, parse_segment
from millpond.events.redis.scripts import INDEX, READ
from millpond.events.redis.servers import Servers, script_call

__all__ = ("read_index", "read_page")

_REFERENCE = b"reference"
"""Stands for the id of a row that rows behind it were deflated with."""


def read_page(servers: Servers, keys: StreamKeys, after: int, bytes_max: int) -> Page:
    """As `StreamStore.read`."""
    keys_used = (keys.head, keys.index, keys.raw, keys.lost)
    call = script_call(READ, keys.shard, keys_used, (id_bytes(after), bytes_max, keys.batches))
    (reply,) = servers.run([call], repeat=True)
    lost, rest = int.from_bytes(reply[0], "big"), reply[1:]
    is_lost = 0 < after < lost
    if not rest:
        return Page([], max(after, lost), gap=is_lost)
    head = Head.decode(rest[0])
    if head.last_id == after:
        return Page([], after)
    if head.last_id < after:
        return replace(read_page(servers, keys, restart_position(after, head.last_id), bytes_max), gap=True)
    cursor = max(after, head.dropped_id)
    events: list[Event] = []
    reference = b""
    for id_, row in zip(rest[2::2], rest[3::2], strict=True):
        if id_ == _REFERENCE:
            reference = row
            continue
        events += decode(row, cursor, _base(id_, row), reference=reference)
        if events:
            cursor = events[-1].number
    # The newest events may have been deleted: a reader that found no others is behind them.
    cursor = cursor if events else head.last_id
    return Page(events, cursor, bool(rest[1]), is_lost or 0 < after < head.dropped_id)


def _base(id_: bytes, row: bytes) -> int:
    """The number to add to the ids of a row: those of raw entries count from 1, and the entry has that of the last."""
    if not id_:
        return 0
    ms, _, counter = id_.partition(b"-")
    header = read_header(row)
    base = (int(ms) << 20 | int(counter)) - header.events
    if base < 0 or header.first_id != 1:
        raise Corrupt(
            "an entry of a stream is not what was appended", kind="events_damaged",
            entry=id_.decode("ascii", "replace"), hint="restore the streams from a copy of Redis",
        )  # fmt: skip
    return base


def read_index(servers: Servers, keys: StreamKeys) -> tuple[Head, list[Listed]] | None:
    """The head and the segments of a stream; None when there is no such stream."""
    (reply,) = servers.run([script_call(INDEX, keys.shard, (keys.head, keys.index), ())], repeat=True)
    if not reply:
        return None
    return Head.decode(reply[0]), [parse_segment(row) for row in reply[1]]
