"""Jobs of clients that fall silent: each silence ends the job once, and a client that comes back goes on."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millpond.clock import ManualClock
from millpond.errors import Unavailable
from millpond.events.deletion import delete_job
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.event import EventBatch, NewEvent
from millpond.events.names import OWN_QUEUE, StreamName
from millpond.kernel.steps import listening
from millpond.reports import client_jobs as module
from millpond.reports.client_jobs import ClientJobs
from millpond.stores.memory import MemorySpace
from tests.rings.sampling import examples

pytestmark = pytest.mark.usefixtures("processor")

NOON = 1_750_000_000_000
SILENCE = 86_400_000
NEVER = threading.Event()
ENDS = ("succeeded", "failed", "cancelled", "preempted")


class Node:
    """A folder, a store, and the jobs of clients; `restart` forgets what is in memory."""

    def __init__(self, folder: Path, store: EmbeddedStore | None = None, clock: ManualClock | None = None) -> None:
        self.folder, self.clock = folder, clock or ManualClock(now=NOON)
        self.store = store or EmbeddedStore(MemorySpace(), self.clock)
        self.restart()

    def restart(self) -> None:
        self.jobs = ClientJobs(self.folder, self.store, self.clock)

    def report(self, job_id: str, *kinds: str, job_set: str = "load/m", noted: bool = True) -> None:
        events = [NewEvent(self.clock.now_ms(), b"", kind, {"job_id": job_id}) for kind in kinds]
        self.store.append([EventBatch(StreamName(OWN_QUEUE, job_set), events)])
        if noted:
            self.jobs.note(job_set, events)

    def end_lost(self) -> int:
        ended, faults = self.jobs.end_lost(SILENCE, NEVER)
        assert faults == []
        return ended

    def kinds(self, job_id: str, job_set: str = "load/m") -> list[str]:
        events = self.store.read(StreamName(OWN_QUEUE, job_set)).events
        return [
            event.headers.get("error") if event.headers.get("error") == "lost" else event.kind
            for event in events if event.headers["job_id"] == job_id
        ]  # fmt: skip

    def files(self) -> list[str]:
        return sorted(file.name for file in (self.folder / "running" / "clients").glob("*"))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize("job", [None, "7"])
def test_a_job_whose_story_was_deleted_gets_no_end(node: Node, job: str | None) -> None:
    node.report("7", "submitted", "running")
    stream = StreamName(OWN_QUEUE, "load/m")
    node.store.delete(stream) if job is None else delete_job(node.store, stream, job)
    node.clock.now += SILENCE
    assert node.end_lost() == 0 and node.files() == [] and node.kinds("7") == []


@pytest.mark.parametrize("restarts", [False, True], ids=["the same node", "a node that was restarted"])
def test_a_silent_job_has_failed_once(node: Node, *, restarts: bool) -> None:
    node.report("a", "submitted", "running")
    node.report("b", "submitted", "running", "succeeded")
    node.clock.advance(SILENCE - 1)
    assert node.end_lost() == 0
    node.clock.advance(1)
    if restarts:
        node.restart()
    assert (node.end_lost(), node.end_lost()) == (1, 0)
    assert node.kinds("a") == ["submitted", "running", "lost"] and node.kinds("b")[-1] == "succeeded"
    assert node.files() == []
    (event,) = [event for event in node.store.read(StreamName(OWN_QUEUE, "load/m")).events if "error" in event.headers]
    assert (event.kind, event.headers["reason"][:4]) == ("failed", "lost")


def test_a_client_that_comes_back_goes_on_and_may_be_lost_again(node: Node) -> None:
    node.report("a", "submitted")
    node.clock.advance(SILENCE)
    assert node.end_lost() == 1
    node.report("a", "progress")
    node.clock.advance(SILENCE)
    assert node.end_lost() == 1
    node.report("a", "succeeded")
    node.clock.advance(SILENCE)
    assert node.end_lost() == 0
    assert node.kinds("a") == ["submitted", "lost", "progress", "lost", "succeeded"]


@pytest.mark.parametrize("kind", ["progress", "succeeded"])
def test_events_that_came_through_another_node_count(node: Node, kind: str) -> None:
    node.report("a", "submitted")
    node.clock.advance(SILENCE - 1)
    node.report("a", kind, noted=False)
    node.clock.advance(1)
    assert node.end_lost() == 0 and len(node.files()) == (kind == "progress")
    node.clock.advance(SILENCE)
    assert node.end_lost() == (kind == "progress")


def test_two_nodes_and_a_kill_between_the_event_and_its_file_make_one_end(node: Node, tmp_path: Path) -> None:
    other = Node(tmp_path / "other", node.store, node.clock)
    for one in (node, other):
        one.report("a", "submitted")
    node.clock.advance(SILENCE)

    def die(name: str) -> None:
        if name == "events.lost_appended":
            raise KeyboardInterrupt

    with listening(die), pytest.raises(KeyboardInterrupt):
        node.end_lost()
    node.restart()
    assert (node.end_lost(), other.end_lost()) == (0, 0)
    assert node.kinds("a").count("lost") == 1 and node.files() == other.files() == []


def test_a_store_out_of_reach_is_a_fault_and_the_job_ends_later(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.report("a", "submitted")
    node.clock.advance(SILENCE)

    def lost(*_: object, **__: object) -> None:
        raise Unavailable("it is out of reach", kind="unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(node.store, "append", lost)
        ended, (fault,) = node.jobs.end_lost(SILENCE, NEVER)
        assert ended == 0 and "out of reach" in fault
    assert node.end_lost() == 1


def test_files_are_few_whatever_clients_say_and_damaged_ones_go(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLIENT_JOBS_MAX", 5)
    for number in range(20):
        node.report(f"job {number}", "submitted", job_set="a/../b \x00")
    node.report("x" * 300, "submitted")
    node.store.append([EventBatch(StreamName(OWN_QUEUE, "m"), [NewEvent(1, b"")])])
    node.jobs.note("m", [NewEvent(1, b"")])
    assert len(node.files()) == 5
    for name in node.files()[:3]:
        (node.folder / "running" / "clients" / name).write_bytes(b"{")
    node.restart()
    node.clock.advance(SILENCE)
    assert node.end_lost() == 2 and node.files() == []


class LostJobs(RuleBasedStateMachine):
    """Any interleaving of reports, silences, restarts and looks: a model with the last event of each job."""

    JOBS = ("a", "b", "c")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.node = Node(Path(self.folder.name))
        self.story: dict[str, list[str]] = {job: [] for job in self.JOBS}
        self.heard: dict[str, int] = {}

    @rule(job=st.sampled_from(JOBS), kind=st.sampled_from(("submitted", "running", "progress", *ENDS)))
    def report(self, job: str, kind: str) -> None:
        self.node.report(job, kind)
        self.story[job].append(kind)
        self.heard.pop(job, None)
        if kind not in ENDS:
            self.heard[job] = self.node.clock.now_ms()

    @rule(ms=st.sampled_from((1, 1000, SILENCE // 3, SILENCE - 1, SILENCE, 5 * SILENCE)))
    def pass_time(self, ms: int) -> None:
        self.node.clock.advance(ms)

    @rule()
    def restart(self) -> None:
        self.node.restart()

    @rule()
    def look(self) -> None:
        now = self.node.clock.now_ms()
        silent = [job for job, heard in self.heard.items() if now - heard >= SILENCE]
        assert self.node.end_lost() == len(silent)
        for job in silent:
            self.story[job].append("lost")
            del self.heard[job]

    @invariant()
    def the_story_is_that_of_the_model(self) -> None:
        for job, story in self.story.items():
            assert self.node.kinds(job) == story

    def teardown(self) -> None:
        self.folder.cleanup()


LostJobs.TestCase.settings = settings(max_examples=examples(10, 40), stateful_step_count=25, deadline=None)
TestLostJobs = LostJobs.TestCase
