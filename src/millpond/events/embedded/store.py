"""The embedded backend: streams in the space of a pond, for any number of processes on one machine.

Followers in the process that appends are woken by it. What another process appends is found by a look at the number
of the space's last change, many times a second, which costs no transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from millpond.errors import Closed
from millpond.events.embedded.append import append_events, close_open_day
from millpond.events.embedded.day_switch import switch_segments, switch_together
from millpond.events.embedded.erase import erase_events
from millpond.events.embedded.expire import delete_days, expire_days, expire_together
from millpond.events.embedded.jobs import space_tables
from millpond.events.embedded.notes import EmbeddedNotes
from millpond.events.embedded.read import read_index, read_page
from millpond.events.embedded.registry import due_streams, list_streams, put_head
from millpond.events.embedded.rows import Head, keys_of
from millpond.events.embedded.work import pull_back
from millpond.events.protocol import PAGE_BYTES, StreamRules, never
from millpond.kernel.space import moment_of
from millpond.kernel.steps import step

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.events.event import Appended, EventBatch, Page
    from millpond.events.index import DaySegment, StreamIndex
    from millpond.events.names import StreamName
    from millpond.events.protocol import Due, Switch, Work
    from millpond.kernel.space import Space, Transaction

__all__ = ("EmbeddedStore",)

LOOK_SECONDS = 0.05
"""The pause between two looks for what other processes appended."""


class EmbeddedStore:
    """A `StreamStore` in a space, which it does not own."""

    def __init__(self, space: Space, clock: Clock, rules: StreamRules | None = None) -> None:
        self._space = space
        self._clock = clock
        self._rules = rules or StreamRules()
        self._news = threading.Condition()
        self._appends = 0
        self._closed = False
        self.notes = EmbeddedNotes(self._opened)
        self.job_rows = space_tables(space)

    def append(self, batches: Sequence[EventBatch]) -> list[Appended]:
        """See `StreamStore.append`; here all batches are stored, or none."""
        checked = [batch.check() for batch in batches]
        now_ms = self._clock.now_ms()
        outcomes = self._opened().write(lambda tx: [append_events(tx, batch, now_ms, self._rules) for batch in checked])
        step("events.appended")
        self.wake()
        return outcomes

    def wake(self) -> None:
        """See `StreamStore.wake`; also for events that were appended in a transaction of somebody else."""
        with self._news:
            self._appends += 1
            self._news.notify_all()

    def read(self, stream: StreamName, after: int = 0, *, bytes_max: int = PAGE_BYTES) -> Page:
        """See `StreamStore.read`."""
        with self._opened().read() as tx:
            return read_page(tx, stream, after, bytes_max)

    def follow(
        self, cursors: Mapping[StreamName, int], due: float | None, interrupted: Callable[[], bool] = never
    ) -> set[StreamName]:
        """See `StreamStore.follow`."""
        while True:
            appends = self._appends
            found, moment = self._with_news(cursors)
            if found or interrupted():
                return found
            if due is not None and self._clock.monotonic() >= due:
                return set()
            self._wait(appends, moment, due)

    def _with_news(self, cursors: Mapping[StreamName, int]) -> tuple[set[StreamName], int | None]:
        """The streams with events after their cursors, and the moment at which that was so."""
        with self._opened().read() as tx:
            rows = tx.get_many([keys_of(stream).head for stream in cursors])
            moment = moment_of(tx)
        found = {
            stream for (stream, after), row in zip(cursors.items(), rows, strict=True)
            if row is not None and Head.decode(row).last_id != after
        }  # fmt: skip
        return found, moment

    def _wait(self, appends: int, moment: int | None, due: float | None) -> None:
        """Wait for an append of this process, or a change of any that was not seen at that moment.

        Where changes are not counted, it waits for the next look.
        """
        while True:
            look = self._clock.monotonic() + LOOK_SECONDS
            until = look if due is None else min(look, due)
            with self._news:
                if self._clock.wait_for(self._news, lambda: self._closed or self._appends != appends, until):
                    return
            if moment is None or self._last_change() != moment:
                return
            if due is not None and self._clock.monotonic() >= due:
                return

    def _last_change(self) -> int | None:
        """The number of the last change of any process; None where the space counts none."""
        counted = getattr(self._opened(), "last_change", None)
        return None if counted is None else int(counted())

    def index(self, stream: StreamName) -> StreamIndex | None:
        """See `StreamStore.index`."""
        with self._opened().read() as tx:
            return read_index(tx, stream)

    def streams(self, queue: str | None = None, after: StreamName | None = None, *, limit: int) -> list[StreamName]:
        """See `StreamStore.streams`."""
        with self._opened().read() as tx:
            return list_streams(tx, queue, after, limit)

    def due(self, work: Work, day: int, after: Due | None = None, *, limit: int) -> list[Due]:
        """See `StreamStore.due`."""
        with self._opened().read() as tx:
            return due_streams(tx, work, day, after, limit)

    def close_day(self, stream: StreamName, day: int) -> bool:
        """See `StreamStore.close_day`."""
        return self._opened().write(lambda tx: _close_day(tx, stream, day))

    def close_days(self, streams: Sequence[StreamName], day: int) -> None:
        """See `Together.close_days`."""
        self._opened().write(lambda tx: [_close_day(tx, stream, day) for stream in streams])
        step("events.day_closed")

    def pull_back(self, stream: StreamName, latest: int) -> bool:
        """See `StreamStore.pull_back`."""
        return self._opened().write(lambda tx: pull_back(tx, stream, latest))

    def now_ms(self) -> int:
        """See `StreamStore.now_ms`."""
        return self._clock.now_ms()

    def switch(self, stream: StreamName, seen: Sequence[DaySegment], batches: Iterable[bytes]) -> DaySegment:
        """See `StreamStore.switch`."""
        return switch_segments(self._opened(), stream, seen, batches)

    def expire(self, stream: StreamName, day: int) -> int:
        """See `StreamStore.expire`."""
        return expire_days(self._opened(), stream, day, self._clock.now_ms(), self._rules.forget_ms)

    def switch_many(self, switches: Sequence[Switch]) -> list[DaySegment | None]:
        """See `Together.switch_many`."""
        return switch_together(self._opened(), switches)

    def expire_many(self, streams: Sequence[StreamName], day: int) -> int:
        """See `Together.expire_many`."""
        return expire_together(self._opened(), streams, day, self._clock.now_ms(), self._rules.forget_ms)

    def delete(self, stream: StreamName) -> int:
        """See `StreamStore.delete`."""
        count = delete_days(self._opened(), stream, self._clock.now_ms(), self._rules.forget_ms)
        self.wake()
        return count

    def erase(self, stream: StreamName, seen: DaySegment, job_id: str, last_id: int) -> int:
        """See `StreamStore.erase`."""
        return erase_events(self._opened(), stream, seen, job_id, last_id)

    def close(self) -> None:
        """Let followers go; the space stays open, for it is the pond's."""
        with self._news:
            self._closed = True
            self._news.notify_all()

    def _opened(self) -> Space:
        if self._closed:
            raise Closed("the streams are closed", kind="events_closed")
        return self._space


def _close_day(tx: Transaction, stream: StreamName, day: int) -> bool:
    keys = keys_of(stream)
    head = Head.read(tx, keys)
    if head is None or head.open is None or head.open.day > day:
        return False
    put_head(tx, keys, head, close_open_day(tx, keys, head))
    return True
