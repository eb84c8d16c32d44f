"""`api.Jobs`: the status, details, runs and errors of jobs, answered from their events.

A job is found by the row that its submission noted. A job that nobody submitted here, or whose events are gone, and one
that the caller may not read, is UNKNOWN in a status, and left out of other answers: nobody learns whether it is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.empty_pb2 import Empty

from millpond.errors import Invalid, Unavailable
from millpond.events.jobs.active import ActiveJobs
from millpond.events.names import StreamName
from millpond.kernel.patience import patiently
from millpond.server.armada.job_records import JobRecord, run_of
from millpond.server.armada.means import Means
from millpond.server.armada.wire import armada_pb2 as pb
from millpond.server.routes.table import On
from millpond.server.rpc.dispatch import Call, Row, method
from millpond.server.stream_rights import may_see_queue, may_stream, need_stream

__all__ = ("QUERY_ROWS",)

JOBS_MAX = 10_000
"""The jobs, or runs, of one request."""
ACTIVE_STREAMS_MAX = 10_000
"""The job sets that are looked at for queues with active jobs."""
POOL = "default"
"""The pool of all jobs: Millpond places none."""


def _status(call: Call[Means], request: pb.JobsRequest) -> pb.JobStatusResponse:
    records = _records(call, request.job_ids)
    return pb.JobStatusResponse(job_states={job_id: _state(records.get(job_id)) for job_id in request.job_ids})


def _status_of_uri(call: Call[Means], request: pb.JobOfUriRequest) -> pb.JobStatusResponse:
    stream = StreamName(request.queue, request.jobset).check()
    need_stream(call.caller, call.right, stream)
    ids = call.service.records.named(stream, request.external_job_uri) if request.external_job_uri else []
    records = _records(call, ids[-JOBS_MAX:])
    return pb.JobStatusResponse(job_states={job_id: _state(record) for job_id, record in records.items()})


def _details(call: Call[Means], request: pb.JobsRequest) -> pb.JobDetailsResponse:
    response = pb.JobDetailsResponse()
    for job_id, record in _records(call, request.job_ids).items():
        details = response.job_details[job_id]
        details.CopyFrom(record.details)
        if not request.expand_job_spec:
            details.ClearField("job_spec")
        if not request.expand_job_run:
            details.ClearField("job_runs")
    return response


def _runs(call: Call[Means], request: pb.JobRunsRequest) -> pb.JobRunsResponse:
    jobs = {run_id: run_of(run_id) for run_id in request.run_ids}
    records = _records(call, [job_id for job_id in jobs.values() if job_id])
    response = pb.JobRunsResponse()
    for run_id, job_id in jobs.items():
        for run in records[job_id].details.job_runs if job_id in records else ():
            if run.run_id == run_id:
                response.job_run_details[run_id].CopyFrom(run)
    return response


def _errors(call: Call[Means], request: pb.JobsRequest) -> pb.JobErrorsResponse:
    records = _records(call, request.job_ids)
    return pb.JobErrorsResponse(job_errors={job_id: record.error for job_id, record in records.items()})


def _active_queues(call: Call[Means], _: Empty) -> pb.ActiveQueuesResponse:
    means, queues, room = call.service, [], ACTIVE_STREAMS_MAX
    after: str | None = None
    while page := means.queues.list(after, limit=1_000):
        for name in (queue.name for queue in patiently(page) if may_see_queue(call.caller, queue.name)):
            streams = means.events.store.streams(name, limit=room + 1)
            if len(streams) > room:
                raise Unavailable(
                    "there are too many job sets to look for active jobs", kind="active_queues",
                    job_sets_max=ACTIVE_STREAMS_MAX, hint="ask for the status of jobs",
                )  # fmt: skip
            room -= len(streams)
            readable = (stream for stream in patiently(streams) if may_stream(call.caller, "read", stream))
            if any(_is_active(means.active, stream) for stream in readable):
                queues.append(name)
        after = page[-1].name
    return pb.ActiveQueuesResponse(active_queues_by_pool={POOL: pb.ActiveQueues(queues=queues)} if queues else {})


def _is_active(jobs: ActiveJobs, stream: StreamName) -> bool:
    with jobs.of(stream) as active:
        return bool(active)


def _records(call: Call[Means], job_ids: Iterable[str]) -> dict[str, JobRecord]:
    """The records of those jobs which the caller may read."""
    ids = list(job_ids)
    if len(ids) > JOBS_MAX:
        raise Invalid(
            "the request is about too many jobs", kind="jobs_asked", jobs=len(ids), jobs_max=JOBS_MAX,
            hint="ask for fewer at once",
        )  # fmt: skip
    records = call.service.records
    locations = records.locations(ids).items()
    return records.of({id_: job for id_, job in locations if may_stream(call.caller, "read", job.stream)})


def _state(record: JobRecord | None) -> Any:
    return pb.JobState.UNKNOWN if record is None else record.details.state


_READ: Final = method("read", On.SHOWN_STREAMS)
QUERY_ROWS: Final[dict[str, Row[Means, Any]]] = {
    "GetJobStatus": Row(pb.JobsRequest, _status, _READ),
    "GetJobStatusUsingExternalJobUri": Row(pb.JobOfUriRequest, _status_of_uri, method("read", On.STREAM)),
    "GetJobDetails": Row(pb.JobsRequest, _details, _READ),
    "GetJobRunDetails": Row(pb.JobRunsRequest, _runs, _READ),
    "GetJobErrors": Row(pb.JobsRequest, _errors, _READ),
    "GetActiveQueues": Row(Empty, _active_queues, _READ),
}
"""The questions about jobs."""
