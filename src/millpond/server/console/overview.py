"""The first page, with what flows now and what is wrong.

A page that is open gets its contents anew as Server-Sent Events: when something has changed, or the time is up.

Invariant: a page is written at most every two seconds, however much changes, and holds no thread in between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from millpond.console import bars, rendered
from millpond.errors import Denied
from millpond.kernel.hours import HOUR_MS
from millpond.nodes.node import Node
from millpond.nodes.tokens import Caller
from millpond.server.access import share_in
from millpond.server.console.faults import faults
from millpond.server.console.loads import by_hour, newest_loads
from millpond.server.console.pages import HEADERS, SIGNED_IN, answered, pages
from millpond.server.console.runs import COUNTED_MAX, TENANT, calling, runs_by_hour
from millpond.server.dispatch import Routes
from millpond.server.long_polls import polls_of
from millpond.server.memory import room_of
from millpond.server.routes.events import Watched, entered
from millpond.server.wire import relative

__all__ = ("routes",)

_SHOWN = 20
_BY_HOUR = {"lookups": "lookups answered", "events": "events appended", "runs": "runs begun"}
_PAUSE_SECONDS, _ALIVE_SECONDS = 2.0, 8.0


def routes(node: Node) -> Routes:
    """The routes of the first page."""
    router = pages()

    @router.get("/", SIGNED_IN, summary="What flows, and what is wrong")
    def overview(request: Request, caller: Caller) -> Response:
        """Loads of the last day, and faults with the page of each."""
        values, drawn = _now(node, request, caller)
        return answered(request, "overview", values, drawn)

    @router.get("/console/now", SIGNED_IN, summary="The first page, whenever it changes")
    async def watch(request: Request, caller: Caller) -> Response:
        """Server-Sent Events until the reader goes away; each has the contents of the page."""
        begun = entered(request, 1)
        headers = {**HEADERS, "X-Accel-Buffering": "no"}
        return Watched(_changes(request, node, caller), begun, "text/event-stream", headers)

    return router


def _now(node: Node, request: Request, caller: Caller) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of the page as it is now, and what is drawn of them."""
    facts = relative(node.facts(), node.pond.folder)
    now_ms = node.clock.now_ms()
    names = [definition.name for definition in node.pond.catalogue.list()]
    loads = newest_loads(node, [name for name in names if caller.may("read", name)])
    today = [load for load in loads if load["time_ms"] > now_ms - 24 * HOUR_MS]
    hours = by_hour(today, now_ms)
    values: dict[str, Any] = {
        "node": {name: facts[name] for name in ("role", "ready", "version", "position", "clock_ms")},
        "loads": loads[:_SHOWN], "hours": hours, "loads_of_day": len(today), "rows_of_day": sum(hours),
        "runs_by_hour": _runs(request, caller, now_ms), "runs_counted_max": COUNTED_MAX,
        "lookups_by_hour": None, "events_by_hour": None, "wrong": faults(node, request, caller, today),
    }  # fmt: skip
    if caller.may("read"):
        values["lookups_by_hour"] = request.app.state.metrics.lookups_by_hour()
        values["events_by_hour"] = node.events.volumes.hours.of_day(now_ms)
    drawn: dict[str, Any] = {"hours": bars(hours, "rows loaded by hour")}
    for name, words in _BY_HOUR.items():
        counts = values[f"{name}_by_hour"]
        drawn[name] = None if counts is None else bars(counts, f"{words} by hour")
    return values, drawn


def _runs(request: Request, caller: Caller, now_ms: int) -> list[int] | None:
    """The runs that began in each hour of the last day; None for a caller that sees none."""
    call = calling(request, caller, TENANT)
    with suppress(Denied):
        return None if call is None else runs_by_hour(call, now_ms)
    return None


async def _changes(request: Request, node: Node, caller: Caller) -> AsyncIterator[bytes]:
    """The contents of the page: at once, soon after the log grows, and every so often, for other things change, too."""
    polls, name, position = polls_of(request), share_in(request), node.pond.log.position
    room_of(request).keep(0)  # it shares the memory of all watches
    while not node.stopping:
        seen = position()
        values, drawn = await run_sync(_now, node, request, caller)
        page = rendered("overview-now", {**values, "drawn": drawn})
        yield "".join(["event: now\n", *(f"data: {line}\n" for line in page.splitlines()), "\n"]).encode()
        await polls.until(position, _ending(node, seen), _ALIVE_SECONDS, name)
        await polls.until(position, _ending(node), _PAUSE_SECONDS, name)


def _ending(node: Node, seen: tuple[int, str] | None = None) -> Callable[[tuple[int, str]], bool]:
    """The end of a wait: the node stops, or its log is no longer where it was seen."""
    return lambda last: node.stopping or (seen is not None and last != seen)
