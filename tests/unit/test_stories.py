"""Stories of runs: what commands tell, and the streams that it gets into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import (
    DeleteWfRunRequest,
    PutTaskDefRequest,
    ReportTaskRun,
    RunWfRequest,
    StopWfRunRequest,
    TaskRunId,
    TaskStatus,
    WfRunId,
)

from millpond.clock import ManualClock
from millpond.errors import Unavailable
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.event import EventBatch
from millpond.events.names import StreamName
from millpond.server.workflows import event_publisher
from millpond.server.workflows.event_publisher import teller_of
from millpond.stores.lmdb.space import LmdbSpace
from millpond.workflows.engine import Request, TaskClaim
from millpond.workflows.keyspaces import STORY
from millpond.workflows.processor import Processor, backlog_of
from millpond.workflows.processor.backlog import Depth
from millpond.workflows.stories import rows
from tests.models.workflows.specs import request


class Ground:
    """A processor that is turned by hand, and the streams of the same space."""

    def __init__(self, folder: Path, *, stories: bool = True) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.space = LmdbSpace(folder, durable=False)
        self.store = EmbeddedStore(self.space, self.clock)
        self.processor = Processor(self.space, self.clock, lambda _: None, stories=stories)
        self.teller = teller_of(self.space, self.clock, self.store.append)
        for command in (PutTaskDefRequest(name="work"), request("retried")):
            self.do(command)

    def do(self, command: Request) -> None:
        future = self.processor.submit("acme", command)
        while not future.done():
            self.processor.turn()
        future.result(0)

    def attempt(self, run: str, status: int, number: int = 0) -> None:
        """Claim and report an attempt at the only task of a run."""
        task = TaskRunId(wf_run_id=WfRunId(id=run), task_guid="0-1")
        self.do(TaskClaim(task, "worker"))
        self.do(ReportTaskRun(task_run_id=task, attempt_number=number, status=status))

    def story(self, run: str) -> list[tuple[str, str, str]]:
        """The events of a run, after all that waits was told: job, kind, and if it is tried again."""
        while self.teller.turn():
            pass
        events = self.store.read(StreamName("acme", run)).events
        return [(event.headers["job_id"], event.kind, event.headers.get("retryable", "")) for event in events]

    def undone(self) -> int:
        with self.space.read() as tx:
            return sum(1 for _ in tx.keys(STORY.range()))


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    made.space.close()


def test_a_run_tells_of_its_attempts_and_of_its_end(ground: Ground) -> None:
    ground.do(RunWfRequest(wf_spec_name="retried", id="r"))
    ground.attempt("r", TaskStatus.TASK_FAILED)
    ground.attempt("r", TaskStatus.TASK_SUCCESS, 1)
    assert ground.story("r") == [
        ("r", "running", ""), ("0-1", "queued", ""), ("0-1", "running", ""), ("0-1", "failed", "true"),
        ("0-1", "queued", ""), ("0-1", "running", ""), ("0-1", "succeeded", ""), ("r", "succeeded", ""),
    ]  # fmt: skip
    first = ground.store.read(StreamName("acme", "r")).events[0]
    assert dict(first.headers) == {"job_id": "r", "workflow": "retried", "version": "0.0"}


def test_a_run_that_fails_names_the_error(ground: Ground) -> None:
    ground.do(RunWfRequest(wf_spec_name="retried", id="r"))
    for number in range(3):
        ground.attempt("r", TaskStatus.TASK_FAILED, number)
    assert ground.story("r")[-2:] == [("0-1", "failed", ""), ("r", "failed", "")]
    task, run = ground.store.read(StreamName("acme", "r")).events[-2:]
    assert task.headers["error"] == "TASK_FAILED"
    assert run.headers["error"] == "ERROR"


def test_a_run_that_is_stopped_or_deleted_says_so(ground: Ground) -> None:
    ground.do(RunWfRequest(wf_spec_name="retried", id="r"))
    ground.do(StopWfRunRequest(wf_run_id=WfRunId(id="r")))
    ground.do(DeleteWfRunRequest(id=WfRunId(id="r")))
    assert [kind for job, kind, _ in ground.story("r") if job == "r"] == ["running", "halted", "cancelled"]


def test_without_the_setting_nothing_is_told(tmp_path: Path) -> None:
    ground = Ground(tmp_path, stories=False)
    ground.do(RunWfRequest(wf_spec_name="retried", id="r"))
    assert (ground.undone(), ground.story("r")) == (0, [])
    ground.space.close()


def test_stories_wait_for_streams_that_cannot_be_reached(ground: Ground) -> None:
    def refusing(batches: Sequence[EventBatch]) -> object:
        raise Unavailable("no Redis", kind="redis_unreachable")

    ground.do(RunWfRequest(wf_spec_name="retried", id="r"))
    with pytest.raises(Unavailable):
        teller_of(ground.space, ground.clock, refusing).turn()
    assert ground.undone() == 1
    assert ground.story("r") == [("r", "running", ""), ("0-1", "queued", "")]
    assert ground.undone() == 0


class Refused:
    """Streams that cannot be reached until they are opened."""

    def __init__(self, ground: Ground) -> None:
        self.ground, self.dropped, self.is_open = ground, list[int](), False
        self.teller = teller_of(ground.space, ground.clock, self.append, dropped=self.dropped.append)
        ground.teller = self.teller

    def append(self, batches: Sequence[EventBatch]) -> object:
        if not self.is_open:
            raise Unavailable("no Redis", kind="redis_unreachable")
        return self.ground.store.append(batches)

    def wait(self) -> None:
        """One turn of the teller's thread."""
        with pytest.raises(Unavailable):
            self.teller.turn()
        self.teller.drop()


def test_stories_beyond_the_limit_are_dropped_counted_and_told(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_publisher, "STORIES_WAITING_MAX", 10)
    refused = Refused(ground)
    for number in range(10):
        ground.do(RunWfRequest(wf_spec_name="retried", id=f"r{number}"))
    refused.wait()
    assert (ground.undone(), refused.dropped, caplog.messages) == (10, [], [])
    ground.attempt("r0", TaskStatus.TASK_SUCCESS)
    for _ in range(3):
        refused.wait()
    assert sum(refused.dropped) == 2
    assert ground.undone() == 11, "and one that tells of the dropped"
    for number in range(10, 16):
        ground.do(RunWfRequest(wf_spec_name="retried", id=f"r{number}"))
        refused.wait()
    assert (sum(refused.dropped), ground.undone()) == (8, 11)
    refused.is_open = True
    assert ground.story("r0") == [
        ("r0", "dropped", ""), ("0-1", "running", ""), ("0-1", "succeeded", ""), ("r0", "succeeded", ""),
    ]  # fmt: skip
    missing = [ground.store.read(StreamName("acme", f"r{number}")).events[0] for number in range(8)]
    assert {(event.kind, event.headers["events"]) for event in missing} == {("dropped", "2")}
    assert ground.story("r8") == [("r8", "running", ""), ("0-1", "queued", "")]
    assert [message.split(".")[0] for message in caplog.messages] == [
        "more stories of runs wait than may: the oldest are dropped",
        "stories of runs are sent again, but for the oldest that waited",
    ]
    assert caplog.messages[1].endswith("dropped=8")
    ground.do(RunWfRequest(wf_spec_name="retried", id="next"))
    assert ground.story("next") == [("next", "running", ""), ("0-1", "queued", "")]


def test_a_teller_that_begins_anew_drops_what_waited_too_long(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        ground.do(RunWfRequest(wf_spec_name="retried", id=f"r{number}"))
    monkeypatch.setattr(event_publisher, "STORIES_WAITING_MAX", 10)
    monkeypatch.setattr(rows, "DROPPED_RUNS_MAX", 3)
    refused = Refused(ground)
    refused.wait()
    assert (sum(refused.dropped), ground.undone()) == (30, 11)
    refused.is_open = True
    assert ground.story("r26") == [], "of too many runs, those whose events were dropped last are told"
    assert [ground.story(f"r{number}")[0][1] for number in (27, 29, 30)] == ["dropped", "dropped", "running"]


@pytest.mark.usefixtures("processor")
def test_a_thousand_runs_are_told_in_pages(ground: Ground) -> None:
    for number in range(1_010):
        ground.do(RunWfRequest(wf_spec_name="retried", id=f"r{number}"))
    assert (ground.teller.turn(), ground.teller.turn(), ground.teller.turn()) == (1_000, 10, 0)
    assert ground.story("r1009") == [("r1009", "running", ""), ("0-1", "queued", "")]


def test_the_backlog_counts_queues_and_names_their_oldest_task(ground: Ground) -> None:
    began = ground.clock.now_ms()
    for number in range(3):
        ground.do(RunWfRequest(wf_spec_name="retried", id=f"r{number}"))
        ground.clock.advance(1_000)
    ground.do(TaskClaim(TaskRunId(wf_run_id=WfRunId(id="r0"), task_guid="0-1"), "worker"))
    with ground.space.read() as tx:
        found = backlog_of(tx, ground.processor.partition)
    assert found.queues == {("acme", "work"): Depth(2, began + 1_000)}
    assert found.stories == 4
