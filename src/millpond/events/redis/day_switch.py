"""Switching segments to a compressed one, dropping days, and erasing the events of a job.

Batches are staged under a key of their own that expires, and one script puts them in the place of what was seen. A
crash before it leaves the stream as it was; the staged batches vanish.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from millpond.errors import Corrupt, Fenced, Invalid, Unavailable
from millpond.events.codec import Codec, Continuity, decode, encode, read_header
from millpond.events.index import DaySegment, State
from millpond.events.redis.read import read_index
from millpond.events.redis.rows import id_bytes, pack_segment
from millpond.events.redis.scripts import DELETE, EXPIRE, STAGE, SWITCH
from millpond.events.redis.servers import Call, script_call
from millpond.kernel.steps import step

if TYPE_CHECKING:
    from millpond.events.erasure import Remains
    from millpond.events.redis.keys import StreamKeys
    from millpond.events.redis.rows import Listed
    from millpond.events.redis.servers import Servers

__all__ = ("delete_days", "erase_events", "expire_days", "switch_segments")

STAGED_MS = 3_600_000
"""The life of staged batches after the last of them came."""


def switch_segments(
    servers: Servers, keys: StreamKeys, seen: Sequence[DaySegment], batches: Iterable[bytes], token: str
) -> DaySegment:
    """As `StreamStore.switch`; `token` names what is staged."""
    if not seen or any(segment.state not in (State.CLOSED, State.COMPRESSED) for segment in seen):
        raise Invalid("only closed and compressed days are switched", kind="event_switch", segments=len(seen))
    days = tuple(day for segment in seen for day in segment.days)
    check = Continuity(days)
    staged, last_ids, size = keys.staged + token.encode(), [], 0
    servers.run_quietly(Call(keys.shard, (b"UNLINK", staged)))
    try:
        for data in batches:
            header = read_header(data)
            check.add(header)
            servers.run([script_call(STAGE, keys.shard, (staged,), (data, STAGED_MS))], repeat=False)
            last_ids.append(header.last_id)
            size += len(data)
            step("events.batch_staged")
        check.end()
        output = DaySegment(State.COMPRESSED, days, size)
        _replace(servers, keys, _listed(servers, keys, seen), output, last_ids, staged)
    except Invalid:
        # Days that were dropped meanwhile do not read as they were listed.
        servers.run_quietly(Call(keys.shard, (b"UNLINK", staged)))
        _listed(servers, keys, seen)
        raise
    except BaseException:
        servers.run_quietly(Call(keys.shard, (b"UNLINK", staged)))
        raise
    step("events.segment_switched")
    return output


def _listed(servers: Servers, keys: StreamKeys, seen: Sequence[DaySegment]) -> list[Listed]:
    """The segments as the index lists them, with their rows, if they are what was seen."""
    index = read_index(servers, keys)
    listed = {row.segment: row for row in index[1]} if index else {}
    if any(segment not in listed for segment in seen):
        raise _moved(keys)
    return [listed[segment] for segment in seen]


def _moved(keys: StreamKeys) -> Fenced:
    return Fenced(
        "the days are no longer what they were", kind="segments_moved", stream=keys.stream,
        hint="drop what was made of them, and begin anew",
    )  # fmt: skip


def _replace(
    servers: Servers, keys: StreamKeys, listed: Sequence[Listed], output: DaySegment | None, last_ids: Sequence[int],
    staged: bytes, dropped_id: int = 0,
) -> None:  # fmt: skip
    old = [keys.batches_of(entry.segment.days[-1].day) for entry in listed if entry.segment.state is State.COMPRESSED]
    target = staged if output is None else keys.batches_of(output.days[-1].day)
    row = b"" if output is None else pack_segment(output, last_ids)
    dropped = id_bytes(dropped_id) if dropped_id else b""
    call = script_call(
        SWITCH, keys.shard, (keys.head, keys.index, keys.raw, staged, target, *keys.due, *old),
        (keys.name, len(last_ids), dropped, row, *(entry.row for entry in listed)),
    )  # fmt: skip
    (outcome,) = servers.run([call], repeat=False)
    if outcome == b"fenced":
        raise _moved(keys)
    if outcome == b"lost":
        raise Unavailable(
            "the staged batches are not all there: it took too long, or Redis lost some", kind="redis_staged",
            stream=keys.stream, hint="begin anew",
        )  # fmt: skip


def expire_days(servers: Servers, keys: StreamKeys, day: int, forget_day: int, token: str) -> int:
    """As `StreamStore.expire`."""
    total = 0
    while True:
        index = read_index(servers, keys)
        if index is None:
            return total
        due = [
            entry.segment.days[-1].day for entry in index[1]
            if entry.segment.state is State.COMPRESSED and entry.segment.days[-1].day <= day
        ]  # fmt: skip
        keys_used = (keys.head, keys.index, keys.raw, keys.sources, *keys.due, keys.names)
        call = script_call(
            EXPIRE, keys.shard, (*keys_used, *map(keys.batches_of, due)), (day, forget_day, keys.name, *due)
        )
        ((count, outcome, row),) = servers.run([call], repeat=False)
        total += count
        step("events.days_dropped")
        if outcome == b"done":
            return total
        if outcome == b"trim":
            partly_due = next((entry for entry in index[1] if entry.row == row), None)
            if partly_due is not None:
                total += _trim(servers, keys, partly_due, day, token)


def _trim(servers: Servers, keys: StreamKeys, listed: Listed, day: int, token: str) -> int:
    """Rewrite a segment of small days without those that are due; the number of events dropped."""
    segment = listed.segment
    days = tuple(later for later in segment.days if later.day > day)
    rows = servers.run([Call(keys.shard, (b"LRANGE", keys.batches_of(segment.days[-1].day), 0, -1))], repeat=True)[0]
    events = [event for row in rows for event in decode(row, days[0].first_id - 1)]
    if len(events) != sum(later.count for later in days):
        return _changed_meanwhile(servers, keys, listed)
    data = encode(events, Codec.ZSTD)
    staged = keys.staged + token.encode()
    servers.run_quietly(Call(keys.shard, (b"UNLINK", staged)))
    servers.run([script_call(STAGE, keys.shard, (staged,), (data, STAGED_MS))], repeat=False)
    step("events.batch_staged")
    output = DaySegment(State.COMPRESSED, days, len(data))
    dropped_id = next(later for later in reversed(segment.days) if later.day <= day).last_id
    try:
        _replace(servers, keys, [listed], output, [output.last_id], staged, dropped_id)
    except Fenced:
        return 0  # somebody else replaced the segment; the caller looks again
    step("events.segment_trimmed")
    return segment.count - output.count


def delete_days(servers: Servers, keys: StreamKeys, now_ms: int) -> int:
    """As `StreamStore.delete`: one script, so nothing is left to be done."""
    while True:
        index = read_index(servers, keys)
        if index is None:
            return 0
        days = [row.segment.days[-1].day for row in index[1] if row.segment.state is State.COMPRESSED]
        keys_used = (keys.head, keys.index, keys.raw, *keys.due, *map(keys.batches_of, days))
        call = script_call(DELETE, keys.shard, keys_used, (now_ms, keys.name, *days))
        ((count, outcome),) = servers.run([call], repeat=False)
        if outcome == b"done":
            step("events.stream_hidden")
            return int(count)


def erase_events(servers: Servers, keys: StreamKeys, remains: Remains, token: str) -> int:
    """As `StreamStore.erase`: what is left is staged, and put in the place of the segment."""
    listed = _listed(servers, keys, [remains.segment])
    staged, last_ids, size = keys.staged + token.encode(), [], 0
    servers.run_quietly(Call(keys.shard, (b"UNLINK", staged)))
    source = keys.batches_of(remains.segment.days[-1].day)
    try:
        for place in range(len(listed[0].batches)):
            (row,) = servers.run([Call(keys.shard, (b"LINDEX", source, place))], repeat=True)
            events = [] if row is None else decode(row)
            rest = remains.rest(events)
            if not rest:
                continue
            data = row if len(rest) == len(events) else encode(rest, Codec.ZSTD)
            servers.run([script_call(STAGE, keys.shard, (staged,), (data, STAGED_MS))], repeat=False)
            last_ids.append(rest[-1].number)
            size += len(data)
            step("events.batch_staged")
        if remains.seen != remains.segment.count:
            _changed_meanwhile(servers, keys, listed[0])
            raise _moved(keys)
        if remains.erased:
            output = DaySegment(State.COMPRESSED, remains.days, size) if remains.days else None
            _replace(servers, keys, listed, output, last_ids, staged)
            step("events.job_erased")
    finally:
        servers.run_quietly(Call(keys.shard, (b"UNLINK", staged)))
    return remains.erased


def _changed_meanwhile(servers: Servers, keys: StreamKeys, listed: Listed) -> int:
    """Nothing dropped, when a segment was replaced while it was read; else its batches are damaged."""
    index = read_index(servers, keys)
    if index is not None and listed in index[1]:
        raise Corrupt(
            "the batches of a stream do not hold what its index says", kind="events_damaged", stream=keys.stream,
            hint="restore the streams from a copy of Redis",
        )  # fmt: skip
    return 0
