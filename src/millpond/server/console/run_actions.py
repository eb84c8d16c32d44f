"""Changes of runs that pages ask for: they call the methods of the service of workflows, as its clients do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from millpond.console import link
from millpond.errors import Invalid
from millpond.json_forms import to_json
from millpond.nodes.node import Node
from millpond.nodes.tokens import Caller
from millpond.server.access import caller_in, note_change
from millpond.server.console.actions import ACTIONS, Form, action
from millpond.server.console.pages import SIGNED_IN, answered, pages
from millpond.server.console.runs import Calls, absent, calling, calls_of, may_press, texts_of
from millpond.server.dispatch import Routes
from millpond.workflows.deferred import conversions, engine, pipeline_starts, protocol, start_inputs
from millpond.workflows.named import answer_in, spec_of

__all__ = ("routes",)

_WORKFLOWS_MAX = 1_000


def routes(_node: Node) -> Routes:
    """The routes of changes of runs."""
    router = pages("/console/runs")
    _add_starts(router)
    _add_orders(router)
    return router


def _add_starts(router: Routes) -> None:
    @router.get("/start", SIGNED_IN, summary="The form of a run")
    def show_form(
        request: Request, caller: Caller, workflow: str = "", like: str = "", tenant: str = "default"
    ) -> Response:
        """The inputs that a workflow asks for, with the values that they have in the run `like`."""
        call = calling(request, caller, tenant)
        if call is None:
            raise absent()
        listed = call("SearchWfSpec", protocol.SearchWfSpecRequest(limit=_WORKFLOWS_MAX)).results
        values: dict[str, Any] = {
            "tenant": tenant, "workflow": workflow or None, "workflows": sorted({spec.name for spec in listed}),
            "actions": may_press(request, caller, tenant), "inputs": [],
        }  # fmt: skip
        if workflow:
            values["inputs"] = _inputs(call, workflow, like)
        return answered(request, "start", values)

    @action(router, "start")
    def start(request: Request, form: Form) -> str:
        call, tenant = calls_of(request)
        spec = spec_of(call, form.get("workflow", ""))
        started = protocol.RunWfRequest(
            wf_spec_name=spec.id.name, variables=start_inputs.inputs_of(spec, texts_of(form))
        )
        if form.get("id"):
            started.id = form["id"]
        run = engine.run_path(call("RunWf", started).id)
        note_change(request, run=run)
        return _page(run, tenant)


def _add_orders(router: Routes) -> None:
    for name in ("stop", "resume", "rescue"):

        @action(router, name)
        def order(request: Request, form: Form, method: str = ACTIONS[name].method) -> str:
            from littlehorse import model

            skips = {"skip_current_node": True} if form.get("skip") == "yes" and "Rescue" in method else {}
            return _act(request, form, method, lambda run, thread: getattr(model, f"{method}Request")(
                wf_run_id=run, thread_run_number=thread, **skips))  # fmt: skip

    @action(router, "answer")
    def answer(request: Request, form: Form) -> str:
        def completed(run: Any, _thread: int) -> Any:
            name = protocol.UserTaskRunId(wf_run_id=run, user_task_guid=form.get("task", ""))
            call, _ = calls_of(request)
            user = form.get("user") or caller_in(request).name
            results = answer_in(call, call("GetUserTaskRun", name), texts_of(form))
            return protocol.CompleteUserTaskRunRequest(user_task_run_id=name, user_id=user, results=results)

        return _act(request, form, "CompleteUserTaskRun", completed)


def _act(request: Request, form: Form, method: str, message: Any) -> str:
    """Call a method about the run, and the thread, of a form; the page of the run."""
    call, tenant = calls_of(request)
    run, thread = form.get("run", ""), form.get("thread", "0")
    if not thread.isdecimal() or len(thread) > 9:
        raise Invalid("the number of a thread is a whole number", kind="request_invalid", where="form", reason=thread)
    note_change(request, run=run)
    call(method, message(engine.run_id(run), int(thread)))
    return _page(run, tenant)


def _page(run: str, tenant: str) -> str:
    return link("/console/runs/run", id=run, tenant=tenant)


def _inputs(call: Calls, workflow: str, like: str) -> list[dict[str, Any]]:
    """The inputs that a workflow asks for; `value` is that of an earlier run, else the default, as text; of a computed
    default nothing, for then the run finds it.
    """
    inputs = start_inputs.declared_inputs(spec_of(call, workflow))
    earlier = _values(call, like) if like else {}
    for own in inputs:
        default = None if own["computed"] else own["default"]
        value = None if own["secret"] else earlier.get(own["name"], default)
        own["value"] = "" if value is None else value if isinstance(value, str) else to_json(value).decode()
    return inputs


def _values(call: Calls, run: str) -> Mapping[str, Any]:
    """The variables of the first thread of a run; of a pipeline, its parameters: those given, and those it found."""
    listed = call("ListVariables", protocol.ListVariablesRequest(wf_run_id=engine.run_id(run))).results
    values = {row.id.name: conversions.plain(row.value) for row in listed if row.id.thread_run_number == 0}
    if pipeline_starts.PROGRAM not in values:
        return values
    computed, stated = (values.get(name) for name in (pipeline_starts.VALUES, pipeline_starts.PARAMETERS))
    return (computed if isinstance(computed, dict) else {}) | (stated if isinstance(stated, dict) else {})
