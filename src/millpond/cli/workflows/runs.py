"""`millpond runs` and `millpond run`: runs of workflows are listed, started, shown, stopped and deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.options import Json
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.workflows.server import Server, Tenant, connected, every_result, plain_message
from millpond.sizes import human_time

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("delete", "delete_many", "rescue", "resume", "run_of", "runs", "show", "start", "stop")

_SERVER = "localhost:7434"
_NAMES_MAX = 20
_VALUE_CHARS_MAX = 300  # of a variable in a tree: a pipeline has its whole text in one
Run = Annotated[str, typer.Argument(metavar="RUN", help="The id of the run; of a child, after those above it: a_b.")]
Thread = Annotated[int, typer.Option("--thread", metavar="N", min=0, help="The thread of the run.")]


@verb("runs", "millpond runs", "millpond runs --workflow nightly --status ERROR", "millpond runs --limit 5 --json")
def runs(
    workflow: Annotated[
        str | None, typer.Option("--workflow", metavar="NAME", help="Only runs of it.", show_default="all workflows")
    ] = None,
    status: Annotated[
        str | None, typer.Option("--status", metavar="STATUS", help="Only these, such as RUNNING or ERROR.",
                                 show_default="any")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="So many at most, the newest first.")] = 20,
    server: Server = _SERVER,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:  # fmt: skip
    """List runs of workflows: their status, when they began and how long they took."""
    from littlehorse.model import LHStatus, SearchWfRunRequest

    from millpond.clock import SystemClock
    from millpond.workflows.engine import run_path
    from millpond.workflows.engine.pipeline_starts import spec_name
    from millpond.workflows.newest import newest_runs

    request = SearchWfRunRequest()
    if workflow is not None:
        request.wf_spec_name = spec_name(workflow)
    if status is not None:
        request.status = _status(status)
    with connected(server, tenant) as call:
        names = newest_runs(call, request, limit, SystemClock().now_ms())
        if workflow is not None and not names:
            _spec_of(call, workflow)
        rows = [call("GetWfRun", name) for name in names]
    if json:
        console.print_json_list(plain_message(run) for run in rows)
        return
    console.print_table(
        ["run", "workflow", "status", "began", "took"],
        [
            [run_path(run.id), run.wf_spec_id.name, LHStatus.Name(run.status),
             run.start_time.ToJsonString().replace("T", " ")[:19], _took(run)]
            for run in rows
        ],
    )  # fmt: skip


def _spec_of(call: Any, workflow: str) -> Any:
    """The newest specification of a workflow.

    Raises: `NotFound`, which names the workflows that there are.
    """
    from littlehorse.model import GetLatestWfSpecRequest, SearchWfSpecRequest

    from millpond.errors import NotFound
    from millpond.workflows.engine.pipeline_starts import spec_name

    try:
        return call("GetLatestWfSpec", GetLatestWfSpecRequest(name=spec_name(workflow)))
    except NotFound:
        names = sorted({spec_id.name for spec_id in call("SearchWfSpec", SearchWfSpecRequest()).results})
        some = ", ".join(names[:_NAMES_MAX]) + (", …" if len(names) > _NAMES_MAX else "")
        raise NotFound("no workflow has this name", kind="workflow_spec", workflow=workflow,
                       hint=f"one of: {some}" if names else "register one first") from None  # fmt: skip


def _status(text: str) -> Any:
    from littlehorse.model import LHStatus

    from millpond.errors import Invalid

    if text.upper() not in LHStatus.keys():  # noqa: SIM118, it is no dictionary
        raise Invalid("no run has this status", kind="run_status", status=text,
                      hint=f"one of {', '.join(LHStatus.keys())}")  # fmt: skip
    return LHStatus.Value(text.upper())


def _took(row: Any) -> str:
    if not row.HasField("end_time"):
        return ""
    return human_time(row.end_time.ToMilliseconds() - row.start_time.ToMilliseconds())


@verb("run start", "millpond run start nightly --input day=2026-11-22", "millpond run start nightly --id n-1")
def start(
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="The name of the workflow.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=VALUE", help="An input: JSON, or text as it stands.", show_default=False),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The id of the run: the same again starts nothing.",
                                 show_default="made by the server")
    ] = None,
    server: Server = _SERVER,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:  # fmt: skip
    """Start a run of a workflow."""
    from littlehorse.model import RunWfRequest

    from millpond.workflows.engine import run_path
    from millpond.workflows.engine.start_inputs import inputs_of

    pairs = _pairs(inputs or [])
    with connected(server, tenant) as call:
        spec = _spec_of(call, workflow)
        request = RunWfRequest(wf_spec_name=spec.id.name, variables=inputs_of(spec, pairs))
        if name is not None:
            request.id = name
        run = call("RunWf", request)
    if json:
        console.print_json(plain_message(run))
    else:
        console.say(f"started {run_path(run.id)}")


def _pairs(texts: list[str]) -> dict[str, str]:
    from millpond.errors import Invalid

    for text in texts:
        if "=" not in text:
            raise Invalid("not an input", kind="workflow_inputs", given=text, hint="write NAME=VALUE")
    return {name: text for name, _, text in (pair.partition("=") for pair in texts)}


@verb("run show", "millpond run show n-1", "millpond run show n-1 --json")
def show(run: Run, server: Server = _SERVER, tenant: Tenant = "default", json: Json = False) -> None:
    """Show a run as a tree: threads, nodes, attempts of tasks, failures and variables."""
    from littlehorse.model import ListNodeRunsRequest, ListTaskRunsRequest, ListVariablesRequest

    from millpond.workflows.engine import run_id

    name = run_id(run)
    with connected(server, tenant) as call:
        run_row = run_of(call, run)
        nodes = list(every_result(call, "ListNodeRuns", ListNodeRunsRequest(wf_run_id=name)))
        tasks = list(every_result(call, "ListTaskRuns", ListTaskRunsRequest(wf_run_id=name)))
        variables = list(every_result(call, "ListVariables", ListVariablesRequest(wf_run_id=name)))
    if json:
        rows = {"run": run_row, "nodes": nodes, "tasks": tasks, "variables": variables}
        console.print_json(
            {key: plain_message(row) if key == "run" else list(map(plain_message, row)) for key, row in rows.items()}
        )
        return
    console.say("\n".join(_tree(run, run_row, nodes, tasks, variables)))


def run_of(call: Any, run: str) -> Any:
    """The row of a run.

    Raises: `NotFound`.
    """
    from millpond.errors import NotFound
    from millpond.workflows.engine import run_id

    try:
        return call("GetWfRun", run_id(run))
    except NotFound:
        raise NotFound("no run has this id", kind="workflow_run", run=run, hint="list them: millpond runs") from None


def _tree(name: str, run: Any, nodes: list[Any], tasks: list[Any], variables: list[Any]) -> Iterator[str]:
    from littlehorse.model import LHStatus

    took = _took(run)
    yield f"{name}  {run.wf_spec_id.name}  {LHStatus.Name(run.status)}" + (f"  in {took}" if took else "")
    attempts = {task.id.task_guid: task for task in tasks}
    for thread in run.thread_runs:
        yield f"├─ thread {thread.number} {thread.thread_spec_name}  {LHStatus.Name(thread.status)}"
        for node in nodes:
            if node.id.thread_run_number == thread.number:
                yield from _node_lines(node, attempts)
        for variable in variables:
            if variable.id.thread_run_number == thread.number:
                text = _shown(variable.value)
                cut = "… (--json has all)" * (len(text) > _VALUE_CHARS_MAX)
                yield f"│  = {variable.id.name} = {text[:_VALUE_CHARS_MAX]}{cut}"


def _reason(message: str) -> str:
    """The line of a message that says why: of a traceback the last. The whole of it is in `--json`.

    >>> _reason("Traceback (most recent call last):\\n  File …\\nValueError: there is nobody\\n")
    'ValueError: there is nobody'
    """
    lines = message.strip().splitlines()
    return lines[-1].strip() if lines else ""


def _node_lines(node: Any, attempts: dict[str, Any]) -> Iterator[str]:
    from littlehorse.model import LHStatus, TaskStatus

    from millpond.cli.workflows.task_worker import step_of
    from millpond.workflows.engine.pipeline_starts import STEP
    from millpond.workflows.engine.values.conversions import plain
    from millpond.workflows.tasks.progress import words_of

    task = attempts.get(node.task.task_run_id.task_guid) if node.WhichOneof("node_type") == "task" else None
    name = node.node_name
    if task is not None and task.task_def_id.name == STEP:
        name = step_of(STEP, task.input_variables)
    yield f"│  {node.id.position:>3} {name}  {LHStatus.Name(node.status)}"
    for failure in node.failures:
        yield f"│        failed: {failure.failure_name} {_reason(failure.message)}".rstrip()
    for number, attempt in enumerate(task.attempts if task is not None else ()):
        result = attempt.WhichOneof("result")
        words = _shown(attempt.output) if result == "output" else ""
        words = _reason(attempt.error.message) if result == "error" else words
        words = f"{attempt.exception.name} {_reason(attempt.exception.message)}" if result == "exception" else words
        if attempt.status == TaskStatus.TASK_RUNNING and attempt.HasField("log_output"):
            words = words_of(plain(attempt.log_output))
        status = TaskStatus.Name(attempt.status).removeprefix("TASK_").lower()
        yield f"│        attempt {number} {status}  {words}".rstrip()


def _shown(value: Any) -> str:
    from millpond.json_forms import to_json
    from millpond.workflows.engine.values.conversions import plain

    return to_json(plain(value)).decode()


@verb("run stop", "millpond run stop n-1")
def stop(
    run: Run, thread: Thread = 0, server: Server = _SERVER, tenant: Tenant = "default", json: Json = False
) -> None:  # fmt: skip
    """Stop a run, or a thread of it, until it is resumed."""
    from littlehorse.model import StopWfRunRequest

    from millpond.workflows.engine import run_id

    _order("StopWfRun", StopWfRunRequest(wf_run_id=run_id(run), thread_run_number=thread), server, tenant)
    _say("stopped", run, json=json)


@verb("run resume", "millpond run resume n-1")
def resume(
    run: Run, thread: Thread = 0, server: Server = _SERVER, tenant: Tenant = "default", json: Json = False
) -> None:  # fmt: skip
    """Let a run that was stopped go on."""
    from littlehorse.model import ResumeWfRunRequest

    from millpond.workflows.engine import run_id

    _order("ResumeWfRun", ResumeWfRunRequest(wf_run_id=run_id(run), thread_run_number=thread), server, tenant)
    _say("resumed", run, json=json)


@verb("run rescue", "millpond run rescue n-1", "millpond run rescue n-1 --skip")
def rescue(
    run: Run,
    thread: Thread = 0,
    skip: Annotated[bool, typer.Option("--skip", help="Go on behind the node that failed.")] = False,
    server: Server = _SERVER,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Let a thread that ended in ERROR try its node again."""
    from littlehorse.model import RescueThreadRunRequest

    from millpond.workflows.engine import run_id

    request = RescueThreadRunRequest(wf_run_id=run_id(run), thread_run_number=thread, skip_current_node=skip)
    _order("RescueThreadRun", request, server, tenant)
    _say("rescued", run, json=json)


@verb("run delete", "millpond run delete n-1")
def delete(run: Run, server: Server = _SERVER, tenant: Tenant = "default", json: Json = False) -> None:
    """Delete a run with all that belongs to it, also while it runs."""
    from littlehorse.model import DeleteWfRunRequest

    from millpond.workflows.engine import run_id

    with connected(server, tenant) as call:
        run_of(call, run)
        call("DeleteWfRun", DeleteWfRunRequest(id=run_id(run)))
    _say("deleted", run, json=json)


@verb("run delete-many", "millpond run delete-many nightly --status ERROR --before 2026-01-01T00:00:00Z")
def delete_many(
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="The workflow whose runs they are.")],
    status: Annotated[
        str, typer.Option("--status", metavar="STATUS", help="How they ended: COMPLETED, ERROR or EXCEPTION.")
    ] = "COMPLETED",
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="TIME", help="Only those that began before it.", show_default="now"),
    ] = None,
    server: Server = _SERVER,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Delete the runs of a workflow that ended so, by a job that goes on by itself; its id is shown."""
    from littlehorse.model import BulkDeleteWfRun, CreateBulkJobRequest

    from millpond.clock import SystemClock
    from millpond.times.instants import parse_instant
    from millpond.workflows.engine.pipeline_starts import spec_name

    deletion = BulkDeleteWfRun(wf_spec_name=spec_name(workflow), wf_run_status=_status(status))
    stop = SystemClock().now_ms() if before is None else parse_instant(before) - 1
    deletion.latest_start.FromMilliseconds(stop)
    with connected(server, tenant) as call:
        job = call("CreateBulkJob", CreateBulkJobRequest(bulk_delete_wf_run=deletion))
    _say("job", job.id.id, json=json)


def _order(method: str, request: Any, server: str, tenant: str) -> None:
    with connected(server, tenant) as call:
        call(method, request)


def _say(done: str, run: str, *, json: bool) -> None:
    if json:
        console.print_json({done: run})
    else:
        console.say(f"{done} {run}")
