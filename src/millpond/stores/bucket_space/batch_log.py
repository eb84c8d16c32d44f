"""The log of a space in a bucket: batches under dense numbers, each put only where nothing is.

    log/00000000000000000007        batch 7, or a mark that it was trimmed

Invariants:
* Of all who put the same number one has it, for ever: a number is taken by *put if absent* alone, and is never freed.
  A batch that a checkpoint has, and nobody needs, gives way to a mark. So no writer, however late, makes a second log.
* Who put a number reads it when the answer does not say whose it is: the write id tells.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from millpond.errors import Conflict, Corrupt, Denied, MillpondError, NotFound, Unavailable, Uncertain
from millpond.retry import Backoff
from millpond.stores.bucket_space.forms import CHAIN_BYTES, Batch, Trimmed, damaged, decode_batch
from millpond.stores.objects.bringing import bring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from millpond.clock import Clock
    from millpond.stores.objects import ObjectInfo
    from millpond.stores.objects.protocol import TaggedObject

__all__ = ("BatchLog", "Content", "LogObjects", "batch_name", "later")

T = TypeVar("T")

Content: TypeAlias = tuple[Batch, bytes] | Trimmed
"""The content of a number: a batch with its chain, or a mark."""
SETTLE_SECONDS = 30.0
"""The time for which a put whose answer was lost is settled, before its writer gets `Uncertain`."""
FETCHES_MAX = 16
LATER_TRIES, LATER_SECONDS = 5, 0.1
"""The tries for an object that must be there: some servers say for a moment that a new object is not there."""
_PAUSES = Backoff(first_seconds=0.02, seconds_max=2.0)


class LogObjects(Protocol):
    """The objects of a space: those of an `ObjectStore`, or rows that behave like them."""

    where: str

    def get(self, name: str) -> pa.Buffer:
        """See `Objects`."""

    def get_tagged(self, name: str) -> TaggedObject:
        """See `ObjectStore`."""

    def put(self, name: str, data: bytes) -> None:
        """See `Objects`."""

    def swap(self, name: str, data: bytes, expected: str | None) -> str:
        """See `ObjectStore`."""

    def list(self, under: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        """See `Objects`."""

    def delete(self, *names: str) -> None:
        """See `Objects`."""


def batch_name(number: int) -> str:
    """The object of a number.

    >>> batch_name(7)
    'log/00000000000000000007'
    """
    return f"log/{number:020d}"


def later(read: Callable[[], T], clock: Clock) -> T:
    """The outcome of a read that is tried again for a moment; None when there is none."""
    for failures in range(1, LATER_TRIES + 1):
        content = read()
        if content is not None:
            return content
        clock.wait(threading.Event(), clock.monotonic() + LATER_SECONDS * failures)
    return read()


class BatchLog:
    """The numbers of one space."""

    ahead = 1
    """The numbers that a follower asks for first."""

    def __init__(self, objects: LogObjects, clock: Clock) -> None:
        self._objects, self._clock = objects, clock
        self._never = threading.Event()

    def read(self, number: int) -> Content | None:
        """The content of a number; None when nothing has it.

        Raises: `Corrupt`, `Invalid`, naming the object; `Denied`, `Unavailable`.
        """
        name = batch_name(number)
        try:
            data = self._objects.get(name).to_pybytes()
        except NotFound as error:
            if error.kind != "object_not_found":
                raise
            return None
        return decode_batch(number, data, name, self._objects.where)

    def read_surely(self, number: int) -> Content:
        """The content of a number that a listing showed; a server may know of it a moment later.

        Raises: `Corrupt` when nothing is; as `read`.
        """
        content: Content | None = later(lambda: self.read(number), self._clock)
        if content is None:
            raise damaged(batch_name(number), self._objects.where, "it is gone, and a later one is there")
        return content

    def read_many(self, numbers: Sequence[int]) -> list[Content | None]:
        """The contents of several numbers, fetched side by side.

        Raises: as `read`.
        """
        return list(bring(self.read, numbers, min(FETCHES_MAX, len(numbers))))

    def read_listed(self, first: int, last: int) -> Iterator[Content]:
        """The contents of the numbers from one to another, which a listing showed.

        Raises: as `read_surely`.
        """
        for start in range(first, last + 1, FETCHES_MAX):
            numbers = range(start, min(start + FETCHES_MAX, last + 1))
            for number, content in zip(numbers, self.read_many(numbers), strict=True):
                yield self.read_surely(number) if content is None else content

    def misplaced(self, batch: Batch) -> Corrupt:
        """The error for a batch that does not follow the one before."""
        return damaged(batch_name(batch.number), self._objects.where, "it does not follow the batch before")

    def last_listed(self, after: int) -> int:
        """The greatest number that a listing shows behind another; that one when it shows none."""
        last = after
        for named in self._objects.list("log", after=batch_name(after)):
            last = max(last, int(named.name.removeprefix("log/")))
        return last

    def put(self, batch: Batch) -> Content:
        """The content of the number of a batch afterwards: this batch, or the one that another put first.

        Raises: `Uncertain` when that cannot be learnt; `Denied`, and `NotFound` for the bucket: nothing was put.
        """
        data, name = batch.encode(), batch_name(batch.number)
        due, failures, sent = self._clock.monotonic() + SETTLE_SECONDS, 0, False
        while True:
            try:
                self._objects.swap(name, data, None)
            except (Conflict, Uncertain) as error:
                reason: Exception = error
                sent = True
            except Unavailable as error:
                reason = error
            except MillpondError as error:
                if sent:  # what was sent before may have been made
                    raise self._unsettled(name, error, sent=True) from error
                raise
            else:
                return batch, data[-CHAIN_BYTES:]
            try:
                content = self.read(batch.number)
            except (Unavailable, Denied) as error:
                content, reason = None, error
            if isinstance(content, tuple):
                return content
            failures += 1
            pause = self._clock.monotonic() + (_PAUSES(reason, failures, self._clock.chance()) or 0.0)
            # Whose a number was that has been trimmed is not known any more; the others are settled by trying again.
            if content is not None or pause >= due:
                raise self._unsettled(name, reason, sent=sent) from reason
            self._clock.wait(self._never, pause)

    def _unsettled(self, name: str, reason: Exception, *, sent: bool) -> Unavailable:
        values = {"object": name, "where": self._objects.where, "reason": getattr(reason, "message", reason)}
        if not sent:
            return Unavailable(
                "the log takes no writes; nothing was changed", kind="objects_unavailable",
                hint="check the network, and the place of the log, then try again", **values,
            )  # fmt: skip
        return Uncertain(
            "the log did not say whether the write was made", kind="commit_lost", hint="look whether it was made",
            **values,
        )  # fmt: skip

    def trim(self, numbers: Iterable[int]) -> None:
        """Put marks in the place of batches; doing it twice is harmless."""

        def mark(number: int) -> None:
            self._objects.put(batch_name(number), Trimmed(number).encode())

        deque(bring(mark, numbers, FETCHES_MAX), 0)
