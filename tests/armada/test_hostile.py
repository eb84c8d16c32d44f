"""Callers that do wrong, or too much: each gets its documented status, and the node goes on."""

from __future__ import annotations

import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import trustme
import urllib3
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from littlehorse.model import PollTaskRequest
from numpy.random import Generator, default_rng

import millpond
from millpond.clock import SystemClock
from millpond.nodes.limits import NodeLimits
from millpond.nodes.tokens import TokenFile, draw_token
from millpond.server.armada.wire import armada_pb2 as pb
from millpond.server.rpc.dispatch import MESSAGE_BYTES_MAX
from millpond.server.rpc.health import RECEIVED_MAX, REQUEST_BYTES_MAX, WATCHES_MAX
from tests.armada.conftest import ArmadaServer, event, item, serving, status

DOCUMENTED = {
    grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED,
}  # fmt: skip
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
BIG = 1 << 20


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArmadaServer]:
    """A server with few watchers, and no patience with them."""
    options = ("--set", "client.read_timeout=1s")
    with serving(tmp_path_factory.mktemp("limited") / "pond", *options, limits={"watchers_max": 3}) as found:
        yield found


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArmadaServer]:
    """A server that wants tokens."""
    folder, token = tmp_path_factory.mktemp("guarded") / "pond", draw_token(SystemClock())
    millpond.open(str(folder)).close()
    TokenFile(folder).add("admin", token, {"admin": ("*",)})
    with serving(folder, "--set", "server.max_request_memory=64MiB", token=token) as found:
        yield found


def metric(server: ArmadaServer, name: str) -> float:
    """The value of a metric, of all its labels together."""
    lines = urllib3.request("GET", f"{server.url}/metrics").data.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def until_no_watchers(server: ArmadaServer) -> None:
    """Look until the node has no watcher."""
    while metric(server, "millpond_watchers"):
        pass


def valid_requests(queue: str) -> dict[str, Any]:
    """A request for every method."""
    submission = pb.JobSubmitRequest(queue=queue, job_set_id="set", job_request_items=[item(labels={"a": "b"})] * 2)
    named = pb.QueueName(name=queue)
    made = pb.Queue(name=queue, priority_factor=1, labels={"a": "b"}, resource_limits={"cpu": 0.5})
    many = pb.QueueList(queues=[made, made])
    cancel = pb.JobCancelRequest(queue=queue, job_set_id="set", job_ids=["a", "b"], reason="why")
    states = pb.JobSetCancelRequest.Filter(states=[pb.JobState.QUEUED])
    return {
        "api.Event/GetJobSetEvents": pb.JobSetRequest(queue=queue, id="set", from_message_id="", errorIfMissing=True),
        "api.Submit/SubmitJobs": submission, "api.Submit/CancelJobs": cancel,
        "api.Submit/CancelJobSet": pb.JobSetCancelRequest(queue=queue, job_set_id="set", filter=states, reason="why"),
        "api.Submit/ReprioritizeJobs": pb.JobReprioritizeRequest(queue=queue, job_set_id="set", new_priority=2.5),
        "api.Submit/PreemptJobs": pb.JobPreemptRequest(queue=queue, job_set_id="set", job_ids=["a"]),
        "api.Jobs/GetJobStatus": pb.JobsRequest(job_ids=["a"]), "api.Jobs/GetJobErrors": pb.JobsRequest(job_ids=["a"]),
        "api.Jobs/GetJobDetails": pb.JobsRequest(job_ids=["a"], expand_job_spec=True, expand_job_run=True),
        "api.Jobs/GetJobRunDetails": pb.JobRunsRequest(run_ids=["a.1", "01hf7yat000000000000000002.9"]),
        "api.Jobs/GetJobStatusUsingExternalJobUri": pb.JobOfUriRequest(queue=queue, jobset="set", external_job_uri="u"),
        "api.Jobs/GetActiveQueues": pb.QueuesRequest(),
        "api.QueueService/CreateQueue": made, "api.QueueService/UpdateQueues": many,
        "api.QueueService/GetQueues": pb.QueuesRequest(num=2), "api.QueueService/GetQueue": named,
        "api.QueueService/CordonQueue": named, "api.QueueService/DeleteQueue": named,
    }  # fmt: skip


def mutated(data: bytes, draw: Generator) -> bytes:
    """The bytes of a message with some mistakes."""
    made = bytearray(data)
    for _ in range(draw.integers(1, 5)):
        place = int(draw.integers(len(made) + 1))
        match int(draw.integers(4)):
            case 0 if made:
                made[place % len(made)] ^= 1 << int(draw.integers(8))
            case 1:
                made[place:place] = draw.bytes(int(draw.integers(1, 10)))
            case 2:
                del made[place : place + int(draw.integers(1, 6))]
            case _:
                made = made[:place]
    return bytes(made)


def status_of(server: ArmadaServer, method: str, data: bytes, *, streams: bool) -> grpc.StatusCode:
    """The status of a call."""
    try:
        if streams:
            list(server.stream(method, data, timeout=0.5))
        else:
            server.call(method, data, Empty)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(4))
def test_mutated_messages_have_a_documented_status(server: ArmadaServer, seed: int) -> None:
    draw = default_rng(seed)
    requests = valid_requests(server.queue())
    for _ in range(20):
        for method, request in requests.items():
            data = mutated(request.SerializeToString(), draw)
            streams = method.endswith(("GetJobSetEvents", "GetQueues"))
            found = status_of(server, method, data, streams=streams)
            assert found in DOCUMENTED, (method, data, found)
    assert server.call("api.Event/Health", Empty(), pb.HealthCheckResponse).status == 1


def test_what_is_too_large_or_unknown_has_its_status(server: ArmadaServer) -> None:
    huge = pb.JobSubmitRequest(queue=server.queue(), job_set_id="set")
    for _ in range(1 + MESSAGE_BYTES_MAX // 60_000):
        huge.job_request_items.add(namespace="a", pod_specs=[b"x" * 60_000])
    assert status(server.call, "api.Submit/SubmitJobs", huge, Empty) is EXHAUSTED
    for method in ("api.Event/Nothing", "api.Jobs/Nothing", "nothing/at.all"):
        assert status(server.call, method, Empty(), Empty) is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "method", ["api.Event/GetJobSetEvents", "api.Submit/SubmitJobs", "littlehorse.LittleHorse/PutTaskDef", "no/method"]
)
def test_compressed_messages_are_refused_before_they_are_unpacked(server: ArmadaServer, method: str) -> None:
    before = psutil.Process(server.pid).memory_info().rss
    bomb = bytes(64 << 20)
    with pytest.raises(grpc.RpcError) as caught:
        server.channel.unary_unary(f"/{method}")(bomb, timeout=30, compression=grpc.Compression.Gzip)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert psutil.Process(server.pid).memory_info().rss - before < 16 << 20


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("method", "code"),
    [
        ("api.Submit/SubmitJobs", grpc.StatusCode.UNAUTHENTICATED),
        ("api.Event/Watch", grpc.StatusCode.UNAUTHENTICATED),
        ("littlehorse.LittleHorse/RunWf", grpc.StatusCode.UNAUTHENTICATED),
        ("grpc.health.v1.Health/Check", grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
)
def test_nothing_waits_for_the_message_of_somebody_without_a_token(
    guarded: ArmadaServer, method: str, code: grpc.StatusCode
) -> None:
    """Else each of any number of calls holds a message of 16 MiB that never ends."""
    never = threading.Event()
    with grpc.insecure_channel(f"127.0.0.1:{guarded.grpc_port}") as channel:
        try:
            with pytest.raises(grpc.RpcError) as caught:
                channel.stream_unary(f"/{method}")((b"" for _ in iter(never.wait, True)), timeout=30)
        finally:
            never.set()
    assert caught.value.code() is code and caught.value.details() != "Deadline Exceeded"


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", ["Check", "Watch"])
def test_health_is_asked_by_small_messages(guarded: ArmadaServer, method: str) -> None:
    """The name of a service that is watched is kept for as long, and nobody needs a token for it."""
    for size, code in ((REQUEST_BYTES_MAX + 1, EXHAUSTED), (MESSAGE_BYTES_MAX - 64, EXHAUSTED), (900, None)):
        request = HealthCheckRequest(service="x" * size).SerializeToString()
        with grpc.insecure_channel(f"127.0.0.1:{guarded.grpc_port}") as channel:
            call = channel.unary_stream(f"/grpc.health.v1.Health/{method}")(request, timeout=30)
            if code is None and method == "Watch":
                assert HealthCheckResponse.FromString(next(call)).status == HealthCheckResponse.SERVICE_UNKNOWN
                call.cancel()
            else:
                assert status(lambda call=call: call) is (code or grpc.StatusCode.NOT_FOUND)


def test_health_is_watched_by_few_and_asked_by_everybody(guarded: ArmadaServer) -> None:
    """One address leaves room for others, for watches and for requests that do not come."""
    never = threading.Event()
    with grpc.insecure_channel(f"127.0.0.1:{guarded.grpc_port}") as channel:
        watch, check = (channel.stream_stream(f"/grpc.health.v1.Health/{name}") for name in ("Watch", "Check"))
        watches = [watch(iter([b""])) for _ in range(WATCHES_MAX)]
        try:
            while len(refused := [call for call in watches if not call.is_active()]) < WATCHES_MAX // 4:
                assert guarded.queue()
            assert len(refused) == WATCHES_MAX // 4 and {call.code() for call in refused} == {EXHAUSTED}
            assert next(check(iter([b""]))) == HealthCheckResponse(status="SERVING").SerializeToString()
            late = [check(b"" for _ in iter(never.wait, True)) for _ in range(RECEIVED_MAX)]
            while not any(call.code() is EXHAUSTED for call in late if not call.is_active()):
                assert guarded.queue()
        finally:
            never.set()
            for call in watches:
                call.cancel()


def test_messages_that_do_not_come_at_once_take_room(guarded: ArmadaServer) -> None:
    """Else a token that may read one thing takes 1.6 GiB by 100 calls of which all but a byte comes; 64 MiB, 4 here."""
    never = threading.Event()
    methods = ["api.Event/Watch", "api.Submit/SubmitJobs", "littlehorse.LittleHorse/RunWf"] * 4
    with grpc.insecure_channel(f"127.0.0.1:{guarded.grpc_port}") as channel:
        calls = [
            channel.stream_stream(f"/{method}")((b"" for _ in iter(never.wait, True)), metadata=guarded.metadata)
            for method in methods
        ]
        try:
            while len(refused := [call for call in calls if not call.is_active()]) < len(calls) - 4:
                assert guarded.queue()  # what is small and there goes on
            kinds = {dict(call.trailing_metadata())["millpond-kind"] for call in refused}
        finally:
            never.set()
    assert kinds == {"request_memory_full"}


def test_a_message_that_is_too_long_is_not_received_to_its_end(guarded: ArmadaServer) -> None:
    before, options = psutil.Process(guarded.pid).memory_info().rss, [("grpc.max_send_message_length", -1)]
    most = before
    with grpc.insecure_channel(f"127.0.0.1:{guarded.grpc_port}", options=options) as channel:
        call = channel.stream_stream("/api.Submit/SubmitJobs")(iter([bytes(640 << 20)]), metadata=guarded.metadata)
        while call.is_active():
            most = max(most, psutil.Process(guarded.pid).memory_info().rss)
    assert dict(call.trailing_metadata())["millpond-kind"] == "request_memory_full"
    assert most - before < 384 << 20


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("api.Event/Watch", pb.WatchRequest(queue="queue", job_set_id="set")),
        ("littlehorse.LittleHorse/PollTask", PollTaskRequest(client_id="worker")),
    ],
)
def test_what_lasts_begins_with_a_small_message(guarded: ArmadaServer, method: str, message: Message) -> None:
    """It is held for as long; bytes that no field knows are part of it."""
    unknown = b"\xfa\x7f" + b"\x80\x80\x04" + b"x" * (4 << 14)
    with pytest.raises(grpc.RpcError) as caught:
        next(iter(guarded.channel.stream_stream(f"/{method}")(
            iter([message.SerializeToString() + unknown]), metadata=guarded.metadata, timeout=30
        )))  # fmt: skip
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT and "too long" in caught.value.details()


def test_a_watch_ends_with_its_token(guarded: ArmadaServer) -> None:
    file, queue = TokenFile(guarded.folder), guarded.queue()
    file.add("watcher", "secret", {"admin": ("*",)})
    guarded.append(queue, "set", event("queued"))
    shown = (("authorization", "Bearer secret"),)
    watch = guarded.stream("api.Event/Watch", pb.WatchRequest(queue=queue, job_set_id="set"), metadata=shown)
    next(watch)
    file.revoke("watcher")
    guarded.append(queue, "set", event("leased"))
    with pytest.raises(grpc.RpcError) as caught:
        next(watch)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_one_watcher_too_many_is_refused_over_grpc_and_http(limited: ArmadaServer) -> None:
    queue = limited.queue()
    limited.append(queue, "set", event("queued"))
    calls = [limited.stream("api.Event/Watch", pb.WatchRequest(queue=queue, job_set_id="set")) for _ in range(3)]
    for call in calls:
        next(call)
    assert status(limited.events, queue, "set", watch=True) is EXHAUSTED
    refused = urllib3.request("POST", f"{limited.url}/v1/job-set/{queue}/set", json={"watch": True}, retries=False)
    assert refused.status == 503 and refused.headers["Retry-After"] == "2"
    for call in calls:
        call.cancel()
    until_no_watchers(limited)
    assert len(limited.stored(queue, "set")) == 1


def test_a_watcher_that_takes_nothing_is_disconnected_and_may_resume(limited: ArmadaServer) -> None:
    queue = limited.queue()
    payload = pb.Failed(reason="x" * BIG).SerializeToString()
    ids = [id_ for _ in range(30) for id_ in limited.append(queue, "set", event("failed", "j", payload))]
    call = limited.events(queue, "set", watch=True)
    found = [next(call).id]
    until_no_watchers(limited)
    with pytest.raises(grpc.RpcError) as caught:
        found += (message.id for message in call)
    assert caught.value.code() is EXHAUSTED
    assert ("millpond-kind", "watcher_stalled") in [tuple(pair) for pair in caught.value.trailing_metadata()]
    while len(found) < len(ids):
        rest = limited.events(queue, "set", found[-1])
        found += (message.id for message in rest)
    assert found == ids


def test_many_watchers_of_many_job_sets_each_get_their_events(server: ArmadaServer) -> None:
    queue = server.queue()
    with ThreadPoolExecutor(60) as pool:
        calls = [server.events(queue, f"set-{number % 6}", watch=True) for number in range(60)]
        firsts = [pool.submit(lambda call=call: [next(call).id for _ in range(20)]) for call in calls]
        ids = {
            number: [id_ for _ in range(20) for id_ in server.append(queue, f"set-{number}", event("running"))]
            for number in range(6)
        }
        for number, first in enumerate(firsts):
            assert first.result(60) == ids[number % 6]


def test_rights_are_those_of_the_token(tmp_path: Path) -> None:
    folder = tmp_path / "pond"
    millpond.open(str(folder)).close()
    tokens = {name: draw_token(SystemClock()) for name in ("admin", "runner", "viewer", "loader")}
    file = TokenFile(folder)
    file.add("admin", tokens["admin"], {"admin": ("*",)})
    file.add("runner", tokens["runner"], {"write": ("stream:Etl/*",)})
    file.add("viewer", tokens["viewer"], {"read": ("stream:Etl/night-*",)})
    file.add("loader", tokens["loader"], {"write": ("etl", "Etl*")})
    with serving(folder, "--set", "server.token_requests_per_second=5", token=tokens["admin"]) as server:

        def may(name: str, call: Any, *arguments: Any) -> grpc.StatusCode:
            metadata = (("authorization", f"Bearer {tokens[name]}"),)
            try:
                list(call(*arguments, metadata=metadata) or ())
            except grpc.RpcError as error:
                code: grpc.StatusCode = error.code()
                return code
            return grpc.StatusCode.OK

        def create(name: str, **options: Any) -> None:
            server.call("api.QueueService/CreateQueue", pb.Queue(name=name, priority_factor=1), Empty, **options)

        denied, fine = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.OK
        assert [may(name, create, "Etl") for name in ("viewer", "loader", "runner")] == [denied, denied, fine]
        assert may("runner", create, "etl") is denied
        server.append("Etl", "night-1", event("queued"))
        server.append("Etl", "day", event("queued"))
        assert [may(name, server.stored, "Etl", "day") for name in ("viewer", "loader", "runner")] == [
            denied,
            denied,
            fine,
        ]
        assert may("viewer", server.stored, "Etl", "night-1") is fine
        (line,) = server.lines("Etl", "day", {"Authorization": f"Bearer {tokens['viewer']}"})
        assert line["kind"] == "right_missing"
        assert status(server.stored, "Etl", "day", metadata=()) is grpc.StatusCode.UNAUTHENTICATED
        assert any(may("viewer", server.stored, "Etl", "night-1") is EXHAUSTED for _ in range(200))


def test_a_node_that_stops_lets_its_watchers_go(tmp_path: Path) -> None:
    with serving(tmp_path / "pond") as server:
        queue = server.queue()
        server.append(queue, "set", event("queued"))
        call = server.events(queue, "set", watch=True)
        next(call)
        with urllib3.PoolManager() as pool:
            lines = pool.request(
                "POST", f"{server.url}/v1/job-set/{queue}/set", json={"watch": True}, preload_content=False
            ).stream()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            assert status(lambda: call) is grpc.StatusCode.UNAVAILABLE
            assert b'"kind":"node_stopping"' in b"".join(lines)
        assert server.process.wait(30) == 0


def test_a_client_that_calls_nothing_does_not_hold_up_a_node_that_stops(tmp_path: Path) -> None:
    with serving(tmp_path / "pond") as server:
        server.queue()
        clock = SystemClock()
        began = clock.monotonic()
        server.process.send_signal(signal.SIGTERM)  # the connection of the call stays
        assert server.process.wait(30) == 0
        assert clock.monotonic() - began <= 4, "five seconds is the time that gRPC gives a client to say goodbye"


def test_grpc_has_the_certificate_of_http(tmp_path: Path) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    leaf.private_key_pem.write_to_path(tmp_path / "key.pem")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    pair = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    with serving(tmp_path / "pond", *pair) as server:
        trusted = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        with grpc.secure_channel(f"localhost:{server.grpc_port}", trusted) as channel:
            answer = channel.unary_unary("/api.Event/Health")(b"", timeout=30)
        assert pb.HealthCheckResponse.FromString(answer).status == 1
        context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
        with socket.create_connection(("127.0.0.1", server.grpc_port)) as plain:
            secured = context.wrap_socket(plain, server_hostname="localhost")
            assert secured.version() in ("TLSv1.2", "TLSv1.3")
            secured.close()
        assert status(server.call, "api.Event/Health", Empty(), Empty) is grpc.StatusCode.UNAVAILABLE


def test_connections_are_limited(tmp_path: Path) -> None:
    with serving(tmp_path / "pond", limits={"connection_bytes": 128 << 20}) as server:
        alone = (("grpc.use_local_subchannel_pool", 1),)
        channels = [grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", alone) for _ in range(12)]
        statuses = set()
        with ThreadPoolExecutor(12) as pool:
            calls = [pool.submit(channel.unary_unary("/api.Event/Health"), b"", timeout=5) for channel in channels]
            for call in calls:
                error = call.exception()
                statuses.add(error.code() if isinstance(error, grpc.RpcError) else error)
        assert statuses == {None, grpc.StatusCode.UNAVAILABLE} or statuses == {None, grpc.StatusCode.DEADLINE_EXCEEDED}
        for channel in channels:
            channel.close()


def test_threads_stay_few_however_many_watch(server: ArmadaServer) -> None:
    """One thread follows all streams; reads take turns in the threads of the node, which begin as they are needed.

    These have a bound of their own, and how many of them were there before depends on what ran before.
    """
    queue = server.queue()
    watchers = 3 * NodeLimits().threads
    before = len(list(Path(f"/proc/{server.pid}/task").iterdir()))
    calls = [
        server.stream("api.Event/GetJobSetEvents", pb.JobSetRequest(queue=queue, id=f"{number}", watch=True))
        for number in range(watchers)
    ]
    while metric(server, "millpond_watchers") < watchers:
        pass
    assert len(list(Path(f"/proc/{server.pid}/task").iterdir())) <= before + NodeLimits().threads
    for call in calls:
        call.cancel()
