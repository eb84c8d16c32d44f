"""Workflows that processes share over TLS and passwords, with tokens, and with their checkpoints in a bucket."""

from __future__ import annotations

import shutil
import signal
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import grpc
import pytest

pytest.importorskip("littlehorse")
if find_spec("confluent_kafka") is None:
    pytest.skip("the extra kafka is not installed", allow_module_level=True)

import trustme
from littlehorse.model import GetLatestWfSpecRequest, RunWfRequest, WfRunId
from littlehorse.workflow import Workflow

import millpond
from millpond.clock import SystemClock
from millpond.errors import Invalid
from millpond.nodes.tokens import TokenFile, draw_token
from millpond.workflows.logs.kafka_config import read_client_config
from tests import kafka_server
from tests.workflows.conftest import SECONDS
from tests.workflows.shared_servers import SharedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.s3_server import S3Server

pytestmark = pytest.mark.sample(1, of="processes that share workflows")

RUNS = 12


@pytest.fixture
def servers(tmp_path: Path, s3_server: S3Server) -> Iterator[list[SharedServer]]:
    """Two processes that want tokens; each calls the other with its own."""
    authority, token = trustme.CA(), draw_token(SystemClock())
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    config = tmp_path / "kafka.properties"
    config.write_text(
        f"# of the broker\nsecurity.protocol=SASL_SSL\nssl.ca.location={tmp_path / 'ca.pem'}\nsasl.mechanism=PLAIN\n"
        f"sasl.username={kafka_server.USER}\nsasl.password={kafka_server.PASSWORD}\n"
    )
    more = {"MILLPOND_CLIENT_TOKEN": token, **s3_server.environment}
    made: list[SharedServer] = []
    with kafka_server.running(tmp_path, authority=authority) as broker:
        bucket = s3_server.make_bucket("secured") + "/runs"
        for number in range(2):
            folder = tmp_path / f"pond-{number}"
            millpond.open(folder).close()
            TokenFile(folder).add("process", token, {"admin": ("*",)})
            made.append(
                SharedServer(folder, f"kafka://{broker}/runs?config={config}", bucket, saving_often=True, **more)
            )
        try:
            for server in made:
                server.start()
            yield made
        finally:
            for server in made:
                server.end(signal.SIGKILL)


def begun(stub: Any, request: RunWfRequest, metadata: Any) -> None:
    """Begin a run: each partition hears of the spec in its turn, and one whose answer was lost has begun."""
    try:
        tried(lambda: stub.RunWf(request, metadata=metadata), grpc.StatusCode.NOT_FOUND)
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.ALREADY_EXISTS:
            raise


def tried(call: Callable[[], Any], *passing: grpc.StatusCode) -> Any:
    clock = SystemClock()
    until = clock.monotonic() + SECONDS
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, *passing) or clock.monotonic() > until:
                raise
            threading.Event().wait(0.2)


def test_a_store_is_made_again_of_the_bucket_and_the_log(servers: list[SharedServer], s3_server: S3Server) -> None:
    first, second = servers
    metadata = (("authorization", f"Bearer {first.settings['MILLPOND_CLIENT_TOKEN']}"),)
    with first.stub() as one, second.stub() as two:
        with pytest.raises(grpc.RpcError) as caught:
            one.GetLatestWfSpec(GetLatestWfSpecRequest(name="empty"), timeout=SECONDS)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        tried(lambda: one.PutWfSpec(Workflow("empty", lambda wf: None).compile(), metadata=metadata))
        for number in range(RUNS):  # of all partitions, so half of them are the other's
            request = RunWfRequest(wf_spec_name="empty", id=f"run-{number}")
            begun(one, request, metadata)
        for number in range(RUNS):
            name = WfRunId(id=f"run-{number}")
            assert tried(lambda name=name: two.GetWfRun(name, metadata=metadata)).id == name  # type: ignore[misc]
        until_there(s3_server.folder / "secured")
        request = RunWfRequest(wf_spec_name="empty", id="behind-the-checkpoint")
        begun(one, request, metadata)
    for server in servers:
        server.end(signal.SIGKILL)
        shutil.rmtree(server.folder / "shared-workflows")
    first.start()
    with first.stub() as one:
        for run in ("behind-the-checkpoint", *(f"run-{number}" for number in range(RUNS))):
            name = WfRunId(id=run)
            assert tried(lambda name=name: one.GetWfRun(name, metadata=metadata)).id == name  # type: ignore[misc]


def until_there(bucket: Path) -> None:
    """Wait until there are checkpoints of partitions."""
    clock = SystemClock()
    until = clock.monotonic() + SECONDS
    while len({path.parent for path in bucket.rglob("*") if path.is_file()}) < 3:
        assert clock.monotonic() < until, list(bucket.rglob("*"))
        threading.Event().wait(0.2)


@pytest.mark.parametrize(
    ("text", "says"),
    [("acks=0", "sets it"), ("just words", "name=value"), ("=x", "name=value")],
)
def test_a_wrong_setting_is_named_without_its_value(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text(f"sasl.password=secret\n{text}\n")
    with pytest.raises(Invalid) as caught:
        read_client_config(file)
    assert says in str(caught.value)
    assert "line=2" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"workflows\.log"):
        read_client_config(tmp_path / "nothing")
