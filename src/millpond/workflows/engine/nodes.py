"""Nodes: one entry for each kind, with what happens on arrival and how it is found to be done.

`arrive` begins the node run; `done` answers None while it waits, and else its output (null for none). Both raise
NodeFailed for a failure that belongs to the node run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp
from littlehorse.model import (
    LHStatus,
    Node,
    NodeRun,
    TaskAttempt,
    TaskDef,
    TaskDefId,
    TaskNode,
    TaskNodeReference,
    TaskRun,
    TaskRunId,
    TaskRunSource,
    TaskStatus,
    ThreadRun,
    ThreadType,
    ThrowEventNode,
    VariableAssignment,
    VariableValue,
    VarNameAndVal,
    WorkflowEvent,
    WorkflowEventDef,
    WorkflowEventId,
)

from millpond.workflows.engine import attempts
from millpond.workflows.engine.assignments import Scope, condition_holds, evaluated, legacy_holds
from millpond.workflows.engine.child_runs import child_done, start_child, wait_for_child
from millpond.workflows.engine.commands import NodeDue
from millpond.workflows.engine.edges import inputs_of
from millpond.workflows.engine.events import unclaimed, waits
from millpond.workflows.engine.failures import NodeFailed, substitution
from millpond.workflows.engine.halting import task_of, timer_name
from millpond.workflows.engine.keys import key_of
from millpond.workflows.engine.limits import INSTANT_MS_MAX
from millpond.workflows.engine.metadata.struct_values import settled
from millpond.workflows.engine.outcome import EventThrown
from millpond.workflows.engine.pipeline_starts import FAILURE
from millpond.workflows.engine.runs import FAILED, TERMINAL, Run
from millpond.workflows.engine.thread_queue import queued_children
from millpond.workflows.engine.threads import INPUT, check_count, start, start_children
from millpond.workflows.engine.trace_context import carry_on
from millpond.workflows.engine.user_tasks.nodes import arrive_user_task, user_task_done
from millpond.workflows.engine.values.conversions import (
    NULL,
    check_size,
    coerced,
    is_null,
    kind_of,
    plain,
    text_of,
    type_of_def,
    value_of,
)
from millpond.workflows.engine.waits import arrive_wait, wait_done

__all__ = (
    "Step",
    "Kind",
    "KINDS",
    "new_task",
)


class Step(NamedTuple):
    """A node run on its way: all that the functions of a node's kind need."""

    run: Run
    thread: ThreadRun
    node: Node
    row: NodeRun

    def scope(self) -> Scope:
        """The scope of the thread, for assignments."""
        return Scope(self.run, self.thread)

    def value(self, assignment: VariableAssignment) -> VariableValue:
        """The value of an assignment in the thread's scope."""
        return evaluated(self.scope(), assignment)


@dataclass(frozen=True, slots=True)
class Kind:
    """The behaviour of one kind of node."""

    arrive: Callable[[Step], None]
    done: Callable[[Step], VariableValue | None]


def _at_once(_step: Step) -> VariableValue:
    return NULL


# ------------------------------------------------------------------------------------- entrypoint, exit


def _arrive_entrypoint(step: Step) -> None:
    step.row.entrypoint.SetInParent()


def _arrive_exit(step: Step) -> None:
    step.row.exit.SetInParent()


def _exit_done(step: Step) -> VariableValue | None:
    """The thread's output, once all its children have ended."""
    definition = step.node.exit
    if definition.WhichOneof("result") == "failure_def":
        raise _thrown(step)
    children = step.run.children(step.thread)
    if not all(map(_is_over, children)) or not all(map(_is_over, queued_children(step.run, step.thread))):
        return None
    for child in children:
        counted = child.type == ThreadType.CHILD and child.number not in step.thread.handled_failed_children
        if child.status in FAILED and counted:
            raise NodeFailed("CHILD_FAILURE", f"Child thread {child.number} failed: {child.error_message}")
    if definition.WhichOneof("result") != "return_content":
        return NULL
    try:
        value = step.value(definition.return_content)
        check_size("the output of the thread", value)
    except NodeFailed as failed:
        raise NodeFailed("VAR_ERROR", failed.message) from failed
    return value


def _is_over(child: ThreadRun) -> bool:
    """True when a child has ended, or was halted for more than its parent, which runs."""
    if child.status in TERMINAL:
        return True
    return child.status == LHStatus.HALTED and any(
        not reason.HasField("parent_halted") for reason in child.halt_reasons
    )


def _thrown(step: Step) -> NodeFailed:
    definition = step.node.exit.failure_def
    message = f"{definition.message}{_reason_handled(step)}"
    if not definition.HasField("content"):
        return NodeFailed(definition.failure_name, message)
    try:
        content = step.value(definition.content)
    except NodeFailed as failed:
        return NodeFailed(definition.failure_name, f"{message} (no content: {failed.message})")
    return NodeFailed(definition.failure_name, message, content)


def _reason_handled(step: Step) -> str:
    """The reason of the failure that a pipeline's handler took, as its run ends with it: lists show no other words."""
    declared = step.run.thread_spec(step.thread).variable_defs
    if all(own.var_def.name != FAILURE for own in declared):
        return ""
    failure = plain(step.scope().variable(FAILURE))
    return f": {failure['reason']}" if isinstance(failure, dict) and failure.get("reason") else ""


# ------------------------------------------------------------------------------------------------- task


def _arrive_task(step: Step) -> None:
    step.row.task.SetInParent()
    guid = f"{step.thread.number}-{step.row.id.position}"
    source = TaskRunSource(task_node=TaskNodeReference(node_run_id=step.row.id), wf_spec_id=step.run.spec.id)
    task = new_task(step.scope(), step.node.task, guid, source)
    step.row.task.task_run_id.CopyFrom(task.id)
    attempts.queue(step.run.work, task)


def new_task(scope: Scope, node: TaskNode, guid: str, source: TaskRunSource) -> TaskRun:
    """A task run with its inputs, not yet queued."""
    definition = _task_def(scope, node)
    inputs = _task_inputs(scope, node, definition)
    task = TaskRun(
        id=TaskRunId(wf_run_id=scope.run.row.id, task_guid=guid),
        task_def_id=definition.id,
        attempts=[TaskAttempt(masked_value=definition.return_type.return_type.masked)],
        input_variables=inputs,
        source=source,
        scheduled_at=scope.run.work.instant(),
        timeout_seconds=node.timeout_seconds,
        total_attempts=node.retries + 1,
        exponential_backoff=node.exponential_backoff if node.HasField("exponential_backoff") else None,
    )
    carry_on(scope.run.row, task)
    return task


def _task_def(scope: Scope, node: TaskNode) -> TaskDef:
    """The definition of the task of a node, by its name or by one computed now."""
    if node.WhichOneof("task_to_execute") == "dynamic_task":
        name = TaskDefId(name=text_of(evaluated(scope, node.dynamic_task)))
        missing = "VAR_SUB_ERROR"
    else:
        name, missing = node.task_def_id, "TASK_ERROR"
    definition = scope.run.work.rows.get(TaskDef, (name.name,))
    if definition is None:
        raise NodeFailed(missing, f"no task is defined with the name {name.name}")
    return definition


def _task_inputs(scope: Scope, node: TaskNode, definition: TaskDef) -> list[VarNameAndVal]:
    assignments = node.variables
    if len(assignments) != len(definition.input_vars):
        raise substitution(
            f"task {definition.id.name} takes {len(definition.input_vars)} inputs, not {len(assignments)}"
        )
    inputs = []
    for declared, assignment in zip(definition.input_vars, assignments, strict=True):
        kind = type_of_def(declared)
        try:
            value = settled(scope.run.work, coerced(evaluated(scope, assignment), kind), kind)
        except NodeFailed as failed:
            raise substitution(f"{failed.message}, in the input {declared.name}") from failed
        check_size(f"input {declared.name}", value)
        inputs.append(VarNameAndVal(var_name=declared.name, value=value, masked=kind.masked))
    return inputs


def _task_done(step: Step) -> VariableValue | None:
    task = task_of(step.run, step.row)
    assert task is not None, "a task node has its task run from arrival on"
    if task.status == TaskStatus.TASK_SUCCESS:
        return task.attempts[-1].output
    if task.status not in attempts.OPEN:
        raise attempts.failure_of(task)
    if task.status == TaskStatus.TASK_SCHEDULED and not attempts.is_queued(step.run.work, task):
        attempts.queue(step.run.work, task)
    return None


# ----------------------------------------------------------------------------------------------- events


def _arrive_event(step: Step) -> None:
    node, row = step.node.external_event, step.row.external_event
    row.external_event_def_id.CopyFrom(node.external_event_def_id)
    if node.HasField("correlation_key"):
        key = step.value(node.correlation_key)
        row.correlation_key = "" if is_null(key) else text_of(key)
        row.mask_correlation_key = node.mask_correlation_key
        waits.announce(step.run.work, step.row)
    if not node.HasField("timeout_seconds"):
        return
    timeout = step.value(node.timeout_seconds)
    if kind_of(timeout) != "int":
        raise substitution("the timeout of an external event is an INT, in seconds")
    step.run.work.set_timer(timer_name(step.row), step.run.work.now + 1000 * timeout.int, NodeDue(step.row.id))


def _event_done(step: Step) -> VariableValue | None:
    row = step.row.external_event
    name = step.node.external_event.external_event_def_id.name
    thread, position = step.thread.number, step.row.id.position
    event = unclaimed.oldest(step.run.work, step.run.path, name, thread, position)
    if event is None:
        if row.timed_out:
            raise NodeFailed("TIMEOUT", "ExternalEvent did not arrive in time")
        return None
    event.thread_run_number, event.node_run_position = thread, position
    unclaimed.claim(step.run.work, event)
    row.event_time.CopyFrom(step.run.work.instant())
    row.external_event_id.CopyFrom(event.id)
    step.run.work.cancel_timer(timer_name(step.row))
    return event.content


def _throw_event(step: Step) -> None:
    node, work = step.node.throw_event, step.run.work
    content = _thrown_content(step, node)
    name = node.event_def_id
    newest = work.rows.get(WorkflowEventId, (step.run.path, name.name))
    number = newest.number + 1 if newest is not None else len(work.rows.list(WorkflowEvent, (step.run.path, name.name)))
    event = WorkflowEvent(
        id=WorkflowEventId(wf_run_id=step.run.row.id, workflow_event_def_id=name, number=number),
        content=content,
        created_at=work.instant(),
        node_run_id=step.row.id,
    )
    step.row.throw_event.workflow_event_id.CopyFrom(event.id)
    work.rows.put(key_of(event.id), event)
    work.rows.put((step.run.path, name.name), event.id)
    work.cause(EventThrown(event))


def _thrown_content(step: Step, node: ThrowEventNode) -> VariableValue:
    """The content of a workflow event, as the type that its definition states."""
    definition = step.run.work.rows.get(WorkflowEventDef, (node.event_def_id.name,)) or WorkflowEventDef()
    type_ = definition.content_type.return_type
    try:
        content = settled(step.run.work, coerced(step.value(node.content), type_), type_)
        check_size("the content of the event", content)
    except NodeFailed as failed:
        raise substitution(f"Failed calculating content of workflow Event: {failed.message}") from failed
    return content


# ------------------------------------------------------------------------------------ sleep, conditions


def _arrive_sleep(step: Step) -> None:
    _sleep_until(step, _maturation(step))


def _sleep_until(step: Step, at: int) -> None:
    row, work = step.row.sleep, step.run.work
    row.maturation_time.FromMilliseconds(at)
    row.matured = at <= work.now
    if row.matured:
        work.cancel_timer(timer_name(step.row))
    else:
        work.set_timer(timer_name(step.row), at, NodeDue(step.row.id))


def _maturation(step: Step) -> int:
    """The instant at which a sleep is over, in milliseconds."""
    node = step.node.sleep
    match node.WhichOneof("sleep_length"):
        case "raw_seconds":
            value = step.value(node.raw_seconds)
            if kind_of(value) != "int":
                raise substitution("the length of a sleep is an INT, in seconds")
            at = step.run.work.now + 1000 * value.int
        case "timestamp":
            value = step.value(node.timestamp)
            if kind_of(value) == "utc_timestamp":
                at = value.utc_timestamp.ToMilliseconds()
            elif kind_of(value) == "int":
                at = value.int
            else:
                raise substitution("a sleep lasts until a TIMESTAMP, or an INT of milliseconds since 1970")
        case _:
            at = _iso_instant(text_of(step.value(node.iso_date)))
    if not -62135596800000 <= at <= INSTANT_MS_MAX:
        raise substitution("a sleep ends between the years 1 and 9999")
    return at


def _iso_instant(text: str) -> int:
    instant_ = Timestamp()
    try:
        instant_.FromJsonString(text)
    except ValueError as broken:
        raise substitution(f"not an ISO 8601 instant: {text[:60]!r}") from broken
    return instant_.ToMilliseconds()


def _sleep_done(step: Step) -> VariableValue | None:
    row = step.row.sleep
    if step.node.sleep.WhichOneof("sleep_length") != "raw_seconds" and not row.matured:
        at = _maturation(step)
        if at != row.maturation_time.ToMilliseconds():
            _sleep_until(step, at)
            step.run.put(step.row)
    return NULL if row.matured else None


def _arrive_condition(step: Step) -> None:
    step.row.wait_for_condition.SetInParent()


def _condition_done(step: Step) -> VariableValue | None:
    node = step.node.wait_for_condition
    if node.WhichOneof("node_condition") == "legacy_condition":
        return NULL if legacy_holds(step.scope(), node.legacy_condition) else None
    return NULL if condition_holds(step.scope(), node.condition) else None


# ---------------------------------------------------------------------------------------------- threads


def _start_thread(step: Step) -> None:
    node, row = step.node.start_thread, step.row.start_thread
    row.thread_spec_name = node.thread_spec_name
    inputs = inputs_of(step.scope(), dict(node.variables))
    child = start(step.run, node.thread_spec_name, inputs, ThreadType.CHILD, step.thread)
    row.child_thread_id = child.number


def _start_thread_done(step: Step) -> VariableValue:
    return VariableValue(int=step.row.start_thread.child_thread_id)


def _start_threads(step: Step) -> None:
    node, row = step.node.start_multiple_threads, step.row.start_multiple_threads
    row.thread_spec_name = node.thread_spec_name
    iterable = step.value(node.iterable)
    if kind_of(iterable) not in ("json_arr", "array"):
        raise substitution("threads are started for the elements of a JSON_ARR or an ARRAY")
    elements = list(iterable.array.items) if kind_of(iterable) == "array" else plain(iterable)
    check_count(step.run, len(elements))
    common = inputs_of(step.scope(), dict(node.variables))
    declared = {variable.var_def.name for variable in step.run.spec.thread_specs[node.thread_spec_name].variable_defs}
    values = (element if isinstance(element, VariableValue) else value_of(element) for element in elements)
    starts = [{**common, INPUT: value} if INPUT in declared else common for value in values]
    row.child_thread_ids.extend(start_children(step.run, node.thread_spec_name, starts, step.thread))


def _start_threads_done(step: Step) -> VariableValue:
    return value_of(list(step.row.start_multiple_threads.child_thread_ids))


def _arrive_wait(step: Step) -> None:
    node = step.node.wait_for_threads
    if node.WhichOneof("threads_to_wait_for") == "thread_list":
        numbers = plain(step.value(node.thread_list))
        if is_null(step.value(node.thread_list)) or not isinstance(numbers, list):
            raise substitution("the threads to wait for are a list of numbers")
    else:
        numbers = [plain(step.value(thread.thread_run_number)) for thread in node.threads.threads]
    arrive_wait(step.run, step.thread, step.row, numbers)


def _wait_done(step: Step) -> VariableValue | None:
    return NULL if wait_done(step.run, step.thread, step.node, step.row) else None


# ------------------------------------------------------------------------------------------- child runs


def _arrive_child(step: Step) -> None:
    start_child(step.run, step.thread, step.node.run_child_wf, step.row)


def _child_started(step: Step) -> VariableValue:
    return VariableValue(wf_run_id=step.row.run_child_wf.child_wf_run_id)


def _arrive_child_wait(step: Step) -> None:
    wait_for_child(step.run, step.value(step.node.wait_for_child_wf.child_wf_run_id), step.row)


def _child_done(step: Step) -> VariableValue | None:
    return child_done(step.run, step.row)


def _arrive_user_task(step: Step) -> None:
    arrive_user_task(step.run, step.thread, step.node.user_task, step.row)


def _user_task_done(step: Step) -> VariableValue | None:
    return user_task_done(step.scope(), step.node.user_task, step.row)


KINDS: Final[dict[str, Kind]] = {
    "entrypoint": Kind(_arrive_entrypoint, _at_once),
    "nop": Kind(_arrive_entrypoint, _at_once),
    "exit": Kind(_arrive_exit, _exit_done),
    "task": Kind(_arrive_task, _task_done),
    "user_task": Kind(_arrive_user_task, _user_task_done),
    "external_event": Kind(_arrive_event, _event_done),
    "sleep": Kind(_arrive_sleep, _sleep_done),
    "throw_event": Kind(_throw_event, _at_once),
    "wait_for_condition": Kind(_arrive_condition, _condition_done),
    "start_thread": Kind(_start_thread, _start_thread_done),
    "start_multiple_threads": Kind(_start_threads, _start_threads_done),
    "wait_for_threads": Kind(_arrive_wait, _wait_done),
    "run_child_wf": Kind(_arrive_child, _child_started),
    "wait_for_child_wf": Kind(_arrive_child_wait, _child_done),
}
"""The kinds of nodes that a specification may have."""
