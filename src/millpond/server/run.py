"""The process that serves: a socket, a pond, a node, and uvicorn between them; stopped in order.

    socket ─▶ pond ─▶ node ─▶ application ─▶ listening … node starts in the background … ready
    stop: no new connections ─▶ requests finish ─▶ merger, follower and scheduler stop ─▶ pond closes
          after `shutdown_timeout`: connections are cut ─▶ what is left has `END_SECONDS`, then the process is ended

What can go wrong is found before anything is served: a port that is in use, a folder that is served already, an
address that others can reach without tokens.
"""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import logging
import re
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self, cast

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from millpond.clock import Clock, SystemClock
from millpond.errors import Denied, Invalid, Unavailable
from millpond.kernel.worker import wait_ended
from millpond.nodes.node import Node, is_loopback
from millpond.pond import open_pond
from millpond.server.access import auditing
from millpond.server.app import make_app
from millpond.server.armada.watching import Watching
from millpond.server.certificates import Certificates
from millpond.server.connections import ConnectionLimits, Connections
from millpond.server.csrf_guard import checking_origin
from millpond.server.forwarded import behind_proxies
from millpond.server.lingering_close import announce_close
from millpond.server.memory import MemoryBudget
from millpond.server.metrics import Metrics
from millpond.server.rpc.serving import choose_port
from millpond.server.transfers import GRACE_SECONDS, cut_off
from millpond.settings import Settings
from millpond.versions.place import VersionsPlace

__all__ = ("Service",)

BACKLOG = 2048
END_SECONDS = 4.0
"""The time after `shutdown_timeout` in which work ends that no longer has a client."""
_LOG = logging.getLogger("millpond.server")
_SIGNATURE = re.compile(r"([?&]signature=)[^&\s]*")


class _Server(uvicorn.Server):
    """uvicorn, but a signal that stops it is no failure: the process goes on to close its pond."""

    def __init__(self, config: uvicorn.Config, node: Node, watching: Watching) -> None:
        super().__init__(config)
        self._node, self._watching = node, watching

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests finish; those that wait for something fail, because the node is stopping.

        What can be continued later is cut off soon, see `transfers.py`.
        """
        _LOG.info("stopping")
        self._watching.close()
        seconds = self._node.settings.shutdown_timeout / 1000
        self._node.stop_due = self._node.clock.monotonic() + seconds
        threading.Thread(target=self._node.stop, name="stop-node", daemon=True).start()
        loop = asyncio.get_running_loop()
        patience = loop.call_later(GRACE_SECONDS, cut_off, self.server_state.connections)
        # Work in threads ends when its sender has gone.
        end = loop.call_later(seconds, self._abort_connections)
        try:
            await super().shutdown(sockets)
        finally:
            patience.cancel()
            end.cancel()
            # A TLS connection whose other end does not say goodbye would outlive the loop by half a minute.
            self._abort_connections()

    def _abort_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop, and let the process end in time, whatever its threads are at.

        A pond survives that as it survives a crash. The thread that ends it is not Python's, so nothing holds it up.
        """
        if not self.should_exit:
            seconds = self._node.settings.shutdown_timeout / 1000 + END_SECONDS
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or 2)
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Service:
    """A node that is reached over HTTP. As a context manager it closes what it opened."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        """Open everything, but answer nobody yet.

        Raises: `Unavailable` for a port or folder in use; `Denied` for an open address without tokens; `Invalid`.
        """
        clock = clock or SystemClock()
        self._socket = _listen(settings)
        try:
            port = self._socket.getsockname()[1]
            grpc_port = choose_port(settings, port)
            settings = settings.model_copy(
                update={"port": port, "url": settings.own_url(port), "grpc_port": grpc_port or "off"}
            )
            _check_listed(settings)
            self._certificates = Certificates(settings) if settings.secure else None
            versions = VersionsPlace(settings.versions_space, settings.versions_objects, settings.bucket_config)
            self._pond = open_pond(
                Path(settings.data).absolute(),
                clock=clock,
                serve=True,
                part_retention=settings.part_retention,
                versions=versions,
                events_store=settings.events_store,
                events_reports=settings.events_reports,
                memory_max=settings.memory_max,
            )
            try:
                self.node = Node(self._pond, settings, clock)
                _check_access(self.node)
                self._server = _Server(self._config(settings), self.node, self.app.state.watching)
            except BaseException:
                self._pond.close()
                raise
        except BaseException:
            self._socket.close()
            raise
        self._failed: BaseException | None = None

    def _config(self, settings: Settings) -> uvicorn.Config:
        self.app = app = make_app(self.node)
        self.metrics: Metrics = app.state.metrics
        self.memory: MemoryBudget = app.state.memory
        either = _by_method(app, auditing(app, self.node))
        checked = checking_origin(either, self.node, self.metrics)
        counted = announce_close(self.metrics.counting(checked, self.node.clock))
        self.connections = Connections(ConnectionLimits.of(settings), partial(self.metrics.count_refused, "connection"))
        self.connections.busy = lambda: self.memory.queued > 0
        self.metrics.show_connections(self.connections)
        logging.getLogger("uvicorn.access").addFilter(_without_signature)
        certificates = self._certificates
        config = uvicorn.Config(
            counted, interface="asgi3", loop="uvloop", proxy_headers=False,
            ssl_context_factory=None if certificates is None else lambda *_: certificates.context(),
            http=cast(Any, self.connections), ws="none", lifespan="on", log_config=None,
            access_log=settings.access_log, server_header=False, backlog=BACKLOG,
            timeout_graceful_shutdown=max(1, settings.shutdown_timeout // 1000),
        )  # fmt: skip
        config.app = cast(Any, behind_proxies(counted, config.forwarded_allow_ips))
        return config

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Serve until stopped, by `stop` or, in the main thread, by SIGINT or SIGTERM.

        Raises: what kept the node from starting.
        """
        starter = threading.Thread(target=self._start, args=(ready,), name="start-node", daemon=True)
        starter.start()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self.app.state.begun.set()
            self.node.stop()
            wait_ended(starter, "the start of the node")
        failed = self._failed or self.app.state.failed
        if failed is not None:
            raise failed

    def _start(self, ready: Callable[[], None] | None) -> None:
        try:
            self.node.start()
        except BaseException as error:
            self._failed = error
            self._server.should_exit = True
            return
        self.app.state.begun.wait()  # for gRPC listens when the event loop has begun
        if ready is not None and not self._server.should_exit:
            ready()

    def stop(self) -> None:
        """Let `run` end."""
        self._server.should_exit = True

    def close(self) -> None:
        """Close the pond and the socket."""
        self._pond.close()
        self.node.audit.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _by_method(reads: ASGIApp, changes: ASGIApp) -> ASGIApp:
    """The application of requests that read, and of all others, which may be lines of the audit log."""

    def chosen(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return (reads if scope.get("method") in ("GET", "HEAD") else changes)(scope, receive, send)

    return chosen


def _without_signature(record: logging.LogRecord) -> bool:
    """Leave the signature of a URL out of its line in the log: with it, whoever reads the log opens the object."""
    if isinstance(record.args, tuple):
        record.args = tuple(_SIGNATURE.sub(r"\1…", value) if isinstance(value, str) else value for value in record.args)
    return True


def _listen(settings: Settings) -> socket.socket:
    """A socket that listens where the settings say."""
    try:
        (family, _, _, _, address), *_ = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise Invalid(
            "no machine has this address", kind="host_unknown", host=settings.host, reason=error.strerror
        ) from error
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(
                "the port is in use", kind="port_in_use", host=settings.host, port=settings.port,
                hint="stop what listens there, or choose another --port",
            ) from error  # fmt: skip
        raise Invalid(
            "the node cannot listen there", kind="host_refused", host=settings.host, port=settings.port,
            reason=error.strerror, hint="choose another --host or --port",
        ) from error  # fmt: skip
    return made


def _check_listed(settings: Settings) -> None:
    nodes = [url.rstrip("/") for url in settings.nodes]
    if nodes and settings.url not in nodes:
        raise Invalid(
            "the node's own address is not among `nodes`", kind="node_not_listed", url=settings.url,
            nodes=", ".join(nodes), hint="set `url` to the address under which it stands there",
        )  # fmt: skip


def _check_access(node: Node) -> None:
    if is_loopback(node.settings.host):
        return
    if node.settings.access == "open":
        raise Denied(
            "an address that others can reach cannot be open to everybody", kind="access_open",
            host=node.settings.host, hint="take access = \"open\" out of the settings, or listen on 127.0.0.1",
        )  # fmt: skip
    if node.tokens.any():
        return
    raise Denied(
        "an address that others can reach needs tokens", kind="tokens_wanted", host=node.settings.host,
        hint="add one first: millpond token add NAME --read '*'; or listen on 127.0.0.1",
    )  # fmt: skip
