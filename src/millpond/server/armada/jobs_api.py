"""`api.Submit`: jobs are submitted, cancelled, preempted and given other priorities: each appends to the job set.

Each changes what the stream says, and nothing else. A job that has ended, or is not in the job set, is left as it is.
The reason of a cancellation is in the audit log, not in the events: those who watch a job set need not know it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from millpond.error_values import shown
from millpond.errors import Denied, Invalid, NotFound
from millpond.events.event import BATCH_EVENTS_MAX, NewEvent
from millpond.events.jobs.active import JobState
from millpond.events.jobs.submissions import NewJob
from millpond.events.names import JOB_SET_CHARS_MAX, StreamName
from millpond.server.armada.events_api import serving
from millpond.server.armada.means import Means
from millpond.server.armada.messages import job_event
from millpond.server.armada.wire import armada_pb2 as pb
from millpond.server.routes.table import On
from millpond.server.rpc.dispatch import Call, Row, method
from millpond.server.stream_rights import need_stream

__all__ = ("JOB_ROWS",)

CLIENT_ID_CHARS_MAX = 100
JOBS_MAX = BATCH_EVENTS_MAX // 2
"""Jobs of one submission: their events are one batch."""
POD_SPEC_BYTES_MAX = 65_535
REASON_BYTES_MAX = 50
EXTERNAL_JOB_URI = "armadaproject.io/externalJobUri"
"""The annotation with the name that a client has for a job elsewhere, where the field of the request is empty."""
URI_CHARS_MAX = 1024
_FILTERS = {
    pb.JobState.QUEUED: {JobState.QUEUED},
    pb.JobState.PENDING: {JobState.LEASED, JobState.PENDING},
    pb.JobState.RUNNING: {JobState.RUNNING},
}


# -- submissions --------------------------------------------------------------------------------------


def _submit(call: Call[Means], request: pb.JobSubmitRequest) -> pb.JobSubmitResponse:
    stream = _stream(call, request.queue, request.job_set_id)
    try:
        call.service.queues.get(stream.queue)
    except NotFound as error:
        # The status that clients know for it.
        raise Denied(
            "there is no such queue", kind="queue_not_created", queue=shown(stream.queue), hint="create it first"
        ) from error
    if len(request.job_request_items) > JOBS_MAX:
        raise Invalid(
            "the submission has too many jobs", kind="submission_size", jobs=len(request.job_request_items),
            jobs_max=JOBS_MAX, hint="submit fewer at once",
        )  # fmt: skip
    now_ms = call.service.node.clock.now_ms()
    jobs = [_new_job(item, position, now_ms, call.user) for position, item in enumerate(request.job_request_items)]
    ids = call.service.submissions.submit(stream, jobs)
    call.notes["jobs"] = len(ids)
    response = pb.JobSubmitResponse()
    for job_id in ids:
        response.job_response_items.add(job_id=job_id)
    return response


def _new_job(item: pb.JobSubmitRequestItem, position: int, now_ms: int, owner: str) -> NewJob:
    _check_item(item, position)
    job = pb.Job(
        priority=item.priority, pod_spec=item.pod_spec if item.HasField("pod_spec") else item.pod_specs[0],
        namespace=item.namespace, labels=item.labels, annotations=item.annotations,
        required_node_labels=item.required_node_labels, client_id=item.client_id, ingress=item.ingress,
        services=item.services, scheduler=item.scheduler, owner=owner,
    )  # fmt: skip
    if item.external_job_uri:
        job.annotations[EXTERNAL_JOB_URI] = item.external_job_uri
    submitted = pb.Submitted(job=job)

    def events(job_id: str) -> Sequence[NewEvent]:
        return job_event("submitted", job_id, now_ms, submitted), job_event("queued", job_id, now_ms)

    return NewJob(events, item.client_id, job.annotations.get(EXTERNAL_JOB_URI, ""))


def _check_item(item: pb.JobSubmitRequestItem, position: int) -> None:
    specs = len(item.pod_specs) + item.HasField("pod_spec")
    size = sum(map(len, item.pod_specs)) + len(item.pod_spec)
    problem = None
    if specs != 1:
        problem = f"it has {specs} pod specs, and needs one"
    elif size > POD_SPEC_BYTES_MAX:
        problem = f"its pod spec has {size} bytes, and at most {POD_SPEC_BYTES_MAX} are taken"
    elif not item.namespace:
        problem = "it has no namespace"
    elif len(item.client_id) > CLIENT_ID_CHARS_MAX:
        problem = f"its client id has more than {CLIENT_ID_CHARS_MAX} characters"
    elif len(item.external_job_uri or item.annotations.get(EXTERNAL_JOB_URI, "")) > URI_CHARS_MAX:
        problem = f"its external URI has more than {URI_CHARS_MAX} characters"
    if problem is not None:
        raise Invalid(f"a job cannot be submitted: {problem}", kind="job_invalid", place=position)


# -- changes of active jobs ---------------------------------------------------------------------------


def _cancel(call: Call[Means], request: pb.JobCancelRequest) -> pb.CancellationResult:
    stream = _stream(call, request.queue, request.job_set_id)
    _check_reason(call, request.reason)
    job_ids = [*request.job_ids, *([request.job_id] if request.job_id else [])]
    change = pb.Cancellation(requestor=call.user)
    cancelled = _append(call, stream, job_ids or None, ("cancelling", "cancelled"), change)
    return pb.CancellationResult(cancelled_ids=cancelled)


def _cancel_set(call: Call[Means], request: pb.JobSetCancelRequest) -> Empty:
    stream = _stream(call, request.queue, request.job_set_id)
    _check_reason(call, request.reason)
    states = _states(request.filter.states)
    change = pb.Cancellation(requestor=call.user)
    _append(call, stream, None, ("cancelling", "cancelled"), change, lambda state: state in states)
    return Empty()


def _states(filtered: Iterable[Any]) -> set[JobState]:
    """The states of a filter; all of them where it names none."""
    states = set(filtered)
    unknown = states - set(_FILTERS)
    if unknown or (pb.JobState.PENDING in states) != (pb.JobState.RUNNING in states):
        raise Invalid(
            "the filter of states is not understood", kind="job_states", states=", ".join(map(str, sorted(states))),
            hint="QUEUED, or PENDING and RUNNING together, or all three",
        )  # fmt: skip
    return {state for name in states or set(_FILTERS) for state in _FILTERS[name]}


def _reprioritize(call: Call[Means], request: pb.JobReprioritizeRequest) -> pb.JobReprioritizeResponse:
    stream = _stream(call, request.queue, request.job_set_id)
    change = pb.Reprioritization(new_priority=request.new_priority, requestor=call.user)
    job_ids = list(request.job_ids) or None
    changed = set(_append(call, stream, job_ids, ("reprioritizing", "reprioritized"), change))
    if job_ids is None:
        return pb.JobReprioritizeResponse(reprioritization_results={f"all jobs in job set {stream.job_set}": ""})
    return pb.JobReprioritizeResponse(reprioritization_results=_results(job_ids, changed))


def _preempt(call: Call[Means], request: pb.JobPreemptRequest) -> pb.PreemptionResult:
    stream = _stream(call, request.queue, request.job_set_id)
    _check_reason(call, request.reason)
    job_ids = list(request.job_ids)
    change = pb.Cancellation(requestor=call.user)
    ended = pb.Preempted(requestor=call.user)
    preempted = set(_append(call, stream, job_ids, ("preempting", "preempted"), change, last=ended))
    return pb.PreemptionResult(preemption_results=_results(job_ids, preempted))


def _results(job_ids: Iterable[str], changed: set[str]) -> Mapping[str, str]:
    return {job_id: "" if job_id in changed else "the job is not active in the job set" for job_id in job_ids}


def _append(
    call: Call[Means], stream: StreamName, job_ids: Sequence[str] | None, kinds: tuple[str, str], change: Message,
    of_state: Callable[[JobState], bool] = lambda _: True, *, last: Message | None = None,
) -> list[str]:  # fmt: skip
    """Append two events for each active job of some, or of all in a state; the jobs."""
    means = call.service
    means.need_queue(stream.queue)
    now_ms, (first, second) = means.node.clock.now_ms(), kinds

    def chosen(active: Mapping[str, JobState]) -> list[str]:
        jobs = active if job_ids is None else dict.fromkeys(job_id for job_id in job_ids if job_id in active)
        return [job_id for job_id in jobs if of_state(active[job_id])]

    def events(job_id: str) -> Sequence[NewEvent]:
        return job_event(first, job_id, now_ms, change), job_event(second, job_id, now_ms, last or change)

    jobs = means.active.change(stream, chosen, events)
    call.notes["jobs"] = len(jobs)
    return jobs


def _stream(call: Call[Means], queue: str, job_set: str) -> StreamName:
    """The stream of a request, to which the caller may append."""
    if not queue or not job_set or len(job_set) > JOB_SET_CHARS_MAX:
        raise Invalid(
            "a queue and a job set are named", kind="job_set_name", queue=shown(queue), job_set=shown(job_set),
            chars_max=JOB_SET_CHARS_MAX,
        )  # fmt: skip
    stream = StreamName(queue, job_set).check()
    call.notes |= stream._asdict()
    need_stream(call.caller, call.right, stream)
    return stream


def _check_reason(call: Call[Means], reason: str) -> None:
    if len(reason.encode()) > REASON_BYTES_MAX:
        raise Invalid(
            "the reason is too long", kind="job_reason", bytes=len(reason.encode()), bytes_max=REASON_BYTES_MAX
        )
    if reason:
        call.notes["reason"] = reason


_CHANGE: Final = method("write", On.STREAM, audited=True)
JOB_ROWS: Final[dict[str, Row[Means, Any]]] = {
    "SubmitJobs": Row(pb.JobSubmitRequest, _submit, _CHANGE),
    "CancelJobs": Row(pb.JobCancelRequest, _cancel, _CHANGE),
    "CancelJobSet": Row(pb.JobSetCancelRequest, _cancel_set, _CHANGE),
    "ReprioritizeJobs": Row(pb.JobReprioritizeRequest, _reprioritize, _CHANGE),
    "PreemptJobs": Row(pb.JobPreemptRequest, _preempt, _CHANGE),
    "Health": Row(Empty, serving, method(None, On.TOKEN)),
}
"""The methods of jobs."""
