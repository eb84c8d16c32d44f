"""Child runs: a node starts one on its own partition, another waits for its end.

A run that was started, or whose child has ended, is not advanced at once but after the run that is being advanced:
`Work.ahead` lists it, and the command ends when the list is empty. So nested runs need no nested calls.
"""

from __future__ import annotations

from littlehorse.model import (
    LHStatus,
    NodeRun,
    RunChildWfNode,
    ThreadRun,
    ThreadType,
    VariableValue,
    WfRun,
    WfRunId,
    WfSpec,
)

from millpond.workflows.engine.assignments import Scope, evaluated
from millpond.workflows.engine.edges import inputs_of
from millpond.workflows.engine.failures import NodeFailed, substitution
from millpond.workflows.engine.keys import is_name, run_path
from millpond.workflows.engine.limits import CHILD_RUNS_MAX, RUN_DEPTH_MAX
from millpond.workflows.engine.runs import FAILED, Run
from millpond.workflows.engine.threads import failure_of, start
from millpond.workflows.engine.trace_context import carry_on
from millpond.workflows.engine.values.conversions import NULL, kind_of, text_of
from millpond.workflows.engine.work import find_spec

__all__ = ("child_done", "start_child", "wait_for_child")


def start_child(run: Run, thread: ThreadRun, node: RunChildWfNode, row: NodeRun) -> None:
    """Start the run of a node's specification as a child of this run.

    Raises:
        NodeFailed: CHILD_FAILURE, and nothing was started.
    """
    row.run_child_wf.SetInParent()
    scope = Scope(run, thread)
    inputs = inputs_of(scope, dict(node.inputs))
    spec = _spec(scope, node)
    name = WfRunId(id=_own_id(scope, node), parent_wf_run_id=run.row.id)
    if run_path(name).count("_") >= RUN_DEPTH_MAX:
        raise NodeFailed("INTERNAL_ERROR", f"runs nested deeper than run_depth_max={RUN_DEPTH_MAX}")
    if run.work.rows.get(WfRun, (run_path(name),)) is not None:
        raise NodeFailed("CHILD_FAILURE", f"this run has a child with the id {name.id}")
    run.work.child_runs_started += 1
    if run.work.child_runs_started > CHILD_RUNS_MAX:
        raise NodeFailed("INTERNAL_ERROR", f"one command starts more runs than child_runs_max={CHILD_RUNS_MAX}")
    trigger = WfRun.ParentTriggerReference(triggering_node_run=row.id)
    started = run.work.instant()
    child_row = WfRun(id=name, wf_spec_id=spec.id, status=LHStatus.RUNNING, start_time=started, parent_trigger=trigger)
    carry_on(run.row, child_row)
    child = Run(run.work, child_row, spec)
    try:
        start(child, spec.entrypoint_thread_name, inputs, ThreadType.ENTRYPOINT)
    except NodeFailed as failed:
        raise NodeFailed("CHILD_FAILURE", f"the child cannot start: {failed.message}") from failed
    child.save()
    run.work.ahead.append((child.path, None))
    row.run_child_wf.child_wf_run_id.CopyFrom(name)
    row.run_child_wf.wf_spec_id.CopyFrom(spec.id)
    for key, value in inputs.items():
        row.run_child_wf.inputs[key].CopyFrom(value)


def _spec(scope: Scope, node: RunChildWfNode) -> WfSpec:
    """The specification that a node names, or computes the name of."""
    if node.WhichOneof("wf_spec") == "wf_spec_var":
        name = text_of(evaluated(scope, node.wf_spec_var))
    else:
        name = node.wf_spec_name
    spec = find_spec(scope.run.work, name, node.major_version if node.major_version >= 0 else None)
    if spec is None:
        raise NodeFailed("CHILD_FAILURE", f"Couldn't find WfSpec {name[:80]}")
    return spec


def _own_id(scope: Scope, node: RunChildWfNode) -> str:
    if not node.HasField("child_id"):
        return scope.run.work.new_id()
    own = text_of(evaluated(scope, node.child_id))
    if not is_name(own):
        raise substitution(f"not a valid id of a run: {own[:80]!r}")
    return own


def wait_for_child(run: Run, value: VariableValue, row: NodeRun) -> None:
    """Begin the wait for a child run."""
    row.wait_for_child_wf.SetInParent()
    if kind_of(value) != "wf_run_id":
        raise substitution("a node waits for the id of a run, WF_RUN_ID")
    child = run.work.rows.get(WfRun, (run_path(value.wf_run_id),))
    if child is None or run_path(child.id.parent_wf_run_id) != run.path:
        raise NodeFailed("CHILD_FAILURE", f"this run has no child {run_path(value.wf_run_id)}")
    row.wait_for_child_wf.child_wf_run_id.CopyFrom(child.id)
    child.parent_trigger.waiting_node_run.CopyFrom(row.id)
    run.work.rows.put((run_path(child.id),), child)


def child_done(run: Run, row: NodeRun) -> VariableValue | None:
    """The output of a child run that completed, or None while it runs.

    Raises:
        NodeFailed: CHILD_FAILURE, or the exception with which the child ended.
    """
    path = run_path(row.wait_for_child_wf.child_wf_run_id)
    child = run.work.rows.get(WfRun, (path,))
    if child is None:
        raise NodeFailed("CHILD_FAILURE", f"child run {path} was deleted")
    first = child.thread_runs[0]
    if child.status == LHStatus.COMPLETED:
        return first.output if first.HasField("output") else NULL
    if child.status not in FAILED:
        return None
    failure = _failure(run, child)
    name = failure.name if child.status == LHStatus.EXCEPTION else "CHILD_FAILURE"
    raise NodeFailed(name, f"Child run {path} failed with {failure.name}: {failure.message}", failure.content)


def _failure(run: Run, child: WfRun) -> NodeFailed:
    """The failure with which a child run ended. It needs the child's rows alone, not its specification."""
    family = Run(run.work, child, run.spec)
    return failure_of(family, family.thread(0))
