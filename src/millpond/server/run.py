"""The process that serves: a socket, a pond, a node, and uvicorn between them; stopped in order.

    socket ─▶ pond ─▶ node ─▶ application ─▶ listening … node starts in the background … ready
    stop: no new connections ─▶ requests finish ─▶ merger, follower and scheduler stop ─▶ pond closes
          after `shutdown_seconds`: connections are cut ─▶ what is left has `END_SECONDS`, then the process is ended

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from millpond.client.location import BucketLocation, parse_location
from millpond.clock import Clock, SystemClock
from millpond.errors import Denied, Invalid, MillpondError, Unavailable
from millpond.kernel.closing import Closing
from millpond.kernel.worker import begin_thread, wait_ended
from millpond.maps.loads.bucket_location import bucket_unsupported
from millpond.nodes.limits import LIMITS, NodeLimits
from millpond.nodes.node import Node, is_loopback
from millpond.nodes.rate_limits import SharedRateLimits
from millpond.pond import Pond, open_pond
from millpond.server.app import make_app
from millpond.server.certificates import Certificates
from millpond.server.connections import ConnectionLimits, Connections
from millpond.server.csrf_guard import checking_origin, origin_of
from millpond.server.forward import from_readers
from millpond.server.forwarded import behind_proxies
from millpond.server.lingering_close import announce_close
from millpond.server.memory import MemoryBudget
from millpond.server.metrics import Metrics
from millpond.server.quick import quick_answers
from millpond.server.readers import Board, Readers
from millpond.server.rpc.serving import choose_port
from millpond.server.transfers import GRACE_SECONDS, cut_off
from millpond.settings import Settings
from millpond.tracing import begin_tracing
from millpond.versions.location import VersionsLocation

__all__ = ("Server", "Service", "connections_of", "open_served", "uvicorn_config")

BACKLOG = 2048
END_SECONDS = 4.0
"""The time after `NodeLimits.shutdown_seconds` in which work ends that no longer has a client."""
_LOG = logging.getLogger("millpond.server")
_SIGNATURE = re.compile(r"([?&]signature=)[^&\s]*")


class Server(uvicorn.Server):
    """uvicorn, but a signal that stops it is no failure: the process goes on to close its pond."""

    def __init__(self, config: uvicorn.Config, node: Node, stopping: Sequence[Callable[[], object]] = ()) -> None:
        """`stopping` are called first when it stops."""
        super().__init__(config)
        self._node, self._at_stop = node, stopping
        self.tick: Callable[[], object] = bool

    async def on_tick(self, counter: int) -> bool:
        """Do what is due ten times a second."""
        self.tick()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests finish; those that wait for something fail, because the node is stopping.

        What can be continued later is cut off soon, see `transfers.py`.
        """
        for act in self._at_stop:
            act()
        seconds = self._node.limits.shutdown_seconds
        self._node.stop_due = self._node.clock.monotonic() + seconds
        begin_thread("stop-node", self._node.stop)
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
            seconds = self._node.limits.shutdown_seconds + END_SECONDS
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


class Service(Closing):
    """A node that is reached over HTTP. As a context manager it closes what it opened."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None, limits: NodeLimits = LIMITS) -> None:
        """Open everything, but answer nobody yet.

        Raises: `Unavailable` for a port or folder in use; `Denied` for an open address without tokens; `Invalid`.
        """
        clock = clock or SystemClock()
        begin_tracing(settings.tracing.target)
        self._sockets = _listen(settings)
        self._readers: Readers | None = None
        try:
            port = self._sockets[0].getsockname()[1]
            grpc_port = choose_port(settings, port)
            settings = settings.at(port, grpc_port)
            _check_listed(settings)
            certificates = Certificates(settings) if settings.secure else None
            if settings.server.readers > 1:
                self._readers, certificates = Readers(settings, self._sockets), None  # the readers speak TLS
                self._sockets = [self._readers.socket]
            self._pond = open_served(settings, clock)
            try:
                self.node = Node(self._pond, settings, clock, limits)
                _check_access(self.node)
                config = self._config(settings, certificates)
                at_stop = [partial(_LOG.info, "stopping"), self.app.state.watching.close]
                if self._readers is not None:
                    at_stop.append(self._readers.stop)
                self._server = Server(config, self.node, at_stop)
                if self._readers is not None:
                    self._server.tick = partial(self._tell, self._readers.board)
            except BaseException:
                self._pond.close()
                raise
        except BaseException:
            self._close_sockets()
            raise
        self._failed: BaseException | None = None

    def _config(self, settings: Settings, certificates: Certificates | None) -> uvicorn.Config:
        self.app = app = make_app(self.node)
        self.metrics: Metrics = app.state.metrics
        self.memory: MemoryBudget = app.state.memory
        origin = origin_of(self.node, self.node.follower.members.urls)
        checked = checking_origin(app, origin, self.metrics)
        counted = announce_close(self.metrics.counting(checked, self.node.clock))
        limits = ConnectionLimits.of(settings, self.node.limits)
        if self._readers is not None:
            limits = limits.of_readers(len(self._readers))
            self._share(self._readers)
        self.connections = connections_of(limits, self.metrics, self.memory)
        config = uvicorn_config(counted, settings, self.node.limits, self.connections, certificates)
        outermost = behind_proxies(counted, config.forwarded_allow_ips)
        if self._readers is not None:
            outermost = from_readers(outermost)
            config.access_log = False  # the readers write it
        elif self.node.bucket is None:  # else answers may wait for the bucket
            self.connections.at_once = quick_answers(app, origin, self.metrics)
        config.app = cast(Any, outermost)
        return config

    def _share(self, readers: Readers) -> None:
        """Have the node and its readers know of each other."""
        node, server = self.node, self.node.settings.server
        node.rate_limits = SharedRateLimits(
            server.token_requests_per_second, server.token_requests_burst, SystemClock(), readers.board.buckets
        )
        node.drain.elsewhere = readers.requests
        node.drain.changed = lambda _draining: self._tell(readers.board)
        self.metrics.show_readers(readers)

    def _tell(self, board: Board) -> None:
        """Tell the readers if they may answer: of several nodes, only this process knows if its lease holds."""
        node = self.node
        try:
            if node.tokens.required():
                board.require_tokens()
            board.allow(node.role == "alone" and (node.answers or node.unready() is None))
        except MillpondError:  # nobody knows who may ask
            board.allow(False)

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Serve until stopped, by `stop` or, in the main thread, by SIGINT or SIGTERM.

        Raises: what kept the node from starting.
        """
        starter = begin_thread("start-node", partial(self._start, ready))
        try:
            self._server.run(sockets=self._sockets)
        except SystemExit:  # uvicorn's own, of an application that did not begin
            if self.app.state.failed is None:
                raise
        finally:
            if self._readers is not None:
                self._readers.stop()
            self.app.state.begun.set()
            self.node.stop()
            wait_ended(starter, "the start of the node")
        failed = self._failed or self.app.state.failed
        if failed is not None:
            raise failed

    def _start(self, ready: Callable[[], None] | None) -> None:
        try:
            self.node.start()
            if self._readers is not None:
                self._readers.start()
        except BaseException as error:
            self._failed = error
            self._server.should_exit = True
            return
        self.app.state.begun.wait()  # for gRPC listens when the event loop has begun
        if ready is not None and self.app.state.failed is None and not self._server.should_exit:
            ready()

    def stop(self) -> None:
        """Let `run` end."""
        self._server.should_exit = True

    def close(self) -> None:
        """Close the pond and the socket."""
        self._close_sockets()
        self._pond.close()
        self.node.audit.close()

    def _close_sockets(self) -> None:
        if self._readers is not None:
            self._readers.close()
        for bound in self._sockets:
            bound.close()


def _without_signature(record: logging.LogRecord) -> bool:
    """Leave the signature of a URL out of its line in the log: with it, whoever reads the log opens the object."""
    if isinstance(record.args, tuple):
        record.args = tuple(_SIGNATURE.sub(r"\1…", value) if isinstance(value, str) else value for value in record.args)
    return True


def connections_of(limits: ConnectionLimits, metrics: Metrics, memory: MemoryBudget) -> Connections:
    """The connections of a process, counted."""
    connections = Connections(limits, partial(metrics.count_refused, "connection"))
    connections.busy = lambda: memory.queued > 0
    metrics.show_connections(connections)
    return connections


def uvicorn_config(
    app: ASGIApp, settings: Settings, limits: NodeLimits, connections: Connections, certificates: Certificates | None
) -> uvicorn.Config:
    """The configuration of a process that serves an application."""
    logging.getLogger("uvicorn.access").addFilter(_without_signature)
    return uvicorn.Config(
        app, interface="asgi3", loop="uvloop", proxy_headers=False,
        ssl_context_factory=None if certificates is None else lambda *_: certificates.context(),
        http=cast(Any, connections), ws="none", lifespan="on", log_config=None,
        access_log=settings.server.log_level == "debug", server_header=False, backlog=BACKLOG,
        timeout_graceful_shutdown=max(1, int(limits.shutdown_seconds)),
    )  # fmt: skip


def _listen(settings: Settings) -> list[socket.socket]:
    """The sockets that listen where the settings say: one, or one for each reading process."""
    try:
        (family, _, _, _, address), *_ = socket.getaddrinfo(
            settings.server.host, settings.server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise Invalid(
            "no machine has this address", kind="host_unknown", host=settings.server.host, reason=error.strerror
        ) from error
    sockets: list[socket.socket] = []
    count = max(1, settings.server.readers)
    try:
        for number in range(count):
            sockets.append(_bound(family, address, of=count, first=number == 0))
            address = sockets[0].getsockname()  # the port, where any will do
    except OSError as error:
        for bound in sockets:
            bound.close()
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(
                "the port is in use", kind="port_in_use", host=settings.server.host, port=settings.server.port,
                hint="stop what listens there, or choose another --port",
            ) from error  # fmt: skip
        raise Invalid(
            "the node cannot listen there", kind="host_refused", host=settings.server.host, port=settings.server.port,
            reason=error.strerror, hint="choose another --host or --port",
        ) from error  # fmt: skip
    return sockets


def _bound(family: int, address: Any, *, of: int, first: bool) -> socket.socket:
    """A socket that listens, one of so many."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # The first shares its port only once it has it: so it fails where another node listens, which shares too.
        if not first:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        if of > 1:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _check_listed(settings: Settings) -> None:
    nodes = [url.rstrip("/") for url in settings.nodes.urls]
    if nodes and settings.server.url not in nodes:
        raise Invalid(
            "the node's own address is not among `nodes.urls`", kind="node_not_listed", url=settings.server.url,
            nodes=", ".join(nodes), hint="set `server.url` to the address under which it stands there",
        )  # fmt: skip


def _check_access(node: Node) -> None:
    if is_loopback(node.settings.server.host):
        return
    if node.settings.server.access == "open":
        raise Denied(
            "an address that others can reach cannot be open to everybody", kind="access_open",
            host=node.settings.server.host,
            hint='take server.access = "open" out of the settings, or listen on 127.0.0.1',
        )  # fmt: skip
    if node.tokens.any():
        return
    raise Denied(
        "an address that others can reach needs tokens", kind="tokens_wanted", host=node.settings.server.host,
        hint="add one first: millpond token add NAME --read '*'; or listen on 127.0.0.1",
    )  # fmt: skip


def open_served(settings: Settings, clock: Clock) -> Pond:
    """Open the pond of a node, to serve it.

    Raises: as `open_pond`, and as `BucketLocation.open`; `Invalid`, kind `bucket_unsupported`, for a setting that a
    node on a bucket cannot have.
    """
    location = parse_location(settings.server.data)
    if isinstance(location, BucketLocation):
        return _in_bucket(location, settings, clock)
    return open_pond(
        Path(settings.server.data).absolute(),
        clock=clock,
        serve=True,
        maps_part_retention=settings.maps.part_retention,
        maps_history=settings.maps.history,
        versions=VersionsLocation(settings.versions.space, settings.versions.objects),
        events_store=settings.events.store,
        events_reports=settings.events.reports,
        maps_memory_max=settings.maps.memory_max,
        maps_store=settings.maps.store,
    )


def _in_bucket(location: BucketLocation, settings: Settings, clock: Clock) -> Pond:
    stated = {
        "replication": settings.nodes.urls,
        "shards": settings.maps.store == "shard",
        "another place for repositories": settings.versions.space or settings.versions.objects,
        "a Redis for events": settings.events.store,
        "another log of workflows": settings.workflows.log,
        "another store of runs": settings.workflows.store != "pond",
        "backups": settings.objects.backups,
        "readers": settings.server.readers > 1,
    }
    for part in (part for part, value in stated.items() if value):
        raise bucket_unsupported(part, location.url)
    return location.open(
        clock=clock, serve=True, max_staleness=settings.objects.max_staleness / 1000, space=settings.objects.space,
        maps_memory_max=settings.maps.memory_max, maps_history=settings.maps.history,
        events_reports=settings.events.reports, cache=settings.client.cache_folder("buckets"),
    )  # fmt: skip
