"""One partition of a command log in a bucket: its batches of entries, as this process knows them.

    log/<number>     a batch: a row for each entry, its key the position; or a mark that it was trimmed
    start            the last batch that is gone, drawn in `docs/format/bucket.md`

Invariants:
* positions are dense: a batch goes on behind the one that it names by its checksum;
* a batch that others put meanwhile is taken in before ours is put behind it, so ours has the positions that it says;
* `start` is put before the marks of what it says is gone: the last number that is listed behind it is a batch.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from millpond.errors import Conflict, NotFound
from millpond.kernel.steps import step
from millpond.stores.bucket_space.batch_log import BatchLog, Content, batch_name
from millpond.stores.bucket_space.forms import CHAIN_BYTES, NO_CHAIN, Batch, Trimmed, damaged, framed, unframed
from millpond.workflows.logs.protocol import Entry, trimmed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.clock import Clock
    from millpond.stores.objects import ObjectStore

__all__ = ("PartitionBatches",)

LOOK_SECONDS = 1.0
"""So often whoever waits for entries asks the bucket."""
OWN_LOOK_SECONDS = 5.0
"""The same, while the last batch is one that this process put: another one puts some only when it is moving."""
FOLLOWED_SECONDS = 60.0
"""A batch on older knowledge might have a number that was trimmed long ago: then the log is followed first."""
RECENT_BYTES_MAX = 16 << 20
"""The bytes of batches that stay in memory for those who follow."""
AHEAD_MAX = 16
_NEVER = float("-inf")
_START = b"MPst"
_HEAD = struct.Struct(f">QQQ{CHAIN_BYTES}s")
_POSITION = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class _Start:
    """The last batch that is gone, its last position and its checksum; `marked`: up to where there are marks."""

    number: int = 0
    position: int = 0
    marked: int = 0
    chain: bytes = NO_CHAIN

    def encode(self) -> bytes:
        """The object."""
        return framed(_START, _HEAD.pack(self.number, self.position, self.marked, self.chain))


@dataclass(frozen=True, slots=True)
class _Tail:
    """The last batch that is known; `newest_at` is a monotonic time at which there was no later one."""

    number: int
    position: int
    chain: bytes
    newest_at: float = _NEVER
    own: bool = False
    """True when this process put it."""


class PartitionBatches:
    """The batches of a partition. Threads may share it."""

    def __init__(self, partition: int, objects: ObjectStore, clock: Clock) -> None:
        self.partition = partition
        self._objects, self._clock = objects, clock
        self._log = BatchLog(objects, clock)
        self._following = threading.RLock()  # one thread at a time takes in batches
        self._lock = threading.Condition()
        self._recent: OrderedDict[int, tuple[Entry, ...]] = OrderedDict()  # the last batches, without a gap
        self._recent_bytes = 0
        self._closed = False
        self._tail = self._opened()

    # -- what is there --------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """The number of the last batch that is known."""
        return self._tail.number

    @property
    def position(self) -> int:
        """The position of the last entry that is known."""
        return self._tail.position

    def learn(self, since: float) -> int:
        """Take in what was there at a monotonic time; the position of the last entry.

        Raises: `Corrupt`, `Denied`, `Unavailable`.
        """
        with self._following:
            if self._tail.newest_at <= since:
                self._follow()
            return self._tail.position

    def wait_beyond(self, number: int, due: float) -> bool:
        """Wait until there is a batch behind a number; False when the monotonic time `due` has come first, or the end.

        Raises: as `learn`.
        """
        while self._tail.number <= number and not self._closed:
            now = self._clock.monotonic()
            if self._look_at() <= now:
                self.learn(now)
            elif due <= now:
                break
            with self._lock:
                self._clock.wait_for(
                    self._lock, lambda: self._tail.number > number or self._closed, min(due, self._look_at())
                )
        return self._tail.number > number

    def entries(self, number: int) -> list[tuple[Entry, ...]]:
        """The entries of some batches, from a number on that is known.

        Raises: `NotFound`, kind `log_trimmed`; as `learn`.
        """
        numbers = range(number, min(self._tail.number, number + AHEAD_MAX - 1) + 1)
        with self._lock:
            if number in self._recent:
                return [self._recent[number_] for number_ in numbers]
        contents = self._log.read_many(numbers)
        return [
            self._entries(content or self._log.read_surely(number_))
            for number_, content in zip(numbers, contents, strict=True)
        ]

    def number_behind(self, position: int) -> int:
        """The number of the batch with the entry behind a position; that of the next batch, when there is none yet.

        Raises: as `entries`.
        """
        start = self._start()[0]
        if position < start.position:
            raise trimmed(self.partition, position, start.position + 1)
        if position >= self._tail.position:
            return self._tail.number + 1
        numbers = range(start.number + 1, self._tail.number + 1)
        return start.number + bisect_right(numbers, position + 1, key=self._first)

    def _first(self, number: int) -> int:
        """The first position of a batch; 0 of one that was trimmed meanwhile."""
        try:
            return self.entries(number)[0][0].position
        except NotFound as error:
            if error.kind != "log_trimmed":
                raise
            return 0

    def close(self) -> None:
        """Wake all who wait."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()

    # -- what is put ----------------------------------------------------------------------------------

    def put(self, entries: Sequence[bytes]) -> range:
        """Put entries as one batch behind all others; their positions.

        Raises: `Uncertain`; `Unavailable`, `Denied`: nothing was put; `Corrupt`.
        """
        while True:
            now = self._clock.monotonic()
            if now - self._tail.newest_at > FOLLOWED_SECONDS:
                self.learn(now)
            tail = self._tail
            positions = range(tail.position + 1, tail.position + 1 + len(entries))
            rows = tuple((_POSITION.pack(position), data) for position, data in zip(positions, entries, strict=True))
            write_id = bytes.fromhex(self._clock.random_id() + self._clock.random_id())
            batch = Batch(tail.number + 1, self._clock.now_ms(), write_id, tail.chain, rows)
            step("workflows.entries_built")
            put_at = self._clock.monotonic()
            try:
                content = self._log.put(batch)
            except BaseException:
                with self._following:  # what was put may be there, or come
                    self._tail = replace(self._tail, newest_at=_NEVER)
                raise
            step("workflows.entries_put")
            assert not isinstance(content, Trimmed), "a put says so by an error"
            ours = content[0].write_id == write_id
            with self._following:
                if self._tail.number == tail.number:
                    self._take_in(*content, newest_at=put_at if ours else _NEVER, own=ours)
            if ours:
                return positions

    def begin_at(self, position: int) -> bool:
        """Let a log without batches go on behind a position; False when it has some.

        Raises: as `learn`.
        """
        with self._following:
            self.learn(self._clock.monotonic())
            start, tag = self._start()
            if self._tail.number or start.number:
                return False
            begun = self._swapped(_Start(position=position), tag) is not None
            self._forget(self._opened())
            return begun

    def trim(self, before: int) -> None:
        """Put marks in the place of batches whose entries are all before a position.

        Raises: as `learn`.
        """
        with self._following:
            self.learn(self._clock.monotonic())
            start, tag = self._start()
            if before - 1 > start.position:
                number = self.number_behind(before - 1) - 1
                if number > start.number:
                    position, chain = self._end_of(number)
                    start = replace(start, number=number, position=position, chain=chain)
                    tag = self._swapped(start, tag)
        step("workflows.log_started")
        if tag is not None and start.marked < start.number:
            self._log.trim(range(start.marked + 1, start.number + 1))
            step("workflows.log_marked")
            self._swapped(replace(start, marked=start.number), tag)

    # -- inside ---------------------------------------------------------------------------------------

    def _look_at(self) -> float:
        return self._tail.newest_at + (OWN_LOOK_SECONDS if self._tail.own else LOOK_SECONDS)

    def _opened(self) -> _Tail:
        """The last batch, as a listing shows it."""
        before: _Start | None = None
        while True:
            start, _ = self._start()
            last = self._log.last_listed(start.number)
            if last == start.number:
                return _Tail(start.number, start.position, start.chain)
            content = self._log.read_surely(last)
            if not isinstance(content, Trimmed):
                return _Tail(last, self._entries(content)[-1].position, content[1])
            if start == before:  # no other process trimmed it meanwhile
                raise damaged("start", self._objects.where, f"batch {last} is gone, and it says nothing of it")
            before = start

    def _start(self) -> tuple[_Start, str | None]:
        """The last batch that is gone, and the tag of its object."""
        try:
            tagged = self._objects.get_tagged("start")
        except NotFound as error:
            if error.kind != "object_not_found":
                raise
            return _Start(), None
        data = unframed(_START, tagged.data.to_pybytes(), "start", self._objects.where)
        number, position, marked, chain = _HEAD.unpack(data)
        return _Start(number, position, marked, chain), tagged.tag

    def _swapped(self, start: _Start, tag: str | None) -> str | None:
        """The tag of `start` when it was put; None when another process was faster, and trims."""
        try:
            return self._objects.swap("start", start.encode(), tag)
        except Conflict:
            return None

    def _end_of(self, number: int) -> tuple[int, bytes]:
        """The last position and the checksum of a batch."""
        if number == self._tail.number:
            return self._tail.position, self._tail.chain
        content = self._log.read_surely(number)
        if isinstance(content, Trimmed):
            raise trimmed(self.partition, number, None)
        return self._entries(content)[-1].position, content[1]

    def _follow(self) -> None:
        """Take in the batches that came."""
        ahead = 1
        while True:
            requested_at, first = self._clock.monotonic(), self._tail.number + 1
            for content in self._log.read_many(range(first, first + ahead)):
                if content is None:
                    self._tail = replace(self._tail, newest_at=requested_at)
                    return
                if isinstance(content, Trimmed):  # too far behind: whoever follows hears it of its own number
                    self._forget(self._opened())
                    break
                self._take_in(*content)
            ahead = min(2 * ahead, AHEAD_MAX)

    def _take_in(self, batch: Batch, chain: bytes, *, newest_at: float = _NEVER, own: bool = False) -> None:
        tail, entries = self._tail, self._entries((batch, chain))
        if batch.before != tail.chain or entries[0].position != tail.position + 1:
            raise self._log.misplaced(batch)
        with self._lock:
            self._recent[batch.number] = entries
            self._recent_bytes += _size(entries)
            while self._recent_bytes > RECENT_BYTES_MAX and len(self._recent) > 1:
                self._recent_bytes -= _size(self._recent.popitem(last=False)[1])
            newest_at = max(newest_at, tail.newest_at)
            self._tail = _Tail(batch.number, entries[-1].position, chain, newest_at, own)
            self._lock.notify_all()

    def _forget(self, tail: _Tail) -> None:
        with self._lock:
            self._recent.clear()
            self._recent_bytes, self._tail = 0, tail
            self._lock.notify_all()

    def _entries(self, content: Content) -> tuple[Entry, ...]:
        """The entries of a batch.

        Raises: `NotFound`, kind `log_trimmed`; `Corrupt` for a batch without.
        """
        if isinstance(content, Trimmed):
            raise trimmed(self.partition, content.number, None)
        batch = content[0]
        if not batch.changes or any(len(key) != _POSITION.size or data is None for key, data in batch.changes):
            raise damaged(batch_name(batch.number), self._objects.where, "it holds no entries")
        return tuple(Entry(_POSITION.unpack(key)[0], data or b"") for key, data in batch.changes)


def _size(entries: tuple[Entry, ...]) -> int:
    return sum(len(entry.data) for entry in entries)
