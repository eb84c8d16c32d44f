"""The application: the routes of a node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from importlib.metadata import version
from typing import Any

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import APIRouter, Depends, FastAPI

from millpond.nodes.node import Node
from millpond.server import metrics, pages
from millpond.server.lakefs.api import Api
from millpond.server.lakefs.staging import StagedTogether
from millpond.server.limits import GuardedRoute
from millpond.server.long_polls import polling
from millpond.server.memory import MemoryBudget
from millpond.server.metrics import Metrics
from millpond.server.routes import events, health, jobs, log, maps, nodes, questions, snapshots, uploads
from millpond.server.routes.table import ROUTES
from millpond.server.same_map import check_incarnation
from millpond.server.threads import thread_queue
from millpond.server.wire import ErrorResponse, add_error_handlers

__all__ = ("make_app",)

_ROUTES = (health, maps, uploads, questions, snapshots, events, log, jobs, nodes)
_ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorResponse}, "5XX": {"model": ErrorResponse}}


def make_app(node: Node) -> FastAPI:
    """The application of one node."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = node.settings.threads
        app.state.thread_queue = thread_queue()
        app.state.staged_together = staged = StagedTogether()
        app.state.large_threads = CapacityLimiter(node.settings.large_threads)
        with polling(node) as app.state.long_polls, closing(staged):
            yield
        node.lookups.close()  # all requests have ended

    app = FastAPI(
        title="Millpond node", version=version("millpond"), lifespan=lifespan, docs_url=None, redoc_url=None,
        openapi_url=None,
        summary="State that data pipelines need: uploads, maps, snapshots, questions, maintenance.",
    )  # fmt: skip
    app.state.node = node
    app.state.memory = MemoryBudget(
        node.settings.max_request_memory, queued_max=node.settings.max_requests_queued,
        queue_seconds=node.settings.queue_timeout / 1000,
    )  # fmt: skip
    app.state.metrics = Metrics()
    app.state.metrics.show_memory(app.state.memory)
    app.state.metrics.show_long_polls(app.state)
    add_error_handlers(app)
    routers = [module.routes(node) for module in _ROUTES]
    routers += [metrics.routes(node, app.state.metrics), pages.routes(app)]
    for router in routers:
        app.include_router(router, responses=_ERRORS, dependencies=[Depends(check_incarnation)])
    app.state.routes = _listed(routers)
    app.state.versions_api = Api()
    app.router.routes.insert(0, app.state.versions_api)
    app.openapi()  # routes are worked out when they are first asked for: here, rather than while requests wait
    return app


def _listed(routers: list[APIRouter]) -> tuple[GuardedRoute, ...]:
    """All routes, each of which has its row in the table."""
    listed: list[GuardedRoute] = []
    for router in routers:
        for route in router.routes:
            assert isinstance(route, GuardedRoute), f"{route} does not check what it needs"
            listed.append(route)
    unserved = set(ROUTES) - {(route.method, route.path) for route in listed}
    assert not unserved, f"these rows of the table have no route: {unserved}"
    return tuple(listed)
