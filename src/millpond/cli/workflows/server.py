"""The server of workflows, as commands reach it, and its errors as ours; or the pond on which they run without one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from millpond.cli.terminal import console
from millpond.cli.verbs import Reached, keyword
from millpond.client.location import NodesLocation, parse_location
from millpond.clock import SystemClock
from millpond.errors import Invalid, MillpondError, Unavailable
from millpond.tracing import trace_headers
from millpond.workflows.deferred import protocol
from millpond.workflows.newest import every_result

if TYPE_CHECKING:
    import grpc
    from littlehorse.config import LHConfig

    from millpond.pond import Pond
    from millpond.settings import Settings

__all__ = (
    "INSTALLATION",
    "RUNS",
    "SERVER",
    "TENANT",
    "Here",
    "Server",
    "ServerBeside",
    "Tenant",
    "opened_runs",
    "connected",
    "every",
    "every_result",
    "host_and_port",
    "node_of",
    "server_beside",
    "opened_here",
    "worker_config",
    "plain_message",
    "show_messages",
    "classify_error",
)

_ADDRESS: Any = {
    "metavar": "HOST:PORT|URL", "help": "The gRPC port of the server, or the URL of its node.",
    "envvar": "MILLPOND_WORKFLOWS",
}  # fmt: skip
Server = Annotated[str, typer.Option("--server", **_ADDRESS)]
ServerBeside = Annotated[
    str | None, typer.Option("--server", **_ADDRESS, show_default="the node of --pond, else localhost:7434")
]
Here = Annotated[
    str | None,
    typer.Option("--pond", metavar="PLACE", show_default=False,
                 help="A pond in a folder or a bucket, read without a server; or the URL of its node."),
]  # fmt: skip
Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="The tenant whose workflows they are.")]
SERVER = "localhost:7434"
"""The server that nobody named."""
_SECONDS = 30
_OBJECTS_AT_ONCE = 1_000
_QUESTIONS = ("Get", "List", "Search", "Whoami")
_NOT_SENT = ("failed to connect", "DNS resolution failed")
"""The beginnings of what gRPC says when a request had no connection to go over."""


def server_beside(server: str | None, address: str | None) -> str:
    """The server that is named; else that of the node that a pond is on, else the one of this machine."""
    on_node = address is not None and isinstance(parse_location(address), NodesLocation)
    return server or (address if address and on_node else SERVER)


def host_and_port(server: str, settings: Settings) -> tuple[str, int]:
    """The address of a server for gRPC: a node, which is named by its URL, says its port.

    Raises: `Invalid`; as `Nodes.first`.
    """
    if "://" in server:
        return _of_node(server, settings)
    host, colon, port = server.rpartition(":")
    if not colon or not port.isdigit() or not host:
        raise Invalid("not an address of a server", kind="server_address", server=server,
                      hint="write HOST:PORT of gRPC, such as localhost:7434, or a URL")  # fmt: skip
    return host, int(port)


def _of_node(urls: str, settings: Settings) -> tuple[str, int]:
    from millpond.client.transport import Nodes

    with closing(Nodes(urls, settings, clock=SystemClock())) as nodes:
        url, status = nodes.first(lambda node: (node.url, node.request("GET", "/v1/node").json()))
    if status.get("grpc_port") is None:
        raise _unserved(url)
    return urlsplit(url).hostname or "localhost", status["grpc_port"]


def worker_config(server: str, tenant: str, address: str) -> LHConfig:
    """The client's settings of a worker on the pond of a place, for which its environment is set.

    Raises: as `connected`.
    """
    from google.protobuf.empty_pb2 import Empty
    from littlehorse.config import LHConfig

    from millpond.settings import load_settings

    host, port = host_and_port(server, load_settings())
    with connected(f"{host}:{port}", tenant) as call:
        call("Whoami", Empty())
    # The client takes its settings from the environment, before all others.
    os.environ.update({"LHC_API_HOST": host, "LHC_API_PORT": str(port), "LHC_TENANT_ID": tenant})
    os.environ["MILLPOND_POND"] = address
    logging.getLogger("LHConfig").setLevel(logging.ERROR)  # that there is no TLS is no news
    return LHConfig()


@contextmanager
def connected(server: str, tenant: str, settings: Settings | None = None) -> Iterator[Any]:
    """A function that calls a method of the server by its name: `call("GetWfRun", request)`.

    `settings` are those of this process where none are given.

    Raises: the error that the server answers; `Unavailable` when it cannot be reached; `Uncertain`, kind `answer_lost`,
    when the answer to a change does not come.
    """
    import grpc

    from millpond.settings import load_settings
    from millpond.workflows.engine.metadata.tenancy import check_tenant

    check_tenant(tenant)
    settings = settings or load_settings()
    host, port = host_and_port(server, settings)
    metadata = [("tenantid", tenant)]
    if settings.client.token:
        metadata.append(("authorization", f"Bearer {settings.client.token}"))
    with _channel(f"{host}:{port}", settings) as channel:
        stub: Any = protocol.service_pb2_grpc.LittleHorseStub(channel)  # type: ignore[no-untyped-call]

        def call(
            method: str, request: Any, *more: tuple[str, str], trailing: Callable[[Any], object] = lambda _: None
        ) -> Any:  # fmt: skip
            asks = method.startswith(_QUESTIONS)
            sent = [*metadata, *more, *({} if asks else trace_headers()).items()]
            try:
                reply, ended = getattr(stub, method).with_call(request, timeout=_SECONDS, metadata=sent)
            except grpc.RpcError as error:
                raise classify_error(error, server, changes=not asks) from None
            trailing(ended.trailing_metadata() or ())
            return reply

        yield call


def node_of(call: Any) -> str | None:
    """The URL of the node that answers the calls; None where the server is none.

    Raises: as the calls.
    """
    from google.protobuf.empty_pb2 import Empty

    from millpond.client.wire_errors import NODE_KEY

    metadata: dict[str, str] = {}
    call("Whoami", Empty(), trailing=metadata.update)
    return metadata.get(NODE_KEY)


def _channel(address: str, settings: Settings) -> grpc.Channel:
    import grpc

    if not settings.tls.ca:
        return grpc.insecure_channel(address)
    files = (settings.tls.ca, settings.tls.key, settings.tls.cert)
    trusted, key, chain = (Path(name).read_bytes() if name else None for name in files)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(trusted, key, chain))


def classify_error(error: Any, server: str, *, changes: bool) -> MillpondError:
    """An error of a call to a server as one of ours; what `changes` something may have done so without an answer."""
    import grpc

    from millpond.client.connections import answer_lost
    from millpond.client.wire_errors import KIND_KEY, from_grpc

    metadata = dict(error.trailing_metadata() or ())
    kind = metadata.get(KIND_KEY)
    lost = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNKNOWN
    if kind is None and changes and error.code() in lost and not str(error.details()).startswith(_NOT_SENT):
        return answer_lost(server, error.details(), repeatable=False)
    if kind is None and error.code() == grpc.StatusCode.UNAVAILABLE:
        return Unavailable("the server cannot be reached", kind="workflows_unreachable", server=server,
                           hint="--server names its port of gRPC, not of HTTP; start it: millpond serve")  # fmt: skip
    if kind is None and error.code() == grpc.StatusCode.UNIMPLEMENTED:
        return _unserved(server)
    return from_grpc(server, metadata, error.code().name, error.details(), "workflows_server")


def _unserved(server: str) -> MillpondError:
    return Unavailable(
        "the server serves no workflows", kind="workflows_unserved", server=server,
        hint="install 'millpond[workflows]', on a bucket also 'millpond[rocksdb]', and no server.grpc_port=off",
    )  # fmt: skip


def plain_message(message: Any) -> Any:
    """A message as JSON holds it."""
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(message, preserving_proto_field_name=True)


@contextmanager
def opened_runs(server: str, tenant: str, address: str | None) -> Iterator[Any]:
    """As `connected`, for questions; with a place the pond there answers them, without a server.

    Raises: as `connected`; as `reading_pond`.
    """
    location = None if address is None else parse_location(address)
    if location is None or isinstance(location, NodesLocation):
        with connected(address or server, tenant) as call:
            yield call
        return
    from millpond.pipelines.engine import reading_pond
    from millpond.server.workflows.reads import READS
    from millpond.workflows.engine.metadata.tenancy import check_tenant

    with location.open_existing() as pond, reading_pond(pond, SystemClock(), check_tenant(tenant)) as read:
        yield lambda _method, request: read(lambda rows: READS[type(request)](rows, request))


def every(call: Any, kind: str) -> list[Any]:
    """All objects of a kind, such as `Tenant`, that a server has."""
    request = getattr(protocol, f"Search{kind}Request")(limit=_OBJECTS_AT_ONCE)
    return [call(f"Get{kind}", name) for name in every_result(call, f"Search{kind}", request)]


def show_messages(rows: Sequence[Any], columns: Sequence[str], cells: Callable[[Any], Sequence[Any]]) -> console.Shown:
    """Messages: a table with the cells of each."""
    return console.table(map(plain_message, rows), columns, map(cells, rows))


_OPTIONS = keyword("server", Server, SERVER), keyword("tenant", Tenant, "default")
RUNS = Reached((keyword("pond", Here, None), *_OPTIONS), lambda pond, server, tenant: opened_runs(server, tenant, pond))
"""Of commands that ask: the function that asks the server, or the pond."""
TENANT = Reached(_OPTIONS, connected)
"""Of commands that change something: the function that calls the server."""
INSTALLATION = Reached(_OPTIONS[:1], lambda server: connected(server, "default"))
"""The same, for what belongs to no tenant."""


def opened_here(address: str) -> Pond:
    """The pond that this process works on: in a folder, or a bucket.

    Raises: `Invalid`, kind `pipeline_place`, for one on nodes; as `open`.
    """
    location = parse_location(address)
    if isinstance(location, NodesLocation):
        raise Invalid("a pipeline runs in this process on the pond in a folder or a bucket", kind="pipeline_place",
                      pond=address, hint="millpond pipeline deploy FILE; then the node does it")  # fmt: skip
    return location.open()
