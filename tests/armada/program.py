"""A program of a user of Armada: it knows its public client, and nothing of Millpond. Not run by pytest.

    python program.py SCENARIO PORT [TOKEN]

Each scenario is a function of this module; it fails by an assertion.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from datetime import timedelta
from typing import Any

import grpc
from armada_client.armada import job_pb2, submit_pb2
from armada_client.asyncio_client import ArmadaAsyncIOClient
from armada_client.client import ArmadaClient
from armada_client.k8s.io.api.core.v1 import generated_pb2 as core_v1
from armada_client.k8s.io.apimachinery.pkg.api.resource import generated_pb2 as api_resource
from armada_client.permissions import Permissions, Subject
from armada_client.typings import JobState

POD = core_v1.PodSpec(
    containers=[
        core_v1.Container(
            name="main",
            image="busybox",
            args=["sleep", "10"],
            resources=core_v1.ResourceRequirements(requests={"cpu": api_resource.Quantity(string="120m")}),
        )
    ]
)


def connect(port: str, metadata: tuple[tuple[str, str], ...] = (), **options: Any) -> ArmadaClient:
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    if metadata:
        channel = grpc.intercept_channel(channel, _Metadata(metadata))
    return ArmadaClient(channel, **options)


class _Metadata(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Metadata with every call, as users add credentials where there is no TLS."""

    def __init__(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._metadata = metadata

    def _call(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(details._replace(metadata=self._metadata), request)

    intercept_unary_unary = intercept_unary_stream = _call


def items(client: ArmadaClient, count: int, **fields: Any) -> list[Any]:
    return [
        client.create_job_request_item(priority=1, namespace="default", pod_spec=POD, **fields) for _ in range(count)
    ]


def take(client: ArmadaClient, stream: Any, count: int) -> list[Any]:
    return [client.unmarshal_event_response(next(stream)) for _ in range(count)]


def kinds(events: list[Any]) -> list[str]:
    return [event.type.value for event in events]


def fails(code: grpc.StatusCode, call: Any, *arguments: Any, **options: Any) -> str:
    try:
        call(*arguments, **options)
    except grpc.RpcError as error:
        if error.code() is not code:
            raise AssertionError(error.code(), error.details()) from error
        return error.details()
    raise AssertionError("it did not fail")


def queues(port: str) -> None:
    client = connect(port)
    permissions = Permissions(subjects=[Subject(kind="User", name="alice")], verbs=["watch"])
    queue = client.create_queue_request(name="p-queues", priority_factor=2, permissions=[permissions])
    client.create_queue(queue)
    fails(grpc.StatusCode.ALREADY_EXISTS, client.create_queue, queue)
    found = client.get_queue("p-queues")
    assert found == queue, found
    client.update_queue(client.create_queue_request(name="p-queues", priority_factor=3))
    assert client.get_queue("p-queues").priority_factor == 3
    fails(grpc.StatusCode.NOT_FOUND, client.update_queue, client.create_queue_request(name="p-none", priority_factor=1))
    fails(grpc.StatusCode.INVALID_ARGUMENT, client.create_queue, submit_pb2.Queue(name="p-x", priority_factor=0.5))
    batch = client.create_queues([queue, client.create_queue_request(name="p-second", priority_factor=1)])
    assert [failed.queue.name for failed in batch.failed_queues] == ["p-queues"]
    listed = [queue.name for queue in client.get_queues()]
    assert {"p-queues", "p-second"} <= set(listed), listed
    client.delete_queue("p-queues")
    fails(grpc.StatusCode.NOT_FOUND, client.get_queue, "p-queues")


def submits(port: str) -> None:
    client = connect(port)
    client.create_queue(client.create_queue_request(name="p-submits", priority_factor=1))
    answer = client.submit_jobs("p-submits", "night/1", items(client, 3))
    ids = [response.job_id for response in answer.job_response_items]
    assert len(set(ids)) == 3 and all(len(job_id) == 26 and job_id.islower() for job_id in ids)
    # No wait and no retry: what was answered can be watched.
    stream = client.get_job_events_stream("p-submits", "night/1")
    events = take(client, stream, 6)
    assert kinds(events) == ["submitted", "queued"] * 3
    assert [event.message.job_id for event in events[::2]] == ids
    job = events[0].message.job
    assert job.pod_spec == POD and job.id == ids[0] and job.queue == "p-submits" and job.job_set_id == "night/1"
    assert events[0].message.created == events[1].message.created
    assert client.cancel_jobs("p-submits", "night/1", job_id=ids[0]).cancelled_ids == [ids[0]]
    assert kinds(take(client, stream, 2)) == ["cancelling", "cancelled"]
    again = client.get_job_events_stream("p-submits", "night/1", from_message_id=events[2].id)
    assert [event.id for event in take(client, again, 3)] == [event.id for event in events[3:]]
    client.unwatch_events(stream)
    client.unwatch_events(again)
    assert not list(stream), "a stream that was given up has no more events"


def asks(port: str) -> None:
    """All questions of `api.Jobs`; a line on standard input says that the runner has appended its events."""
    client = connect(port)
    client.create_queue(client.create_queue_request(name="p-asks", priority_factor=1))
    uri = {"armadaproject.io/externalJobUri": "dag/task/1"}
    (first,) = client.submit_jobs("p-asks", "night", items(client, 1, annotations=uri)).job_response_items
    (second,) = client.submit_jobs("p-asks", "night", items(client, 1)).job_response_items
    ids = [first.job_id, second.job_id]
    assert client.get_job_status(ids).job_states == dict.fromkeys(ids, JobState.QUEUED.value)
    assert list(client.get_job_status_by_external_job_uri("p-asks", "night", "dag/task/1").job_states) == ids[:1]
    assert not client.get_job_status_by_external_job_uri("p-asks", "night", "dag/task/2").job_states
    print(*ids, flush=True)
    sys.stdin.readline()
    states = client.get_job_status([*ids, "nobody"]).job_states
    assert states == {ids[0]: JobState.FAILED.value, ids[1]: JobState.RUNNING.value, "nobody": JobState.UNKNOWN.value}
    details = client.get_job_details(ids).job_details
    assert sorted(details) == sorted(ids) and details[ids[0]].namespace == "default"
    (failed,), (running,) = details[ids[0]].job_runs, details[ids[1]].job_runs
    assert (failed.cluster, failed.node, running.cluster, running.node) == ("here", "n1", "here", "n2")
    assert failed.HasField("finished_ts") and not running.HasField("finished_ts")
    assert dict(client.get_job_errors(ids).job_errors) == {ids[0]: "no disk", ids[1]: ""}
    runs = client.get_job_run_details([failed.run_id, running.run_id, "nobody"]).job_run_details
    assert runs == {failed.run_id: failed, running.run_id: running}
    assert (
        "p-asks"
        in client.job_stub.GetActiveQueues(job_pb2.GetActiveQueuesRequest()).active_queues_by_pool["default"].queues
    )


def changes(port: str) -> None:
    client = connect(port)
    client.create_queue(client.create_queue_request(name="p-changes", priority_factor=1))
    answer = client.submit_jobs("p-changes", "set", items(client, 4))
    ids = [response.job_id for response in answer.job_response_items]
    results = client.reprioritize_jobs(5.0, job_ids=[ids[0]], job_set_id="set", queue="p-changes")
    assert dict(results.reprioritization_results) == {ids[0]: ""}
    whole = client.reprioritize_jobs(6.0, job_ids=None, job_set_id="set", queue="p-changes")
    assert dict(whole.reprioritization_results) == {"all jobs in job set set": ""}
    preempted = client.preempt_jobs("p-changes", "set", ids[1])
    assert dict(preempted.preemption_results) == {ids[1]: ""}
    client.cancel_jobset("p-changes", "set", [JobState.QUEUED])
    stream = client.get_job_events_stream("p-changes", "set")
    found = take(client, stream, 8 + 2 + 8 + 2 + 6)
    assert kinds(found)[8:10] == ["reprioritizing", "reprioritized"] and found[9].message.new_priority == 5.0
    assert kinds(found)[18:20] == ["preempting", "preempted"]
    assert [event.message.job_id for event in found[20::2]] == [ids[0], ids[2], ids[3]]
    assert kinds(found)[20:] == ["cancelling", "cancelled"] * 3
    client.unwatch_events(stream)


def errors(port: str) -> None:
    client = connect(port)
    client.create_queue(client.create_queue_request(name="p-errors", priority_factor=1))
    fails(grpc.StatusCode.NOT_FOUND, next, client.get_job_events_stream("p-errors", "none"))
    fails(grpc.StatusCode.NOT_FOUND, next, client.get_job_events_stream("p-nothing", "none"))
    fails(grpc.StatusCode.PERMISSION_DENIED, client.submit_jobs, "p-nothing", "set", items(client, 1))
    client.submit_jobs("p-errors", "set", items(client, 1))
    fails(grpc.StatusCode.INVALID_ARGUMENT, next, client.get_job_events_stream("p-errors", "set", "no-id"))
    bare = submit_pb2.JobSubmitRequestItem(priority=1, namespace="default")
    fails(grpc.StatusCode.INVALID_ARGUMENT, client.submit_jobs, "p-errors", "set", [bare])
    fails(grpc.StatusCode.INVALID_ARGUMENT, client.get_job_status, ["x"] * 10_001)


def resumes(port: str) -> None:
    """A client that hears nothing for its timeout calls again from the last id, and loses nothing."""
    client = connect(port, event_timeout=timedelta(seconds=1))
    client.create_queue(client.create_queue_request(name="p-resumes", priority_factor=1))
    client.submit_jobs("p-resumes", "set", items(client, 1))
    stream = client.get_job_events_stream("p-resumes", "set")
    first = take(client, stream, 2)
    print(first[-1].id, flush=True)
    sys.stdin.readline()  # longer than the timeout
    client.submit_jobs("p-resumes", "set", items(client, 1))
    assert kinds(take(client, stream, 2)) == ["submitted", "queued"]
    client.unwatch_events(stream)


def deduplicates(port: str) -> None:
    client = connect(port)
    client.create_queue(client.create_queue_request(name="p-dedup", priority_factor=1))
    first = client.submit_jobs("p-dedup", "set", items(client, 1, client_id="mine"))
    second = client.submit_jobs("p-dedup", "set", items(client, 1, client_id="mine"))
    assert [item.job_id for item in first.job_response_items] == [item.job_id for item in second.job_response_items]
    client.submit_jobs("p-dedup", "set", items(client, 1))
    stream = client.get_job_events_stream("p-dedup", "set")
    events = take(client, stream, 4)
    assert len({event.message.job_id for event in events}) == 2
    client.unwatch_events(stream)


def with_asyncio(port: str) -> None:
    async def run() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            client = ArmadaAsyncIOClient(channel)
            assert (await client.submit_health()).status == (await client.event_health()).status == 1
            await client.create_queue(client.create_queue_request(name="p-async", priority_factor=1))
            await client.submit_jobs("p-async", "set", items(client, 2))
            stream = await client.get_job_events_stream("p-async", "set")
            found = []
            async for message in stream:
                found.append(client.unmarshal_event_response(message))
                if len(found) == 4:
                    break
            client.unwatch_events(stream)
            assert kinds(found) == ["submitted", "queued"] * 2

    asyncio.run(run())


def credentials(port: str, token: str) -> None:
    fails(grpc.StatusCode.UNAUTHENTICATED, connect(port).get_queue, "etl")
    basic = base64.b64encode(f"runner:{token}".encode()).decode()
    for authorization in (f"Bearer {token}", f"Basic {basic}"):
        client = connect(port, (("authorization", authorization),))
        assert client.get_queue("etl").name == "etl"
        answer = client.submit_jobs("etl", "night-1", items(client, 1))
        events = take(client, client.get_job_events_stream("etl", "night-1"), 1)
        assert events[0].message.job.owner == "runner" and answer.job_response_items[0].job_id
        fails(grpc.StatusCode.PERMISSION_DENIED, client.submit_jobs, "etl", "day-1", items(client, 1))
        fails(grpc.StatusCode.PERMISSION_DENIED, next, client.get_job_events_stream("etl", "day-1"))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
