"""Behaviours that clients of Armada rely on, each by its name. Those of storage are in the contract of streams."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from grpc_health.v1 import health_pb2

from millpond.server.armada.messages import KINDS
from millpond.server.armada.wire import armada_pb2 as pb
from millpond.server.rpc.serving import SERVICES
from tests.armada.conftest import ArmadaServer, event, item, status

NOT_FOUND = grpc.StatusCode.NOT_FOUND
LIFE = (event("submitted"), event("queued"), event("leased"), event("pending"), event("running"), event("succeeded"))


@pytest.fixture
def queue(server: ArmadaServer) -> str:
    return server.queue()


def test_health_is_serving(server: ArmadaServer) -> None:
    for service in ("Event", "Submit"):
        answer = server.call(f"api.{service}/Health", Empty(), pb.HealthCheckResponse)
        assert answer.status == pb.HealthCheckResponse.SERVING
    for name in ("", *SERVICES):
        check = server.call(
            "grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest(service=name), pb.HealthCheckResponse
        )
        assert check.status == pb.HealthCheckResponse.SERVING


def test_an_unknown_queue_is_not_found(server: ArmadaServer) -> None:
    assert status(server.events, "nobody-made-it", "set") is NOT_FOUND
    assert status(server.events, "nobody-made-it", "set", watch=True) is NOT_FOUND


@pytest.mark.parametrize("missing", [True, False])
@pytest.mark.parametrize("exists", [True, False])
def test_error_if_missing(server: ArmadaServer, queue: str, *, missing: bool, exists: bool) -> None:
    if exists:
        server.append(queue, "set", event("queued"))
    if missing and not exists:
        assert status(server.events, queue, "set", errorIfMissing=True) is NOT_FOUND
        return
    assert len(server.stored(queue, "set", errorIfMissing=missing)) == exists


def test_a_stream_of_a_queue_that_was_deleted_can_be_read(server: ArmadaServer, queue: str) -> None:
    server.append(queue, "set", event("queued"))
    server.call("api.QueueService/DeleteQueue", pb.QueueName(name=queue), Empty)
    assert len(server.stored(queue, "set")) == 1


def test_events_are_read_in_order_from_the_start_and_after_every_id(server: ArmadaServer, queue: str) -> None:
    ids = server.append(queue, "set", *LIFE)
    everything = server.stored(queue, "set")
    assert everything == list(zip(ids, [found.kind for found in LIFE], strict=True))
    for number, id_ in enumerate(ids):
        assert server.stored(queue, "set", id_) == everything[number + 1 :]
    assert server.stored(queue, "set", ids[-1]) == []


def test_ids_that_are_none_are_invalid(server: ArmadaServer, queue: str) -> None:
    for id_ in ("foo", "1", "1:1:1", ":::", "0", "ffffffffffffffff", "1:2:3:0"):
        assert status(server.events, queue, "set", id_) is grpc.StatusCode.INVALID_ARGUMENT


def test_reading_fills_in_the_queue_the_job_set_the_job_and_the_time(server: ArmadaServer, queue: str) -> None:
    server.append(queue, "set", *(event(kind, "j-1") for kind in sorted(KINDS)))
    for found in server.events(queue, "set"):
        inner = getattr(found.message, str(found.message.WhichOneof("events")))
        assert (inner.queue, inner.job_set_id, inner.job_id) == (queue, "set", "j-1")
        assert (inner.created.seconds, inner.created.nanos) == (1_700_000_000, 123_000_000)


def test_submitting_gives_submitted_then_queued_with_one_time(server: ArmadaServer, queue: str) -> None:
    (job_id,) = server.submit(queue, "set", item(labels={"a": "b"}, priority=7))
    submitted, queued = (found.message for found in server.events(queue, "set"))
    assert (submitted.submitted.job_id, queued.queued.job_id) == (job_id, job_id)
    assert submitted.submitted.created == queued.queued.created
    job = submitted.submitted.job
    assert (job.id, job.queue, job.job_set_id, job.pod_spec, dict(job.labels), job.priority) == (
        job_id, queue, "set", b"\x0a\x00", {"a": "b"}, 7,
    )  # fmt: skip


def test_events_that_are_none_of_the_api_are_left_out_and_nothing_is_sent_twice(
    server: ArmadaServer, queue: str
) -> None:
    others = [event("rows-so-far")] * 700
    ids = server.append(queue, "set", event("queued"), *others, event("running"), event("cancelled job set"))
    assert server.stored(queue, "set") == [(ids[0], "queued"), (ids[-2], "running")]
    assert server.stored(queue, "set", ids[300]) == [(ids[-2], "running")]
    assert server.stored(queue, "set", ids[-2]) == []


def test_a_failure_may_be_retryable_and_has_its_category(server: ArmadaServer, queue: str) -> None:
    failed = pb.Failed(reason="no disk", retryable=True, failure_category="infra", failure_subcategory="disk")
    server.append(queue, "set", event("failed", payload=failed.SerializeToString()))
    server.append(queue, "set", event("failed", payload=b'{"reason": "no disk", "exitCodes": {"main": 3}, "x": 1}'))
    first, second = (found.message.failed for found in server.events(queue, "set"))
    assert (first.reason, first.retryable, first.failure_category) == ("no disk", True, "infra")
    assert (second.reason, second.retryable, dict(second.exit_codes)) == ("no disk", False, {"main": 3})


def test_a_payload_that_is_no_message_ends_no_stream(server: ArmadaServer, queue: str) -> None:
    odd = (b"\xff\xff\xff", b"{", b'{"reason": 5}', b"[1]", b"\x22\x05abc", b"{}" * 100, b'{"created": "never"}')
    server.append(queue, "set", *(event("failed", "j", payload) for payload in odd), event("running", "j"))
    found = server.stored(queue, "set")
    assert [kind for _, kind in found] == ["failed"] * len(odd) + ["running"]
    assert all(one.message.failed.job_id == "j" for one in list(server.events(queue, "set"))[:-1])


def test_the_requestor_is_named_and_reasons_of_cancellations_are_not_stored(server: ArmadaServer, queue: str) -> None:
    (job_id,) = server.submit(queue, "set")
    request = pb.JobCancelRequest(queue=queue, job_set_id="set", job_ids=[job_id], reason="secret")
    answer = server.call("api.Submit/CancelJobs", request, pb.CancellationResult)
    assert answer.cancelled_ids == [job_id]
    *_, cancelling, cancelled = (found.message for found in server.events(queue, "set"))
    assert cancelling.cancelling.reason == cancelled.cancelled.reason == ""
    *_, line = (line for line in server.audited() if line["path"].endswith("/CancelJobs"))
    assert line | {"at": ""} == {
        "at": "", "token": None, "method": "GRPC", "path": "/api.Submit/CancelJobs", "status": 200,
        "queue": queue, "job_set": "set", "reason": "secret", "jobs": 1,
    }  # fmt: skip


def test_only_active_jobs_of_the_job_set_are_cancelled(server: ArmadaServer, queue: str) -> None:
    ended, active = server.submit(queue, "set", item(), item())
    server.append(queue, "set", event("running", ended), event("succeeded", ended))
    request = pb.JobCancelRequest(queue=queue, job_set_id="set", job_ids=[ended, "nobody", active, active])
    assert server.call("api.Submit/CancelJobs", request, pb.CancellationResult).cancelled_ids == [active]
    assert server.call("api.Submit/CancelJobs", request, pb.CancellationResult).cancelled_ids == []


def test_a_job_set_is_cancelled_by_states(server: ArmadaServer, queue: str) -> None:
    ids = server.submit(queue, "set", *(item() for _ in range(4)))
    server.append(queue, "set", event("leased", ids[1]), event("pending", ids[2]), event("running", ids[3]))

    def cancel(*states: pb.JobState) -> None:
        chosen = pb.JobSetCancelRequest.Filter(states=states)
        request = pb.JobSetCancelRequest(queue=queue, job_set_id="set", filter=chosen)
        server.call("api.Submit/CancelJobSet", request, Empty)

    def cancelled() -> list[str]:
        return [
            found.message.cancelled.job_id
            for found in server.events(queue, "set")
            if found.message.HasField("cancelled")
        ]

    assert status(cancel_states, server, queue, pb.JobState.PENDING) is grpc.StatusCode.INVALID_ARGUMENT
    cancel(pb.JobState.PENDING, pb.JobState.RUNNING)
    assert cancelled() == ids[1:]
    cancel()
    assert cancelled() == [*ids[1:], ids[0]]


def cancel_states(server: ArmadaServer, queue: str, *states: pb.JobState) -> list[Empty]:
    chosen = pb.JobSetCancelRequest.Filter(states=states)
    request = pb.JobSetCancelRequest(queue=queue, job_set_id="set", filter=chosen)
    return [server.call("api.Submit/CancelJobSet", request, Empty)]


def test_submissions_are_checked_before_any_job_is_stored(server: ArmadaServer, queue: str) -> None:
    bad = (
        item(namespace=""), item(pod_specs=[]), item(pod_specs=[b"a", b"b"]), item(pod_spec=b"a"),
        item(pod_specs=[b"x" * 65_536]), item(client_id="x" * 101),
    )  # fmt: skip
    for one in bad:
        assert status(server.submit, queue, "set", item(), one) is grpc.StatusCode.INVALID_ARGUMENT
    assert status(server.submit, queue, "", item()) is grpc.StatusCode.INVALID_ARGUMENT
    assert status(server.submit, queue, "x" * 1024, item()) is grpc.StatusCode.INVALID_ARGUMENT
    assert status(server.submit, "nobody-made-it", "set", item()) is grpc.StatusCode.PERMISSION_DENIED
    assert server.stored(queue, "set") == []
    server.submit(queue, "x" * 1023, item(pod_specs=[b"x" * 65_535], client_id="x" * 100))


def test_a_client_id_is_one_job_in_its_queue(server: ArmadaServer, queue: str) -> None:
    first, same, other = server.submit(queue, "set", item(client_id="c"), item(client_id="c"), item(client_id="d"))
    assert first == same != other
    assert server.submit(queue, "another set", item(client_id="c")) == [first]
    assert len(server.stored(queue, "set")) == 4 and server.stored(queue, "another set") == []
    assert server.submit(server.queue(), "set", item(client_id="c")) != [first]


def test_names_of_any_characters_never_collide(server: ArmadaServer) -> None:
    pairs = [("a:b", "c"), ("a", "b:c"), ("a_b", "c"), ("a", "b_c"), ("{a}", "*"), ("ü %", "\U0001f600"), ("a", "b/c")]
    prefix = server.name()
    for queue, job_set in pairs:
        server.append(prefix + queue, job_set, event("running", f"{queue}|{job_set}"))
    for queue, job_set in pairs:
        (found,) = server.events(prefix + queue, job_set)
        assert found.message.running.job_id == f"{queue}|{job_set}"


def test_a_read_without_watch_ends_with_what_was_there(server: ArmadaServer, queue: str) -> None:
    payload = pb.Failed(reason="x" * 900).SerializeToString()
    for _ in range(3):
        server.append(queue, "set", *[event("failed", "j", payload)] * 2000, *[event("note")] * 5000)
    assert len(server.stored(queue, "set")) == 6000


def test_a_watcher_gets_what_is_there_and_what_comes(server: ArmadaServer, queue: str) -> None:
    server.append(queue, "set", event("queued"))
    watching = server.events(queue, "set", watch=True)
    assert next(watching).message.HasField("queued")
    for kind in ("leased", "pending", "running"):
        server.append(queue, "set", event("note"), event(kind))
        assert next(watching).message.WhichOneof("events") == kind


def test_a_job_set_can_be_watched_before_its_first_event(server: ArmadaServer, queue: str) -> None:
    watching = server.events(queue, "later", watch=True)
    found: list[pb.EventStreamMessage] = []
    reader = threading.Thread(target=lambda: found.append(next(watching)))
    reader.start()
    server.submit(queue, "later")
    reader.join(30)
    assert found[0].message.HasField("submitted")


def test_the_older_watch_wants_the_job_set_and_never_ends(server: ArmadaServer, queue: str) -> None:
    request = pb.WatchRequest(queue=queue, job_set_id="set")
    assert status(server.stream, "api.Event/Watch", request) is NOT_FOUND
    (id_, second) = server.append(queue, "set", event("queued"), event("running"))
    call = server.stream("api.Event/Watch", pb.WatchRequest(queue=queue, job_set_id="set", from_id=id_))
    assert pb.EventStreamMessage.FromString(next(call)).id == second
    call.cancel()


def test_a_client_of_millpond_gets_every_kind_and_markers(server: ArmadaServer, queue: str) -> None:
    note = event("rows so far", "j", b"\xff\x00")
    ids = server.append(queue, "set", note, event("running", "j"))
    messages: Iterator[pb.EventStreamMessage] = server.events(
        queue, "set", watch=True, metadata=(("millpond-watch", "all"),)
    )
    first, second, caught_up = (next(messages) for _ in range(3))
    assert (first.id, first.stored.kind, first.stored.payload) == (ids[0], "rows so far", b"\xff\x00")
    assert (second.stored.headers["job_id"], second.stored.time_ms) == ("j", note.time_ms)
    assert (caught_up.id, caught_up.marker) == (ids[1], pb.Marker.CAUGHT_UP)
    server.append(queue, "set", event("done"))
    assert next(messages).stored.kind == "done"


def test_the_same_over_http_as_lines_of_json(server: ArmadaServer, queue: str) -> None:
    returned = event("lease_returned", "j", b'{"reason": "full", "podNumber": 2}')
    ids = server.append(queue, "a/b", returned, event("note"))
    created = {"seconds": 1_700_000_000, "nanos": 123_000_000}
    assert server.lines(queue, "a/b") == [
        {"result": {"id": ids[0], "message": {"LeaseReturned": {
            "jobId": "j", "jobSetId": "a/b", "queue": queue, "created": created,
            "reason": "full", "podNumber": 2,
        }}}},
    ]  # fmt: skip
    assert server.lines(queue, "a/b", fromMessageId=ids[0]) == []
    (everything,) = server.lines(queue, "a/b", {"Millpond-Watch": "all"}, fromMessageId=ids[0])
    assert everything["result"]["event"]["kind"] == "note"
    (missing,) = server.lines(queue, "none", errorIfMissing=True)
    assert missing["kind"] == "job_set_not_found"
