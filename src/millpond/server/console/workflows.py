"""Pages of workflows: specifications with their schedules, one of them drawn, and tasks with those who work on them.

They call the methods of the service of workflows, with the rights and the access lists of those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from starlette.requests import Request
from starlette.responses import Response

from millpond.console import link
from millpond.errors import NotFound
from millpond.nodes.tokens import Caller
from millpond.server.console.actions import Form, action
from millpond.server.console.pages import PAGE_ROWS, SIGNED_IN, answered, pages
from millpond.server.console.runs import ABSENT, TENANT, Calls, absent, bookmark_in, calling, calls_of, may_press
from millpond.server.console.spec_graphs import drawings, threads_of
from millpond.workflows.deferred import pipeline_starts, protocol, start_inputs
from millpond.workflows.named import spec_of, version_of
from millpond.workflows.schedules import run_now, schedule_facts, switch

if TYPE_CHECKING:
    from millpond.nodes.node import Node
    from millpond.server.dispatch import Routes
    from millpond.workflows.processor import ReadRows

__all__ = ("routes",)

_PAGE = "/console/workflows"
_QUEUED_MAX = 100
_SHOWN = 3
"""The schedules, and the versions, of each workflow of the list; its page has all."""
_VERSIONS_MAX = 20


def routes(node: Node) -> Routes:
    """The routes of workflows."""
    router = pages(_PAGE)

    @router.get("", SIGNED_IN, summary="Workflows")
    def list_workflows(
        request: Request, caller: Caller, prefix: str = "", tenant: str = TENANT, after: str = ""
    ) -> Response:
        """A page of specifications by name, each with its schedules."""
        call = calling(request, caller, tenant)
        values: dict[str, Any] = {"workflows": [], "next": None, "absent": ABSENT}
        if call is not None:
            specs, more = _page(call, "SearchWfSpec", protocol.SearchWfSpecRequest(prefix=prefix or None), after)
            versions: dict[str, list[str]] = {}
            for spec in specs:
                versions.setdefault(spec.name, []).append(f"{spec.major_version}.{spec.revision}")
            schedules = _schedules(call, [*versions], node.clock.now_ms(), _SHOWN)
            values |= {"absent": None, "next": _next(_PAGE, more, prefix=prefix, tenant=tenant), "workflows": [
                {"name": name, "versions": of_name[-_SHOWN:], **own}
                for (name, of_name), own in zip(versions.items(), schedules, strict=True)
            ]}  # fmt: skip
        values |= {"prefix": prefix, "tenant": tenant, "actions": may_press(request, caller, tenant)}
        return answered(request, "workflows", values)

    @router.get("/workflow", SIGNED_IN, summary="A workflow")
    def show_workflow(
        request: Request, caller: Caller, name: str, version: str = "", tenant: str = TENANT, after: str = ""
    ) -> Response:
        """One version of it, drawn; its schedules with their next runs, and what a run of it takes."""
        call = calling(request, caller, tenant)
        if call is None:
            raise absent()
        values, drawn = _workflow(call, name, version)
        [schedules] = _schedules(call, [name], node.clock.now_ms(), PAGE_ROWS, bookmark_in(after))
        values |= {
            "tenant": tenant, "actions": may_press(request, caller, tenant), **schedules,
            "next": _next(f"{_PAGE}/workflow", schedules["more"], name=name, version=version, tenant=tenant),
        }  # fmt: skip
        return answered(request, "workflow", values, drawn)

    _add_tasks(router)
    _add_orders(router)
    return router


def _add_tasks(router: Routes) -> None:
    @router.get("/tasks", SIGNED_IN, summary="Tasks, and their workers")
    def list_tasks(
        request: Request, caller: Caller, prefix: str = "", tenant: str = TENANT, after: str = ""
    ) -> Response:
        """A page of definitions of tasks: what waits in the queue of each, and the workers that poll it."""
        call = calling(request, caller, tenant)
        values: dict[str, Any] = {"tasks": [], "next": None, "absent": ABSENT, "prefix": prefix, "tenant": tenant}
        if call is not None:
            tasks, more = _page(call, "SearchTaskDef", protocol.SearchTaskDefRequest(prefix=prefix or None), after)
            values |= {
                "tasks": [*_tasks(call, [own.name for own in tasks])], "absent": None,
                "next": _next(f"{_PAGE}/tasks", more, prefix=prefix, tenant=tenant),
            }  # fmt: skip
        return answered(request, "tasks", values)


def _add_orders(router: Routes) -> None:
    for name, paused in (("pause-schedule", True), ("resume-schedule", False)):

        @action(router, name)
        def switch_schedule(request: Request, form: Form, paused: bool = paused) -> str:
            call, tenant = calls_of(request, schedule=form.get("schedule", ""))
            switch(call, form.get("schedule", ""), paused=paused)
            return _page_of(form, tenant)

    @action(router, "run-schedule")
    def run_schedule(request: Request, form: Form) -> str:
        call, tenant = calls_of(request, schedule=form.get("schedule", ""))
        row = _stored(call, form.get("schedule", ""))
        return link("/console/runs/run", id=run_now(call, row), tenant=tenant)


def _page_of(form: Form, tenant: str) -> str:
    name = form.get("workflow", "")
    return link(f"{_PAGE}/workflow" if name else _PAGE, name=name, tenant=tenant)


def _page(call: Calls, method: str, search: Any, after: str) -> tuple[list[Any], str]:
    """A page of a search, and its bookmark for the next one.

    Raises: `Invalid` for a bookmark of another list.
    """
    search.limit = PAGE_ROWS
    if after:
        search.bookmark = bookmark_in(after)
    page = call(method, search)
    return list(page.results), page.bookmark.hex() if page.HasField("bookmark") else ""


def _next(path: str, after: str, **query: Any) -> str | None:
    return link(path, **query, after=after) if after else None


def _stored(call: Calls, schedule: str) -> Any:
    """A schedule with the inputs that masks hide, for a run that begins with them.

    Raises: `NotFound`.
    """
    row = call.rows("GetScheduledWfRun", lambda rows: rows.get(protocol.ScheduledWfRun, (schedule,)))
    if row is None:
        raise NotFound("there is no such schedule", kind="workflow_object", type="ScheduledWfRun", id=schedule[:80])
    return row


def _schedules(
    call: Calls, workflows: Sequence[str], now_ms: int, limit: int, bookmark: bytes = b""
) -> list[dict[str, Any]]:  # fmt: skip
    """A page of the schedules of each workflow, and its bookmark for the next one."""
    from millpond.workflows.store.unscoped_tags import schedule_query

    def read(rows: ReadRows) -> list[tuple[list[Any], str]]:
        pages = [
            rows.search_free(schedule_query(workflow), limit=limit, bookmark=bookmark or None) for workflow in workflows
        ]
        return [
            (
                [rows.get(protocol.ScheduledWfRun, cast("tuple[str]", key)) for key in page.rows],
                (page.bookmark or b"").hex(),
            )
            for page in pages
        ]

    return [
        {"more": more, "schedules": [schedule_facts(row, now_ms) for row in listed if row is not None]}
        for listed, more in call.rows("SearchScheduledWfRun", read)
    ]


def _workflow(call: Calls, name: str, version: str) -> tuple[dict[str, Any], dict[str, Any]]:
    spec = spec_of(call, name)
    name = spec.id.name
    if version:
        major, revision = version_of(version)
        spec = call("GetWfSpec", protocol.WfSpecId(name=name, major_version=major, revision=revision))
    listed = call("SearchWfSpec", protocol.SearchWfSpecRequest(name=name, limit=1_000)).results
    versions = [f"{own.major_version}.{own.revision}" for own in listed]
    parameters, threads = pipeline_starts.parameters_in(spec), threads_of(spec)
    values = {
        "workflow": name, "version": f"{spec.id.major_version}.{spec.id.revision}",
        "versions": list(islice(reversed(versions), _VERSIONS_MAX)), "made_ms": spec.created_at.ToMilliseconds(),
        "threads": threads, "inputs": start_inputs.declared_inputs(spec),
        "parameters": None if parameters is None else [own["name"] for own in parameters],
    }  # fmt: skip
    return values, drawings(threads, {})


def _tasks(call: Calls, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Of each task, what waits in its queue, up to so many, and the workers that registered lately."""
    status = protocol.TaskStatus.TASK_SCHEDULED
    searches = [protocol.SearchTaskRunRequest(task_def_name=name, status=status, limit=_QUEUED_MAX) for name in names]
    queues = call.all("SearchTaskRun", searches)
    groups = call.all("GetTaskWorkerGroup", [protocol.TaskDefId(name=name) for name in names])
    for name, queued, group in zip(names, queues, groups, strict=True):
        workers = sorted(group.task_workers.items())[:PAGE_ROWS] if group is not None else ()
        yield {
            "task": name, "queued": len(queued.results), "more_queued": queued.HasField("bookmark"),
            "workers": [{"worker": id, "seen_ms": own.latest_heartbeat.ToMilliseconds()} for id, own in workers],
        }  # fmt: skip
