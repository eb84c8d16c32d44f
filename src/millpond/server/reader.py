"""A reading process of a node: it answers questions about maps, and hands everything else on.

    request ─▶ a route of a row with `at_readers`, and the board says that readers may answer?
                 yes ─▶ the handlers of the node's own routes, on a pond that is open beside the process that writes
                 no  ─▶ `forward.py`

`readers.py` is the other side, and says what holds for both.
"""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import anyio.to_thread
from starlette.types import Receive, Scope, Send

from millpond.arrays.malloc import give_memory_back
from millpond.clock import Clock, SystemClock
from millpond.kernel.worker import begin_thread
from millpond.nodes.limits import LIMITS
from millpond.nodes.lookup_service import LookupService
from millpond.nodes.node import Node, tokens_of
from millpond.nodes.ponds_at_refs import PondsAtRefs
from millpond.nodes.rate_limits import SharedRateLimits
from millpond.nodes.replication.peer_health import not_ready
from millpond.pond import open_pond
from millpond.server.certificates import Certificates
from millpond.server.connections import ConnectionLimits
from millpond.server.csrf_guard import checking_origin, origin_of
from millpond.server.dispatch import Application
from millpond.server.forward import Forward
from millpond.server.forwarded import behind_proxies
from millpond.server.lingering_close import announce_close
from millpond.server.map_refs import names_ref
from millpond.server.memory import MemoryBudget
from millpond.server.metrics import Metrics
from millpond.server.quick import quick_answers
from millpond.server.readers import Board, Order
from millpond.server.routes import maps, questions
from millpond.server.run import Server, connections_of, uvicorn_config
from millpond.server.thread_limits import FairThreads
from millpond.tracing import begin_tracing

__all__ = ("serve_reads",)

CLEAN_SECONDS = 60.0


class _Running:
    """The requests that this process works on, for the draining of the node."""

    def __init__(self, board: Board, number: int) -> None:
        self._board, self._number = board, number
        self._count = 0

    def begin_request(self) -> None:
        """Count a request; the event loop alone calls it."""
        self._count += 1
        self._board.put_running(self._number, self._count)

    def end_request(self) -> None:
        self._count -= 1
        self._board.put_running(self._number, self._count)


class _ReadingNode:
    """The part of a `Node` that the routes of questions use."""

    def __init__(self, order: Order, board: Board, clock: Clock) -> None:
        self.settings, self.limits = order.settings, LIMITS
        settings = order.settings
        self.clock, self._board = clock, board
        begin_tracing(settings.tracing.target)
        self.pond = open_pond(
            Path(settings.server.data).absolute(), create=False, clock=clock, events_reports=settings.events.reports,
            maps_memory_max=settings.maps.memory_max,
        )  # fmt: skip
        self.url = settings.own_url()
        self.tokens = tokens_of(self.pond, settings, clock)
        # Once they are required they are until the node ends: also in a process that begins after their file went away.
        of_files = self.tokens.required

        def required() -> bool:
            if of_files() and not board.requires_tokens:
                board.require_tokens()  # the process that writes may look too late
            return settings.server.access != "open" and board.requires_tokens

        self.tokens.required = required  # type: ignore[method-assign]
        self.rate_limits = SharedRateLimits(
            settings.server.token_requests_per_second, settings.server.token_requests_burst, clock, board.buckets
        )
        self.lookups = LookupService(clock, self.limits.files_idle_ms)
        self.at_refs = PondsAtRefs(self.pond, lambda: False)
        self.drain = _Running(board, order.number)
        self.stopping, self.stop_due = False, 0.0
        self.bucket = None
        """None: a node on a bucket has no reading processes."""

    @property
    def answers(self) -> bool:
        """True while the process that writes says so."""
        return self._board.answers

    def need_ready(self) -> None:
        """Insist on that.

        Raises: `Unavailable`, kind `node_not_ready`.
        """
        if not self.answers:
            raise not_ready(self.url, "it ceased to be ready in this moment")

    def stop(self) -> None:
        self.stopping = True

    def clean(self) -> None:
        """Let go of files that nobody asked for lately."""
        self.pond.open_maps.close_idle(self.limits.files_idle_ms / 1000)
        give_memory_back()


def _application(node: Node) -> Application:
    """The routes that a reading process answers."""
    settings = node.settings

    @asynccontextmanager
    async def lifespan(_app: Application) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = node.limits.threads
        app.state.short_threads = FairThreads(node.limits.threads)
        app.state.large_threads = FairThreads(node.limits.large_threads)
        yield
        node.lookups.close()

    app = Application(lifespan)
    app.state.node = node
    app.state.memory = MemoryBudget(
        settings.server.max_request_memory, queued_max=node.limits.requests_queued_max,
        queue_seconds=node.limits.queue_seconds,
    )  # fmt: skip
    app.state.processes = app.state.memory  # it begins none
    app.state.metrics = Metrics(node.clock)
    app.state.metrics.show_memory(app.state.memory)
    declared = [route for module in (maps, questions) for route in module.routes(node).routes]
    app.serve([route for route in declared if route.needs.at_readers])
    return app


def _server(order: Order, node: _ReadingNode, app: Application) -> Server:
    settings, metrics = order.settings, app.state.metrics
    as_node = cast(Node, node)
    origin = origin_of(as_node)
    checked = checking_origin(app, origin, metrics)
    forward = announce_close(Forward(order.writer, node.url))
    certificates = Certificates(settings) if settings.secure else None
    limits = ConnectionLimits.of(settings, node.limits).shared(settings.server.readers)
    connections = connections_of(limits, metrics, app.state.memory)
    connections.at_once = quick_answers(app, origin, metrics)
    own = announce_close(metrics.counting(checked, node.clock))
    config = uvicorn_config(own, settings, node.limits, connections, certificates)
    own = cast(Any, behind_proxies(own, config.forwarded_allow_ips))

    def chosen(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        http = scope["type"] == "http"
        here = not http or (node.answers and not names_ref(scope) and app.route_of(scope) is not None)
        return (own if here else forward)(scope, receive, send)

    config.app = cast(Any, chosen)
    return Server(config, as_node)


def serve_reads(channel: Connection, prepare: Callable[[Order], object]) -> None:
    """Serve until SIGTERM, or until the other end of the channel is closed; `prepare` is called with the order."""
    import socket

    order: Order = channel.recv()
    prepare(order)
    node = _ReadingNode(order, Board(order.board), SystemClock())
    app = _application(cast(Node, node))
    server = _server(order, node, app)
    begin_thread("orders", partial(_obey, channel, node, app.state.metrics))
    gc.collect()
    gc.freeze()
    server.run(sockets=[socket.socket(fileno=order.listener)])
    node.pond.close()


def _obey(channel: Connection, node: _ReadingNode, metrics: Metrics) -> None:
    """Tell the counters whenever they are wanted, and end with the process that wants them."""
    try:
        channel.send("ready")
        while True:
            if channel.poll(CLEAN_SECONDS):
                channel.send((channel.recv(), list(metrics.registry.collect()), metrics.lookups_by_hour()))
            else:
                node.clean()
    except (EOFError, OSError):
        os._exit(1)
