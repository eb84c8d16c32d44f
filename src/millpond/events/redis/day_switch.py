"""Switching segments to a compressed one, dropping days, and erasing the events of a job.

    closed      raw raw raw raw raw raw          a batch is put and the entries that it replaces go, in one script:
    closed      [batch 1] raw raw raw            there is never more than a batch beside the stream, so a server that
    closed      [batch 1] [batch 2] raw          is full can be compressed
    compressed  [batch 1] [batch 2] [batch 3]

Invariants of a day that is partly compressed, which it may stay for as long as one likes:
* the row of its segment says up to which id its batches go; a page reads these, and raw entries behind that id:
  each event once, from any id on. Its day, ids and counts stay as they were, and it is listed as closed;
* a step happens only while the row is what was seen, and changes it: of two that compress a day, one is fenced;
* a step puts as many events as it removes, and the last one makes sure that all of the day are there;
* raw entries that were deflated can be read: the first of the day, their reference, is kept until the last step;
* a crash leaves what was done, and whoever comes next goes on behind it. Days are dropped, deleted and pulled back with
  their batches; the events of a job are erased once the day is compressed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from millpond.errors import Corrupt, Fenced, Invalid
from millpond.events.codec import Codec, decode, encode, other_events, read_header
from millpond.events.erasure import Remains
from millpond.events.event import Event
from millpond.events.index import Day, DaySegment, State
from millpond.events.redis.keys import StreamKeys
from millpond.events.redis.read import read_index
from millpond.events.redis.rows import Listed, id_bytes, pack_segment, parse_segment
from millpond.events.redis.scripts import DELETE, EXPIRE, REWRITE, SWITCH
from millpond.events.redis.servers import Call, Servers, script_call
from millpond.kernel.steps import step

__all__ = ("delete_days", "erase_events", "expire_days", "switch_segments")

REWRITE_BYTES = 8 << 20
"""New batches are sent together up to so many bytes: readers find all events of a job in such a day, or none."""


def switch_segments(
    servers: Servers, keys: StreamKeys, seen: Sequence[DaySegment], batches: Callable[[int], Iterable[bytes]]
) -> DaySegment:
    """As `StreamStore.switch`."""
    if not seen or any(segment.state not in (State.CLOSED, State.COMPRESSED) for segment in seen):
        raise Invalid("only closed and compressed days are switched", kind="event_switch", segments=len(seen))
    listed = _listed(servers, keys, seen)
    goes_on = len(seen) == 1 and seen[0].state is State.CLOSED and listed[0].batches
    after = listed[0].batches[-1] if goes_on else seen[0].first_id - 1
    for data in batches(after):
        listed = [_put(servers, keys, listed, data)]
        step("events.batch_switched")
    output = listed[0].segment
    if len(listed) > 1 or output.state is not State.COMPRESSED:
        # Days that were dropped meanwhile do not read as they were listed.
        _listed(servers, keys, [entry.segment for entry in listed])
        raise other_events()
    return output


def _put(servers: Servers, keys: StreamKeys, listed: Sequence[Listed], data: bytes) -> Listed:
    """Put the next batch in the place of its events; the segment then."""
    header, segments = read_header(data), [entry.segment for entry in listed]
    is_next = len(segments) == 1 and segments[0].state is State.CLOSED
    old = [] if is_next else [_batches_of(keys, entry.segment) for entry in listed if entry.batches]
    call = script_call(
        SWITCH, keys.shard, (keys.head, keys.index, keys.raw, *keys.due, _batches_of(keys, segments[-1]), *old),
        (keys.name, data, id_bytes(header.last_id), header.events, *(entry.row for entry in listed)),
    )  # fmt: skip
    ((outcome, *row),) = servers.run([call], repeat=False)
    if outcome == b"fenced":
        raise _moved(keys)
    if outcome == b"other":
        raise other_events()
    return parse_segment(row[0])


def _batches_of(keys: StreamKeys, segment: DaySegment) -> bytes:
    return keys.batches_of(segment.days[-1].day)


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


def _rewrite(
    servers: Servers, keys: StreamKeys, listed: Listed, rest: Callable[[list[Event]], list[Event]],
    days: Callable[[int], Sequence[Day]], dropped_id: int = 0,
) -> None:  # fmt: skip
    """Replace the batches of a compressed segment of which not all events are to stay, by the rest of them.

    It is one step, or several where new batches are large. `days` says what is left when batches up to an event have
    changed, as `rest` was given them; with 0 all have, and it checks what they held.

    Raises:
        Fenced: the segment is no longer what was seen.
    """
    source, at, changes, pending = _batches_of(keys, listed.segment), 0, list[bytes | int](), 0
    last_ids, stored, seen_ids = list[int](), listed.segment.stored_bytes, listed.batches
    for number in range(len(seen_ids)):
        (data,) = servers.run([Call(keys.shard, (b"LINDEX", source, at))], repeat=True)
        if data is None:
            break  # `days` finds out why
        events = decode(data)
        if pending >= REWRITE_BYTES:
            ids = (*last_ids, *seen_ids[number:])
            listed = _put_rest(servers, keys, listed, days(events[0].number), ids, stored, changes)
            at, changes, pending = len(last_ids), [], 0
        rest_events = rest(events)
        if len(rest_events) < len(events):
            new = encode(rest_events, Codec.ZSTD) if rest_events else b""
            changes += (at, new)
            pending, stored = pending + len(new), stored + len(new) - len(data)
        if rest_events:
            last_ids.append(rest_events[-1].number)
        at += 1
    left_days = days(0)
    if changes:
        _put_rest(servers, keys, listed, left_days, last_ids, stored, changes, dropped_id)


def _put_rest(
    servers: Servers, keys: StreamKeys, listed: Listed, days: Sequence[Day], last_ids: Sequence[int], stored: int,
    changes: Sequence[bytes | int], dropped_id: int = 0,
) -> Listed:  # fmt: skip
    """Change batches at places of a list, and what the index says of them; the segment then, if something is left."""
    output = DaySegment(State.COMPRESSED, tuple(days), max(stored, 0)) if days else None
    row = pack_segment(output, last_ids) if output else b""
    call = script_call(
        REWRITE, keys.shard,
        (
            keys.head, keys.index, keys.raw, *keys.due, _batches_of(keys, listed.segment),
            _batches_of(keys, output or listed.segment),
        ),
        (keys.name, id_bytes(dropped_id) if dropped_id else b"", listed.row, row, *changes),
    )  # fmt: skip
    if servers.run([call], repeat=False) == [b"fenced"]:
        raise _moved(keys)
    step("events.batches_rewritten")
    return parse_segment(row) if row else listed


def expire_days(servers: Servers, keys: StreamKeys, day: int, forget_day: int) -> int:
    """As `StreamStore.expire`."""
    total = 0
    while True:
        index = read_index(servers, keys)
        if index is None:
            return total
        due = [
            entry.segment.days[-1].day for entry in index[1] if entry.batches and entry.segment.days[-1].day <= day
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
                total += _trim(servers, keys, partly_due, day)


def _trim(servers: Servers, keys: StreamKeys, listed: Listed, day: int) -> int:
    """Rewrite a segment of small days without those that are due; the number of events dropped."""
    segment = listed.segment
    due = [old for old in segment.days if old.day <= day]
    dropped_id, seen = due[-1].last_id, 0

    def rest(events: list[Event]) -> list[Event]:
        nonlocal seen
        seen += len(events)
        return [event for event in events if event.number > dropped_id]

    def days(_: int) -> Sequence[Day]:
        _check_seen(servers, keys, listed, seen)
        return segment.days[len(due) :]

    try:
        _rewrite(servers, keys, listed, rest, days, dropped_id)
    except Fenced:
        return 0  # somebody else replaced the segment; the caller looks again
    step("events.segment_trimmed")
    return sum(old.count for old in due)


def delete_days(servers: Servers, keys: StreamKeys, now_ms: int) -> int:
    """As `StreamStore.delete`: one script, so nothing is left to be done."""
    while True:
        index = read_index(servers, keys)
        if index is None:
            return 0
        days = [row.segment.days[-1].day for row in index[1] if row.batches]
        keys_used = (keys.head, keys.index, keys.raw, *keys.due, *map(keys.batches_of, days))
        call = script_call(DELETE, keys.shard, keys_used, (now_ms, keys.name, *days))
        ((count, outcome),) = servers.run([call], repeat=False)
        if outcome == b"done":
            step("events.stream_hidden")
            return int(count)


def erase_events(servers: Servers, keys: StreamKeys, remains: Remains) -> int:
    """As `StreamStore.erase`."""
    (listed,) = _listed(servers, keys, [remains.segment])

    def days(first_id: int) -> Sequence[Day]:
        if first_id:
            return remains.days_before(first_id)
        _check_seen(servers, keys, listed, remains.seen)
        return remains.days

    _rewrite(servers, keys, listed, remains.rest, days)
    step("events.job_erased")
    return remains.erased


def _check_seen(servers: Servers, keys: StreamKeys, listed: Listed, seen: int) -> None:
    """Insist that batches held all events of a segment.

    Raises:
        Fenced: the segment was replaced while it was read.
        Corrupt: its batches are damaged.
    """
    if seen == listed.segment.count:
        return
    index = read_index(servers, keys)
    if index is None or listed not in index[1]:
        raise _moved(keys)
    raise Corrupt(
        "the batches of a stream do not hold what its index says", kind="events_damaged", stream=keys.stream,
        hint="restore the streams from a copy of Redis",
    )  # fmt: skip
