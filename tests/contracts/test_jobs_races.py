"""Machines that end one job, or submit one id of a client, at once over shared streams: exactly one of them appends."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from millpond.clock import SystemClock
from millpond.errors import Unavailable
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.event import Appended, EventBatch, NewEvent
from millpond.events.jobs import active as active_jobs
from millpond.events.jobs.active import ActiveJobs, JobState
from millpond.events.jobs.submissions import NewJob, Submissions
from millpond.events.names import StreamName
from millpond.stores.memory import MemorySpace

if TYPE_CHECKING:
    from millpond.events.redis.store import RedisStore

pytestmark = pytest.mark.usefixtures("process")

STREAM = StreamName("etl / ü", "night")
CLOCK = SystemClock()
ROUNDS = 6
JOBS = 8


class Machine:
    """A machine: connections and memory of its own, and streams that others have too."""

    def __init__(self, store: EmbeddedStore | RedisStore) -> None:
        self.store = store
        self.submissions, self.active = Submissions(store.job_rows, store, CLOCK), ActiveJobs(store)

    def submit(self, *clients: str) -> list[str]:
        return self.submissions.submit(STREAM, [NewJob(_first_events, client) for client in clients])

    def end(self, kind: str, wanted: Sequence[str]) -> list[str]:
        def chosen(active: Mapping[str, JobState]) -> list[str]:
            return [job_id for job_id in wanted if job_id in active]

        return self.active.change(STREAM, chosen, lambda job_id: [_event(kind, job_id)])

    def ends(self) -> Counter[str]:
        """The number of events that end each job."""
        found, after = Counter[str](), 0
        while events := (page := self.store.read(STREAM, after)).events:
            found.update(event.headers["job_id"] for event in events if event.kind in ("cancelled", "preempted"))
            after = page.after
        return found


def _event(kind: str, job_id: str) -> NewEvent:
    return NewEvent(CLOCK.now_ms(), b"", kind, {"job_id": job_id})


def _first_events(job_id: str) -> Sequence[NewEvent]:
    return [_event(kind, job_id) for kind in ("submitted", "queued")]


def _on_redis(kind: str) -> Callable[[ExitStack], list[Machine]]:
    def machines(stack: ExitStack) -> list[Machine]:
        from millpond.events.redis.store import RedisStore
        from tests import redis_servers

        servers = redis_servers.server() if kind == "server" else redis_servers.cluster()
        url = servers.url(redis_servers.new_place())
        stores = [RedisStore(url, CLOCK) for _ in range(2)]
        for store in stores:
            stack.callback(store.close)
        return [Machine(store) for store in stores]

    return machines


def _on_postgres(stack: ExitStack) -> list[Machine]:
    from millpond.stores.postgres.space import PostgresSpace
    from tests.postgres_server import new_location

    location = new_location()
    spaces = [PostgresSpace(location, durable=False) for _ in range(2)]
    for space in spaces:
        stack.callback(space.close)
    return [Machine(EmbeddedStore(space, CLOCK)) for space in spaces]


def _on_one_space(_: ExitStack) -> list[Machine]:
    space = MemorySpace()
    return [Machine(EmbeddedStore(space, CLOCK)) for _ in range(2)]


def _needs(library: str, mark: pytest.MarkDecorator) -> list[pytest.MarkDecorator]:
    return [pytest.mark.skipif(find_spec(library) is None, reason=f"needs {library}"), mark]


@pytest.fixture(
    params=[
        pytest.param(_on_one_space, id="memory"),
        pytest.param(_on_postgres, id="postgres", marks=_needs("psycopg", pytest.mark.postgres)),
        pytest.param(_on_redis("server"), id="redis", marks=_needs("redis", pytest.mark.redis)),
        pytest.param(_on_redis("cluster"), id="cluster", marks=_needs("redis", pytest.mark.redis)),
    ]
)
def machines(request: pytest.FixtureRequest) -> Iterator[tuple[Machine, Machine]]:
    with ExitStack() as stack:
        here, there = request.param(stack)
        yield here, there


def together(*acts: Callable[[], list[str]]) -> list[list[str]]:
    """The outcomes of acts that begin at once."""
    barrier = threading.Barrier(len(acts))

    def begun(act: Callable[[], list[str]]) -> list[str]:
        barrier.wait()
        return act()

    with ThreadPoolExecutor(len(acts)) as pool:
        return [made.result() for made in [pool.submit(begun, act) for act in acts]]


def test_a_job_that_two_machines_end_at_once_is_ended_by_one(machines: tuple[Machine, Machine]) -> None:
    here, there = machines
    expected = Counter[str]()
    for _ in range(ROUNDS):
        jobs = here.submit(*[""] * JOBS)
        there.submit("")
        cancelled, preempted = together(lambda: here.end("cancelled", jobs), lambda: there.end("preempted", jobs[::-1]))  # noqa: B023
        assert sorted(cancelled + preempted) == sorted(jobs), "each job is ended by one of them"
        expected.update(jobs)
    assert here.ends() == expected


def test_a_job_that_ends_between_look_and_append_is_left_alone(
    machines: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as above, where the other machine comes between for sure."""
    here, there = machines
    jobs = here.submit(*[""] * JOBS)
    others = list(jobs[:3])
    monkeypatch.setattr(active_jobs, "CHANGED_AT_ONCE", 2)

    def append(batches: Sequence[EventBatch]) -> list[Appended]:
        if others:
            assert there.end("preempted", [others[0]]) == [others.pop(0)]
        return here.store.append(batches)

    here.active = ActiveJobs(here.store, append)
    assert here.end("cancelled", jobs) == jobs[3:]
    assert here.ends() == Counter(jobs)


def test_who_is_fenced_all_the_time_gives_up(
    machines: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = machines
    jobs = here.submit("", "")
    monkeypatch.setattr(active_jobs, "FENCED_MAX", 3)

    def append(batches: Sequence[EventBatch]) -> list[Appended]:
        there.store.append([EventBatch(STREAM, [_event("running", jobs[0])])])
        return here.store.append(batches)

    here.active = ActiveJobs(here.store, append)
    with pytest.raises(Unavailable) as caught:
        here.end("cancelled", jobs)
    assert caught.value.kind == "job_set_busy" and not here.ends()


def test_a_client_id_that_two_machines_submit_at_once_is_one_job(machines: tuple[Machine, Machine]) -> None:
    here, there = machines
    for turn in range(ROUNDS):
        clients = [f"{turn}-{number}" for number in range(JOBS)]
        one, other = together(lambda: here.submit(*clients), lambda: there.submit(*clients[::-1]))  # noqa: B023
        assert one == other[::-1]
    events = here.store.read(STREAM).events
    assert len(events) == len({(event.headers["job_id"], event.kind) for event in events}) == 2 * ROUNDS * JOBS
