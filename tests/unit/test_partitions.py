"""Partitions on a log: stores are functions of it, whoever applies it, in writes of any size, however often."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("littlehorse")
if find_spec("rocksdict") is None:
    pytest.skip("the extra kafka is not installed", allow_module_level=True)

from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from littlehorse.model import (
    BulkJobId,
    CorrelatedEventConfig,
    CorrelatedEventId,
    DeleteBulkJobRequest,
    DeleteCorrelatedEventRequest,
    DeleteWfRunRequest,
    ExternalEventDef,
    ExternalEventDefId,
    LHStatus,
    PutCorrelatedEventRequest,
    PutExternalEventDefRequest,
    PutExternalEventRequest,
    PutTaskDefRequest,
    RunWfRequest,
    ScheduleWfRequest,
    StopWfRunRequest,
    TaskRunId,
    WfRun,
    WfRunId,
)
from littlehorse.workflow import Workflow

from millpond.clock import ManualClock, SystemClock
from millpond.errors import AlreadyExists, Conflict, Corrupt, Invalid, NotFound, Unavailable, Uncertain
from millpond.kernel.keys import EVERYTHING, Prefix
from millpond.kernel.overlay import Overlay
from millpond.kernel.space import Space
from millpond.kernel.steps import listening
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import FolderObjects, MemoryObjects
from millpond.workflows.engine import Request, TaskClaim
from millpond.workflows.keyspaces import DEFINITION, INITIALIZED, OUTBOX
from millpond.workflows.logs import Entry
from millpond.workflows.partitions import (
    METADATA,
    Checkpoints,
    Follower,
    open_store,
    partition_of_key,
    routed,
)
from millpond.workflows.partitions.entries import (
    CausedEntry,
    ClockEntry,
    CommandEntry,
    LogEntry,
    SentEntry,
    TimerEntry,
    decode_entry,
    encode_entry,
)
from millpond.workflows.partitions.followed import FollowedPartition, read_cursor
from millpond.workflows.processor import Applied
from millpond.workflows.processor.codec import LoggedCommand
from millpond.workflows.store import initialize
from tests.harness.embedded_log import EmbeddedLog
from tests.models.workflows.specs import request
from tests.models.workflows.test_bulk_jobs import job
from tests.models.workflows.test_spec_migrations import migration
from tests.rings.sampling import examples

SECONDS = 20
PARTITIONS = 4
DAY = 86_400_000
TENANT = "acme"
FLOWS = [
    Workflow("flow", lambda wf: wf.wait_for_event("ready") and None).compile(),
    Workflow("flow", lambda wf: wf.execute("work") and wf.wait_for_event("ready") and None).compile(),
    migration(nodes={"1-ready-EXTERNAL_EVENT": "2-ready-EXTERNAL_EVENT"}),
]
"""Two versions of a workflow, and the way from one to the other."""


class Cluster:
    """A log with the followers of all its partitions, which one process owns."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.logs = MemorySpace()
        self.log = EmbeddedLog(self.logs, Prefix("log"), PARTITIONS, SystemClock())
        self.followers: list[Follower] = []
        self.passed: list[Applied] = []
        for number in range(PARTITIONS):
            self.follow(number)

    def follow(self, number: int, space: Space | None = None) -> Follower:
        follower = Follower(self.log, number, space or MemorySpace(), self.clock, self._passed_on)
        follower.own(True)
        follower.start()
        self.followers[number : number + 1] = [follower]
        return follower

    def _passed_on(self, applied: Sequence[Applied]) -> None:
        self.passed += applied

    def do(self, act: Request) -> Message | None:
        number, whole = routed(TENANT, act, PARTITIONS, self.clock)
        return self.followers[number].submit(TENANT, whole).result(SECONDS)

    def settle(self) -> None:
        """Wait until nothing more is put out, and all logs are applied."""
        ends = None
        while ends != (ends := [self.log.end(number) for number in range(PARTITIONS)]):
            for follower, end in zip(self.followers, ends, strict=True):
                follower.wait_until(end, SECONDS)

    def row(self, kind: type[Message], *key: str | int) -> Message | None:
        follower = self.followers[partition_of_key(TENANT, str(key[0]), PARTITIONS)]
        with follower.space.read() as tx:
            return follower.partition.reads(tx, TENANT).get(kind, key)

    def entries(self, number: int) -> list[Entry]:
        return EmbeddedLog(self.logs, Prefix("log"), PARTITIONS, SystemClock()).read(number, 0, 1_000_000)

    def define(self) -> None:
        for task in ("work", "greet", "repair"):
            self.do(PutTaskDefRequest(name=task))
        self.do(PutExternalEventDefRequest(name="ready"))
        self.do(PutExternalEventDefRequest(name="paid", correlated_event_config=CorrelatedEventConfig()))
        for spec in ("retried", "timed", "awaits", "correlates"):
            self.do(request(spec))

    def stop(self) -> None:
        self.log.close()  # first, so that nobody waits for it
        for follower in self.followers:
            follower.stop()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.stop()


def rows(space: Space) -> dict[bytes, bytes]:
    with space.read() as tx:
        return {key: row for key, row in tx.scan(EVERYTHING) if key not in INITIALIZED}


def replayed(number: int, entries: Sequence[Entry], cuts: Sequence[int]) -> MemorySpace:
    """A new store to which entries were applied in writes of some sizes."""
    space = MemorySpace()
    partition = FollowedPartition(space.write(lambda tx: initialize(tx, 1)), number, PARTITIONS)
    at = 0
    for size in [*cuts, len(entries)]:
        piece = entries[at : at + size]
        if not piece:  # as a follower, which writes when something came
            continue
        space.write(lambda tx, piece=piece: partition.apply_entries(tx, piece))  # type: ignore[misc]
        at += len(piece)
    return space


def task_of(run: str) -> TaskRunId:
    return TaskRunId(wf_run_id=WfRunId(id=run), task_guid="0-1")


names = st.sampled_from(["a", "b", "c", "d"])
requests = st.one_of(
    st.builds(lambda run: RunWfRequest(wf_spec_name="timed", id=run), names),
    st.builds(lambda run: RunWfRequest(wf_spec_name="awaits", id=run), names),
    st.builds(lambda run: RunWfRequest(wf_spec_name="retried", id=run), names),
    st.builds(lambda run: DeleteWfRunRequest(id=WfRunId(id=run)), names),
    st.builds(lambda run: StopWfRunRequest(wf_run_id=WfRunId(id=run)), names),
    st.builds(lambda run: TaskClaim(task_of(run), "worker"), names),
    st.builds(
        lambda run: PutExternalEventRequest(
            wf_run_id=WfRunId(id=run), external_event_def_id=ExternalEventDefId(name="ready")
        ),
        names,
    ),
    st.builds(
        lambda key: PutCorrelatedEventRequest(key=key, external_event_def_id=ExternalEventDefId(name="paid")), names
    ),
    st.builds(
        lambda key: DeleteCorrelatedEventRequest(
            id=CorrelatedEventId(key=key, external_event_def_id=ExternalEventDefId(name="paid"))
        ),
        names,
    ),
    st.builds(lambda run: RunWfRequest(wf_spec_name="flow", id=run, major_version=0, revision=0), names),
    st.sampled_from([PutTaskDefRequest(name="more"), *FLOWS]),
    st.builds(lambda name: job(name, LHStatus.COMPLETED, "flow", 0, 9 * DAY), names),
    st.builds(lambda name: DeleteBulkJobRequest(id=BulkJobId(id=name)), names),
    st.builds(lambda run: ScheduleWfRequest(id=run, wf_spec_name="retried", cron_expression="* * * * *"), names),
)


jumps = st.sampled_from([2 * DAY, -2 * DAY])


@pytest.mark.usefixtures("processor")
@settings(max_examples=examples(5, 15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.one_of(requests, st.integers(1, 90_000), jumps), max_size=15), st.lists(st.integers(0, 9), max_size=9)
)
def test_a_store_is_a_function_of_its_log(acts: list[Request | int], cuts: list[int]) -> None:
    cluster = Cluster()
    try:
        cluster.define()
        for act in acts:
            if isinstance(act, int):
                cluster.clock.now += act
                continue
            with suppress(Invalid, NotFound, AlreadyExists, Conflict):  # the caller's mistakes
                cluster.do(act)
    finally:
        cluster.stop()
    for number, follower in enumerate(cluster.followers):
        # What came behind the stop is applied by nobody but the replay.
        entries = [entry for entry in cluster.entries(number) if entry.position <= follower.position]
        assert rows(replayed(number, entries, cuts)) == rows(follower.space)
        twice = [entry for entry in entries for _ in range(2)]
        assert rows(replayed(number, [*twice, *entries], cuts)) == rows(follower.space)


@given(
    st.one_of(
        st.builds(
            lambda tenant, own, ms: CommandEntry(LoggedCommand(tenant, own, PutTaskDefRequest(name="t")), ms),
            st.text(), st.text(), st.integers(0, 1 << 50),
        ),
        st.builds(TimerEntry, st.text(), st.lists(st.text() | st.integers(0, 99)).map(tuple), st.integers(0, 1 << 50),
                  st.integers(0, 1 << 50)),
        st.builds(
            lambda number, own: CausedEntry(3, number, LoggedCommand("t", own, TaskClaim(task_of("r"), "w")), 7),
            st.integers(1, 1 << 40), st.text(),
        ),
        st.builds(SentEntry, st.integers(0, 1 << 40), st.integers(0, 1 << 40)),
        st.builds(ClockEntry, st.integers(0, 1 << 50)),
    )
)  # fmt: skip
def test_entries_come_back_from_their_bytes(entry: LogEntry) -> None:
    assert decode_entry(encode_entry(entry)) == entry


def test_a_definition_is_on_every_partition_when_it_is_answered(cluster: Cluster) -> None:
    for number in range(10):
        cluster.do(PutExternalEventDefRequest(name=f"event-{number}"))
        for run in range(6):  # no wait: the copy is ahead of the command in each log
            event = PutExternalEventRequest(
                wf_run_id=WfRunId(id=f"run-{run}"), external_event_def_id=ExternalEventDefId(name=f"event-{number}")
            )
            cluster.do(event)
    cluster.settle()
    made = {
        row.SerializeToString(deterministic=True)
        for follower in cluster.followers
        for row in _definitions(follower, "event-3")
    }
    assert len(made) == 1


def _definitions(follower: Follower, name: str) -> list[ExternalEventDef]:
    with follower.space.read() as tx:
        found = follower.partition.reads(tx, TENANT).get(ExternalEventDef, (name,))
    assert found is not None
    return [found]


def test_what_is_sent_twice_or_with_gaps_is_applied_once_in_order(cluster: Cluster) -> None:
    cluster.define()
    target = partition_of_key(TENANT, "a", PARTITIONS)
    source = next(number for number in range(1, PARTITIONS) if number != target)
    runs = [RunWfRequest(wf_spec_name="retried", id="a"), DeleteWfRunRequest(id=WfRunId(id="a"))]

    def send(number: int, act: Request) -> None:
        command = LoggedCommand(TENANT, f"caused-{number}", act)
        cluster.log.append(target, encode_entry(CausedEntry(source, number, command, 0))).result(SECONDS)

    send(2, runs[1])  # its forerunner was lost: it will be sent again
    send(1, runs[0])
    send(1, runs[0])
    cluster.settle()
    assert cluster.row(WfRun, "a") is not None
    send(2, runs[1])
    send(1, runs[0])
    send(2, runs[1])
    cluster.settle()
    assert cluster.row(WfRun, "a") is None


def test_nothing_stays_put_out(cluster: Cluster) -> None:
    cluster.define()
    cluster.do(ScheduleWfRequest(id="s", wf_spec_name="retried", cron_expression="* * * * *"))
    cluster.settle()
    for follower in cluster.followers:
        with follower.space.read() as tx:
            assert list(tx.keys(OUTBOX.range())) == []


def test_a_timer_fires_once_though_two_processes_own_the_partition(cluster: Cluster) -> None:
    cluster.define()
    cluster.do(RunWfRequest(wf_spec_name="timed", id="a"))
    number = partition_of_key(TENANT, "a", PARTITIONS)
    other = Follower(cluster.log, number, MemorySpace(), cluster.clock, lambda _: None)
    other.own(True)
    other.start()
    try:
        other.wait_until(cluster.log.end(number), SECONDS)
        assert cluster.do(TaskClaim(task_of("a"), "worker")) is not None
        cluster.clock.advance(2_500)
        until(lambda: sum(isinstance(decode_entry(e.data), TimerEntry) for e in cluster.entries(number)) >= 1)
        cluster.settle()
        assert cluster.do(TaskClaim(task_of("a"), "worker")) is not None, "the second attempt is queued"
        cluster.settle()
        other.wait_until(cluster.log.end(number), SECONDS)
        assert cluster.do(TaskClaim(task_of("a"), "worker")) is None, "and there is no third"
    finally:
        other.stop()
    run = cluster.row(WfRun, "a")
    assert isinstance(run, WfRun)
    assert run.status == LHStatus.RUNNING


def until(true: object) -> None:
    pause = threading.Event()
    for _ in range(SECONDS * 100):
        if true():  # type: ignore[operator]
            return
        pause.wait(0.01)
    raise AssertionError("it did not come")


def test_a_caller_of_a_lost_partition_is_told_to_look(cluster: Cluster) -> None:
    follower = cluster.followers[1]
    follower.stop()
    with pytest.raises(Uncertain) as caught:
        follower.submit(TENANT, PutTaskDefRequest(name="t")).result(SECONDS)
    assert caught.value.kind == "command_moved"


def test_a_mistake_is_answered_and_changes_nothing(cluster: Cluster) -> None:
    cluster.define()
    cluster.do(RunWfRequest(wf_spec_name="awaits", id="a"))
    cluster.settle()
    number = partition_of_key(TENANT, "a", PARTITIONS)
    before = rows(cluster.followers[number].space)
    with pytest.raises(AlreadyExists):
        cluster.do(RunWfRequest(wf_spec_name="awaits", id="a"))
    after = rows(cluster.followers[number].space)
    assert {key for key in after if after[key] != before.get(key)} == {key for key in after if _is_place(key)}


def _is_place(key: bytes) -> bool:
    from millpond.workflows.keyspaces import CURSOR

    return key == CURSOR.pack()


def test_what_is_no_entry_is_passed_over(cluster: Cluster) -> None:
    cluster.define()
    number = partition_of_key(TENANT, "a", PARTITIONS)
    for junk in (b"", b"junk", b"\x20no\x00"):
        cluster.log.append(number, junk).result(SECONDS)
    assert cluster.do(RunWfRequest(wf_spec_name="awaits", id="a")) is not None


class _Silent(Overlay):
    """A transaction whose space does not answer for definitions."""

    def get(self, key: bytes) -> bytes | None:
        if key in DEFINITION:
            raise Unavailable("the space does not answer", kind="space_silent")
        return super().get(key)


def test_a_space_that_does_not_answer_is_no_failure_of_the_command(cluster: Cluster) -> None:
    cluster.define()
    cluster.settle()
    entries = cluster.entries(1)
    space = MemorySpace()
    partition = FollowedPartition(space.write(lambda tx: initialize(tx, 1)), 1, PARTITIONS)
    with pytest.raises(Unavailable):
        space.write(lambda tx: partition.apply_entries(_Silent(tx), entries))
    space.write(lambda tx: partition.apply_entries(tx, entries))
    assert rows(space) == rows(cluster.followers[1].space)


def test_a_process_that_lost_its_partition_confirms_no_command(cluster: Cluster) -> None:
    follower, wanted = cluster.followers[METADATA], PutTaskDefRequest(name="late")
    follower.own(False)
    with pytest.raises(Uncertain):
        follower.submit(TENANT, wanted).result(SECONDS)
    with follower.space.read() as tx:
        assert next(tx.keys(OUTBOX.range()), None) is not None, "the other partitions have not got it yet"


# -- checkpoints and stores -----------------------------------------------------------------------------------


def test_a_checkpoint_and_the_rest_of_the_log_give_the_store(cluster: Cluster, tmp_path: Path) -> None:
    cluster.define()
    number = partition_of_key(TENANT, "a", PARTITIONS)
    checkpoints = Checkpoints(FolderObjects(tmp_path / "checkpoints"))
    cluster.do(RunWfRequest(wf_spec_name="awaits", id="a"))
    cluster.settle()
    first = checkpoints.save(number, cluster.followers[number].space)
    place = cluster.followers[number].position
    assert first == 1, "without another checkpoint, the whole log is needed"
    cluster.do(StopWfRunRequest(wf_run_id=WfRunId(id="a")))
    cluster.settle()
    first = checkpoints.save(number, cluster.followers[number].space)
    assert first == place + 1, "the log is needed from the older on"
    cluster.do(DeleteWfRunRequest(id=WfRunId(id="a")))
    cluster.settle()
    cluster.log.trim(number, first)
    space = open_store(tmp_path / "stores", number, cluster.log, checkpoints)
    follower = Follower(cluster.log, number, space, cluster.clock, lambda _: None)
    follower.start()
    follower.wait_until(cluster.log.end(number), SECONDS)
    follower.stop()
    assert rows(space) == rows(cluster.followers[number].space)
    space.close()


def test_a_damaged_checkpoint_gives_way_to_the_one_before(cluster: Cluster, tmp_path: Path) -> None:
    cluster.define()
    checkpoints = Checkpoints(FolderObjects(tmp_path))
    places = []
    for run in ("a", "b", "c"):
        cluster.do(PutTaskDefRequest(name=run))
        cluster.settle()
        checkpoints.save(METADATA, cluster.followers[METADATA].space)
        places.append(cluster.followers[METADATA].position)
    assert checkpoints.positions(METADATA) == places[1:]
    newest = tmp_path / "0" / f"{places[2]:020d}.rows"
    for damage in (lambda data: data[:-1], lambda data: data[:40] + b"x" + data[41:], lambda data: b"MPWX" + data[4:]):
        whole = newest.read_bytes()
        newest.write_bytes(damage(whole))
        space = MemorySpace()
        assert checkpoints.restore(METADATA, space) == places[1]
        with space.read() as tx:
            assert read_cursor(tx).position == places[1]
        newest.write_bytes(whole)
    for path in (tmp_path / "0").iterdir():
        path.write_bytes(b"MPWC")
    with pytest.raises(Corrupt):
        checkpoints.restore(METADATA, MemorySpace())


def test_a_store_that_the_log_cannot_follow_is_an_error(cluster: Cluster, tmp_path: Path) -> None:
    cluster.define()
    cluster.settle()
    nothing = Checkpoints(MemoryObjects())
    cluster.log.trim(METADATA, 3)
    with pytest.raises(NotFound) as caught:
        open_store(tmp_path / "stores", METADATA, cluster.log, nothing)
    assert caught.value.kind == "log_trimmed"
    other = EmbeddedLog(MemorySpace(), Prefix("other"), PARTITIONS, cluster.clock)
    nothing.save(METADATA, cluster.followers[METADATA].space)
    with pytest.raises(Conflict) as ahead:
        open_store(tmp_path / "stores", METADATA, other, nothing)
    assert ahead.value.kind == "log_other"


@pytest.mark.parametrize("at", ["workflows.restored", "workflows.replacing"])
def test_a_restore_that_is_cut_off_is_begun_anew(cluster: Cluster, tmp_path: Path, at: str) -> None:
    cluster.define()
    cluster.settle()
    checkpoints = Checkpoints(FolderObjects(tmp_path / "checkpoints"))
    checkpoints.save(METADATA, cluster.followers[METADATA].space)
    cluster.log.trim(METADATA, 5)

    def cut(step: str) -> None:
        if step == at:
            raise KeyboardInterrupt

    with listening(cut), pytest.raises(KeyboardInterrupt):
        open_store(tmp_path / "stores", METADATA, cluster.log, checkpoints)
    space = open_store(tmp_path / "stores", METADATA, cluster.log, checkpoints)
    assert rows(space) == rows(cluster.followers[METADATA].space)
    space.close()
