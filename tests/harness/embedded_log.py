"""A command log in a space: each partition is a log of the kernel."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

from millpond.errors import Closed, Invalid, NotFound
from millpond.kernel.log import Log
from millpond.kernel.signal import Signal
from millpond.kernel.space import VALUE_BYTES_MAX
from millpond.workflows.logs.protocol import Entry, trimmed

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.kernel.keys import Prefix
    from millpond.kernel.space import Space

__all__ = ("EmbeddedLog",)

_ROW_BYTES = 64


class EmbeddedLog:
    """A `CommandLog` under a prefix of a space, for one process. An append returns when it is durable."""

    def __init__(self, space: Space, prefix: Prefix, partitions: int, clock: Clock) -> None:
        assert partitions > 0, "a log has a partition"
        self._space, self._clock = space, clock
        self._logs: tuple[Log[bytes], ...] = tuple(Log(prefix[number], bytes, bytes) for number in range(partitions))
        self._grown = Signal(clock)
        self._closed = False

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return len(self._logs)

    def append(self, partition: int, data: bytes) -> Future[int]:
        """Put an entry to the end of a partition."""
        future: Future[int] = Future()
        log, now = self._logs[partition], self._clock.now_ms()
        if len(data) > VALUE_BYTES_MAX - _ROW_BYTES:
            future.set_exception(Invalid("the entry is too large", kind="entry_large", bytes=len(data)))
            return future
        try:
            self._need_open()
            position = self._space.write(lambda tx: log.append(tx, data, now).position)
        except Exception as error:
            future.set_exception(error)
            return future
        self._grown.ring()
        future.set_result(position)
        return future

    def follow(self, partition: int, after: int) -> _Reading:
        """The entries behind a position, and those to come."""
        with self._space.read() as tx:
            first = self._logs[partition].first(tx)
        if after + 1 < first:
            raise trimmed(partition, after, first)
        return _Reading(self, partition, after)

    def end(self, partition: int) -> int:
        """The position of the last entry."""
        self._need_open()
        with self._space.read() as tx:
            return self._logs[partition].head(tx).position

    def trim(self, partition: int, before: int) -> None:
        """Drop the entries before a position."""
        log = self._logs[partition]
        self._space.write(lambda tx: log.trim(tx, before))

    def close(self) -> None:
        """Wake all who follow; the space is its owner's to close."""
        self._closed = True
        self._grown.ring()

    def read(self, partition: int, after: int, limit: int) -> list[Entry]:
        """The entries that are there behind a position.

        Raises: `NotFound`, kind `log_trimmed`.
        """
        self._need_open()
        try:
            with self._space.read() as tx:
                records = self._logs[partition].read(tx, after, limit)
        except NotFound as error:
            raise trimmed(partition, after, None) from error
        return [Entry(record.position, record.entry) for record in records]

    def wait(self, partition: int, after: int, seconds: float) -> None:
        """Wait until there is an entry behind a position, or the log is closed, or the time is over."""

        def is_there() -> bool:
            return self._closed or self.end(partition) > after

        self._grown.wait_for(is_there, self._clock.monotonic() + seconds)

    def _need_open(self) -> None:
        if self._closed:
            raise Closed("the command log is closed", kind="log_closed")


class _Reading:
    def __init__(self, log: EmbeddedLog, partition: int, after: int) -> None:
        self._log, self._partition, self._after = log, partition, after

    def next(self, limit: int, seconds: float) -> list[Entry]:
        found = self._log.read(self._partition, self._after, limit)
        if not found and seconds > 0:
            self._log.wait(self._partition, self._after, seconds)
            found = self._log.read(self._partition, self._after, limit)
        if found:
            self._after = found[-1].position
        return found

    def close(self) -> None:
        """Nothing is held."""
