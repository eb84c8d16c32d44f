"""The first page, with what flows now and what is wrong; and the box that finds a thing by its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from millpond.console import bars, link, segment
from millpond.errors import MillpondError
from millpond.events.names import StreamName
from millpond.nodes.tokens import Caller
from millpond.server.console.loads import HOUR_MS, by_hour, newest_loads
from millpond.server.console.pages import PAGE_ROWS, SIGNED_IN, answered, pages
from millpond.server.lakefs.access import may as may_repository
from millpond.server.stream_rights import may_stream
from millpond.server.wire import relative

if TYPE_CHECKING:
    from millpond.nodes.node import Node
    from millpond.server.dispatch import Routes

__all__ = ("routes",)

_SHOWN = 20


def routes(node: Node) -> Routes:
    """The routes of the first page."""
    router = pages()

    @router.get("/", SIGNED_IN, summary="What flows, and what is wrong")
    def overview(request: Request, caller: Caller) -> Response:
        """Loads of the last day, and faults with the page of each."""
        facts = relative(node.facts(), node.pond.folder)
        now_ms = node.clock.now_ms()
        names = [definition.name for definition in node.pond.catalogue.list()]
        loads = newest_loads(node, [name for name in names if caller.may("read", name)])
        today = [load for load in loads if load["time_ms"] > now_ms - 24 * HOUR_MS]
        hours = by_hour(today, now_ms)
        values = {
            "node": {name: facts[name] for name in ("role", "ready", "version", "position", "clock_ms")},
            "loads": loads[:_SHOWN], "hours": hours, "loads_of_day": len(today), "rows_of_day": sum(hours),
            "wrong": [*_failed(today), *_wrong(node, caller)],
        }  # fmt: skip
        return answered(request, "overview", values, {"hours": bars(hours, "rows loaded by hour")})

    @router.get("/console/find", SIGNED_IN, summary="The page of what has a name")
    def find(request: Request, caller: Caller, q: str = "") -> Response:
        """Goes to the map, the repository, the stream or the run of that name; else says that there is none."""
        path = next(_places(node, caller, q.strip()), None)
        if path is not None:
            return RedirectResponse(path, 303)
        return answered(request, "nothing", {"query": q}, status=404)

    return router


def _failed(loads: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    failed = (load for load in loads if load["error"])
    return [
        {"what": f"load into {load['map']}", "why": load["error"], "path": f"/console/maps/{segment(load['map'])}"}
        for load in islice(failed, _SHOWN)
    ]  # fmt: skip


def _wrong(node: Node, caller: Caller) -> Iterator[dict[str, str]]:
    """The faults that the node knows of, those first that keep it from work."""
    if not caller.may("read"):
        return
    folder = node.pond.folder
    for reason in node.reasons():
        yield {"what": "not ready", "why": relative(str(reason), folder), "path": "/console/jobs"}
    for part in islice(node.pond.parts.list(None, "quarantined"), PAGE_ROWS):
        yield {"what": f"quarantined: {part.map}", "why": relative(part.reason, folder), "path": "/console/jobs#parts"}
    for job in node.scheduler.status():
        if job.last is not None and job.last.error:
            yield {"what": f"job {job.name}", "why": relative(job.last.error, folder), "path": "/console/jobs"}


def _places(node: Node, caller: Caller, name: str) -> Iterator[str]:
    """The pages of the things of a name that the caller may see."""
    try:
        if name and caller.may("read", name):
            node.pond.map(name)
            yield f"/console/maps/{segment(name)}"
    except MillpondError:
        pass
    try:
        if may_repository(caller, "read", name):
            node.pond.repository(name)
            yield f"/console/versions/{segment(name)}"
    except MillpondError:
        pass
    queue, slash, job_set = name.partition("/")
    stream = StreamName(queue, job_set)
    if slash and may_stream(caller, "read", stream) and node.pond.events.store.index(stream) is not None:
        yield link("/console/events/stream", queue=queue, job_set=job_set)
