"""Changes of a node, its jobs and its events that pages ask for."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from millpond.json_forms import plain
from millpond.nodes.node import Node
from millpond.server.access import note_change
from millpond.server.console.actions import Form, action
from millpond.server.console.pages import answered, pages
from millpond.server.dispatch import Routes
from millpond.server.wire import relative

__all__ = ("routes",)

_JOBS, _EVENTS = "/console/jobs", "/console/events"


def routes(node: Node) -> Routes:
    """The routes of changes of a node."""
    router = pages("/console")
    _add_jobs(router, node)
    _add_events(router, node)
    return router


def _add_jobs(router: Routes, node: Node) -> None:
    for name, act in (
        ("run-job", node.scheduler.call), ("pause-job", node.scheduler.pause), ("resume-job", node.scheduler.resume)
    ):  # fmt: skip

        @action(router, name)
        def order(request: Request, form: Form, act: Any = act) -> str:
            note_change(request, job=form.get("job", ""))
            act(form.get("job", ""))
            return _JOBS

    @action(router, "drain")
    def drain(request: Request, form: Form) -> str:
        node.drain.active = form.get("draining") == "yes"
        note_change(request, draining=node.drain.active)
        return _JOBS

    @action(router, "repair")
    def repair(request: Request, form: Form) -> str:
        node.repairs.begin(None, over=False)
        return _JOBS

    @action(router, "retry-parts")
    def retry_parts(request: Request, form: Form) -> str:
        node.pond.parts.retry(None)
        return f"{_JOBS}#parts"


def _add_events(router: Routes, node: Node) -> None:
    @action(router, "compress")
    def compress(request: Request, form: Form) -> Response:
        node.need_primary()
        return _done(request, "compressed", node.events.compress(_age(request, form)))

    @action(router, "expire")
    def expire(request: Request, form: Form) -> Response:
        node.need_primary()
        return _done(request, "expired", node.events.expire(_age(request, form)))

    def _done(request: Request, what: str, report: Any) -> Response:
        shown = dict(relative(plain(report), node.pond.folder))
        return answered(request, "done", {"what": what, "report": shown, "back": _EVENTS, "name": "Events"})


def _age(request: Request, form: Form) -> str:
    note_change(request, age=form.get("age"))
    return form.get("age", "")
