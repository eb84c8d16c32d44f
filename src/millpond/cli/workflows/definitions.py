"""`millpond workflow` and `task`: what runs follow, and what workers do; in versions, with queues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any

import typer

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
from millpond.errors import NotFound
from millpond.json_forms import to_json
from millpond.workflows.deferred import protocol, start_inputs
from millpond.workflows.named import fetch, node_number, spec_of, version_of

__all__ = ("delete_task", "delete_workflow", "list_tasks", "list_workflows", "show_workflow", "versions_by_name")

_PAGE = 1_000
Workflow = Annotated[str, typer.Argument(metavar="WORKFLOW", help="The name of the workflow.")]
Prefix = Annotated[
    str, typer.Option("--prefix", metavar="TEXT", help="Only names that begin so.", show_default="all names")
]


@verb("workflow list", "millpond workflow list", "millpond workflow list --prefix etl- --json", on=RUNS)
def list_workflows(call: Any, prefix: Prefix = "") -> console.Shown:
    """List the workflows, with their versions."""
    versions = versions_by_name(call, prefix)
    return console.table(
        ({"workflow": name, "versions": own} for name, own in versions.items()),
        ["workflow", "newest", "versions"],
        [[name, own[-1], console.human_count(len(own), "version")] for name, own in versions.items()],
    )


def versions_by_name(call: Any, prefix: str = "") -> dict[str, list[str]]:
    """The versions of each workflow, by its name."""
    versions: dict[str, list[str]] = {}
    for spec in every_result(call, "SearchWfSpec", protocol.SearchWfSpecRequest(prefix=prefix or None, limit=_PAGE)):
        versions.setdefault(spec.name, []).append(f"{spec.major_version}.{spec.revision}")
    return versions


@verb("workflow show", "millpond workflow show nightly", "millpond workflow show nightly --version 0.1 --json", on=RUNS)
def show_workflow(
    call: Any,
    name: Workflow,
    version: Annotated[
        str | None, typer.Option("--version", metavar="MAJOR.REVISION", help="This one.", show_default="the newest")
    ] = None,
) -> console.Shown:
    """Show a workflow: its versions, the inputs of a run, and its threads with their nodes."""
    spec = spec_of(call, name) if version is None else _spec(call, name, version)
    listed = every_result(call, "SearchWfSpec", protocol.SearchWfSpecRequest(name=spec.id.name, limit=_PAGE))
    versions = [f"{own.major_version}.{own.revision}" for own in listed]
    head = f"{spec.id.name}  {spec.id.major_version}.{spec.id.revision}  of {', '.join(versions)}"
    return console.said({**plain_message(spec), "versions": versions}, "\n".join([head, *_tree(spec)]))


def _tree(spec: Any) -> Iterator[str]:
    for own in start_inputs.declared_inputs(spec):
        default = own["default"]
        text = f"{default}()" if own["computed"] else to_json(default).decode()
        more = ", required" * own["required"] + ("" if default is None else f" = {text}")
        yield f"├─ input {own['name']}: {own['type']}{more}"
    first = spec.entrypoint_thread_name
    for name in sorted(spec.thread_specs, key=lambda own: (own != first, own)):
        yield f"├─ thread {name}"
        nodes = spec.thread_specs[name].nodes
        for node in sorted(nodes, key=node_number):
            after = ", ".join(dict.fromkeys(edge.sink_node_name for edge in nodes[node].outgoing_edges))
            yield f"│    {node}" + f" → {after}" * bool(after)


def _spec(call: Any, name: str, version: str) -> Any:
    major, revision = version_of(version)
    newest = spec_of(call, name).id
    with suppress(NotFound):
        return call("GetWfSpec", protocol.WfSpecId(name=newest.name, major_version=major, revision=revision))
    raise NotFound("the workflow has no such version", kind="workflow_version", workflow=name, version=version,
                   hint=f"its newest is {newest.major_version}.{newest.revision}")  # fmt: skip


@verb("workflow delete", "millpond workflow delete nightly --version 0.0", on=TENANT)
def delete_workflow(
    call: Any,
    name: Workflow,
    version: Annotated[str, typer.Option("--version", metavar="MAJOR.REVISION", help="The version.")],
) -> console.Shown:
    """Delete a version of a workflow: it starts no run any more, and its open runs go on with it."""
    spec = _spec(call, name, version).id
    call("DeleteWfSpec", protocol.DeleteWfSpecRequest(id=spec))
    return console.said({"deleted": spec.name, "version": version}, f"deleted {spec.name} {version}")


@verb("task list", "millpond task list", "millpond task list --prefix greet --json")
def list_tasks(
    prefix: Prefix = "", pond: Here = None, server: Server = SERVER, tenant: Tenant = "default"
) -> console.Shown:  # fmt: skip
    """List the tasks that are defined: their inputs, what waits in their queues, and the workers that poll them."""
    with opened_runs(server, tenant, pond) as call:
        names = every_result(call, "SearchTaskDef", protocol.SearchTaskDefRequest(prefix=prefix or None, limit=_PAGE))
        # Workers are known to a server alone.
        rows = [
            (call("GetTaskDef", name), _queued(call, name), None if pond else _workers(call, name)) for name in names
        ]
    return console.table(
        (
            {**plain_message(task), "queued": queued} | ({} if workers is None else {"workers": workers})
            for task, queued, workers in rows
        ),
        ["task", "inputs", "queued", "workers"],
        [
            [task.id.name, ", ".join(own.name for own in task.input_vars), queued,
             None if workers is None else str(len(workers))]
            for task, queued, workers in rows
        ],
        spared=["workers"]
    )  # fmt: skip


def _queued(call: Any, name: Any) -> int:
    request = protocol.CountTaskRunRequest(task_def_name=name.name, status=protocol.TaskStatus.TASK_SCHEDULED)
    return int(call("CountTaskRun", request).value)


def _workers(call: Any, name: Any) -> list[str]:
    with suppress(NotFound):
        return sorted(call("GetTaskWorkerGroup", name).task_workers)
    return []


@verb("task delete", "millpond task delete greet", on=TENANT)
def delete_task(
    call: Any,
    name: Annotated[str, typer.Argument(metavar="TASK", help="The name of the task.")],
) -> console.Shown:
    """Delete the definition of a task: runs that reach it fail then."""
    fetch(call, "GetTaskDef", protocol.TaskDefId(name=name), "task", name)
    call("DeleteTaskDef", protocol.DeleteTaskDefRequest(id=protocol.TaskDefId(name=name)))
    return console.done("deleted", name)
