"""Jobs as event streams: queues, submissions that come again, what is active."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.errors import AlreadyExists, Invalid, NotFound, Unavailable
from millpond.events.days import DAY_MS
from millpond.events.embedded.jobs import SpaceQueues
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.event import Appended, Event, EventBatch, NewEvent
from millpond.events.job_ids import draw_job_id
from millpond.events.jobs import active as active_jobs
from millpond.events.jobs.active import ActiveJobs, JobState, fold
from millpond.events.jobs.queues import DEFINITION_BYTES_MAX, Queue, Queues
from millpond.events.jobs.submissions import NewJob, Submissions
from millpond.events.keyspaces import CLIENT, CLIENT_DAY
from millpond.events.names import StreamName
from millpond.events.shared_jobs import CLIENT_DAYS, QUEUES_MAX
from millpond.stores.memory import MemorySpace

if TYPE_CHECKING:
    from millpond.kernel.space import Transaction

T = TypeVar("T")
STREAM = StreamName("etl", "night")
BEGIN = 1_700_000_000_000


def job(client_id: str = "") -> NewJob:
    def events(job_id: str) -> Sequence[NewEvent]:
        return [NewEvent(BEGIN, b"", kind, {"job_id": job_id}) for kind in ("submitted", "queued")]

    return NewJob(events, client_id)


class Place:
    """A space, a store in it, and submissions."""

    def __init__(self) -> None:
        self.space, self.clock = MemorySpace(), ManualClock(BEGIN)
        self.store = EmbeddedStore(self.space, self.clock)
        self.submissions = Submissions(self.store.job_rows, self.store, self.clock)

    def events(self, stream: StreamName = STREAM) -> list[tuple[str, str]]:
        return [(event.headers["job_id"], event.kind) for event in self.store.read(stream).events]

    def rows(self) -> tuple[int, int]:
        with self.space.read() as tx:
            return sum(1 for _ in tx.keys(CLIENT.range())), sum(1 for _ in tx.keys(CLIENT_DAY.range()))


class Dying(EmbeddedStore):
    """A store in whose append the process dies, before or after it."""

    before = False
    after = False

    def _append_within(self, change: Callable[[Transaction, Callable[[EventBatch], Appended]], T]) -> T:
        if self.before:
            raise KeyboardInterrupt
        made = super()._append_within(change)
        if self.after:
            raise KeyboardInterrupt
        return made


def test_ids_of_jobs_sort_by_time_and_differ() -> None:
    clock = ManualClock(BEGIN)
    drawn = []
    for _ in range(50):
        drawn.append(draw_job_id(clock))
        clock.advance(1)
    assert drawn == sorted(set(drawn)) and all(len(job_id) == 26 for job_id in drawn)


def test_queues_are_created_updated_listed_and_deleted() -> None:
    queues = Queues(SpaceQueues(MemorySpace()))
    for name in ("b", "a", "ü/:_%", "x" * 255):
        queues.create(Queue(name, b"one"))
    with pytest.raises(AlreadyExists):
        queues.create(Queue("a"))
    queues.update("a", lambda queue: Queue(queue.name, queue.definition + b" two"))
    assert queues.get("a").definition == b"one two"
    names = [queue.name for queue in queues.list(limit=10)]
    assert sorted(names) == sorted(("a", "b", "ü/:_%", "x" * 255))
    paged = [queues.list(after, limit=1)[0].name for after in (None, *names[:-1])]
    assert paged == names and queues.list(names[-1], limit=1) == []
    queues.delete("a")
    queues.delete("a")
    with pytest.raises(NotFound):
        queues.get("a")
    with pytest.raises(NotFound):
        queues.update("a", lambda queue: queue)


def test_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    queues = Queues(SpaceQueues(MemorySpace()))
    for bad in (Queue(""), Queue("x" * 256), Queue("a", b"x" * (DEFINITION_BYTES_MAX + 1)), Queue("\ud800")):
        with pytest.raises(Invalid):
            queues.create(bad)
    assert QUEUES_MAX > 2
    monkeypatch.setattr("millpond.events.shared_jobs.QUEUES_MAX", 2)
    queues.create(Queue("a"))
    queues.create(Queue("b"))
    with pytest.raises(Unavailable):
        queues.create(Queue("c"))


@given(st.lists(st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=1, max_size=4), max_size=6))
def test_a_client_id_is_one_job_whatever_is_sent_again(requests: list[list[str]]) -> None:
    place, known, expected = Place(), dict[str, str](), list[tuple[str, str]]()
    for clients in requests:
        ids = place.submissions.submit(STREAM, [job(client) for client in clients])
        for client, job_id in zip(clients, ids, strict=True):
            if client and client in known:
                assert job_id == known[client]
                continue
            known[client] = job_id
            expected += [(job_id, "submitted"), (job_id, "queued")]
    assert place.events() == expected


@pytest.mark.parametrize("step", ["before", "after"])
def test_a_submission_that_a_crash_cut_is_settled_by_the_next(step: str) -> None:
    place = Place()
    place.submissions.submit(STREAM, [job("early")])
    dying = Dying(place.space, place.clock)
    setattr(dying, step, True)
    with pytest.raises(KeyboardInterrupt):
        Submissions(dying.job_rows, dying, place.clock).submit(STREAM, [job("a"), job("b")])
    place.store.append([EventBatch(STREAM, [NewEvent(BEGIN, b"", "running", {"job_id": "another"})])])
    ids = place.submissions.submit(STREAM, [job("b"), job("a")])
    assert place.submissions.submit(STREAM, [job("a"), job("b")]) == ids[::-1]
    own = [(job_id, kind) for job_id in ids for kind in ("submitted", "queued")]
    assert sorted(place.events()[2:]) == sorted([("another", "running"), *own])


def test_ids_of_clients_are_forgotten_after_their_days() -> None:
    place = Place()
    ids = place.submissions.submit(STREAM, [job(f"old-{number}") for number in range(40)])
    place.clock.advance(CLIENT_DAYS * DAY_MS)
    assert place.submissions.submit(STREAM, [job("old-7")]) == [ids[7]]
    place.clock.advance(2 * DAY_MS)
    assert place.submissions.submit(STREAM, [job("old-7")]) != [ids[7]]
    for number in range(20):
        place.submissions.submit(STREAM, [job(f"new-{number}")])
    assert place.rows() == (21, 21)


def test_jobs_are_active_until_an_event_ends_them() -> None:
    jobs: dict[str, JobState] = {}

    def happens(kind: str, job_id: str = "a", **headers: str) -> dict[str, JobState]:
        fold(jobs, [Event(1, 1, b"", kind, {"job_id": job_id, **headers})])
        return jobs

    assert happens("running") == {}
    assert happens("submitted") == happens("queued") == {"a": JobState.QUEUED}
    for kind in ("leased", "pending", "running"):
        assert happens(kind) == {"a": JobState(kind)}
    assert happens("failed", retryable="true") == {"a": JobState.QUEUED}
    assert happens("utilisation") == {"a": JobState.QUEUED}
    for kind in ("succeeded", "failed", "cancelled", "preempted"):
        happens("queued")
        assert happens(kind) == happens("running") == {}
    fold(jobs, [Event(1, 1, b"", "queued", {})])
    assert jobs == {}


def test_active_jobs_are_those_of_the_whole_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    active = ActiveJobs(place.store)
    other = StreamName("etl", "day")
    monkeypatch.setattr(active_jobs, "HELD_JOBS_MAX", 3)
    expected: set[str] = set()
    for number in range(10):
        for stream in (STREAM, other):
            ids = place.submissions.submit(stream, [job(), job()])
            ended = NewEvent(BEGIN, b"", "succeeded", {"job_id": ids[0]})
            place.store.append([EventBatch(stream, [ended])])
            if stream == STREAM:
                expected.add(ids[1])
            with active.of(STREAM) as jobs:
                assert set(jobs) == expected
            if number % 3 == 0:
                with active.of(other) as jobs:
                    assert bool(jobs) is (number > 0 or stream == other)
    monkeypatch.setattr(active_jobs, "ACTIVE_JOBS_MAX", 5)
    with pytest.raises(Unavailable), ActiveJobs(place.store).of(STREAM):
        pass


KINDS = ("submitted", "queued", "leased", "running", "failed", "succeeded", "cancelled", "utilisation")


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(KINDS), st.booleans()), max_size=30),
    st.integers(0, 30), st.integers(1, 5),
)  # fmt: skip
def test_jobs_are_counted_by_state_some_events_at_a_time(
    pairs: list[tuple[str, str, bool]], seen: int, events_max: int
) -> None:
    place = Place()
    active = ActiveJobs(place.store)
    events = [
        NewEvent(BEGIN, b"", kind, {"job_id": name, "retryable": str(again).lower()}) for name, kind, again in pairs
    ]
    states: dict[str, str] = {}
    ended: Counter[str] = Counter()
    for name, kind, again in pairs:
        if kind in ("submitted", "queued") or (kind == "failed" and again and name in states):
            states[name] = "queued"
        elif name in states and kind in ("succeeded", "cancelled", "failed"):
            del states[name]
            ended[kind] += 1
        elif name in states and kind != "utilisation":
            states[name] = kind
    for part in (events[:seen], events[seen:]):
        if part:
            place.store.append([EventBatch(STREAM, part)])
        active.count(STREAM, events_max)
    for _ in range(len(events) + 1):
        counts, _read = active.count(STREAM, events_max)
        if counts is not None:
            break
    assert counts == Counter(states.values()) + ended
    assert active.count(STREAM, 0) == (counts, 0)
    place.store.append([EventBatch(STREAM, [NewEvent(BEGIN, b"", "queued", {"job_id": "new"})])])
    assert active.count(STREAM, 0) == (None, 0)
