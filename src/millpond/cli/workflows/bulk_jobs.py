"""`millpond bulk-job`: how far deletions of many runs are."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.workflows.server import RUNS, TENANT, every_result, plain_message
from millpond.workflows.deferred import protocol
from millpond.workflows.named import fetch

__all__ = ("delete", "list_jobs")

_PAGE = 1_000


@verb("bulk-job list", "millpond bulk-job list", "millpond bulk-job list --json", on=RUNS)
def list_jobs(call: Any) -> console.Shown:
    """List the jobs that `run delete-many` began: the runs that they delete, and if they have ended."""
    names = every_result(call, "SearchBulkJob", protocol.SearchBulkJobRequest(limit=_PAGE))
    rows = [call("GetBulkJob", protocol.GetBulkJobRequest(id=name)) for name in names]
    return console.table(
        (plain_message(row) for row in rows),
        ["job", "workflow", "runs in", "status", "began"],
        [
            [row.id.id, row.bulk_delete_wf_run.wf_spec_name,
             protocol.LHStatus.Name(row.bulk_delete_wf_run.wf_run_status),
             protocol.BulkJobStatus.Name(row.status).removeprefix("BULK_JOB_"),
             row.created_at.ToJsonString().replace("T", " ")[:19]]
            for row in rows
        ]
    )  # fmt: skip


@verb("bulk-job delete", "millpond bulk-job delete 1f0a", on=TENANT)
def delete(
    call: Any,
    name: Annotated[str, typer.Argument(metavar="JOB", help="The id of the job.")],
) -> console.Shown:
    """Forget a job that has ended."""
    job = protocol.BulkJobId(id=name)
    fetch(call, "GetBulkJob", protocol.GetBulkJobRequest(id=job), "bulk-job", name)
    call("DeleteBulkJob", protocol.DeleteBulkJobRequest(id=job))
    return console.done("deleted", name)
