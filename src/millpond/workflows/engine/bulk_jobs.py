"""Bulk jobs: one request deletes many runs that have ended, some at a time, so that other commands come between.

    create ─▶ due ─▶ the next runs, deleted ─▶ due … ─▶ completed

Invariants:
* A job goes on after a restart where it was: what it deletes next is in the rows.
* A run that ends after the job has passed its time stays.
"""

from __future__ import annotations

from google.protobuf.empty_pb2 import Empty
from littlehorse.model import (
    BulkDeleteWfRun,
    BulkJob,
    BulkJobId,
    BulkJobStatus,
    CreateBulkJobRequest,
    DeleteBulkJobRequest,
    DeleteWfRunRequest,
    LHStatus,
    WfRun,
)

from millpond.errors import Conflict, Invalid
from millpond.workflows.engine.commands import BulkJobDue
from millpond.workflows.engine.keys import Key, check_name, key_of, run_id
from millpond.workflows.engine.limits import BULK_RUNS_MAX
from millpond.workflows.engine.run_commands import delete_run
from millpond.workflows.engine.runs import TERMINAL
from millpond.workflows.engine.work import Work, find_spec

__all__ = ("create_job", "delete_job", "job_due")

PAUSE_MS = 50
"""The time between two steps of a job."""


def create_job(work: Work, request: CreateBulkJobRequest) -> BulkJob:
    """Begin a job. One that is there under its id is answered as it is.

    Raises:
        Invalid: it names no workflow, no status of a run that has ended, or times that are none.
    """
    name = BulkJobId(id=request.id if request.HasField("id") else work.new_id())
    check_name("bulk job", name.id)
    old = work.rows.get(BulkJob, key_of(name))
    if old is not None:
        return old
    _check(work, request.bulk_delete_wf_run)
    job = BulkJob(
        id=name,
        created_at=work.instant(),
        status=BulkJobStatus.BULK_JOB_RUNNING,
        bulk_delete_wf_run=request.bulk_delete_wf_run,
        subprocesses=[BulkJob.Subprocess(status=BulkJobStatus.BULK_JOB_RUNNING)],
        total_subprocesses=1,
    )
    work.rows.put(key_of(name), job)
    work.set_timer(_timer(name), work.now, BulkJobDue(name))
    return job


def _check(work: Work, deletion: BulkDeleteWfRun) -> None:
    if find_spec(work, deletion.wf_spec_name) is None:
        raise Invalid(f"Couldn't find WfSpec {deletion.wf_spec_name[:80]}", kind="bulk_job", spec=deletion.wf_spec_name)
    if deletion.wf_run_status not in TERMINAL:
        raise Invalid("a bulk job deletes runs that have ended", kind="bulk_job",
                      status=LHStatus.Name(deletion.wf_run_status),
                      hint="give wf_run_status COMPLETED, ERROR or EXCEPTION")  # fmt: skip
    try:
        ordered = deletion.earliest_start.ToMilliseconds() <= deletion.latest_start.ToMilliseconds()
    except ValueError as broken:
        raise Invalid("not an instant", kind="bulk_job", reason=broken) from None
    if not ordered:
        raise Invalid("the earliest start is behind the latest", kind="bulk_job")


def job_due(work: Work, request: BulkJobDue) -> None:
    """Delete the next runs of a job, and end it with the last ones."""
    job = work.rows.get(BulkJob, key_of(request.job_id))
    if job is None or job.status != BulkJobStatus.BULK_JOB_RUNNING:
        return
    deletion, step = job.bulk_delete_wf_run, job.subprocesses[0]
    times = deletion.earliest_start.ToMilliseconds(), deletion.latest_start.ToMilliseconds()
    paths = work.rows.runs(deletion.wf_spec_name, deletion.wf_run_status, times, BULK_RUNS_MAX)
    for path in paths:
        run = work.rows.get(WfRun, (path,))
        if run is not None:
            step.last_seen_key.CopyFrom(run.start_time)
        delete_run(work, DeleteWfRunRequest(id=run_id(path)))
    if len(paths) < BULK_RUNS_MAX:
        job.status = step.status = BulkJobStatus.BULK_JOB_COMPLETED
    else:
        work.set_timer(_timer(job.id), work.now + PAUSE_MS, request)
    work.rows.put(key_of(job.id), job)


def delete_job(work: Work, request: DeleteBulkJobRequest) -> Empty:
    """Forget a job that has ended. One that is gone is no error.

    Raises:
        Conflict: it runs.
    """
    job = work.rows.get(BulkJob, key_of(request.id))
    if job is not None and job.status == BulkJobStatus.BULK_JOB_RUNNING:
        raise Conflict("the bulk job runs", kind="failed_precondition", job=request.id.id, hint="wait for its end")
    work.rows.delete(BulkJob, key_of(request.id))
    return Empty()


def _timer(name: BulkJobId) -> Key:
    return ("bulk job", name.id)
