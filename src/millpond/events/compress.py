"""Compressing a stream: which of its segments are put together, and how they become batches.

Nothing here knows a backend: it works on a `StreamStore` from outside, as another process may at the same time. The
plan is a pure function of the index.

    closed  ─┐
    closed  ─┼─ small together ──▶ one compressed segment
    closed  ─┘
    closed  ── large ────────────▶ one compressed segment

Invariants:
* batches hold the events of the planned segments, in order, each once, with the ids that they have;
* memory is bounded by a page and a batch, however large a day is;
* a compressor that is fenced, stopped or killed leaves a readable stream, and whoever comes next does the work anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from millpond.errors import Fenced
from millpond.events.codec import BATCH_PLAIN_BYTES, EVENT_BYTES, Codec, encode, size_of
from millpond.events.event import Event
from millpond.events.index import DaySegment, State, StreamIndex
from millpond.events.names import StreamName
from millpond.events.protocol import BatchedStore, StreamStore, Switch
from millpond.kernel.steps import step

__all__ = ("FOLD_BYTES", "Compressed", "batches_of", "compress_stream", "compress_together", "plan")

FOLD_BYTES = 64 * 1024
"""Days with fewer bytes share a segment: one of its own would cost as much as it saves."""
TOGETHER_BYTES = 256 * 1024
"""Compressed bytes of streams that share a write."""


@dataclass(frozen=True, slots=True)
class Compressed:
    """The work on one stream: days that are compressed now, their bytes before, and as they are stored now.

    `fenced`: somebody else changed the days meanwhile; they are done by another, or next time.
    """

    days: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    fenced: bool = False


def plan(index: StreamIndex, day: int) -> list[tuple[DaySegment, ...]]:
    """Runs of neighbouring segments to compress into one each: all closed days up to `day`, oldest first.

    Small days are put together, also with small ones that are compressed already.
    """
    runs: list[list[DaySegment]] = []
    for segment in index.segments:
        if segment.state not in (State.CLOSED, State.COMPRESSED) or segment.days[-1].day > day:
            continue
        if runs and _size([*runs[-1], segment]) <= FOLD_BYTES:
            runs[-1].append(segment)
        else:
            runs.append([segment])
    return [tuple(run) for run in runs if any(segment.state is State.CLOSED for segment in run)]


def _size(segments: Sequence[DaySegment]) -> int:
    return sum(segment.bytes + EVENT_BYTES * segment.count for segment in segments)


def batches_of(store: StreamStore, stream: StreamName, last_id: int, after: int) -> Iterator[bytes]:
    """The events behind an id up to another, as compressed batches of up to `BATCH_PLAIN_BYTES`; a larger one alone."""
    batch: list[Event] = []
    size = 0
    while after < last_id:
        page = store.read(stream, after)
        if not page.events:
            return  # somebody dropped the days: the switch finds that out
        for event in page.events:
            if event.number > last_id:
                break
            bytes_ = size_of(event) + EVENT_BYTES
            if batch and size + bytes_ > BATCH_PLAIN_BYTES:
                yield encode(batch, Codec.ZSTD)
                batch, size = [], 0
            batch.append(event)
            size += bytes_
        after = page.after
    if batch:
        yield encode(batch, Codec.ZSTD)


def compress_stream(
    store: StreamStore, stream: StreamName, day: int, spend: Callable[[int], None] = lambda _: None
) -> Compressed:
    """Compress all days of a stream up to `day`; an open one is closed first.

    `spend` is called with the bytes of a batch before it is written: it may wait, or raise to end the work.

    Raises:
        Corrupt: what is stored is damaged.
    """
    if store.close_day(stream, day):
        step("events.day_closed")
    index = store.index(stream)
    days = before = after = 0
    for seen in () if index is None else plan(index, day):
        batches = partial(_spending, store, stream, seen[-1].last_id, spend)
        try:
            output = store.switch(stream, seen, batches)
        except Fenced:
            return Compressed(days, before, after, fenced=True)
        raw = [segment for segment in seen if segment.state is State.CLOSED]
        days += len(raw)
        before += sum(segment.stored_bytes for segment in seen)
        after += output.stored_bytes
    return Compressed(days, before, after)


def compress_together(
    store: StreamStore, writes: BatchedStore, streams: Sequence[StreamName], day: int, spend: Callable[[int], None]
) -> tuple[list[Compressed], list[StreamName]]:
    """Compress streams whose due days are small: they share writes. The others are returned, each for itself.

    `writes` is the store.
    """
    writes.close_days(streams, day)
    done: list[Compressed] = []
    rest: list[StreamName] = []
    switches: list[Switch] = []
    for stream in streams:
        index = store.index(stream)
        runs = [] if index is None else plan(index, day)
        batches = list(_all_of(store, stream, runs[0])) if len(runs) == 1 and _size(runs[0]) <= FOLD_BYTES else []
        if not runs:
            done.append(Compressed())
        elif len(batches) == 1:
            spend(len(batches[0]))
            switches.append(Switch(stream, runs[0], batches[0]))
        else:
            rest.append(stream)
        if sum(len(switch.batch) for switch in switches) > TOGETHER_BYTES:
            done += _switched(writes, switches)
            switches = []
    return [*done, *_switched(writes, switches)], rest


def _switched(writes: BatchedStore, switches: Sequence[Switch]) -> Iterator[Compressed]:
    for switch, output in zip(switches, writes.switch_many(switches) if switches else (), strict=True):
        if output is None:
            yield Compressed(fenced=True)
        else:
            raw = sum(segment.state is State.CLOSED for segment in switch.seen)
            yield Compressed(raw, sum(segment.stored_bytes for segment in switch.seen), output.stored_bytes)


def _all_of(store: StreamStore, stream: StreamName, seen: Sequence[DaySegment]) -> Iterator[bytes]:
    return batches_of(store, stream, seen[-1].last_id, seen[0].first_id - 1)


def _spending(
    store: StreamStore, stream: StreamName, last_id: int, spend: Callable[[int], None], after: int
) -> Iterator[bytes]:
    for batch in batches_of(store, stream, last_id, after):
        spend(len(batch))
        yield batch
