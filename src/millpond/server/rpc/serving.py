"""The gRPC server of a node: it lives in the event loop of the HTTP server, begins after it and ends before it.

    port checked ─▶ event loop begins ─▶ server begins ─▶ … ─▶ no new calls, watchers let go ─▶ calls end ─▶ server ends

Certificate, key and tokens are those of HTTP. Each limit has a name:

| limit | |
|---|---|
| of `server.max_request_memory` | connections that are open; one more is closed at once |
| `NodeLimits.watchers_max` | watchers, over gRPC and HTTP together |
| `POLLS_MAX` | streams of workers |
| `health.py` | requests for health, which need no token, and watches of it |
| `Front.calls` | other calls: as many as work or wait, by `NodeLimits` |
| `MESSAGE_BYTES_MAX` | a message to the node; requests together take `server.max_request_memory` |
| | a compressed message is refused: `UNIMPLEMENTED` |
| `client.read_timeout` | a watcher that takes nothing for so long is disconnected |
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2

from millpond.errors import Unavailable
from millpond.extras import extra_missing
from millpond.server.armada.events_api import EVENT_ROWS
from millpond.server.armada.jobs_api import JOB_ROWS
from millpond.server.armada.means import SURFACE, Means
from millpond.server.armada.queries_api import QUERY_ROWS
from millpond.server.armada.queues_api import QUEUE_ROWS
from millpond.server.certificates import Certificates
from millpond.server.rpc.dispatch import MESSAGE_BYTES_MAX, POLLS_MAX, Front, Service
from millpond.server.rpc.health import WATCHES_MAX, Health

if TYPE_CHECKING:
    from millpond.server.workflows.service import WorkflowService
    from millpond.settings import Settings

__all__ = ("MESSAGE_BYTES_MAX", "SERVICES", "choose_port", "serving_grpc")

STOP_SECONDS_MIN = 1.0
"""The time that calls have to end after the requests of HTTP, which may have taken all that a node has."""
ANSWER_SECONDS = 0.25
"""The time that the last answers have to leave, and that a client in Python that calls nothing keeps its connection."""
METADATA_BYTES_MAX = 16 << 10
SERVICES = {
    "api.Event": EVENT_ROWS, "api.Jobs": QUERY_ROWS, "api.QueueService": QUEUE_ROWS,
    "api.Submit": {**QUEUE_ROWS, **JOB_ROWS},
}  # fmt: skip
WORKFLOWS = "littlehorse.LittleHorse"
_KEEPALIVE: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 120_000), ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 300_000), ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000), ("grpc.server_handshake_timeout_ms", 15_000),
)  # fmt: skip
"""A client may ask for a sign of life every ten seconds; a connection that gives none for 140 is closed."""
_LOG = logging.getLogger("millpond.server")


def choose_port(settings: Settings, http_port: int) -> int | None:
    """The port for gRPC, which was free a moment ago; None for none.

    Raises:
        Unavailable: a port that the settings name is in use.
    """
    server, setting = settings.server, settings.server.grpc_port
    if setting == "off":
        return None
    by_default = setting == "auto"
    port = setting if isinstance(setting, int) else http_port + 1 if server.port else 0
    try:
        return _free(server.host, port)
    except OSError as error:
        if not by_default:
            in_use = error.errno == errno.EADDRINUSE
            raise Unavailable(
                "the port for gRPC is in use" if in_use else "the node cannot listen there", kind="grpc_port_in_use",
                host=server.host, port=port, hint="set `server.grpc_port` to another, or to off",
            ) from error  # fmt: skip
        _LOG.warning("no gRPC: port %s is taken. server.grpc_port names another, or says off", port)
        return None


def _free(host: str, port: int) -> int:
    if port > 65_535:
        raise OSError(errno.EADDRINUSE, "there is no such port")
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        free: int = probe.getsockname()[1]
        return free


@asynccontextmanager
async def serving_grpc(front: Front, means: Means, port: int, connections_max: int) -> AsyncIterator[None]:
    """Serve until the context ends, on the event loop that runs.

    Raises:
        Unavailable: the port was taken meanwhile.
    """
    node = front.node
    server = grpc.aio.server(options=_options(node.settings, connections_max), maximum_concurrent_rpcs=_rpcs_max(front))
    health = Health()
    states = health.states
    workflows, services = _workflows(front)
    services += (Service(name, SURFACE, means, rows) for name, rows in SERVICES.items())
    server.add_generic_rpc_handlers([health.handler(), *map(front.handler, services)])
    _listen(server, node.settings, port)
    await server.start()
    if workflows is not None:
        await workflows.resume()
    for service in ("", *SERVICES, *([] if workflows is None else [WORKFLOWS])):
        await states.set(service, health_pb2.HealthCheckResponse.SERVING)
    try:
        yield
    finally:
        await states.enter_graceful_shutdown()
        if workflows is not None:
            await workflows.leave()
        await front.ended(max(STOP_SECONDS_MIN, node.stop_due - node.clock.monotonic()))
        await server.stop(ANSWER_SECONDS)
        if workflows is not None:
            await workflows.end()


def _workflows(front: Front) -> tuple[WorkflowService | None, list[Service[Any]]]:
    """The workflows of a node, and their services; none without the extra `workflows`, whose messages they speak."""
    if find_spec("littlehorse") is None:
        return None, []
    if front.node.bucket is not None and find_spec("rocksdict") is None:
        _LOG.warning("workflows are not served: %s", extra_missing("rocksdict"))
        return None, []
    from millpond.server.workflows.methods import peer_methods, workflow_methods
    from millpond.server.workflows.metrics import WorkflowMetrics
    from millpond.server.workflows.service import WorkflowService

    workflows = WorkflowService(front.node, front.threads)
    front.metrics.registry.register(WorkflowMetrics(workflows))
    front.workflows = workflow_methods(workflows)
    return workflows, [front.workflows, *([peer_methods(workflows)] if workflows.partitions.shared else [])]


def _rpcs_max(front: Front) -> int:
    """All calls together: more than each limit lets through, so that each one answers with its name."""
    open_ended = front.node.limits.watchers_max + POLLS_MAX + WATCHES_MAX
    return 2 * (front.calls.total + open_ended)


def _options(settings: Settings, connections_max: int) -> list[tuple[str, Any]]:
    return [
        *_KEEPALIVE,
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        # Only `identity`. A message is unpacked before its length or its caller is looked at: a few MiB become GiB.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.max_allowed_incoming_connections", connections_max),
    ]


def _listen(server: grpc.aio.Server, settings: Settings, port: int) -> None:
    host = f"[{settings.server.host}]" if ":" in settings.server.host else settings.server.host
    try:
        if settings.secure:
            server.add_secure_port(f"{host}:{port}", Certificates(settings).grpc_credentials())
        else:
            server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise Unavailable(
            "the port for gRPC is in use", kind="grpc_port_in_use", host=settings.server.host, port=port,
            hint="set `server.grpc_port` to another, or to off",
        ) from error  # fmt: skip
