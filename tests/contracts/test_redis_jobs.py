"""Queues and submissions of machines that share a Redis: one server, and a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

pytest.importorskip("redis")

from millpond.clock import SystemClock
from millpond.errors import AlreadyExists, NotFound, Unavailable
from millpond.events.event import EventBatch, NewEvent
from millpond.events.jobs.queues import Queue, Queues
from millpond.events.jobs.submissions import NewJob, Submissions
from millpond.events.names import StreamName
from millpond.events.redis.store import RedisStore
from millpond.events.shared_jobs import Claim
from tests.redis_servers import cluster, new_place, server

pytestmark = pytest.mark.usefixtures("process", "redis_server", "redis_cluster")

STREAM = StreamName("etl / ü", "night")
CLOCK = SystemClock()


class Machine:
    """A machine: a space of its own, and the streams of a place."""

    def __init__(self, url: str) -> None:
        self.store = RedisStore(url, CLOCK)
        tables = self.store.job_rows
        self.claims = tables.claims
        self.queues, self.submissions = Queues(tables.queues), Submissions(tables, self.store, CLOCK)

    def submit(self, *clients: str) -> list[str]:
        return self.submissions.submit(STREAM, [_job(client) for client in clients])

    def events(self) -> Counter[tuple[str, str]]:
        return Counter((event.headers["job_id"], event.kind) for event in self.store.read(STREAM).events)


def _events(job_id: str) -> Sequence[NewEvent]:
    return [NewEvent(CLOCK.now_ms(), b"", kind, {"job_id": job_id}) for kind in ("submitted", "queued")]


def _job(client: str) -> NewJob:
    return NewJob(_events, client)


@pytest.fixture(params=[server, cluster], ids=["server", "cluster"])
def machines(request: pytest.FixtureRequest) -> Iterator[tuple[Machine, Machine, Machine]]:
    """Two machines with one place, and one with another."""
    place, other = new_place(), new_place()
    with ExitStack() as stack:
        made = [Machine(request.param().url(name)) for name in (place, place, other)]
        for machine in made:
            stack.callback(machine.store.close)
        yield made[0], made[1], made[2]


def test_machines_share_the_queues_of_their_place(
    machines: tuple[Machine, Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there, elsewhere = machines
    names = ("b", "a", "ü/:_%", "x" * 255)
    for name in names:
        here.queues.create(Queue(name, b"one"))
    with pytest.raises(AlreadyExists):
        there.queues.create(Queue("a"))
    there.queues.update("a", lambda queue: Queue(queue.name, queue.definition + b" two"))
    assert here.queues.get("a").definition == b"one two"
    listed = [queue.name for queue in there.queues.list(limit=10)]
    assert listed == sorted(names, key=str.encode)
    assert [there.queues.list(after, limit=1)[0].name for after in (None, *listed[:-1])] == listed
    assert elsewhere.queues.list(limit=10) == []
    elsewhere.queues.create(Queue("a"))
    here.queues.delete("a")
    with pytest.raises(NotFound):
        there.queues.update("a", lambda queue: queue)
    assert elsewhere.queues.get("a").definition == b""
    monkeypatch.setattr("millpond.events.shared_jobs.QUEUES_MAX", 3)
    with pytest.raises(Unavailable):
        there.queues.create(Queue("one too many"))


def test_a_change_of_a_queue_meanwhile_is_taken_in(machines: tuple[Machine, Machine, Machine]) -> None:
    here, there, _ = machines
    here.queues.create(Queue("a"))
    seen: list[bytes] = []

    def changed(queue: Queue) -> Queue:
        if not seen:
            there.queues.update("a", lambda queue: Queue(queue.name, b"there"))
        seen.append(queue.definition)
        return Queue(queue.name, queue.definition + b" and here")

    here.queues.update("a", changed)
    assert (seen, there.queues.get("a").definition) == ([b"", b"there"], b"there and here")


def test_a_client_id_is_one_job_on_all_machines_of_a_place(machines: tuple[Machine, Machine, Machine]) -> None:
    here, there, elsewhere = machines
    clients = [f"load-{number}" for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        # each in another order, so that those who meet take some of the same claims
        rounds = [pool.submit((here, there)[turn % 2].submit, *clients[turn:], *clients[:turn]) for turn in range(8)]
    found = [
        dict(zip([*clients[turn:], *clients[:turn]], made.result(), strict=True)) for turn, made in enumerate(rounds)
    ]
    assert all(ids == found[0] for ids in found)
    assert here.events() == {(job_id, kind): 1 for job_id in found[0].values() for kind in ("submitted", "queued")}
    assert set(elsewhere.submit(*clients)).isdisjoint(found[0].values())


@pytest.mark.parametrize("appended", [False, True])
def test_a_claim_whose_machine_died_is_settled_by_another(
    machines: tuple[Machine, Machine, Machine], monkeypatch: pytest.MonkeyPatch, *, appended: bool
) -> None:
    here, there, _ = machines
    monkeypatch.setattr("millpond.events.redis.jobs.TURN_SECONDS", 0.5)
    here.claims.claim(STREAM.queue, {"load": Claim("job-1", STREAM.job_set, 20_000, 0)})
    assert here.claims.take(STREAM.queue, ["job-1"], "the dead") == {"job-1"}
    if appended:
        here.store.append([EventBatch(STREAM, _events("job-1"))])
    assert there.submit("load", "")[0] == here.submit("load")[0] == "job-1"
    assert here.events()["job-1", "submitted"] == 1


def test_an_append_that_failed_leaves_its_claims_to_others(machines: tuple[Machine, Machine, Machine]) -> None:
    here, there, _ = machines

    def full(_: object) -> list[object]:
        raise Unavailable("full", kind="redis_full")

    failing = Submissions(here.store.job_rows, here.store, CLOCK, full)  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match="full"):
        failing.submit(STREAM, [_job("load")])
    (job_id,) = there.submit("load")
    assert there.events() == {(job_id, "submitted"): 1, (job_id, "queued"): 1}


def test_a_submission_waits_no_longer_than_it_says(
    machines: tuple[Machine, Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there, _ = machines
    monkeypatch.setattr("millpond.events.jobs.submissions.PATIENCE_SECONDS", 0.1)
    here.claims.claim(STREAM.queue, {"load": Claim("job-1", STREAM.job_set, 20_000, 0)})
    here.claims.take(STREAM.queue, ["job-1"], "the slow")
    with pytest.raises(Unavailable) as caught:
        there.submit("load")
    assert caught.value.kind == "submission_busy" and there.events() == {}
