"""The application: the routes of a node."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial

import anyio.to_thread
from starlette.types import Lifespan

from millpond.errors import MillpondError
from millpond.nodes.node import Node
from millpond.server import metrics, pages
from millpond.server.armada.means import make_means
from millpond.server.armada.watching import Watching
from millpond.server.confined import PROCESSES_BYTES_MAX
from millpond.server.connections import ConnectionLimits
from millpond.server.console import (
    backfills,
    inventory,
    map_actions,
    node_actions,
    overview,
    previews,
    run_actions,
    runs,
    search,
    sign_in,
    sql,
    streams,
    version_actions,
    versions,
    workflows,
)
from millpond.server.console.pages import CONSOLE
from millpond.server.dispatch import Application
from millpond.server.lakefs.api import ROUTES
from millpond.server.lakefs.batcher import Batcher
from millpond.server.lakefs.dialect import LAKEFS, LISTING
from millpond.server.long_polls import polling
from millpond.server.memory import MemoryBudget
from millpond.server.metrics import Metrics
from millpond.server.refused import refuse_routes
from millpond.server.routes import (
    declared,
    event_settings,
    events,
    health,
    job_sets,
    jobs,
    log,
    maps,
    nodes,
    oauth,
    questions,
    refs,
    run_rows,
    snapshots,
    uploads,
)
from millpond.server.rpc.dispatch import Front
from millpond.server.rpc.serving import serving_grpc
from millpond.server.thread_limits import WAITERS_MAX, FairThreads
from millpond.versions.staging.group_commit import put_together

__all__ = ("make_app",)

_ROUTES = (
    health,
    oauth,
    maps,
    uploads,
    questions,
    snapshots,
    refs,
    events,
    event_settings,
    job_sets,
    log,
    jobs,
    nodes,
    declared,
    sign_in,
    overview,
    previews,
    search,
    inventory,
    map_actions,
    node_actions,
    versions,
    version_actions,
    streams,
    runs,
    run_actions,
    backfills,
    workflows,
    sql,
    run_rows,
)


def make_app(node: Node) -> Application:
    """The application of one node."""

    @asynccontextmanager
    async def lifespan(_app: Application) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = node.limits.threads
        app.state.short_threads = FairThreads(node.limits.threads)
        app.state.waiting_threads = FairThreads(WAITERS_MAX)
        app.state.staging = staging = Batcher(put_together, "stage-entries")
        app.state.lookups = lookups = Batcher(node.pond.repositories.find_entries, "find-entries")
        app.state.large_threads = FairThreads(node.limits.large_threads)
        with polling(node) as app.state.long_polls, closing(staging), closing(lookups):
            yield
        node.lookups.close()  # all requests have ended

    app = Application(partial(_with_grpc, node, lifespan))
    app.state.node = node
    app.state.begun = threading.Event()
    app.state.tickets, app.state.front = {}, None
    app.state.form_key = node.clock.random_id()
    app.state.memory = MemoryBudget(
        node.settings.server.max_request_memory, queued_max=node.limits.requests_queued_max,
        queue_seconds=node.limits.queue_seconds,
    )  # fmt: skip
    app.state.processes = MemoryBudget(
        PROCESSES_BYTES_MAX, queued_max=node.limits.requests_queued_max, queue_seconds=node.limits.queue_seconds
    )
    app.state.metrics = Metrics(node.clock)
    app.state.metrics.show_memory(app.state.memory)
    app.state.metrics.show_long_polls(app.state)
    app.state.watching = Watching(node.events.store, node.events.watchers, node.limits.watchers_max)
    app.state.metrics.show_watchers(app.state.watching)
    app.state.job_sets = make_means(node, app.state.watching)
    routers = [module.routes(node) for module in _ROUTES]
    routers += [metrics.routes(node, app.state.metrics), pages.routes(app)]
    own = [route for router in routers for route in router.routes]
    if node.bucket is not None:
        refuse_routes(node.pond.location, own)
    app.serve([*own, *ROUTES], {f"/api/|{LISTING}": LAKEFS, "/console(/|$)": CONSOLE}, CONSOLE)
    return app


@asynccontextmanager
async def _with_grpc(node: Node, lifespan: Lifespan[Application], app: Application) -> AsyncIterator[None]:
    """The lifespan, with gRPC served in it if there is a port; an error is left for whoever waits for the begin."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(lifespan(app))
        if node.settings.server.grpc_port != "off":
            connections_max = ConnectionLimits.of(node.settings, node.limits).connections_max
            front = app.state.front = Front(node, app.state.memory, app.state.metrics)
            served = serving_grpc(front, app.state.job_sets, int(node.settings.server.grpc_port), connections_max)
            try:
                await stack.enter_async_context(served)
            except MillpondError as error:
                app.state.failed = error
                raise
        app.state.begun.set()
        yield
