"""Tokens of callers who use the public client: it speaks OAuth 2.0 over TLS, and sends a token without its scheme."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import trustme
import urllib3

import millpond
from millpond.clock import SystemClock
from millpond.nodes.tokens import TokenFile, draw_token
from tests.workflows.conftest import SECONDS, WorkflowServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.sample(1, of="file")

URL = "/v1/oauth/token"


@dataclass
class Guarded:
    """A server with TLS that wants tokens, and the environment of a client for a name and a token."""

    server: WorkflowServer
    authority: Path
    tokens: dict[str, str]

    @property
    def url(self) -> str:
        return f"https://localhost:{self.server.port}{URL}"

    def environment(self, name: str, token: str) -> dict[str, str]:
        return self.server.environment() | {
            "LHC_API_HOST": "localhost", "LHC_API_PROTOCOL": "TLS", "LHC_CA_CERT": str(self.authority),
            "LHC_OAUTH_CLIENT_ID": name, "LHC_OAUTH_CLIENT_SECRET": token,
            "LHC_OAUTH_ACCESS_TOKEN_URL": self.url, "REQUESTS_CA_BUNDLE": str(self.authority),
        }  # fmt: skip

    def ask(self, fields: dict[str, str], headers: dict[str, str] | None = None) -> tuple[int, dict[str, str]]:
        pool = urllib3.PoolManager(ssl_context=ssl.create_default_context(cafile=str(self.authority)))
        found = pool.request("POST", self.url, fields=fields, encode_multipart=False, headers=headers, retries=False)
        return found.status, json.loads(found.data)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("tokens")
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    leaf.private_key_pem.write_to_path(folder / "key.pem")
    leaf.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    millpond.open(folder / "pond").close()
    file, tokens = TokenFile(folder / "pond"), {}
    for name, rights in (("builder", {"admin": ("tenant:default",)}), ("reader", {"read": ("tenant:default",)})):
        tokens[name] = draw_token(SystemClock())
        file.add(name, tokens[name], rights)
    pair = ("--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem"))
    server = WorkflowServer(folder / "pond", "pond", *pair)
    server.start()
    yield Guarded(server, folder / "ca.pem", tokens)
    server.end()


PROGRAM = """
import grpc
from littlehorse import create_task_def, create_workflow_spec
from littlehorse.config import LHConfig
from littlehorse.model import LHStatus, RunWfRequest, WfRunId
from littlehorse.workflow import Workflow

config = LHConfig()
try:
    create_workflow_spec(Workflow("empty", lambda wf: None), config)
    run = config.stub().RunWf(RunWfRequest(wf_spec_name="empty"))
    print(LHStatus.Name(config.stub().GetWfRun(WfRunId(id=run.id.id)).status))
except grpc.RpcError as error:
    print(error.code().name)
"""


def program(guarded: Guarded, name: str, token: str) -> str:
    """The last line of a program of the public client."""

    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=guarded.environment(name, token), capture_output=True, text=True,
        check=False, timeout=SECONDS,
    )  # fmt: skip
    return (ran.stdout + ran.stderr).splitlines()[-1]


def test_the_public_client_presents_a_token(guarded: Guarded) -> None:
    assert program(guarded, "builder", guarded.tokens["builder"]) == "COMPLETED"
    assert program(guarded, "reader", guarded.tokens["reader"]) == "PERMISSION_DENIED"


def test_a_wrong_secret_is_refused_before_any_call(guarded: Guarded) -> None:
    assert "invalid_client" in program(guarded, "builder", guarded.tokens["reader"])
    assert "invalid_client" in program(guarded, "builder", "nothing")


def test_the_answers_are_those_of_the_standard(guarded: Guarded) -> None:
    token = guarded.tokens["reader"]
    grant = {"grant_type": "client_credentials"}
    named = grant | {"client_id": "reader", "client_secret": token}
    status, found = guarded.ask(named)
    assert (status, found["access_token"], found["token_type"]) == (200, token, "Bearer")
    basic = {"Authorization": "Basic " + base64.b64encode(f"reader:{token}".encode()).decode()}
    assert guarded.ask(grant, basic)[0] == 200
    for fields, headers in (
        (grant, None), (grant, {"Authorization": "Basic *"}), (named | {"client_id": "builder"}, None),
        (named | {"client_secret": "x"}, None),
    ):  # fmt: skip
        status, found = guarded.ask(fields, headers)
        assert (status, found["error"]) == (401, "invalid_client")
    for fields in ({}, named | {"grant_type": "password"}):
        status, found = guarded.ask(fields)
        assert (status, found["error"]) == (400, "unsupported_grant_type")
    assert token not in json.dumps(guarded.ask(named | {"client_id": "builder"}))


def test_a_token_that_is_revoked_is_refused_with_the_next_call(guarded: Guarded) -> None:
    file = TokenFile(guarded.server.folder)
    token = draw_token(SystemClock())
    file.add("leaver", token, {"admin": ("tenant:default",)})
    clock = SystemClock()
    due = clock.monotonic() + SECONDS
    while program(guarded, "leaver", token) != "COMPLETED":  # the node looks at the file now and then
        assert clock.monotonic() < due
    file.revoke("leaver")
    while "invalid_client" not in program(guarded, "leaver", token):
        assert clock.monotonic() < due


RETRIED = """
from google.protobuf.empty_pb2 import Empty
from littlehorse.config import LHConfig

stub = LHConfig().stub()
for _ in range(20):
    stub.Whoami(Empty())
print("answered")
"""


def test_the_public_client_calls_again_after_a_limit(guarded: Guarded, tmp_path: Path) -> None:
    """Twenty calls of a token that may make two a second: its own interceptor waits as long as the server says."""
    folder = tmp_path / "pond"
    millpond.open(folder).close()
    token = draw_token(SystemClock())
    TokenFile(folder).add("builder", token, {"admin": ("tenant:default",)})
    authority = guarded.authority.parent
    pair = ("--tls-cert", str(authority / "cert.pem"), "--tls-key", str(authority / "key.pem"))
    server = WorkflowServer(folder, "pond", *pair, "--set", "server.token_requests_per_second=2")
    server.start()
    try:
        environment = Guarded(server, guarded.authority, {}).environment("builder", token)
        for retries, ends in (("false", "RESOURCE_EXHAUSTED"), ("true", "answered")):
            ran = subprocess.run(
                [sys.executable, "-c", RETRIED], capture_output=True, text=True, check=False, timeout=SECONDS,
                env=environment | {"LHC_GRPC_RESOURCE_EXHAUSTED_RETRY": retries},
            )  # fmt: skip
            assert ends in ran.stdout + ran.stderr
    finally:
        server.end()
