"""Active jobs: what the events of a stream say of jobs that have not ended.

    submitted, queued ─▶ QUEUED ─▶ LEASED ─▶ PENDING ─▶ RUNNING ─▶ succeeded, failed, cancelled, preempted: forgotten
                            ◀── lease_returned, lease_expired, a failure that is retried

It is folded from the stream when it is wanted, from where the last one ended, and held for a while. So it never differs
from the stream, and takes no row of its own. The jobs that ended are counted by the events that ended them.

Invariants:
* a change that active jobs decide is appended only while the stream is as it was then: of two that end one job, one
  does, whichever processes and machines share the stream;
* a job is active from its `submitted` or `queued` on, until an event ends it; other events begin no job;
* all that is held is at most `HELD_JOBS_MAX` jobs, or one job set with at most `ACTIVE_JOBS_MAX`.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from millpond.error_values import shown
from millpond.errors import Unavailable
from millpond.events.event import Event, EventBatch, NewEvent
from millpond.events.index import StreamIndex
from millpond.events.jobs.submissions import JOB_ID
from millpond.events.names import StreamName
from millpond.events.protocol import PAGE_BYTES, StreamStore
from millpond.events.volumes import Append

__all__ = ("ACTIVE_JOBS_MAX", "HELD_JOBS_MAX", "ActiveJobs", "JobState", "ends_job", "fold")

ACTIVE_JOBS_MAX = 1_000_000
HELD_JOBS_MAX = 200_000
HELD_STREAMS_MAX = 1_000
CHANGED_AT_ONCE = 20_000
FENCED_MAX = 1_000
"""So many appends of others in a row, each between a look at the stream and the append of one job's events."""
EVENT_BYTES = 16
"""The bytes of an event, where few are to be read: too few, so that a page has not many more."""
_RETRYABLE = "retryable"
"""The header of a `failed` event that does not end its job: `true`."""


class JobState(Enum):
    """The state of a job that has not ended."""

    QUEUED = "queued"
    LEASED = "leased"
    PENDING = "pending"
    RUNNING = "running"


_BEGINS = frozenset(("submitted", "queued"))
_ENDS = frozenset(("succeeded", "failed", "cancelled", "preempted"))
_STATES = {
    "submitted": JobState.QUEUED, "queued": JobState.QUEUED, "lease_returned": JobState.QUEUED,
    "lease_expired": JobState.QUEUED, "leased": JobState.LEASED, "pending": JobState.PENDING,
    "running": JobState.RUNNING, "failed": JobState.QUEUED,  # to be tried again, where it does not end the job
}  # fmt: skip


def ends_job(kind: str, headers: Mapping[str, str]) -> bool:
    """True for an event that ends its job."""
    return kind in _ENDS and not (kind == "failed" and headers.get(_RETRYABLE) == "true")


def fold(jobs: dict[str, JobState], events: Iterable[Event], ended: Counter[str] | None = None) -> None:
    """Apply events to the active jobs; those that they end are counted in `ended`."""
    for event in events:
        job_id = event.headers.get(JOB_ID)
        if job_id is None or not (job_id in jobs or event.kind in _BEGINS):
            continue
        if ends_job(event.kind, event.headers):
            if jobs.pop(job_id, None) is not None and ended is not None:
                ended[event.kind] += 1
        elif event.kind in _STATES:
            jobs[job_id] = _STATES[event.kind]


@dataclass(slots=True)
class _Held:
    """The jobs of a stream after its events up to `after`, without those up to `dropped_id`."""

    after: int = 0
    count: int = 0
    dropped_id: int = 0
    jobs: dict[str, JobState] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0

    def is_of(self, index: StreamIndex) -> bool:
        """False when the stream has lost events that are folded here."""
        if index.dropped_id != self.dropped_id or index.last_id < self.after:
            return False
        return index.last_id > self.after or index.count == self.count

    def forget(self, dropped_id: int) -> None:
        self.after, self.count, self.dropped_id, self.jobs, self.ended = 0, 0, dropped_id, {}, Counter()


class ActiveJobs:
    """The active jobs of the streams of a store; changes of them go through `append`, as `StreamStore` has it."""

    def __init__(self, store: StreamStore, append: Append | None = None) -> None:
        self._store, self._append = store, append or store.append
        self._held: OrderedDict[StreamName, _Held] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def of(self, stream: StreamName) -> Iterator[Mapping[str, JobState]]:
        """The active jobs of a stream, as of now.

        Raises:
            Unavailable: there are too many.
            Corrupt: what is stored is damaged.
        """
        with self._now(stream) as slot:
            yield slot.jobs

    def count(self, stream: StreamName, events_max: int) -> tuple[Counter[str] | None, int]:
        """The number of jobs in each state, the last of those that ended, too; and of the events that were read.

        None when there are more new events than `events_max`: the next call goes on behind those that were read.

        Raises: as `of`.
        """
        with self._held_of(stream) as slot:
            before = slot.count
            whole = self._read_on(stream, slot, events_max)
            states = Counter(state.value for state in slot.jobs.values()) + slot.ended if whole else None
            return states, max(0, slot.count - before)

    def change(
        self, stream: StreamName, chosen: Callable[[Mapping[str, JobState]], Iterable[str]],
        events_of: Callable[[str], Sequence[NewEvent]],
    ) -> list[str]:  # fmt: skip
        """Append events for each active job of those chosen, while it is still one of them; the jobs.

        Where others append meanwhile, the rest is chosen anew: fewer at once, for they take less time.

        Raises: as `of`, and as `StreamStore.append`. `Unavailable`: others append all the time. Some may be changed.
        """
        done: list[str] = []
        at_once, fenced = CHANGED_AT_ONCE, 0
        with self._now(stream) as slot:
            jobs, after = list(chosen(slot.jobs)), slot.after
            while jobs:
                some = jobs[:at_once]
                events = [event for job_id in some for event in events_of(job_id)]
                (outcome,) = self._append([EventBatch(stream, events, expected_id=after)])
                if outcome.count:
                    done += some
                    jobs, after, fenced = jobs[at_once:], outcome.last_id, 0
                    continue
                at_once, fenced = max(1, at_once // 2), fenced + 1
                if fenced == FENCED_MAX:
                    raise Unavailable(
                        "others append to the job set all the time", kind="job_set_busy", job_set=shown(stream.job_set),
                        hint="try it again",
                    )  # fmt: skip
                self._read_on(stream, slot)
                active = set(chosen(slot.jobs))
                jobs, after = [job_id for job_id in jobs if job_id in active], slot.after
        return done

    @contextmanager
    def _now(self, stream: StreamName) -> Iterator[_Held]:
        """The jobs of a stream and its end, as of now; those who change it in this process take turns inside."""
        with self._held_of(stream) as slot:
            self._read_on(stream, slot)
            yield slot

    @contextmanager
    def _held_of(self, stream: StreamName) -> Iterator[_Held]:
        with self._lock:
            slot = self._held.setdefault(stream, _Held())
            self._held.move_to_end(stream)
            slot.users += 1
        try:
            with slot.lock:
                yield slot
        finally:
            with self._lock:
                slot.users -= 1
                self._let_go()

    def _read_on(self, stream: StreamName, slot: _Held, events_max: int | None = None) -> bool:
        """Fold what is new; all anew when days were dropped, or events deleted, since the last time. True at the end.

        With `events_max` it may end before, about so many events further.
        """
        index = self._store.index(stream)
        if index is None or index.dropped_id != slot.dropped_id:
            slot.forget(0 if index is None else index.dropped_id)
        whole = self._fold_on(stream, slot, events_max)
        index = self._store.index(stream)
        if index is not None and not slot.is_of(index):
            slot.forget(index.dropped_id)
            whole = self._fold_on(stream, slot, events_max)
        return whole

    def _fold_on(self, stream: StreamName, slot: _Held, events_max: int | None) -> bool:
        bytes_max = PAGE_BYTES if events_max is None else 1 + events_max * EVENT_BYTES
        page, before = self._store.read(stream, slot.after, bytes_max=bytes_max), slot.count
        while page.events:
            if events_max is not None and slot.count - before >= events_max:
                return False
            slot.count += len(page.events)
            fold(slot.jobs, page.events, slot.ended)
            slot.after = page.after
            if len(slot.jobs) > ACTIVE_JOBS_MAX:
                slot.forget(0)
                raise Unavailable(
                    "the job set has too many active jobs", kind="job_set_large", job_set=stream.job_set,
                    jobs_max=ACTIVE_JOBS_MAX, hint="use several job sets",
                )  # fmt: skip
            page = self._store.read(stream, slot.after, bytes_max=bytes_max)
        slot.after = page.after
        return True

    def _let_go(self) -> None:
        """Forget the streams that were wanted longest ago, while there is too much."""
        total = sum(len(slot.jobs) for slot in self._held.values())
        for stream, slot in list(self._held.items())[:-1]:
            if total <= HELD_JOBS_MAX and len(self._held) <= HELD_STREAMS_MAX:
                return
            if not slot.users:
                total -= len(slot.jobs)
                del self._held[stream]
