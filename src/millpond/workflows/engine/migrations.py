"""Migrations of runs: a run goes on with another version of its specification, as a plan says, at once.

Every thread that has not completed goes to its new thread specification. A node that does there what the old one does
(the same task, the same event, …) goes on waiting under its new name; else the old one is left and the new one entered.

Invariants:
* A run that cannot go on in the new version, in whatever thread, stays as it is.
* No task is done twice: the node of a task that a worker has is left by nobody.
* What a node gave out is found under its new name, and a variable keeps its value.
"""

from __future__ import annotations

from typing import NoReturn

from littlehorse.model import (
    ApplyWorkflowMigrationPlanRequest,
    InactiveThreadRun,
    LHStatus,
    Node,
    NodeRun,
    TaskStatus,
    ThreadRun,
    Variable,
    VariableValue,
    WfRun,
    WorkflowMigrationPlan,
)

from millpond.errors import Conflict, Invalid, NotFound
from millpond.workflows.engine.advance import advance, enter
from millpond.workflows.engine.assignments import Scope, evaluated
from millpond.workflows.engine.failures import NodeFailed
from millpond.workflows.engine.halting import PAUSING, task_of
from millpond.workflows.engine.keys import key_of, run_path
from millpond.workflows.engine.metadata.migration_plans import new_node_name, new_thread_name
from millpond.workflows.engine.runs import TERMINAL, Run, existing
from millpond.workflows.engine.thread_queue import queued, save
from millpond.workflows.engine.threads import leave
from millpond.workflows.engine.values.conversions import type_name, type_of_def
from millpond.workflows.engine.variable_scopes import INHERITED, check_inputs, make
from millpond.workflows.engine.work import Work, find_spec

__all__ = ("apply_plan", "migrate")

_SAME: dict[str, str] = {
    "external_event": "external_event_def_id",
    "user_task": "user_task_def_name",
    "throw_event": "event_def_id",
}
"""The field that says what a node of a kind does; nodes of other kinds do the same where their kind is the same."""


def apply_plan(work: Work, request: ApplyWorkflowMigrationPlanRequest) -> WfRun:
    """Let a run go on as a plan says.

    Raises:
        NotFound: no such plan or run.
        Conflict: the run follows another version, or has completed; as `migrate`.
        Invalid: as `migrate`.
    """
    plan = work.rows.get(WorkflowMigrationPlan, (request.id.name,))
    if plan is None:
        raise NotFound("no migration plan has this name", kind="migration_plan", plan=request.id.name)
    old = existing(work, run_path(request.wfRun_id))
    if old.row.wf_spec_id != plan.old_wfSpec or old.row.status == LHStatus.COMPLETED:
        raise Conflict("the run has completed, or follows another version than the plan is for",
                       kind="failed_precondition", run=old.path, plan=request.id.name)  # fmt: skip
    old.row.workflow_migration_plan_id.CopyFrom(plan.workflow_migration_plan_id)
    migrate(old, plan, request)
    return old.row


def migrate(old: Run, plan: WorkflowMigrationPlan, request: ApplyWorkflowMigrationPlanRequest) -> None:
    """Let a run of a plan's old version go on. One that raises leaves rows half changed: they are to be forgotten.

    Raises:
        Conflict: the new version is gone, or a worker has a task whose node would be left.
        Invalid: the new version has no place for a thread, or a variable has another type there.
    """
    spec = find_spec(old.work, plan.old_wfSpec.name, plan.major_version, plan.revision)
    if spec is None:
        raise Conflict("the version that the plan leads to is gone", kind="failed_precondition", plan=request.id.name)
    _Migration(old, Run(old.work, old.row, spec), plan, request).do()


class _Migration:
    """One run on its way: as it was, and as it is."""

    def __init__(
        self, old: Run, new: Run, plan: WorkflowMigrationPlan, request: ApplyWorkflowMigrationPlanRequest
    ) -> None:
        self.old, self.new, self.plan, self.request = old, new, plan, request

    def do(self) -> None:
        rows, row = self.old.work.rows, self.old.row
        open_nodes = [self._open_node(thread) for thread in row.thread_runs if thread.status != LHStatus.COMPLETED]
        for interrupt in row.pending_interrupts:
            interrupt.handler_spec_name = self._thread_name(interrupt.handler_spec_name)
        for failure in row.pending_failures:
            failure.handler_spec_name = self._thread_name(failure.handler_spec_name)
        row.old_wf_spec_versions.append(row.wf_spec_id)
        row.wf_spec_id.CopyFrom(self.new.spec.id)
        for thread, _row, _node in open_nodes:
            self._carry_outputs(thread)
            thread.thread_spec_name = self._thread_name(thread.thread_spec_name)
            thread.wf_spec_id.CopyFrom(self.new.spec.id)
        for number in row.thread_run_queue:
            self._move_queued(queued(self.old, number))
        for variable in rows.list(Variable, (self.old.path,)):
            variable.wf_spec_id.CopyFrom(self.new.spec.id)
            rows.put(key_of(variable.id), variable)
        for thread, _row, _node in open_nodes:
            self._make_variables(thread)
        for thread, node_run, name in open_nodes:
            self._go_on(thread, node_run, name)
        advance(self.new)

    def _thread_name(self, name: str) -> str:
        name_after = new_thread_name(self.plan, name)
        if name_after not in self.new.spec.thread_specs:
            self._fail("the new version has no such thread", thread=name_after)
        return name_after

    def _open_node(self, thread: ThreadRun) -> tuple[ThreadRun, NodeRun, str]:
        """A thread with its node, and the name of the node at which it goes on."""
        node_run, new_thread = self.old.node_run(thread), self._thread_name(thread.thread_spec_name)
        name = new_node_name(self.plan, thread.thread_spec_name, node_run.node_name)
        nodes = self.new.spec.thread_specs[new_thread].nodes
        if name not in nodes:
            self._fail("the new version has no such node", thread=thread.number, thread_name=new_thread, node=name)
        task = task_of(self.old, node_run) if node_run.WhichOneof("node_type") == "task" else None
        claimed = task is not None and task.status == TaskStatus.TASK_RUNNING
        if claimed and not _does_the_same(self.old.node(node_run), nodes[name]):
            raise Conflict("a worker has the task of a node that would be left: wait for its report",
                           kind="failed_precondition", run=self.old.path, thread=thread.number)  # fmt: skip
        return thread, node_run, name

    def _move_queued(self, row: InactiveThreadRun) -> None:
        thread = row.thread_run
        thread.thread_spec_name = self._thread_name(thread.thread_spec_name)
        thread.wf_spec_id.CopyFrom(self.new.spec.id)
        try:
            check_inputs(self.new.work, list(self.new.thread_spec(thread).variable_defs), row.queued.input_vars)
        except NodeFailed as failed:
            self._fail(failed.message, thread=thread.number)
        save(self.new, thread)

    def _carry_outputs(self, thread: ThreadRun) -> None:
        name = thread.thread_spec_name
        if name in self.plan.thread_migrations:
            outputs = {node: self.old.output(thread, node) for node in self.old.spec.thread_specs[name].nodes}
            for node, value in sorted(outputs.items()):
                if value is not None:
                    self.new.put_output(thread, new_node_name(self.plan, name, node), value)

    def _make_variables(self, thread: ThreadRun) -> None:
        """Make the variables of the new version that the old one lacks; check those that it has."""
        assignments = self.request.migration_vars_by_thread
        assigned = (
            assignments[thread.thread_spec_name].var_assignment_by_var_name
            if thread.thread_spec_name in assignments
            else {}
        )
        for declared in self.new.thread_spec(thread).variable_defs:
            name, kind = declared.var_def.name, type_of_def(declared.var_def)
            before = self._declared_type(thread, name)
            if before is not None and before != type_name(kind):
                self._fail("a variable has another type in the new version", variable=name, earlier=before,
                           type=type_name(kind))  # fmt: skip
            there = self.old.work.rows.get(Variable, (self.old.path, thread.number, name)) is not None
            if declared.access_level == INHERITED or (there and name not in assigned):
                continue
            try:
                value = evaluated(Scope(self.new, thread), assigned[name]) if name in assigned else VariableValue()
                make(self.new, thread, declared, {name: value})
            except NodeFailed as failed:
                self._fail(failed.message, variable=name)

    def _declared_type(self, thread: ThreadRun, name: str) -> str | None:
        """The type that the old version declares for a variable that a thread has."""
        declared = (v.var_def for old in self.old.spec.thread_specs.values() for v in old.variable_defs)
        there = self.old.work.rows.get(Variable, (self.old.path, thread.number, name)) is not None
        return next((type_name(type_of_def(v)) for v in declared if there and v.name == name), None)

    def _go_on(self, thread: ThreadRun, node_run: NodeRun, name: str) -> None:
        """Give the node of a thread its new name, or leave it for another one."""
        before = self.old.node(node_run)
        same = _does_the_same(before, self.new.thread_spec(thread).nodes[name])
        if not same and node_run.status not in TERMINAL:
            leave(self.old, node_run)
            node_run.status = LHStatus.HALTED
            self.old.put(node_run)
            if thread.status in PAUSING:
                self._fail("a halted thread would enter another node: let it run first", thread=thread.number)
            enter(self.new, thread, name)
            return
        node_run.wf_spec_id.CopyFrom(self.new.spec.id)
        node_run.thread_spec_name, node_run.node_name = thread.thread_spec_name, name
        self.new.put(node_run)

    def _fail(self, problem: str, **values: object) -> NoReturn:
        raise Invalid(problem, kind="migration_plan", hint=None, run=self.old.path, plan=self.request.id.name, **values)


def _does_the_same(old: Node, new: Node) -> bool:
    kind = old.WhichOneof("node")
    if kind != new.WhichOneof("node"):
        return False
    if kind == "task":
        field = old.task.WhichOneof("task_to_execute")
        same_field = field == new.task.WhichOneof("task_to_execute")
        return same_field and field is not None and getattr(old.task, field) == getattr(new.task, field)
    if kind in _SAME:
        return bool(getattr(getattr(old, kind), _SAME[kind]) == getattr(getattr(new, kind), _SAME[kind]))
    return True
