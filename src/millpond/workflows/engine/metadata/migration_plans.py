"""Migration plans: where threads and nodes of one version of a specification go on in another version of it.

A thread or a node that a plan does not name goes on under its own name, where the new version has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

from google.protobuf.empty_pb2 import Empty
from littlehorse.model import (
    DeleteWorkflowMigrationPlanRequest,
    NodeMigrationPlan,
    PutWorkflowMigrationPlanRequest,
    WfSpec,
    WorkflowMigrationPlan,
    WorkflowMigrationPlanId,
)

from millpond.error_values import some_of
from millpond.errors import Invalid
from millpond.workflows.engine.keys import check_name, key_of
from millpond.workflows.engine.work import Work, find_spec, is_retired

__all__ = ("delete_plan", "new_node_name", "new_thread_name", "planned", "put_plan")


def put_plan(work: Work, request: PutWorkflowMigrationPlanRequest) -> WorkflowMigrationPlan:
    """Store a plan, in place of an earlier one of its name.

    Raises:
        Invalid: as `planned`; the name is none.
    """
    check_name("migration plan", request.name)
    plan = planned(work, request)
    work.rows.put((request.name,), plan)
    return plan


def planned(work: Work, request: PutWorkflowMigrationPlanRequest) -> WorkflowMigrationPlan:
    """The plan of a request.

    Raises:
        Invalid: a version, a thread or a node that it names does not exist.
    """
    old = work.rows.get(WfSpec, key_of(request.old_wfSpec))
    new = find_spec(work, request.old_wfSpec.name, request.major_version, request.revision)
    if old is None or new is None:
        rows = work.rows.list(WfSpec, (request.old_wfSpec.name,))
        versions = [f"{row.id.major_version}.{row.id.revision}" for row in rows if not is_retired(row)]
        hint = _one_of(versions) if versions else None
        _fail(request, f"Couldn't find WfSpec {request.old_wfSpec.name[:80]}, or this version of it", hint)
    plan = WorkflowMigrationPlan(
        workflow_migration_plan_id=WorkflowMigrationPlanId(name=request.name),
        created_at=work.instant(),
        old_wfSpec=request.old_wfSpec,
        major_version=request.major_version,
        revision=request.revision,
    )
    for name in sorted(request.thread_migrations):
        thread = request.thread_migrations[name]
        if name not in old.thread_specs or thread.new_thread_name not in new.thread_specs:
            threads = (new if name in old.thread_specs else old).thread_specs
            _fail(request, "a thread of the plan does not exist", _one_of(threads), thread=name,
                  new_thread=thread.new_thread_name)  # fmt: skip
        _check_nodes(request, old, new, name, thread.new_thread_name, thread.node_migrations)
        plan.thread_migrations[name].new_thread_name = thread.new_thread_name
        for node in thread.node_migrations:
            plan.thread_migrations[name].node_migrations[node].CopyFrom(thread.node_migrations[node])
    return plan


def _check_nodes(
    request: PutWorkflowMigrationPlanRequest,
    old: WfSpec,
    new: WfSpec,
    thread: str,
    new_thread: str,
    nodes: Mapping[str, NodeMigrationPlan],
) -> None:
    for name in sorted(nodes):
        other = nodes[name].new_node_name
        if name not in old.thread_specs[thread].nodes or other not in new.thread_specs[new_thread].nodes:
            theirs = old.thread_specs[thread].nodes
            theirs = new.thread_specs[new_thread].nodes if name in theirs else theirs
            _fail(request, "a node of the plan does not exist", _one_of(theirs), thread=thread, node=name,
                  new_node=other)  # fmt: skip


def _one_of(names: Iterable[str]) -> str:
    return f"there are: {some_of(names)}"


def _fail(
    request: PutWorkflowMigrationPlanRequest, problem: str, hint: str | None = None, **values: object
) -> NoReturn:
    raise Invalid(problem, kind="migration_plan", hint=hint, plan=request.name, **values)


def delete_plan(work: Work, request: DeleteWorkflowMigrationPlanRequest) -> Empty:
    """Delete a plan; runs that followed it stay where they are. One that is gone is no error."""
    work.rows.delete(WorkflowMigrationPlan, (request.id.name,))
    return Empty()


def new_thread_name(plan: WorkflowMigrationPlan, thread: str) -> str:
    """The thread specification in which a thread goes on."""
    return plan.thread_migrations[thread].new_thread_name if thread in plan.thread_migrations else thread


def new_node_name(plan: WorkflowMigrationPlan, thread: str, node: str) -> str:
    """The node at which a thread goes on that is at a node now."""
    nodes = plan.thread_migrations[thread].node_migrations if thread in plan.thread_migrations else {}
    return nodes[node].new_node_name if node in nodes else node
