"""Questions about jobs, `api.Jobs`: by the client of Armada as installed, and by our own messages."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty

import millpond
from millpond.clock import SystemClock
from millpond.events.event import NewEvent
from millpond.events.job_ids import draw_job_id
from millpond.nodes.tokens import TokenFile, draw_token
from millpond.server.armada import queries_api
from millpond.server.armada.wire import armada_pb2 as pb
from tests.armada.conftest import PROGRAM, ArmadaServer, event, item, serving, status

QUEUED, RUNNING, UNKNOWN = pb.JobState.QUEUED, pb.JobState.RUNNING, pb.JobState.UNKNOWN


def states(server: ArmadaServer, *job_ids: str, **options: Any) -> dict[str, int]:
    request = pb.JobsRequest(job_ids=job_ids)
    return dict(server.call("api.Jobs/GetJobStatus", request, pb.JobStatusResponse, **options).job_states)


def details(server: ArmadaServer, *job_ids: str, **fields: Any) -> dict[str, pb.JobDetails]:
    request = pb.JobsRequest(job_ids=job_ids, **fields)
    return dict(server.call("api.Jobs/GetJobDetails", request, pb.JobDetailsResponse).job_details)


def test_the_client_asks_unmodified(server: ArmadaServer, armada_python: Path) -> None:
    command = [armada_python, PROGRAM, "asks", str(server.grpc_port)]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None and program.stdout is not None
        first, second = program.stdout.readline().split()
        at = b'{"clusterId": "here", "nodeName": "%s", "reason": "no disk"}'
        for job_id, node, kinds in ((first, b"n1", ("leased", "running", "failed")), (second, b"n2", ("running",))):
            server.append("p-asks", "night", *(event(kind, job_id, at % node) for kind in kinds))
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.wait(60) == 0


def test_what_is_answered_follows_the_events(server: ArmadaServer) -> None:
    queue = server.queue()
    (job_id,) = server.submit(queue, "set", item(annotations={"team": "etl"}))
    expected = [
        ("leased", pb.JobState.LEASED), ("pending", pb.JobState.PENDING), ("running", RUNNING),
        ("lease_returned", QUEUED), ("leased", pb.JobState.LEASED), ("running", RUNNING),
        ("succeeded", pb.JobState.SUCCEEDED),
    ]  # fmt: skip
    for kind, state in expected:
        server.append(queue, "set", event(kind, job_id))
        assert states(server, job_id) == {job_id: state}
    (found,) = details(server, job_id, expand_job_spec=True, expand_job_run=True).values()
    assert [run.state for run in found.job_runs] == [
        pb.JobRunState.RUNS_STATE_LEASE_RETURNED, pb.JobRunState.RUN_STATE_SUCCEEDED,
    ]  # fmt: skip
    assert found.latest_run_id == found.job_runs[1].run_id and found.job_spec.annotations == {"team": "etl"}
    (plain,) = details(server, job_id).values()
    assert not plain.job_runs and not plain.HasField("job_spec") and plain.state == pb.JobState.SUCCEEDED


def test_jobs_that_nobody_submitted_are_unknown(server: ArmadaServer) -> None:
    queue, other = server.queue(), draw_job_id(SystemClock())
    server.append(queue, "set", event("running", other))
    names = (other, "", "x" * 5_000, "01HF7YAT000000000000000002")
    assert states(server, *names) == dict.fromkeys(names, UNKNOWN)
    assert details(server, *names) == {}


def test_a_cancellation_says_by_whom_and_when(server: ArmadaServer) -> None:
    queue = server.queue()
    first, second = server.submit(queue, "set", item(), item())
    cancel = pb.JobCancelRequest(queue=queue, job_set_id="set", job_ids=[first])
    server.call("api.Submit/CancelJobs", cancel, pb.CancellationResult)
    found = details(server, first, second)
    assert found[first].state == pb.JobState.CANCELLED and found[first].HasField("cancel_ts")
    assert found[second].state == QUEUED and not found[second].HasField("cancel_ts")


def test_a_job_that_was_deleted_is_unknown(server: ArmadaServer) -> None:
    queue = server.queue()
    first, second = server.submit(queue, "set", item(external_job_uri="a"), item(external_job_uri="a"))
    server.append(queue, "set", event("succeeded", first))
    assert states(server, first, second) == {first: pb.JobState.SUCCEEDED, second: QUEUED}
    server.pond.events.delete(queue, "set", job=first)
    assert states(server, first, second) == {first: UNKNOWN, second: QUEUED}
    request = pb.JobOfUriRequest(queue=queue, jobset="set", external_job_uri="a")
    named = server.call("api.Jobs/GetJobStatusUsingExternalJobUri", request, pb.JobStatusResponse)
    assert list(named.job_states) == [second]


def test_a_token_learns_of_the_jobs_that_it_may_read(tmp_path: Path) -> None:
    folder = tmp_path / "pond"
    millpond.open(str(folder)).close()
    admin, reader = draw_token(SystemClock()), draw_token(SystemClock())
    file = TokenFile(folder)
    file.add("admin", admin, {"admin": ("*",)})
    file.add("reader", reader, {"read": ("stream:mine",)})
    with serving(folder, token=admin) as server:
        for queue in ("mine", "yours"):
            server.call("api.QueueService/CreateQueue", pb.Queue(name=queue, priority_factor=1), Empty)
        ((mine,), (yours,)) = (server.submit(queue, "set") for queue in ("mine", "yours"))
        metadata = (("authorization", f"Bearer {reader}"),)
        assert states(server, mine, yours) == {mine: QUEUED, yours: QUEUED}
        assert states(server, mine, yours, metadata=metadata) == {mine: QUEUED, yours: UNKNOWN}
        active = server.call("api.Jobs/GetActiveQueues", Empty(), pb.ActiveQueuesResponse, metadata=metadata)
        assert list(active.active_queues_by_pool["default"].queues) == ["mine"]
        uri = pb.JobOfUriRequest(queue="yours", jobset="set", external_job_uri="a")
        denied = status(
            server.call, "api.Jobs/GetJobStatusUsingExternalJobUri", uri, pb.JobStatusResponse, metadata=metadata
        )
        assert denied is grpc.StatusCode.PERMISSION_DENIED


def test_too_many_jobs_at_once_are_refused(server: ArmadaServer) -> None:
    request = pb.JobsRequest(job_ids=["a"] * (queries_api.JOBS_MAX + 1))
    for method in ("GetJobStatus", "GetJobDetails", "GetJobErrors"):
        refused = status(server.call, f"api.Jobs/{method}", request, Empty)
        assert refused is grpc.StatusCode.INVALID_ARGUMENT


def test_a_queue_is_active_while_a_job_of_it_has_not_ended(server: ArmadaServer) -> None:
    queue = server.queue()

    def is_active() -> bool:
        answer = server.call("api.Jobs/GetActiveQueues", Empty(), pb.ActiveQueuesResponse)
        return queue in answer.active_queues_by_pool["default"].queues

    assert not is_active()
    (job_id,) = server.submit(queue, "set")
    assert is_active()
    server.append(queue, "set", NewEvent(1_700_000_000_000, b"", "succeeded", {"job_id": job_id}))
    assert not is_active()


@pytest.mark.parametrize("payload", [b"", b"\xff\xff", b"{", b'{"reason": 7}'])
def test_a_payload_that_is_no_message_ends_no_question(server: ArmadaServer, payload: bytes) -> None:
    queue = server.queue()
    (job_id,) = server.submit(queue, "set")
    server.append(queue, "set", event("failed", job_id, payload))
    assert states(server, job_id) == {job_id: pb.JobState.FAILED}
