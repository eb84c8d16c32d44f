"""Bulk jobs: they delete the runs that they name, some at a time, and no others."""

from __future__ import annotations

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import (
    BulkDeleteWfRun,
    BulkJob,
    BulkJobId,
    BulkJobStatus,
    CreateBulkJobRequest,
    DeleteBulkJobRequest,
    LHStatus,
    WfRun,
)
from littlehorse.workflow import Workflow

from millpond.errors import Conflict, Invalid
from millpond.workflows.engine.limits import BULK_RUNS_MAX
from tests.models.workflows.stage import START, Stage


def job(name: str, status: LHStatus = LHStatus.COMPLETED, spec: str = "ends", start: int = 0, stop: int = 9_999) -> (
    CreateBulkJobRequest
):  # fmt: skip
    wanted = BulkDeleteWfRun(wf_spec_name=spec, wf_run_status=status)
    wanted.earliest_start.FromMilliseconds(START + start)
    wanted.latest_start.FromMilliseconds(START + stop)
    return CreateBulkJobRequest(id=name, bulk_delete_wf_run=wanted)


@pytest.fixture
def stage() -> Stage:
    found = Stage()
    found.do(Workflow("ends", lambda wf: None).compile())
    found.do(Workflow("other", lambda wf: None).compile())
    found.do(Workflow("sleeps", lambda wf: wf.sleep(60) and None).compile())
    return found


def left(stage: Stage) -> list[str]:
    return [str(key[0]) for key, _ in stage.rows.list(WfRun, ())]


def status(stage: Stage, name: str) -> BulkJobStatus:
    found = stage.rows.get(BulkJob, (name,))
    assert found is not None
    return found.status


def test_a_job_deletes_what_it_names_and_nothing_else(stage: Stage) -> None:
    for number in range(4):
        stage.run("ends", f"ends-{number}", {})
        stage.pass_time(1_000)
    stage.run("other", "other", {})
    stage.run("sleeps", "sleeps", {})
    made = stage.do(job("gone", start=1_000, stop=2_000))
    assert isinstance(made, BulkJob) and made.status == BulkJobStatus.BULK_JOB_RUNNING
    assert stage.do(job("gone", spec="other")) == made
    stage.pass_time(10)
    assert left(stage) == ["ends-0", "ends-3", "other", "sleeps"]
    found = stage.rows.get(BulkJob, ("gone",))
    assert found is not None and found.status == found.subprocesses[0].status == BulkJobStatus.BULK_JOB_COMPLETED
    assert found.subprocesses[0].last_seen_key.ToMilliseconds() == START + 2_000
    stage.do(DeleteBulkJobRequest(id=BulkJobId(id="gone")))
    assert stage.rows.get(BulkJob, ("gone",)) is None


def test_a_large_job_takes_steps_and_other_commands_come_between(stage: Stage) -> None:
    for number in range(BULK_RUNS_MAX + 5):
        stage.run("ends", f"r-{number:03}", {})
    stage.do(job("gone"))
    stage.pass_time(1)
    assert (len(left(stage)), status(stage, "gone")) == (5, BulkJobStatus.BULK_JOB_RUNNING)
    with pytest.raises(Conflict):
        stage.do(DeleteBulkJobRequest(id=BulkJobId(id="gone")))
    stage.run("other", "between", {})
    stage.pass_time(1_000)
    assert (left(stage), status(stage, "gone")) == (["between"], BulkJobStatus.BULK_JOB_COMPLETED)


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (job("a", LHStatus.RUNNING), "runs that have ended"),
        (job("a", LHStatus.STARTING), "runs that have ended"),
        (job("a", spec="nobody"), "Couldn't find WfSpec nobody"),
        (job("a", start=2, stop=1), "behind the latest"),
        (job("a_b"), "not a valid name"),
    ],
    ids=["open", "no status", "unknown", "times", "name"],
)
def test_a_job_names_runs_that_have_ended(stage: Stage, request_: CreateBulkJobRequest, problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        stage.do(request_)
