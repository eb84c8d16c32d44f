"""The embedded backend: streams in the space of a pond, for any number of processes on one machine, or on a bucket.

Followers in the process that appends are woken by it. What another process appends is found by a look at the number
of the space's last change, many times a second, which costs no transaction. A copy of a bucket's space asks the bucket
as often as it may be old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from millpond.clock import Clock
from millpond.errors import Closed, MillpondError
from millpond.events.codec import BATCH_PLAIN_BYTES, Codec, decode, encode
from millpond.events.embedded.append import append_events, close_open_day
from millpond.events.embedded.day_switch import check_listed, moved, switch_segments, switch_together
from millpond.events.embedded.expire import delete_days, expire_days, expire_together
from millpond.events.embedded.fold import fold_number, fold_open
from millpond.events.embedded.jobs import space_tables
from millpond.events.embedded.large_rows import LargeRows
from millpond.events.embedded.read import read_index, read_page
from millpond.events.embedded.registry import due_streams, list_streams, put_head
from millpond.events.embedded.rows import Head, Keys, keys_of, to_listed
from millpond.events.embedded.work import pull_back, with_work
from millpond.events.erasure import Remains, is_erased
from millpond.events.event import Appended, EventBatch, Page
from millpond.events.index import DaySegment, StreamIndex
from millpond.events.keyspaces import NOTE
from millpond.events.names import StreamName
from millpond.events.protocol import PAGE_BYTES, Due, NoteKind, StreamRules, Switch, Work, never
from millpond.kernel.signal import Signal, last_change_of
from millpond.kernel.space import Space, Transaction
from millpond.kernel.steps import step

__all__ = ("EmbeddedNotes", "EmbeddedStore")

T = TypeVar("T")


class EmbeddedStore:
    """A `StreamStore` in a space, which it does not own."""

    def __init__(
        self, space: Space, clock: Clock, rules: StreamRules | None = None, *, now_ms: Callable[[], int] | None = None
    ) -> None:  # fmt: skip
        """`now_ms`: the time of the place, for what is due; by default that of the clock."""
        self.space = space
        self._clock, self._now_ms = clock, now_ms or clock.now_ms
        self._rules = rules or StreamRules()
        self._large = space if isinstance(space, LargeRows) else None
        if self._large is not None:
            self._rules = replace(self._rules, row_bytes=BATCH_PLAIN_BYTES)
        self._news = Signal(clock, lambda: last_change_of(self._opened())())
        self._closed = False
        self.notes = EmbeddedNotes(self._opened)
        self.job_rows = space_tables(space, self._append_within)

    def append(self, batches: Sequence[EventBatch]) -> list[Appended]:
        """See `StreamStore.append`; here all batches are stored, or none."""
        checked = [batch.check() for batch in batches]
        return self._append_within(lambda _, append: [append(batch) for batch in checked])

    def _append_within(self, change: Callable[[Transaction, Callable[[EventBatch], Appended]], T]) -> T:
        """Append checked batches in one transaction with other changes of the space, by a function that makes them."""
        now_ms = self._clock.now_ms()

        def changed(tx: Transaction) -> tuple[T, list[StreamName]]:
            full: list[StreamName] = []
            return change(tx, lambda batch: self._append_to(tx, batch, now_ms, full)), full

        made, full = self._opened().write(changed)
        step("events.appended")
        self.wake()
        for stream in full:
            # The events are stored; who fails leaves their rows to the next that fills them.
            with suppress(MillpondError):
                self._fold(stream)
        return made

    def _append_to(self, tx: Transaction, batch: EventBatch, now_ms: int, full: list[StreamName]) -> Appended:
        if self._large is None:
            return append_events(tx, batch, now_ms, self._rules)
        keys = keys_of(batch.stream)
        before = fold_number(Head.read(tx, keys))
        outcome = append_events(tx, batch, now_ms, self._rules)
        after = fold_number(Head.read(tx, keys))
        if after > (before if after[0] == before[0] else (after[0], 0)):
            full.append(batch.stream)
        return outcome

    def _fold(self, stream: StreamName) -> None:
        if self._large is not None:
            fold_open(self._large, stream)

    def wake(self) -> None:
        """See `StreamStore.wake`; also for events that were appended in a transaction of somebody else."""
        self._news.ring()

    def read(self, stream: StreamName, after: int = 0, *, bytes_max: int = PAGE_BYTES) -> Page:
        with self._opened().read() as tx:
            return read_page(tx, stream, after, bytes_max)

    def follow(
        self, cursors: Mapping[StreamName, int], due: float | None, interrupted: Callable[[], bool] = never
    ) -> set[StreamName]:
        return self._news.wait_for(lambda: self._with_news(cursors), due, lambda news: bool(news) or interrupted())

    def _with_news(self, cursors: Mapping[StreamName, int]) -> set[StreamName]:
        with self._opened().read() as tx:
            rows = tx.get_many([keys_of(stream).head for stream in cursors])
        return {
            stream for (stream, after), row in zip(cursors.items(), rows, strict=True)
            if row is not None and Head.decode(row).last_id != after
        }  # fmt: skip

    def index(self, stream: StreamName) -> StreamIndex | None:
        with self._opened().read() as tx:
            return read_index(tx, stream)

    def streams(self, queue: str | None = None, after: StreamName | None = None, *, limit: int) -> list[StreamName]:
        with self._opened().read() as tx:
            return list_streams(tx, queue, after, limit)

    def due(self, work: Work, day: int, after: Due | None = None, *, limit: int) -> list[Due]:
        with self._opened().read() as tx:
            return due_streams(tx, work, day, after, limit)

    def close_day(self, stream: StreamName, day: int) -> bool:
        return self._opened().write(lambda tx: _close_day(tx, stream, day))

    def close_days(self, streams: Sequence[StreamName], day: int) -> None:
        self._opened().write(lambda tx: [_close_day(tx, stream, day) for stream in streams])
        step("events.day_closed")

    def pull_back(self, stream: StreamName, latest: int) -> bool:
        return self._opened().write(lambda tx: pull_back(tx, stream, latest))

    def now_ms(self) -> int:
        return self._now_ms()

    def switch(
        self, stream: StreamName, seen: Sequence[DaySegment], batches: Callable[[int], Iterable[bytes]]
    ) -> DaySegment:
        return switch_segments(self._opened(), stream, seen, batches)

    def expire(self, stream: StreamName, day: int) -> int:
        return expire_days(self._opened(), stream, day, self._clock.now_ms(), self._rules.forget_ms)

    def switch_many(self, switches: Sequence[Switch]) -> list[DaySegment | None]:
        return switch_together(self._opened(), switches)

    def expire_many(self, streams: Sequence[StreamName], day: int) -> int:
        return expire_together(self._opened(), streams, day, self._clock.now_ms(), self._rules.forget_ms)

    def delete(self, stream: StreamName) -> int:
        count = delete_days(self._opened(), stream, self._clock.now_ms(), self._rules.forget_ms)
        self.wake()
        return count

    def erase(self, stream: StreamName, seen: DaySegment, job_id: str, last_id: int) -> int:
        return _erase_events(self._opened(), stream, seen, job_id, last_id)

    def close(self) -> None:
        """Let followers go; the space stays open, for it is the pond's."""
        self._closed = True
        self._news.ring()

    def _opened(self) -> Space:
        if self._closed:
            raise Closed("the streams are closed", kind="events_closed")
        return self.space


def _close_day(tx: Transaction, stream: StreamName, day: int) -> bool:
    keys = keys_of(stream)
    head = Head.read(tx, keys)
    if head is None or head.open is None or head.open.day > day:
        return False
    put_head(tx, keys, head, close_open_day(tx, keys, head))
    return True


class EmbeddedNotes:
    """The `Notes` of a space."""

    def __init__(self, space: Callable[[], Space]) -> None:
        self._space = space

    def read(self, kind: NoteKind) -> dict[str, bytes]:
        with self._space().read() as tx:
            return {str(NOTE.unpack(key)[1]): row for key, row in tx.scan(NOTE[kind.value].range())}

    def put(self, kind: NoteKind, name: str, row: bytes) -> None:
        self._space().write(lambda tx: tx.put(NOTE.pack(kind.value, name), row))

    def remove(self, kind: NoteKind, name: str) -> None:
        self._space().write(lambda tx: tx.delete(NOTE.pack(kind.value, name)))


def _erase_events(space: Space, stream: StreamName, seen: DaySegment, job_id: str, last_id: int) -> int:
    """As `StreamStore.erase`."""
    keys, remains = keys_of(stream), Remains(seen, job_id, last_id)
    changed: list[bytes] = []
    with space.read() as tx:
        check_listed(tx, keys, [seen])
        for key, row in tx.scan(keys.batch_range(seen.first_id, seen.last_id)):
            before = remains.erased
            remains.rest(decode(row))
            if remains.erased > before:
                changed.append(key)
    if changed:
        space.write(lambda tx: _erase(tx, keys, remains, changed))
        step("events.job_erased")
    return remains.erased


def _erase(tx: Transaction, keys: Keys, remains: Remains, changed: Sequence[bytes]) -> None:
    check_listed(tx, keys, [remains.segment])
    stored = remains.segment.stored_bytes
    for key in changed:
        row = tx.get(key)
        if row is None:
            raise moved(keys)
        rest = [event for event in decode(row) if not is_erased(event, remains.job_id, remains.last_id)]
        tx.delete(key)
        stored -= len(row)
        if rest:
            data = encode(rest, Codec.ZSTD)
            tx.put(keys.batches.pack(rest[-1].number), data)
            stored += len(data)
    step("events.rows_erased")
    keys.series.remove(tx, to_listed(remains.segment).segment)
    if remains.days:
        listed = to_listed(DaySegment(remains.segment.state, remains.days, max(stored, 0)))
        keys.series.put_back(tx, listed.segment, listed.about)
    head = Head.read(tx, keys)
    assert head is not None, "a stream with segments has a head"
    put_head(tx, keys, head, with_work(tx, keys, head))
