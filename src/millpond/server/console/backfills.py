"""Backfills that pages ask for: runs of a pipeline for partitions of time, some at each press of the button.

    form ─▶ partitions ─▶ those whose runs have not begun, while fewer than `parallel` are open ─▶ report, "Go on"

Invariants:
* no request waits for runs: it begins some, and says of each partition how it stands;
* a form that is sent again begins no run twice.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from millpond.console import link
from millpond.errors import Invalid, NotFound
from millpond.nodes.node import Node
from millpond.server.access import note_change
from millpond.server.console.actions import Form, action
from millpond.server.console.pages import answered, pages
from millpond.server.console.runs import INPUT, calls_of, texts_of
from millpond.server.dispatch import Routes
from millpond.workflows.backfill import Backfill, NodeRuns, check_parameter, partitions
from millpond.workflows.deferred import pipeline_starts, protocol

__all__ = ("PARALLEL_MAX", "PARTITIONS_MAX", "routes")

PARTITIONS_MAX: Final = 400
"""Partitions of one backfill of the console: the days of a year. Each is asked for at every press."""
PARALLEL_MAX: Final = 50


def routes(_node: Node) -> Routes:
    """The route of backfills."""
    router = pages("/console/runs")

    @action(router, "backfill")
    def backfill(request: Request, form: Form) -> Response:
        workflow, span = form.get("workflow", ""), {name: form.get(name, "") for name in ("first", "last", "every")}
        call, tenant = calls_of(request)
        own = _backfill(call, workflow, form, span)
        own.advance()
        note_change(request, workflow=workflow, **span, open=len(own.going))
        fields = {name: text for name, text in form.items() if name.startswith(INPUT) or name in _FIELDS}
        values = {
            "workflow": workflow, "tenant": tenant, "partitions": _report(own), "done": len(own.done),
            "failed": len(own.failed), "going": len(own.going), "left": len(own.left()) - len(own.going),
            "fields": fields, "back": link("/console/workflows/workflow", name=workflow, tenant=tenant),
        }  # fmt: skip
        return answered(request, "backfill", values)

    return router


_FIELDS = ("workflow", "first", "last", "every", "parameter", "parallel", "again")


def _backfill(call: Any, workflow: str, form: Form, span: dict[str, str]) -> Backfill:
    """The backfill that a form asks for.

    Raises: `Invalid` for more than one request looks at; `NotFound` for a workflow that is no pipeline.
    """
    declared = pipeline_starts.parameters_in(call("GetLatestWfSpec", protocol.GetLatestWfSpecRequest(name=workflow)))
    if declared is None:
        raise NotFound("the workflow is no pipeline", kind="pipeline_deployed", workflow=workflow,
                       hint="start its runs one by one")  # fmt: skip
    pipeline, parameter, parallel = (
        pipeline_starts.pipeline_name(workflow),
        form.get("parameter", ""),
        form.get("parallel", "1"),
    )
    check_parameter(pipeline, parameter, [own["name"] for own in declared])
    names = partitions(**span)
    if len(names) > PARTITIONS_MAX:
        raise Invalid("more partitions than a page goes through", kind="backfill", partitions=len(names),
                      limit=PARTITIONS_MAX, hint="fewer, or millpond pipeline backfill")  # fmt: skip
    if not parallel.isdecimal() or not 1 <= int(parallel[:9]) <= PARALLEL_MAX:
        raise Invalid("not a number of runs", kind="backfill", parallel=parallel, limit=PARALLEL_MAX,
                      hint=f"1 to {PARALLEL_MAX}")  # fmt: skip
    return Backfill(
        NodeRuns(call, pipeline), pipeline, parameter, names, texts_of(form), int(parallel),
        begins_failed=form.get("again") == "yes",
    )  # fmt: skip


def _report(own: Backfill) -> list[dict[str, str | None]]:
    """The state of each partition, with its run."""
    states = {"failed": own.failed, "done": own.done, "open": own.going}
    return [
        next(
            ({"partition": name, "state": state, "run": runs[name]} for state, runs in states.items() if name in runs),
            {"partition": name, "state": "waits", "run": None},
        )
        for name in own.partitions
    ]  # fmt: skip
