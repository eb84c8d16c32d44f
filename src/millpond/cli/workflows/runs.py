"""`millpond runs` and `millpond run`: runs of workflows are listed, started, shown, stopped and deleted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any

import typer

from millpond.cli.options import Json
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.workflows.server import (
    RUNS,
    SERVER,
    TENANT,
    Here,
    Server,
    Tenant,
    every_result,
    opened_runs,
    plain_message,
)
from millpond.client.location import NodesLocation, parse_location
from millpond.clock import SystemClock
from millpond.errors import Conflict, Invalid, NotFound
from millpond.json_forms import parse_object, stable_json, to_json
from millpond.sizes import human_count, human_time
from millpond.times.instants import parse_instant
from millpond.workflows.deferred import conversions, engine, pipeline_starts, protocol, start_inputs
from millpond.workflows.named import attempt_words, filters_of, run_of, spec_of, status_of
from millpond.workflows.newest import newest_runs

__all__ = ("delete", "delete_many", "pairs_in", "reason_of", "rescue", "resume", "runs", "show", "start", "stop")

_NAMES_MAX = 20
_WHOLE_MAX = 36
"""Letters of the ids of runs that are copied from a table: those that the server makes have 32."""
_LETTERS_MAX = 200
"""Letters of a value in a tree."""
Run = Annotated[str, typer.Argument(metavar="RUN", help="The id of the run; of a child, after those above it: a_b.")]
Thread = Annotated[int, typer.Option("--thread", metavar="N", min=0, max=2**31 - 1, help="The thread of the run.")]


@verb(
    "runs",
    "millpond runs --workflow nightly --status ERROR",
    "millpond runs --workflow nightly --tag day=2026-01-01",
    "millpond runs --limit 5 --json",
    "millpond runs --pond pond",
    on=RUNS,
)
def runs(
    call: Any,
    workflow: Annotated[
        str | None, typer.Option("--workflow", metavar="NAME", help="Only runs of it.", show_default="all workflows")
    ] = None,
    status: Annotated[
        str | None, typer.Option("--status", metavar="STATUS", help="Only these, such as RUNNING or ERROR.",
                                 show_default="any")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="NAME=VALUE", help="Only runs with this parameter or searchable input."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="So many at most, the newest first.")] = 20,
    json: Json = False,
) -> None:  # fmt: skip
    """List runs of workflows: their status, when they began and how long they took."""
    request = protocol.SearchWfRunRequest()
    if workflow is not None:
        request.wf_spec_name = pipeline_starts.spec_name(workflow)
    if status is not None:
        request.status = status_of(status)
    if tag:
        request.variable_filters.extend(filters_of(call, workflow or "", tag))
    names = newest_runs(call, request, limit, SystemClock().now_ms())
    if workflow is not None and not names:
        spec_of(call, workflow)
    rows = [call("GetWfRun", name) for name in names]
    if json:
        console.print_json_list(plain_message(run) for run in rows)
        return
    lines = [
        [engine.run_path(run.id), run.wf_spec_id.name, protocol.LHStatus.Name(run.status),
         run.start_time.ToJsonString().replace("T", " ")[:19], _took(run)]
        for run in rows
    ]  # fmt: skip
    short = all(len(line[0]) <= _WHOLE_MAX for line in lines)
    console.print_table(["run", "workflow", "status", "began", "took"], lines, whole=("run",) if short else ())


def _took(row: Any) -> str:
    if not row.HasField("end_time"):
        return ""
    return human_time(row.end_time.ToMilliseconds() - row.start_time.ToMilliseconds())


@verb(
    "run start", "millpond run start nightly --input day=2026-11-22", "millpond run start nightly --id n-1", on=TENANT
)
def start(
    call: Any,
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="The name of the workflow.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=VALUE", help="An input: JSON, or text as it stands.", show_default=False),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The id of the run: the same again starts nothing.",
                                 show_default="made by the server")
    ] = None,
) -> console.Shown:  # fmt: skip
    """Start a run of a workflow."""
    pairs = pairs_in(inputs or [])
    spec = spec_of(call, workflow)
    request = protocol.RunWfRequest(wf_spec_name=spec.id.name, variables=start_inputs.inputs_of(spec, pairs))
    if name is not None:
        request.id = name
    run = call("RunWf", request)
    return console.said(plain_message(run), f"started {engine.run_path(run.id)}")


def pairs_in(texts: list[str]) -> dict[str, str]:
    """The values of options `NAME=VALUE`, by their names.

    Raises: `Invalid`.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise Invalid("not an input", kind="workflow_inputs", given=text, hint="write NAME=VALUE")
        if name in pairs:
            raise Invalid("an input is given twice", kind="workflow_inputs", input=name, hint="name it once")
        pairs[name] = value
    return pairs


@verb("run show", "millpond run show n-1", "millpond run show n-1 --json", "millpond run show n-1 --pond pond")
def show(
    run: Run, pond: Here = None, server: Server = SERVER, tenant: Tenant = "default", json: Json = False
) -> None:  # fmt: skip
    """Show a run as a tree: threads, nodes, attempts of tasks, failures, variables, and the threads that are queued."""
    name = engine.run_id(run)
    with opened_runs(server, tenant, pond) as call:
        run_row = run_of(call, run)
        nodes = list(every_result(call, "ListNodeRuns", protocol.ListNodeRunsRequest(wf_run_id=name)))
        tasks = list(every_result(call, "ListTaskRuns", protocol.ListTaskRunsRequest(wf_run_id=name)))
        variables = list(every_result(call, "ListVariables", protocol.ListVariablesRequest(wf_run_id=name)))
        queued = list(_queued(call, run_row, None if json else _NAMES_MAX))
        spec = _spec(call, run_row) if json else None
    if json:
        rows = {"nodes": nodes, "tasks": tasks, "variables": variables, "queued": queued}
        about = {"run": plain_message(run_row)} | ({} if spec is None else {"spec": spec})
        console.print_json(about | {name: list(map(plain_message, row)) for name, row in rows.items()})
        return
    of_pipeline = {pipeline_starts.PARAMETERS, pipeline_starts.PROGRAM, pipeline_starts.VALUES} <= {
        row.id.name for row in variables
    }
    lines = [*_tree(run, run_row, nodes, tasks, variables), *_queue_lines(run_row, queued),
             *_way_on(run, run_row, pond, of_pipeline=of_pipeline)]  # fmt: skip
    console.say("\n".join(lines))


def _spec(call: Any, run: Any) -> dict[str, Any] | None:
    """The specification of a run, its fields in an order that stays; None when it was deleted."""
    with suppress(NotFound):
        return parse_object(stable_json(plain_message(call("GetWfSpec", run.wf_spec_id))))
    return None


def _queued(call: Any, run: Any, limit: int | None) -> Iterator[Any]:
    """The first threads that wait in the queue of a run; those that have left it meanwhile are left out."""
    for number in run.thread_run_queue[:limit]:
        with suppress(NotFound):
            yield call("GetInactiveThreadRun", protocol.InactiveThreadRunId(wf_run_id=run.id, thread_run_number=number))


def _way_on(name: str, run: Any, pond: str | None, *, of_pipeline: bool) -> Iterator[str]:
    """The commands that let a run go on which does not go on by itself."""
    here = pipeline_starts.is_here(run.wf_spec_id.name)
    in_process = here or (pond is not None and not isinstance(parse_location(pond), NodesLocation))
    if in_process and run.status in (protocol.LHStatus.HALTED, protocol.LHStatus.ERROR, protocol.LHStatus.EXCEPTION):
        rescue = " --rescue" * (run.status != protocol.LHStatus.HALTED)
        yield f"let it go on: millpond pipeline run FILE --id {name}{rescue} --pond {pond or 'URL'}"
        return
    if run.status in (protocol.LHStatus.HALTED, protocol.LHStatus.HALTING):
        yield f"it is stopped; let it go on: millpond run resume {name}"
    failed = [thread.number for thread in run.thread_runs if thread.status == protocol.LHStatus.ERROR]
    if run.status == protocol.LHStatus.EXCEPTION and of_pipeline:
        failed = [0]
    if run.status in (protocol.LHStatus.ERROR, protocol.LHStatus.EXCEPTION) and failed:
        thread = f" --thread {failed[0]}" if failed[0] else ""
        yield f"let the failed step try again: millpond run rescue {name}{thread}; --skip goes on behind it"


def _queue_lines(run: Any, queued: list[Any]) -> Iterator[str]:
    if count := len(run.thread_run_queue):
        yield f"├─ {human_count(count, 'queued thread')}: they begin in this order, as others end"
        for thread in (row.thread_run for row in queued):
            yield f"│  {thread.number:>3} {thread.thread_spec_name}  {protocol.LHStatus.Name(thread.status)}"
        if count > _NAMES_MAX:
            yield f"│      and {count - _NAMES_MAX:,} more: --json has them"


def _tree(name: str, run: Any, nodes: list[Any], tasks: list[Any], variables: list[Any]) -> Iterator[str]:
    took = _took(run)
    yield f"{name}  {run.wf_spec_id.name}  {protocol.LHStatus.Name(run.status)}" + (f"  in {took}" if took else "")
    attempts = {task.id.task_guid: task for task in tasks}
    nodes_of, variables_of = defaultdict[int, list[Any]](list), defaultdict[int, list[Any]](list)
    for rows, rows_of in ((nodes, nodes_of), (variables, variables_of)):
        for row in rows:
            rows_of[row.id.thread_run_number].append(row)
    for thread in run.thread_runs:
        yield f"├─ thread {thread.number} {thread.thread_spec_name}  {protocol.LHStatus.Name(thread.status)}"
        for node in nodes_of[thread.number]:
            yield from _node_lines(node, attempts)
        for variable in variables_of[thread.number]:
            yield f"│  = {variable.id.name} = {_shown(variable.value)}"


def reason_of(message: str) -> str:
    """The line of a message that says why: of a traceback the last, else the first. The whole of it is in `--json`.

    >>> reason_of("Traceback (most recent call last):\\n  File …\\nValueError: there is nobody\\n")
    'ValueError: there is nobody'
    >>> reason_of("java.lang.RuntimeException: there is nobody\\n    at Greeter.greet")
    'java.lang.RuntimeException: there is nobody'
    """
    lines = message.strip().splitlines() or [""]
    return _cut(lines[-1 if "Traceback (most recent call last)" in message else 0].strip())


def _cut(text: str) -> str:
    more = len(text) - _LETTERS_MAX
    return text if more <= 0 else f"{text[:_LETTERS_MAX]}… and {human_count(more, 'letter')} more: --json has them"


def _node_lines(node: Any, attempts: dict[str, Any]) -> Iterator[str]:
    from millpond.cli.workflows.task_worker import step_of
    from millpond.workflows.tasks.inputs import inputs_of_task

    task = attempts.get(node.task.task_run_id.task_guid) if node.WhichOneof("node_type") == "task" else None
    name = node.node_name
    if task is not None and pipeline_starts.is_step(task.task_def_id.name):
        name = step_of(task.task_def_id.name, task.input_variables)
    yield f"│  {node.id.position:>3} {name}  {protocol.LHStatus.Name(node.status)}"
    for failure in node.failures:
        yield f"│        failed: {failure.failure_name} {reason_of(failure.message)}".rstrip()
    if node.HasField("run_child_wf") and node.run_child_wf.HasField("child_wf_run_id"):
        yield f"│        began the run {engine.run_path(node.run_child_wf.child_wf_run_id)}"
    if inputs := {} if task is None else inputs_of_task(task):
        yield f"│        given {_cut(to_json(inputs).decode())}"
    newest = task is not None and task.source.task_node.node_run_id == node.id  # a rescued task has several nodes
    for number, attempt in enumerate(task.attempts if task is not None and newest else ()):
        words = attempt_words(attempt, _cut, reason_of)
        status = protocol.TaskStatus.Name(attempt.status).removeprefix("TASK_").lower()
        yield f"│        attempt {number} {status}  {words}".rstrip()


def _shown(value: Any) -> str:
    return _cut(to_json(conversions.plain(value)).decode())


@verb("run stop", "millpond run stop n-1", on=TENANT)
def stop(call: Any, run: Run, thread: Thread = 0) -> console.Shown:
    """Stop a run, or a thread of it, until it is resumed."""
    name = _open_thread(call, run, thread)
    call("StopWfRun", protocol.StopWfRunRequest(wf_run_id=name, thread_run_number=thread))
    return console.done("stopped", run)


@verb("run resume", "millpond run resume n-1", on=TENANT)
def resume(call: Any, run: Run, thread: Thread = 0) -> console.Shown:
    """Let a run that was stopped go on."""
    name = _open_thread(call, run, thread)
    call("ResumeWfRun", protocol.ResumeWfRunRequest(wf_run_id=name, thread_run_number=thread))
    return console.done("resumed", run)


def _open_thread(call: Any, run: str, number: int) -> Any:
    """The name of a run of which a thread has not ended.

    Raises: `NotFound`; `Conflict` for one that has.
    """
    row = run_of(call, run)
    ended = [own.status for own in row.thread_runs if own.number == number and own.HasField("end_time")]
    if ended:
        hints = {"ERROR": f"let it try its step again: millpond run rescue {run}"}
        status = protocol.LHStatus.Name(ended[0])
        raise Conflict("the thread has ended", kind="failed_precondition", hint=hints.get(status), run=run,
                       thread=number, status=status)  # fmt: skip
    return row.id


@verb("run rescue", "millpond run rescue n-1", "millpond run rescue n-1 --skip", on=TENANT)
def rescue(
    call: Any,
    run: Run,
    thread: Thread = 0,
    skip: Annotated[bool, typer.Option("--skip", help="Go on behind the node that failed.")] = False,
) -> console.Shown:
    """Let a thread that ended in ERROR try its node again; the step of a pipeline at which its run failed goes on.

    The step has its checkpoints, and enters no load twice. The run keeps the text with which it began.
    """
    call("RescueThreadRun", protocol.RescueThreadRunRequest(
        wf_run_id=run_of(call, run).id, thread_run_number=thread, skip_current_node=skip))  # fmt: skip
    return console.done("rescued", run)


@verb("run delete", "millpond run delete n-1", on=TENANT)
def delete(call: Any, run: Run) -> console.Shown:
    """Delete a run with all that belongs to it, also while it runs."""
    call("DeleteWfRun", protocol.DeleteWfRunRequest(id=run_of(call, run).id))
    return console.done("deleted", run)


@verb("run delete-many", "millpond run delete-many nightly --status ERROR --before 2026-01-01T00:00:00Z", on=TENANT)
def delete_many(
    call: Any,
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="The workflow whose runs they are.")],
    status: Annotated[
        str, typer.Option("--status", metavar="STATUS", help="How they ended: COMPLETED, ERROR or EXCEPTION.")
    ] = "COMPLETED",
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="TIME", help="Only those that began before it.", show_default="now"),
    ] = None,
) -> console.Shown:
    """Delete the runs of a workflow that ended so, by a job that goes on by itself; its id is shown."""
    deletion = protocol.BulkDeleteWfRun(
        wf_spec_name=pipeline_starts.spec_name(workflow), wf_run_status=status_of(status)
    )
    stop = SystemClock().now_ms() if before is None else parse_instant(before) - 1
    deletion.latest_start.FromMilliseconds(stop)
    spec_of(call, workflow)
    job = call("CreateBulkJob", protocol.CreateBulkJobRequest(bulk_delete_wf_run=deletion))
    left = f"those that are left: millpond runs --workflow {workflow} --status {status}"
    text = f"job {job.id.id}\nit deletes them, see millpond bulk-job list; {left}"
    return console.said({"job": job.id.id}, text)
