"""Pages of runs of workflows: the newest first, and one with its steps, their attempts and errors.

They call the methods of the service of workflows, with the rights and the access lists of those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from anyio.lowlevel import checkpoint
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from millpond.console import Span, link, strip
from millpond.errors import Invalid, MillpondError, NotFound, Unavailable
from millpond.events.names import StreamName
from millpond.kernel.hours import HOUR_MS
from millpond.nodes.tokens import Caller
from millpond.server.access import caller_in, note_change, share_of
from millpond.server.console.actions import ACTIONS, Form, actions_of
from millpond.server.console.pages import PAGE_ROWS, SIGNED_IN, answered, pages
from millpond.server.console.run_search import Search, newest, run_facts, times_of
from millpond.server.console.spec_graphs import drawings, states_of, threads_of
from millpond.server.dispatch import Routes
from millpond.server.routes.table import On
from millpond.server.stream_rights import may_stream
from millpond.server.thread_limits import on_loop
from millpond.sizes import human_time
from millpond.times.instants import parse_instant
from millpond.workflows.deferred import conversions, engine, protocol
from millpond.workflows.named import attempt_words, run_of

if TYPE_CHECKING:
    from markupsafe import Markup

    from millpond.nodes.node import Node
    from millpond.server.rpc.dispatch import Call, Front, Service
    from millpond.server.workflows.service import WorkflowService
    from millpond.workflows.processor import ReadRows

__all__ = (
    "ABSENT", "INPUT", "TENANT", "TENANTS_MAX", "Calls", "absent", "bookmark_in", "calling", "calls_of", "may_press",
    "routes", "runs_by_hour", "tenants_of", "texts_of",
)  # fmt: skip

T = TypeVar("T")
_STEPS_MAX = 200
_WORKFLOWS_MAX = 200
COUNTED_MAX = 1_000
TENANTS_MAX = 10
ABSENT = "This node serves no workflows: it has no port for gRPC, or not the extra millpond[workflows]."
TENANT = "default"
INPUT = "input."
"""The beginning of the names of fields that are inputs."""


def routes(node: Node) -> Routes:
    """The routes of runs."""
    router = pages("/console/runs")

    @router.get("", SIGNED_IN, summary="Runs")
    def list_runs(
        request: Request, caller: Caller, workflow: str = "", status: str = "", tenant: str = TENANT,
        since: str = "", until: str = "", after: str = "", tag: list[str] = [],  # noqa: B006, nobody changes it
    ) -> Response:  # fmt: skip
        """A page of runs, the newest first, that meet all conditions; a `tag` is NAME=VALUE of a searchable input."""
        call, tags = calling(request, caller, tenant), [text for text in tag if text.strip()]
        conditions = {"workflow": workflow, "status": status, "tag": tags, "since": since, "until": until}
        values: dict[str, Any] = {
            "workflow": workflow or None, "status": status or None, "tags": tags, "since": since, "until": until,
            "tenant": tenant, "runs": [], "statuses": [], "workflows": [], "next": None, "absent": ABSENT,
            "problem": None, "actions": may_press(request, caller, tenant),
        }  # fmt: skip
        if call is not None:
            from littlehorse.model import LHStatus

            values |= {"absent": None, "statuses": list(LHStatus.keys()), "workflows": _names_of_workflows(call)}
            try:
                earliest, latest = (parse_instant(text) if text else 0 for text in (since, until))
                search = Search(workflow, status, tags, earliest, latest)
                values["runs"], bookmark = newest(call, search, bookmark=bookmark_in(after))
            except (Invalid, NotFound) as error:
                values["problem"] = {"message": error.message, "hint": error.hint}
                return answered(request, "runs", values)
            if bookmark:
                values["next"] = link("/console/runs", **conditions, tenant=tenant, after=bookmark.hex())
        return answered(request, "runs", values)

    @router.get("/run", SIGNED_IN, summary="A run")
    def show_run(
        request: Request, caller: Caller, id: str, tenant: str = TENANT, after: str = "",
        queued: Annotated[int, Meta(ge=0)] = 0, children: str = "",
    ) -> Response:  # fmt: skip
        """Its inputs, a page of its steps, one of its queue behind the thread `queued`, one of the runs it began."""
        call = calling(request, caller, tenant)
        if call is None:
            raise absent()
        values, drawn = _run(call, id, tenant, (after, queued, children), node.clock.now_ms())
        stream = StreamName(tenant, id)
        readable = node.bucket is None and may_stream(caller, "read", stream)
        events = link("/console/events/stream", queue=tenant, job_set=id)
        values["events"] = events if readable and node.events.store.index(stream) is not None else None
        values |= {"tenant": tenant, "actions": may_press(request, caller, tenant)}
        return answered(request, "run", values, drawn)

    return router


def absent() -> Unavailable:
    """The error of a page of runs on a node that serves no workflows."""
    return Unavailable("no workflows are served here", kind="workflows_absent", hint=ABSENT)


def bookmark_in(text: str) -> bytes:
    """The bookmark that a link has.

    Raises: `Invalid`.
    """
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise Invalid("a link has no such place", kind="request_invalid", where="after", reason=text[:80],
                      hint="begin with the first page") from None  # fmt: skip


def texts_of(form: Form) -> dict[str, str]:
    """The inputs that a form has."""
    return {name.removeprefix(INPUT): text for name, text in form.items() if name.startswith(INPUT)}


def may_press(request: Request, caller: Caller, tenant: str) -> list[str]:
    """The actions on runs that a caller may press: the token has the right, and the access lists allow the method."""
    names = actions_of(caller, On.TENANT, tenant)
    front: Front | None = request.app.state.front
    if front is None or front.workflows is None or not names:
        return []
    from millpond.server.workflows.access import need_of

    access = front.workflows.about.access
    return [name for name in names if on_loop(access.may, caller, need_of(ACTIONS[name].method), tenant)]


def calls_of(request: Request, **noted: object) -> tuple[Calls, str]:
    """The function that calls methods for an action, and the tenant of its address; `noted` is for the audit log.

    Raises: `Unavailable` on a node that serves no workflows.
    """
    tenant = request.query_params.get("tenant", TENANT)
    call = calling(request, caller_in(request), tenant)
    if call is None:
        raise absent()
    note_change(request, **noted)
    return call, tenant


@dataclass(frozen=True, slots=True)
class Calls:
    """Methods of workflows, called for one caller from the thread of a page."""

    request: Request
    caller: Caller
    tenant: str
    service: Service[WorkflowService]

    def __call__(self, method: str, message: Any) -> Any:
        """The answer of a method.

        Raises: as the method.
        """
        return on_loop(self._called, method, message)

    def all(self, method: str, messages: Iterable[Any]) -> list[Any]:
        """The answers of a method to several messages, at one turn; None to what is not there."""

        async def called() -> list[Any]:
            answers = []
            for message in messages:
                try:
                    answers.append(await self._called(method, message))
                except NotFound:
                    answers.append(None)
                await checkpoint()
            return answers

        return on_loop(called)

    def rows(self, method: str, act: Callable[[ReadRows], T]) -> T:
        """The result of a function that reads rows as they are stored, for a caller that may call a method.

        Raises: as the method to a caller that may not.
        """

        async def read() -> T:
            await self._admitted(method)
            return await self.service.about.read(self.tenant, act)

        return on_loop(read)

    async def _admitted(self, method: str) -> Call[WorkflowService]:
        from millpond.server.rpc.dispatch import Call
        from millpond.server.rpc.threads import SHARE

        service = self.service
        SHARE.set(share_of(self.caller))
        right = service.rows[method].needs.right or ""
        call = Call(service.about, method, right, self.caller, {"tenantid": self.tenant})
        await service.admit(call)
        return call

    async def _called(self, method: str, message: Any) -> Any:
        call = await self._admitted(method)
        answer = await self.service.rows[method].handler(call, message)
        note_change(self.request, **call.notes)
        described = protocol.service_pb2.DESCRIPTOR.services_by_name["LittleHorse"].methods_by_name[method]
        return _parsed(described.output_type, answer) if isinstance(answer, bytes) else answer


def calling(request: Request, caller: Caller, tenant: str) -> Calls | None:
    """The methods of workflows for a caller; None where there are none."""
    front: Front | None = request.app.state.front
    if front is None or front.workflows is None:
        return None
    return Calls(request, caller, tenant, front.workflows)


def tenants_of(call: Calls) -> Iterator[str]:
    """The tenants whose names a caller may know: the one that all nodes have, those that its rights name, and, for who
    may list them, all; read page by page.
    """
    patterns = call.caller.patterns("read", "tenant")
    named = dict.fromkeys((TENANT, *(name for name in patterns if not set(name) & set("*?["))))
    yield from named
    request, more = protocol.SearchTenantRequest(), True
    with suppress(MillpondError):
        while more:
            page = call("SearchTenant", request)
            yield from (row.id for row in page.results if row.id not in named)
            request.bookmark, more = page.bookmark, page.HasField("bookmark")


def _parsed(output_type: Any, answer: bytes) -> Any:
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(output_type).FromString(answer)


def runs_by_hour(call: Calls, now_ms: int) -> list[int]:
    """The runs begun in each of the last 24 hours, the oldest first; of each at most `COUNTED_MAX` are counted.

    Raises: `Denied` to a caller that may not search for runs.
    """
    from millpond.workflows.store import TagQuery

    hours = [(now_ms - (ago + 1) * HOUR_MS + 1, now_ms - ago * HOUR_MS) for ago in reversed(range(24))]
    return call.rows("SearchWfRun", lambda rows: [
        len(rows.tag_keys(replace(TagQuery.runs(), start_ms=first, stop_ms=last), limit=COUNTED_MAX, bookmark=None)
            [:COUNTED_MAX])
        for first, last in hours
    ])  # fmt: skip


def _names_of_workflows(call: Calls) -> list[str]:
    """The first workflows, for the form of a search to choose from."""
    with suppress(MillpondError):  # who may search for runs may perhaps not list them
        return sorted(
            {spec.name for spec in call("SearchWfSpec", protocol.SearchWfSpecRequest(limit=_WORKFLOWS_MAX)).results}
        )
    return []


def _run(
    call: Calls, id: str, tenant: str, starts: tuple[str, int, str], now_ms: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A run, and its graph with the states of the steps that are listed; its lists begin behind the places."""
    name, (after, queued, child) = engine.run_id(id), starts
    run = run_of(call, id)
    request = protocol.ListNodeRunsRequest(wf_run_id=name, limit=_STEPS_MAX)
    if after:
        request.bookmark = bookmark_in(after)
    nodes = call("ListNodeRuns", request)
    tasks = call.all("GetTaskRun", (node.task.task_run_id for node in nodes.results if _has_task(node)))
    variables = call("ListVariables", protocol.ListVariablesRequest(wf_run_id=name, limit=_STEPS_MAX))
    tasks_of = {task.id.task_guid: task for task in tasks if task is not None}
    more = nodes.bookmark.hex() if nodes.HasField("bookmark") else ""
    questions = (
        node.user_task.user_task_run_id for node in nodes.results if node.WhichOneof("node_type") == "user_task"
    )
    specified = _specified(call, run)
    labels = {(thread["name"], node["name"]): node["label"] for thread in specified for node in thread["nodes"]}
    steps = [_step(node, tasks_of) for node in nodes.results]
    steps = [{**step, "label": labels.get((step["thread_name"], step["name"]), step["name"])} for step in steps]
    family = protocol.SearchWfRunRequest(parent_wf_run_id=name, limit=PAGE_ROWS)
    if child:
        family.bookmark = bookmark_in(child)
    children = call("SearchWfRun", family)
    here = partial(link, "/console/runs/run", id=id, tenant=tenant)
    values = {
        "run": run_facts(run), "specified": specified, "threads": _threads(run),
        "children": [engine.run_path(own) for own in children.results],
        "more_children": here(children=children.bookmark.hex()) if children.HasField("bookmark") else None,
        "questions": [_question(call, question) for question in questions],
        "variables": {_variable(own.id): conversions.plain(own.value) for own in variables.results},
        "more_variables": variables.HasField("bookmark"),
        "steps": steps, "next": here(after=more) if more else None,
        "queue": _queue(call, run, queued, partial(here, after=after)),
    }  # fmt: skip
    parts = [*steps, *values["queue"]["threads"]]
    return values, {"graphs": _drawn(specified, parts), "times": _times_drawn(parts, now_ms)}


def _variable(name: Any) -> str:
    return f"{name.name} of thread {name.thread_run_number}" if name.thread_run_number else str(name.name)


def _queue(call: Calls, run: Any, behind: int, here: Callable[..., str]) -> dict[str, Any]:
    """The number of threads that wait until fewer move, and a page of them behind one."""
    numbers = [number for number in run.thread_run_queue if number > behind]
    names = (protocol.InactiveThreadRunId(wf_run_id=run.id, thread_run_number=number) for number in numbers[:PAGE_ROWS])
    rows = [row.thread_run for row in call.all("GetInactiveThreadRun", names) if row is not None]
    more = numbers[PAGE_ROWS - 1] if len(numbers) > PAGE_ROWS else None
    return {
        "count": len(run.thread_run_queue),
        "threads": [
            {"thread": own.number, **dict.fromkeys(("name", "label", "thread_name"), own.thread_spec_name),
             "status": protocol.LHStatus.Name(own.status), "began_ms": own.start_time.ToMilliseconds(), "took_ms": None}
            for own in rows
        ],
        "next": here(queued=more) if more else None,
    }  # fmt: skip


def _specified(call: Calls, run: Any) -> list[dict[str, Any]]:
    """The threads of the specification of a run; none when it is gone."""
    try:
        return threads_of(call("GetWfSpec", run.wf_spec_id))
    except MillpondError:  # it was deleted, or the caller may not see it
        return []


def _drawn(threads: Iterable[dict[str, Any]], parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The graphs of the threads of steps, and of those that are queued."""
    states: dict[str, dict[str, str]] = {}
    for part in parts:
        states.setdefault(part["thread_name"], {}).update(states_of([part]))
    return drawings([thread for thread in threads if thread["name"] in states], states)


def _times_drawn(steps: Sequence[Mapping[str, Any]], now_ms: int) -> list[Markup]:
    """The time of each step, and of each queued thread, in that of all of them."""
    begun = [step["began_ms"] or now_ms for step in steps]
    ends = [at + (now_ms - at if step["took_ms"] is None else step["took_ms"])
            for at, step in zip(begun, steps, strict=True)]  # fmt: skip
    first, last = min(begun, default=0), max(ends, default=0)
    return [
        strip(
            [Span(at, end, f"{step['label']}: {human_time(end - at)}", _STATES.get(step["status"], "now"))],
            first,
            last,
            "time",
        )
        for step, at, end in zip(steps, begun, ends, strict=True)
    ]


def _threads(run: Any) -> list[dict[str, Any]]:
    return [{"number": thread.number, "status": protocol.LHStatus.Name(thread.status)} for thread in run.thread_runs]


def _question(call: Calls, name: Any) -> dict[str, Any]:
    """A task for people: its state, the user or the group that it is for, its notes, and the fields of an answer."""
    task = call("GetUserTaskRun", name)
    fields = call("GetUserTaskDef", task.user_task_def_id).fields
    return {
        "id": name.user_task_guid, "task": task.user_task_def_id.name,
        "status": protocol.UserTaskRunStatus.Name(task.status), "user": task.user_id, "group": task.user_group,
        "notes": task.notes,
        "fields": [
            {"name": field.name, "title": field.display_name or field.name, "about": field.description,
             "type": protocol.VariableType.Name(field.type).lower(), "required": field.required}
            for field in fields
        ],
    }  # fmt: skip


def _step(node: Any, tasks: Mapping[str, Any]) -> dict[str, Any]:
    from millpond.workflows.tasks.inputs import inputs_of_task

    task = tasks.get(node.task.task_run_id.task_guid) if _has_task(node) else None
    failures = "; ".join(f"{failure.failure_name} {failure.message}".strip() for failure in node.failures)
    return {
        "thread": node.id.thread_run_number, "thread_name": node.thread_spec_name,
        "position": node.id.position, "name": node.node_name,
        "status": protocol.LHStatus.Name(node.status), **times_of(node, "arrival_time", "end_time"),
        "error": failures or node.error_message, "inputs": {} if task is None else inputs_of_task(task),
        "attempts": [] if task is None else [_attempt(attempt) for attempt in task.attempts],
    }  # fmt: skip


def _has_task(node: Any) -> bool:
    return node.WhichOneof("node_type") == "task" and node.task.HasField("task_run_id")


def _attempt(attempt: Any) -> dict[str, Any]:
    status = protocol.TaskStatus.Name(attempt.status).removeprefix("TASK_")
    log = "" if attempt.status == protocol.TaskStatus.TASK_RUNNING else attempt.log_output.str
    return {
        "status": status, "worker": attempt.task_worker_id, "words": attempt_words(attempt), "log": log,
        **times_of(attempt, *_ATTEMPT),
    }  # fmt: skip


_ATTEMPT = "start_time", "end_time"
_STATES = {"COMPLETED": "good", "ERROR": "bad", "EXCEPTION": "bad"}
