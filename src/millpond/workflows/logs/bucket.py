"""A command log in a bucket: entries in batches, each batch an object that is put only where nothing is.

    append ─▶ waiting ─▶ one batch of all that wait ─▶ put, if there is none ─▶ their positions
                                                            │ another process was faster
                         the next number ◀── its entries ◀──┘
    end      the number behind the last one that is known is read: there is none ─▶ its last position

Entries that come while a batch is being put share the next one, so a slow bucket makes larger batches.

Invariants:
* of all who put a number one has it, for ever: two processes that think they own a partition make one order, and each
  takes in what the other put before its own entries have positions;
* whoever follows hears of entries that this process put without asking the bucket, and of others a second later.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future

from millpond.clock import Clock
from millpond.errors import Closed, Invalid
from millpond.kernel.worker import WorkerThread
from millpond.stores.objects import ObjectStore, StoreBelow
from millpond.workflows.logs.bucket_batches import PartitionBatches
from millpond.workflows.logs.protocol import Entry, trimmed

__all__ = ("ENTRY_BYTES_MAX", "BucketLog")

ENTRY_BYTES_MAX = 8 << 20
BATCH_BYTES_MAX = 8 << 20
"""The bytes of entries that share a batch; the entry that goes beyond is the last of them."""

_Queued = tuple[bytes, "Future[int]"]


class BucketLog:
    """A `CommandLog` below a prefix of a bucket, with so many partitions, for any number of processes."""

    def __init__(self, objects: ObjectStore, partitions: int, clock: Clock) -> None:
        self._clock = clock
        self._parts = [
            PartitionBatches(number, StoreBelow(objects, f"{number}"), clock) for number in range(partitions)
        ]
        self._appenders = [_Appender(part, clock) for part in self._parts]
        self._closed = False

    @property
    def partitions(self) -> int:
        return len(self._parts)

    def append(self, partition: int, data: bytes) -> Future[int]:
        """Put an entry to the end of a partition."""
        if len(data) > ENTRY_BYTES_MAX:
            future: Future[int] = Future()
            future.set_exception(
                Invalid("the entry is too large for the command log", kind="entry_large", bytes=len(data),
                        bytes_max=ENTRY_BYTES_MAX, hint="hand over a reference to what is large")
            )  # fmt: skip
            return future
        return self._appenders[partition].append(data)

    def follow(self, partition: int, after: int) -> _Following:
        """The entries behind a position, and those to come."""
        self._need_open()
        part = self._parts[partition]
        if after > part.position:
            part.learn(self._clock.monotonic())
        return _Following(part, self._clock, after, part.number_behind(after))

    def end(self, partition: int) -> int:
        """The position of the last entry: the bucket is asked, once for all who ask at a time."""
        self._need_open()
        return self._parts[partition].learn(self._clock.monotonic())

    def begin_at(self, partition: int, position: int) -> bool:
        """Let a partition without entries go on behind a position; False when it has some."""
        return self._parts[partition].begin_at(position)

    def trim(self, partition: int, before: int) -> None:
        """Drop the batches whose entries are all before a position."""
        self._need_open()
        self._parts[partition].trim(before)

    def close(self) -> None:
        """End what is under way; what waits was not made, and says so."""
        self._closed = True
        for part, appender in zip(self._parts, self._appenders, strict=True):
            appender.close()
            part.close()

    def _need_open(self) -> None:
        if self._closed:
            raise _gone()


class _Appender:
    """The entries that wait for a batch of a partition, and the thread that puts it, from the first one on."""

    def __init__(self, part: PartitionBatches, clock: Clock) -> None:
        self._part, self._lock = part, threading.Lock()
        self._queue: deque[_Queued] = deque()
        self._closed = False
        self._thread = WorkerThread(f"the log of partition {part.partition}", self._put_queued, clock)

    def append(self, data: bytes) -> Future[int]:
        future: Future[int] = Future()
        with self._lock:
            closed = self._closed
            if not closed:
                self._queue.append((data, future))
                self._thread.start()
        if closed:
            future.set_exception(_gone())
        else:
            self._thread.wake()
        return future

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._thread.stop()
        for _, future in self._queue:
            future.set_exception(_gone())
        self._queue.clear()

    def _put_queued(self) -> None:
        while not self._closed and (batch := self._take()):
            try:
                positions = self._part.put([data for data, _ in batch])
            except Exception as error:
                for _, future in batch:
                    future.set_exception(error)
            else:
                for (_, future), position in zip(batch, positions, strict=True):
                    future.set_result(position)

    def _take(self) -> list[_Queued]:
        """The entries that have come, as many as one batch holds."""
        batch: list[_Queued] = []
        size = 0
        with self._lock:
            while self._queue and size <= BATCH_BYTES_MAX:
                batch.append(self._queue.popleft())
                size += len(batch[-1][0])
        return batch


class _Following:
    """A place in a partition: the batches from a number on, of them the entries behind a position."""

    def __init__(self, part: PartitionBatches, clock: Clock, after: int, number: int) -> None:
        self._part, self._clock = part, clock
        self._after, self._number = after, number
        self._ready: deque[Entry] = deque()

    def next(self, limit: int, seconds: float) -> list[Entry]:
        due = self._clock.monotonic() + seconds
        while not self._ready:
            if self._number <= self._part.number:
                self._read()
            elif not self._part.wait_beyond(self._number - 1, due):
                return []
        taken = [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
        self._after = taken[-1].position
        return taken

    def _read(self) -> None:
        batches = self._part.entries(self._number)
        if batches[0][0].position > self._after + 1:
            raise trimmed(self._part.partition, self._after, batches[0][0].position)
        self._number += len(batches)
        self._ready.extend(entry for batch in batches for entry in batch if entry.position > self._after)

    def close(self) -> None:
        """Nothing is held."""


def _gone() -> Closed:
    return Closed("the command log is closed", kind="log_closed")
