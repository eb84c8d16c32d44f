"""Objects that belong to no run, in a processor: schedules over a stop, searches for them and for correlated events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import (
    CorrelatedEvent,
    CorrelatedEventConfig,
    CountNodeRunRequest,
    CountTaskRunRequest,
    DeleteWfRunRequest,
    ExternalEvent,
    ExternalEventDefId,
    LHStatus,
    NodeRunId,
    PutCorrelatedEventRequest,
    PutExternalEventDefRequest,
    PutWfSpecRequest,
    RunWfRequest,
    ScheduledWfRunId,
    ScheduleWfRequest,
    SearchCorrelatedEventRequest,
    SearchScheduledWfRunRequest,
    TaskStatus,
    VariableValue,
    WfRun,
    WfRunId,
)

from millpond.errors import Invalid
from millpond.server.workflows.reads import READS
from millpond.workflows.engine import TaskClaim
from millpond.workflows.engine.events import correlated
from millpond.workflows.keyspaces import FAILED, TAG, TIMER
from millpond.workflows.store import TagQuery
from tests.models.workflows.specs import request
from tests.unit.test_processor import Ground, opened, started, task_of, until

HOUR = 3_600_000


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(opened("lmdb", tmp_path))
    yield made
    made.processor.stop()
    made.space.close()


def runs(ground: Ground, spec: str) -> int:
    with ground.space.read() as tx:
        rows = ground.processor.partition.reads(tx, "acme")
        return len(rows.search(TagQuery.runs(spec=spec), limit=1000, bookmark=None).rows)


def search(ground: Ground, wanted: object) -> list[object]:
    """All pages of a search, one result a page."""
    found: list[object] = []
    with ground.space.read() as tx:
        rows = ground.processor.partition.reads(tx, "acme")
        while True:
            page = READS[type(wanted)](rows, wanted)  # type: ignore[index]
            found += page.results  # type: ignore[attr-defined]
            if not page.DESCRIPTOR.fields_by_name.get("bookmark") or not page.bookmark:  # type: ignore[attr-defined]
                return found
            wanted.bookmark = page.bookmark  # type: ignore[attr-defined]


def test_a_schedule_goes_on_after_a_stop_and_makes_up_for_what_it_missed(ground: Ground) -> None:
    ground.do(request("sleeps"))
    ground.do(ScheduleWfRequest(id="hourly", wf_spec_name="sleeps", cron_expression="0 * * * *"))
    ground.processor.stop()
    ground.clock.advance(5 * HOUR)
    ground.begun()
    until(lambda: runs(ground, "sleeps") == 5)
    ground.processor.stop()
    ground.begun()
    assert ground.do(RunWfRequest(wf_spec_name="sleeps", id="after")) is not None
    assert (runs(ground, "sleeps"), ground.count(FAILED)) == (6, 0)


def test_the_version_of_a_scheduled_run_is_the_newest_unless_one_is_named(ground: Ground) -> None:
    first = request("sleeps")
    ground.do(first)
    for name, version in (("open", {}), ("pinned", {"major_version": 0, "revision": 0})):
        ground.do(ScheduleWfRequest(id=name, wf_spec_name="sleeps", cron_expression="0 * * * *", **version))
    newer = PutWfSpecRequest()
    newer.CopyFrom(first)
    newer.thread_specs["entrypoint"].nodes["1-sleep-SLEEP"].sleep.raw_seconds.literal_value.int = 99
    ground.do(newer)
    ground.processor.stop()
    ground.clock.advance(HOUR)
    ground.begun()
    until(lambda: runs(ground, "sleeps") == 2)
    with ground.space.read() as tx:
        rows = ground.processor.partition.reads(tx, "acme")
        for revision in (0, 1):
            wanted = TagQuery.runs(spec="sleeps", major=0, revision=revision)
            assert len(rows.search(wanted, limit=10, bookmark=None).rows) == 1


def test_schedules_are_found_by_specification_and_version(ground: Ground) -> None:
    ground.do(request("sleeps"))
    for name in ("b", "a"):
        ground.do(ScheduleWfRequest(id=name, wf_spec_name="sleeps", cron_expression="0 * * * *"))
        ground.do(ScheduleWfRequest(id=name, wf_spec_name="sleeps", cron_expression="1 * * * *"))
    assert ground.count(TIMER) == 2
    found = search(ground, SearchScheduledWfRunRequest(wf_spec_name="sleeps", major_version=0, revision=0))
    assert found == [ScheduledWfRunId(id="a"), ScheduledWfRunId(id="b")]
    assert search(ground, SearchScheduledWfRunRequest(wf_spec_name="sleeps", major_version=1)) == []
    with pytest.raises(Invalid):
        search(ground, SearchScheduledWfRunRequest())


def test_task_runs_are_counted_while_they_wait(ground: Ground) -> None:
    for run in ("a", "b", "c"):
        started(ground, "retried", run)
    wanted = CountTaskRunRequest(task_def_name="work", status=TaskStatus.TASK_SCHEDULED)

    def count() -> int:
        with ground.space.read() as tx:
            found = READS[CountTaskRunRequest](ground.processor.partition.reads(tx, "acme"), wanted)
        return int(found.value)  # type: ignore[attr-defined]

    assert count() == 3
    ground.do(TaskClaim(task_of("b"), "worker"))
    assert count() == 2
    wanted.status = TaskStatus.TASK_SUCCESS
    with pytest.raises(Invalid, match="TASK_SCHEDULED"):
        count()


def test_node_runs_are_counted_by_specification(ground: Ground) -> None:
    for run in ("a", "b"):
        started(ground, "retried", run)
    for number in range(2):  # the same specification under a new revision
        newer = PutWfSpecRequest()
        newer.CopyFrom(request("sleeps"))
        newer.thread_specs["entrypoint"].nodes["1-sleep-SLEEP"].sleep.raw_seconds.literal_value.int = 50 + number
        ground.do(newer)
        ground.do(RunWfRequest(wf_spec_name="sleeps", id=f"sleeps-{number}"))

    def count(**spec: object) -> int:
        wanted = CountNodeRunRequest(wf_spec_filter=spec or None)  # type: ignore[arg-type]
        with ground.space.read() as tx:
            found = READS[CountNodeRunRequest](ground.processor.partition.reads(tx, "acme"), wanted)
        return int(found.value)  # type: ignore[attr-defined]

    def counted() -> list[int]:
        sleeps = {"wf_spec_name": "sleeps", "wf_spec_major_version": 0}
        return [count(), count(wf_spec_name="retried"), count(wf_spec_name="sleeps"), count(**sleeps),
                count(**sleeps, wf_spec_revision=1), count(wf_spec_name="other")]  # fmt: skip

    assert counted() == [8, 4, 4, 4, 2, 0]  # the entrypoint and the node that waits, of each run
    ground.do(DeleteWfRunRequest(id=WfRunId(id="a")))
    assert counted() == [6, 2, 4, 4, 2, 0]
    for wrong in ({"wf_spec_name": ""}, {"wf_spec_name": "sleeps", "wf_spec_revision": 1}):
        with pytest.raises(Invalid):
            count(**wrong)


def define(ground: Ground, **config: bool) -> None:
    config_ = CorrelatedEventConfig(**config)
    ground.do(PutExternalEventDefRequest(name="paid", correlated_event_config=config_))
    ground.do(request("correlates"))


def correlate(ground: Ground, key: str) -> CorrelatedEvent:
    event = ExternalEventDefId(name="paid")
    content = VariableValue(str="euro")
    found = ground.do(PutCorrelatedEventRequest(key=key, external_event_def_id=event, content=content))
    assert isinstance(found, CorrelatedEvent)
    return found


def start(ground: Ground, run: str, key: str) -> None:
    ground.do(RunWfRequest(wf_spec_name="correlates", id=run, variables={"key": VariableValue(str=key)}))


def status(ground: Ground, run: str) -> int:
    found = ground.row(WfRun, run)
    assert isinstance(found, WfRun)
    return found.status


def test_correlated_events_are_found_by_what_they_have_made(ground: Ground) -> None:
    define(ground)
    for key in ("c", "a", "b"):
        correlate(ground, key)
        ground.clock.now += 1
    start(ground, "r", "a")
    event = ExternalEventDefId(name="paid")

    def keys(**criteria: object) -> list[str]:
        wanted = SearchCorrelatedEventRequest(external_event_def_id=event, limit=1, **criteria)  # type: ignore[arg-type]
        return [found.key for found in search(ground, wanted)]  # type: ignore[attr-defined]

    assert keys() == ["c", "a", "b"], "by time"
    assert keys(has_external_events=True) == ["a"]
    assert keys(has_external_events=False) == ["c", "b"]
    assert status(ground, "r") == LHStatus.COMPLETED


def test_an_event_that_is_used_up_leaves_nothing(ground: Ground) -> None:
    define(ground, delete_after_first_correlation=True)
    tags = ground.count(TAG)
    start(ground, "r", "k")
    runs_tags = ground.count(TAG) - tags
    made = correlate(ground, "k")
    assert [event.wf_run_id.id for event in made.external_events] == ["r"]
    assert ground.row(CorrelatedEvent, "k", "paid") is None
    assert ground.row(NodeRunId, "k", "paid", "r", 0, 1) is None
    assert status(ground, "r") == LHStatus.COMPLETED
    assert ground.count(TAG) - tags > runs_tags, "the external event has its tags"
    assert search(ground, SearchCorrelatedEventRequest(external_event_def_id=ExternalEventDefId(name="paid"))) == []


@pytest.mark.usefixtures("processor")
def test_more_nodes_than_one_write_serves_get_their_event(ground: Ground) -> None:
    define(ground)
    count = 130
    for number in range(count):
        start(ground, f"r-{number}", "k")
    made = correlate(ground, "k")
    assert len(made.external_events) == count
    ground.clock.advance(1)
    until(lambda: all(status(ground, f"r-{number}") == LHStatus.COMPLETED for number in range(count)))
    assert ground.count(TIMER) == 0


def test_a_loop_on_one_event_ends_with_the_events_that_one_makes(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(correlated, "CORRELATIONS_MAX", 120)
    define(ground)
    ground.do(request("correlates-for-ever"))
    ground.do(RunWfRequest(wf_spec_name="correlates-for-ever", id="r", variables={"key": VariableValue(str="k")}))
    correlate(ground, "k")

    def made() -> int:
        found = ground.row(CorrelatedEvent, "k", "paid")
        assert isinstance(found, CorrelatedEvent)
        return len(found.external_events)

    until(lambda: made() == 120 and ground.count(TIMER) == 0)
    with ground.space.read() as tx:
        rows = ground.processor.partition.reads(tx, "acme")
        assert sum(1 for _ in rows.list(ExternalEvent, ("r",))) == 120
        assert sum(1 for _ in rows.list(NodeRunId, ("k",))) == 1, "the node waits on"
    assert (status(ground, "r"), ground.count(FAILED)) == (LHStatus.RUNNING, 0)
