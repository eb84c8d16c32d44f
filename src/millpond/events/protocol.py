"""The protocol of a backend: where streams live. The rules it keeps are in `millpond.events`.

`tests.harness.contracts.streams` is its contract as tests. Whoever compresses works on it from outside:

    name = store.due(Work.COMPRESS, day, limit=100)          the registry
    store.close_day(name, day)                               late events go to another day from now on
    seen = store.index(name).segments                        what is to be replaced
    store.switch(name, seen, batches)                        fenced: only if it is still there; goes on where it ended
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

from millpond.errors import Invalid
from millpond.events.codec import ROW_BYTES
from millpond.events.days import DAY_MS
from millpond.events.event import Appended, EventBatch, Page
from millpond.events.index import DaySegment, StreamIndex
from millpond.events.names import StreamName
from millpond.kernel.verify import Report

__all__ = (
    "HIDDEN_DAY", "PAGE_BYTES", "Believing", "Checkable", "Due", "Losing", "Losses", "NoteKind", "Notes", "StreamRules",
    "StreamStore", "Switch", "BatchedStore", "Work", "losses_of", "never",
)  # fmt: skip

PAGE_BYTES = 4 * 1024 * 1024
"""A page of events ends at about so many bytes, or after one event."""


HIDDEN_DAY = 0
"""The day under which the registry lists a stream whose deletion was interrupted: maintenance finds it at once."""


@dataclass(frozen=True, slots=True)
class StreamRules:
    """The rules by which a store assigns days, and when a stream that expired is forgotten.

    * `ahead_ms`: a time so far ahead of our clock counts as no later than that.
    * `forget_ms`: the position of a source is remembered so long after its last events came, and after their day, also
      in a stream that has no others: what is delivered again within that time changes nothing.
    * `row_bytes`: events that are appended together share a row up to so many bytes.
    """

    ahead_ms: int = 3_600_000
    forget_ms: int = 90 * DAY_MS
    row_bytes: int = ROW_BYTES

    def __post_init__(self) -> None:
        if self.ahead_ms < 0 or self.forget_ms < 0:
            raise Invalid("a duration is not negative", kind="event_rules", ahead=self.ahead_ms, forget=self.forget_ms)


class Work(StrEnum):
    """The kinds of work that the registry lists."""

    COMPRESS = "compress"
    EXPIRE = "expire"
    FORGET = "forget"


class NoteKind(StrEnum):
    """The kinds of small rows that a place holds beside its streams."""

    AGES = "ages"
    """The ages at which days of a queue, or of a job set, are compressed and dropped."""
    ERASURE = "erasure"
    """A job whose events are being deleted."""


class Due(NamedTuple):
    """A stream with work, and the oldest of its days that the work is about."""

    day: int
    stream: StreamName


class Switch(NamedTuple):
    """Neighbouring segments of a stream, and the one batch that holds their events."""

    stream: StreamName
    seen: Sequence[DaySegment]
    batch: bytes


def never() -> bool:
    """False: the wait is not interrupted."""
    return False


@runtime_checkable
class Checkable(Protocol):
    """A backend that can also look at its own rows."""

    def check(self) -> Report:
        """Check what no read through `StreamStore` would miss.

        Raises:
            Unavailable: the storage is out of reach.
        """


@dataclass(slots=True)
class Losses:
    """The number of times that a backend lost streams while this process used it; the servers that may lose some."""

    count: int = 0
    evicting: set[str] = field(default_factory=set)
    """Those that drop keys when their memory is full, as of the last look."""


@runtime_checkable
class Losing(Protocol):
    """A backend that may lose what was stored, and notices."""

    losses: Losses


def losses_of(store: StreamStore) -> Losses:
    """The losses of a backend."""
    return store.losses if isinstance(store, Losing) else Losses()


@runtime_checkable
class BatchedStore(Protocol):
    """A backend in which many streams share a write: each act does for all of them what `StreamStore` does for one."""

    def close_days(self, streams: Sequence[StreamName], day: int) -> None:
        """As `StreamStore.close_day`."""

    def switch_many(self, switches: Sequence[Switch]) -> list[DaySegment | None]:
        """As `StreamStore.switch`; None for one that is fenced."""

    def expire_many(self, streams: Sequence[StreamName], day: int) -> int:
        """As `StreamStore.expire`."""


@runtime_checkable
class Believing(Protocol):
    """A backend that is told which time is believed, where a clock of its own counts."""

    def believe(self, now_ms: int) -> None:
        """Note the time: no stream begins before its day while the clock is far behind it."""


class Notes(Protocol):
    """Small rows that a place holds beside its streams."""

    def read(self, kind: NoteKind) -> dict[str, bytes]:
        """All of a kind, by their names."""

    def put(self, kind: NoteKind, name: str, row: bytes) -> None:
        """Put one in the place of the one that was there."""

    def remove(self, kind: NoteKind, name: str) -> None:
        """Remove one, if it is there."""


class StreamStore(Protocol):
    """A backend of streams. Safe to share between threads; several processes may use one place at a time."""

    def append(self, batches: Sequence[EventBatch]) -> list[Appended]:
        """Append batches, each wholly or not at all, in their order; the outcome of each.

        Raises:
            Invalid: a batch is not acceptable; none of them is stored.
            Unavailable: the storage is full or out of reach. `Uncertain`: batches may be stored; deliver them again.
        """

    def read(self, stream: StreamName, after: int = 0, *, bytes_max: int = PAGE_BYTES) -> Page:
        """The events after an id, up to about a number of bytes but at least one; an empty page where there are none.

        Raises:
            Corrupt: what is stored is damaged.
        """

    def follow(
        self, cursors: Mapping[StreamName, int], due: float | None, interrupted: Callable[[], bool] = never
    ) -> set[StreamName]:
        """Wait until streams have events after their cursors, at most until a monotonic time; which ones do.

        A stream that ends before its cursor is one of them: it lost its end, and `read` says where to go on.

        It also returns once `interrupted()` is true, which it looks at after each `wake`.

        Raises:
            Closed: the store was closed meanwhile.
        """

    def wake(self) -> None:
        """Let those that follow in this process look whether they are interrupted."""

    def index(self, stream: StreamName) -> StreamIndex | None:
        """The segments of a stream; None when there is no such stream."""

    def streams(self, queue: str | None = None, after: StreamName | None = None, *, limit: int) -> list[StreamName]:
        """The streams of a queue, or all, in the store's order, from behind one that was listed."""

    def due(self, work: Work, day: int, after: Due | None = None, *, limit: int) -> list[Due]:
        """The streams with work for that day or an earlier one, the oldest days first, from behind one listed."""

    def close_day(self, stream: StreamName, day: int) -> bool:
        """Close the open day if it is `day` or an earlier one: it gets no events from now on. True when it did."""

    def pull_back(self, stream: StreamName, latest: int) -> bool:
        """Let days after `latest` that are not compressed be days up to it, as far as there is room; true if some were.

        A clock that was far ahead made them. Without this they would be due when that time has come.
        """

    def now_ms(self) -> int:
        """The time of the place: of its server, where it has one, for the machines that share it may disagree."""

    def switch(
        self, stream: StreamName, seen: Sequence[DaySegment], batches: Callable[[int], Iterable[bytes]]
    ) -> DaySegment:
        """Replace neighbouring segments, as they were seen, by one compressed segment of the same events.

        `batches` gives the events of `seen` behind an id, encoded, in order: one batch of several segments, any number
        of one. A reader gets every event once, whenever it reads, also when this ends half-way: then it can be done
        again, and may go on behind the batches that are there.

        Raises:
            Fenced: the segments are not what was seen: somebody else replaced or dropped one.
            Invalid: the batches do not hold what the segments hold.
        """

    def expire(self, stream: StreamName, day: int) -> int:
        """Drop all events of that day and before, and forget a stream that has none for `forget_ms`; how many events.

        An open day that is due is closed and dropped. After a crash in between, the next call ends what was begun.
        """

    def delete(self, stream: StreamName) -> int:
        """Hide all events of a stream at once, then drop them; how many.

        The stream stays, without events, until it is forgotten: its ids grow on and the positions of its sources are
        remembered. An id without an event is given to the deletion, so that each reader that saw one finds a gap. After
        a crash in between, `expire` of any day drops what was hidden; the registry lists the stream under day 0.
        """

    def erase(self, stream: StreamName, seen: DaySegment, job_id: str, last_id: int) -> int:
        """Take the events of a job, up to an id, out of a compressed segment as it was seen; how many.

        Redis does so from 8 MiB of changed batches on in several steps, and each store else at once.

        Raises:
            Fenced: the segment is not what was seen.
        """

    @property
    def notes(self) -> Notes:
        """The small rows beside the streams."""

    def close(self) -> None:
        """Let go of the backend; closing twice is harmless."""
