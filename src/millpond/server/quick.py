"""Answers that wait for nothing, and so need no task: they are given where the head of a request is read.

    head ─▶ no body, no page ─▶ right, turn of the token ─▶ the handler, which waits for nothing ─▶ counted, written
                 │ else                                        │ would wait
                 └─────────────────────────────────────────────┴──▶ the application, in a task

Invariants:
* an answer, and what is counted of it, is the one that the application would give: its checks are the same functions;
* where checks come before the handler, its error is no answer of this kind: the application finds it again;
* nothing here changes a pond, so that there is no line for the audit log.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Scope

from millpond.server.connections import AtOnce
from millpond.server.csrf_guard import Origin
from millpond.server.dispatch import Application
from millpond.server.metrics import Metrics

__all__ = ("quick_answers",)

_LONGER_WAY = frozenset((b"content-length", b"expect", b"origin", b"transfer-encoding"))
"""Headers about a body or a page. Those of proxies change what `Origin` is compared with, and the access log."""


def quick_answers(app: Application, origin: Origin, metrics: Metrics) -> AtOnce:
    """The answers of an application that need no task."""
    clock = app.state.node.clock

    def at_once(scope: Scope) -> Response | None:
        plain = scope["method"] == "GET" and _LONGER_WAY.isdisjoint([name for name, _ in scope["headers"]])
        if not plain or origin(scope) is not None:
            return None
        began = clock.monotonic()
        response = app.at_once(scope)
        if response is not None:
            metrics.count(scope["route"].path, "GET", response.status_code, clock.monotonic() - began)
        return response

    return at_once
