"""Bulk jobs: one request deletes many runs that have ended, some at a time, so that other commands come between.

    create ─▶ due, on each partition ─▶ the next runs, deleted ─▶ stepped ─▶ due … ─▶ stepped ─▶ completed
                                                                where definitions are

Invariants:
* A job has a part for each partition with runs, and has ended when all have; the row where definitions are shows all.
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
from millpond.workflows.engine.commands import BulkJobDue, BulkJobStepped
from millpond.workflows.engine.keys import Key, check_name, key_of, run_id
from millpond.workflows.engine.limits import BULK_RUNS_MAX
from millpond.workflows.engine.outcome import CommandCaused
from millpond.workflows.engine.run_commands import delete_run
from millpond.workflows.engine.runs import TERMINAL
from millpond.workflows.engine.work import Work, find_spec

__all__ = ("PAUSE_MS", "create_job", "delete_job", "job_due", "job_stepped")

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
    number, total = work.rows.below.share
    running = BulkJobStatus.BULK_JOB_RUNNING
    job = BulkJob(
        id=name,
        created_at=work.instant(),
        status=running,
        bulk_delete_wf_run=request.bulk_delete_wf_run,
        subprocesses=[BulkJob.Subprocess(id=part, status=running) for part in range(1, total + 1)],
        total_subprocesses=total,
    )
    work.rows.put(key_of(name), job)
    if number > 0:
        work.set_timer(_timer(name), work.now, BulkJobDue(name))
    return job


def _check(work: Work, deletion: BulkDeleteWfRun) -> None:
    if find_spec(work, deletion.wf_spec_name) is None:
        raise Invalid(f"Couldn't find WfSpec {deletion.wf_spec_name[:80]}", kind="bulk_job", spec=deletion.wf_spec_name)
    if deletion.wf_run_status not in TERMINAL:
        raise Invalid("a bulk job deletes runs that have ended", kind="bulk_job",
                      status=LHStatus.Name(deletion.wf_run_status),
                      hint="those in COMPLETED, ERROR or EXCEPTION")  # fmt: skip
    try:
        ordered = deletion.earliest_start.ToMilliseconds() <= deletion.latest_start.ToMilliseconds()
    except ValueError as broken:
        raise Invalid("not an instant", kind="bulk_job", reason=broken) from None
    if not ordered:
        raise Invalid("the earliest start is behind the latest", kind="bulk_job")


def job_due(work: Work, request: BulkJobDue) -> None:
    """Delete the next runs of a job here, and end its part with the last ones."""
    job = work.rows.get(BulkJob, key_of(request.job_id))
    if job is None or job.status != BulkJobStatus.BULK_JOB_RUNNING:
        return
    number, _ = work.rows.below.share
    deletion, part = job.bulk_delete_wf_run, job.subprocesses[number - 1]
    part.id = number
    times = deletion.earliest_start.ToMilliseconds(), deletion.latest_start.ToMilliseconds()
    paths, _ = work.rows.below.runs(deletion.wf_spec_name, deletion.wf_run_status, BULK_RUNS_MAX, times=times)
    for path in paths:
        run = work.rows.get(WfRun, (path,))
        if run is not None:
            part.last_seen_key.CopyFrom(run.start_time)
        delete_run(work, DeleteWfRunRequest(id=run_id(path)))
    if len(paths) < BULK_RUNS_MAX:
        job.status = part.status = BulkJobStatus.BULK_JOB_COMPLETED
    else:
        work.set_timer(_timer(job.id), work.now + PAUSE_MS, request)
    work.rows.put(key_of(job.id), job)
    work.cause(CommandCaused(None, BulkJobStepped(job.id, part)))


def job_stepped(work: Work, request: BulkJobStepped) -> None:
    """Note what a partition has done of a job, and end the job with the last part."""
    job = work.rows.get(BulkJob, key_of(request.job_id))
    if job is None:
        return
    job.subprocesses[request.part.id - 1].CopyFrom(request.part)
    if all(part.status == BulkJobStatus.BULK_JOB_COMPLETED for part in job.subprocesses):
        job.status = BulkJobStatus.BULK_JOB_COMPLETED
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
