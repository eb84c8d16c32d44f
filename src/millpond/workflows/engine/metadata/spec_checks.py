"""Checks of a specification before it is stored: each raises Invalid with the thread and the node that is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from google.protobuf.message import Message
from littlehorse.model import (
    ExternalEventDef,
    FailureHandlerDef,
    Node,
    TaskDef,
    TaskNode,
    ThreadSpec,
    TypeDefinition,
    VariableAssignment,
    VariableDef,
    WfSpec,
    WorkflowEventDef,
)

from millpond.workflows.engine.failures import RESERVED, NodeFailed
from millpond.workflows.engine.keys import check_name, is_name
from millpond.workflows.engine.metadata.spec_faults import Check
from millpond.workflows.engine.metadata.spec_types import check_returns, check_types
from millpond.workflows.engine.metadata.struct_values import settled
from millpond.workflows.engine.nodes import KINDS
from millpond.workflows.engine.pipeline_starts import FAILURE
from millpond.workflows.engine.threads import INPUT
from millpond.workflows.engine.user_tasks.nodes import find_definition
from millpond.workflows.engine.values.conversions import assignable, fits, type_name, type_of_def, value_type_name
from millpond.workflows.engine.values.messages import parts_of
from millpond.workflows.engine.variable_scopes import INHERITED, PRIVATE
from millpond.workflows.engine.work import Work, find_spec

__all__ = ("check_spec",)


def check_spec(work: Work, spec: WfSpec) -> None:
    """Raise Invalid for a specification that no run could follow."""
    check_name("specification", spec.id.name)
    check = Check(work, spec)
    if spec.entrypoint_thread_name not in spec.thread_specs:
        check.fail("the entrypoint thread does not exist", spec.entrypoint_thread_name)
    _check_variables(check, _parent(check))
    for name in sorted(spec.thread_specs):
        _check_thread(check, name, spec.thread_specs[name])
    _check_interrupts(check)


def _parent(check: Check) -> WfSpec | None:
    """The specification of which a run is given as the parent of each run; its newest version unless one is named."""
    if not check.spec.HasField("parent_wf_spec"):
        return None
    named = check.spec.parent_wf_spec
    parent = find_spec(check.work, named.wf_spec_name, named.wf_spec_major_version or None)
    if parent is None:
        check.fail("the parent specification does not exist", check.spec.entrypoint_thread_name,
                   parent=named.wf_spec_name)  # fmt: skip
    return parent


def _check_variables(check: Check, parent: WfSpec | None) -> None:
    """Names are unique over all threads but for handlers'; inherited ones exist in the parent's specification."""
    names: Counter[str] = Counter()
    for thread in sorted(check.spec.thread_specs):
        own: set[str] = set()
        for variable in check.spec.thread_specs[thread].variable_defs:
            name = variable.var_def.name
            names[name] += name not in (INPUT, FAILURE)
            if names[name] > 1 or name in own:
                check.fail("the variable is declared twice", thread, variable=name)
            own.add(name)
            if variable.access_level == INHERITED:
                _check_inherited(check, parent, thread, name)
            if variable.var_def.HasField("default_value"):
                _check_default(check, thread, variable.var_def)


def _check_default(check: Check, thread: str, declared: VariableDef) -> None:
    """A default is a value of its variable's type; a struct has its fields, at any depth."""
    type_, value = type_of_def(declared), declared.default_value
    if not fits(value, type_):
        check.fail("the default is of another type", thread, variable=declared.name, type=type_name(type_),
                   given=value_type_name(value))  # fmt: skip
    try:
        settled(check.work, value, type_)
    except NodeFailed as failed:
        check.fail("the default is no value of its type", thread, variable=declared.name, reason=failed.message)


def _check_inherited(check: Check, parent: WfSpec | None, thread: str, name: str) -> None:
    if parent is None:
        check.fail("only a specification with a parent inherits variables", thread, variable=name)
    declared = parent.thread_specs[parent.entrypoint_thread_name].variable_defs
    if not any(v.var_def.name == name and v.access_level != PRIVATE for v in declared):
        check.fail("the parent specification shares no such variable", thread, variable=name)


def _check_thread(check: Check, name: str, thread: ThreadSpec) -> None:
    """One entrypoint, every edge leads to a node that is no entrypoint, and every node is right in itself."""
    entrypoints = [node for node in thread.nodes if thread.nodes[node].WhichOneof("node") == "entrypoint"]
    if len(entrypoints) != 1:
        check.fail("a thread has exactly one entrypoint", name, entrypoints=len(entrypoints))
    for node_name in sorted(thread.nodes):
        node = thread.nodes[node_name]
        kind = node.WhichOneof("node")
        if kind not in KINDS:
            check.fail("nodes of this kind are not supported", name, node_name, node_kind=kind)
        _check_edges(check, name, thread, node_name)
        for handler in node.failure_handlers:
            _check_handler(check, name, node_name, handler)
        if kind in _NODE_CHECKS:
            _NODE_CHECKS[kind](check, name, node_name, node)
        _check_assignments(check, name, node_name, node)
        check_types(check, name, node_name, node)
    check_returns(check, name, thread)


def _check_edges(check: Check, name: str, thread: ThreadSpec, node_name: str) -> None:
    node = thread.nodes[node_name]
    if not node.outgoing_edges and node.WhichOneof("node") != "exit":
        check.fail("a node other than an exit has an outgoing edge", name, node_name)
    for edge in node.outgoing_edges:
        if edge.sink_node_name not in thread.nodes:
            check.fail("an edge leads to no node", name, node_name, sink=edge.sink_node_name)
        if edge.sink_node_name == node_name:
            check.fail("an edge leads back to its own node", name, node_name)
        if thread.nodes[edge.sink_node_name].WhichOneof("node") == "entrypoint":
            check.fail("an edge leads into the entrypoint", name, node_name)
        for mutation in edge.variable_mutations:
            if mutation.lhs_name not in check.variables:
                check.fail("a variable is not declared", name, node_name, variable=mutation.lhs_name)


def _check_assignments(check: Check, thread: str, node: str, part: Message) -> None:
    """Check every assignment of a node, wherever it stands."""
    if isinstance(part, VariableAssignment):
        _check_assignment(check, thread, node, part)
        return
    for inner in parts_of(part):
        _check_assignments(check, thread, node, inner)


def _check_assignment(check: Check, thread: str, node: str, assignment: VariableAssignment) -> None:
    """Raise for variables that no thread declares, and outputs of nodes that do not exist."""
    match assignment.WhichOneof("source"):
        case "variable_name":
            if assignment.variable_name not in check.variables:
                check.fail("a variable is not declared", thread, node, variable=assignment.variable_name)
        case "node_output":
            if assignment.node_output.node_name not in check.spec.thread_specs[thread].nodes:
                check.fail("no node has this name", thread, node, output_of=assignment.node_output.node_name)
    for part in parts_of(assignment):
        _check_assignments(check, thread, node, part)


def _check_handler(check: Check, thread: str, node: str, handler: FailureHandlerDef) -> None:
    if handler.handler_spec_name not in check.spec.thread_specs:
        check.fail("the thread of a handler does not exist", thread, node, handler=handler.handler_spec_name)
    kind, name = handler.WhichOneof("failure_to_catch"), handler.specific_failure
    errors = kind == "any_failure_of_type" and handler.any_failure_of_type == FailureHandlerDef.FAILURE_TYPE_ERROR
    _check_handler_inputs(check, handler.handler_spec_name, content=not errors and name not in RESERVED)
    if kind != "specific_failure":
        return
    if name not in RESERVED and not is_name(name):
        check.fail("a handler catches a name that no failure can have", thread, node, failure=name)


def _check_handler_inputs(
    check: Check, handler: str, *, content: bool = True, content_type: TypeDefinition | None = None
) -> None:
    """A handler needs nothing but the content of what it handles, of the type that this has; errors have none."""
    for variable in check.spec.thread_specs[handler].variable_defs:
        name, type_ = variable.var_def.name, type_of_def(variable.var_def)
        if variable.required and (name != INPUT or not content):
            check.fail("a handler is given no such variable", handler, variable=name)
        if name == INPUT and content_type is not None and not assignable(content_type, type_):
            check.fail("a handler takes another type than its event has", handler, variable=name,
                       type=type_name(type_), given=type_name(content_type))  # fmt: skip


# ------------------------------------------------------------------------------------------ kinds of nodes


def _check_exit(check: Check, thread: str, name: str, node: Node) -> None:
    if node.exit.WhichOneof("result") != "failure_def":
        return
    failure = node.exit.failure_def.failure_name
    if failure in RESERVED or not is_name(failure):
        check.fail("an exit throws a failure with its own valid name", thread, name, failure=failure)


def _check_task(check: Check, thread: str, name: str, node: Node) -> None:
    task = node.task
    _check_retries(check, thread, name, task)
    if task.WhichOneof("task_to_execute") == "dynamic_task":
        return
    definition = check.work.rows.get(TaskDef, (task.task_def_id.name,))
    if definition is None:
        check.fail("Refers to nonexistent TaskDef {task}", thread, name, task=task.task_def_id.name)
    if len(definition.input_vars) != len(task.variables):
        check.fail(
            "For TaskDef {task} we need {takes} input vars, but we have {given}",
            thread,
            name,
            task=task.task_def_id.name,
            given=len(task.variables),
            takes=len(definition.input_vars),
        )


def _check_retries(check: Check, thread: str, name: str, task: TaskNode) -> None:
    if task.retries < 0 or task.timeout_seconds < 0:
        check.fail("retries and timeout of a task are not negative", thread, name)
    if not task.HasField("exponential_backoff"):
        return
    policy = task.exponential_backoff
    if not (policy.base_interval_ms > 0 and policy.multiplier >= 1 and policy.max_delay_ms >= policy.base_interval_ms):
        check.fail("a delay needs base > 0, multiplier ≥ 1 and limit ≥ base", thread, name)


def _check_user_task(check: Check, thread: str, name: str, node: Node) -> None:
    """A user task is defined, is for a user or a group, and its actions are right in themselves."""
    task = node.user_task
    if find_definition(check.work, task) is None:
        version = task.user_task_def_version if task.HasField("user_task_def_version") else None
        check.fail(
            "Specified UserTaskDef {user_task} not found",
            thread,
            name,
            user_task=task.user_task_def_name,
            version=version,
        )
    if not task.HasField("user_id") and not task.HasField("user_group"):
        check.fail("Must specify userGroup or userId", thread, name, user_task=task.user_task_def_name)
    for field, assignment in (("UserId", task.user_id), ("UserGroup", task.user_group)):
        if assignment.literal_value.HasField("str") and not assignment.literal_value.str.strip():
            check.fail("{field} can't be empty", thread, name, field=field, user_task=task.user_task_def_name)
    for action in task.actions:
        match action.WhichOneof("action"):
            case "task":
                _check_task(check, thread, name, Node(task=action.task.task))
            case None:
                check.fail("an action of a user task does nothing", thread, name, user_task=task.user_task_def_name)


def _check_external_event(check: Check, thread: str, name: str, node: Node) -> None:
    event = node.external_event.external_event_def_id.name
    if check.work.rows.get(ExternalEventDef, (event,)) is None:
        check.fail("Refers to nonexistent ExternalEventDef {event}", thread, name, event=event)


def _check_throw_event(check: Check, thread: str, name: str, node: Node) -> None:
    event = node.throw_event.event_def_id.name
    if check.work.rows.get(WorkflowEventDef, (event,)) is None:
        check.fail("Refers to missing workflowEventDef {event}", thread, name, event=event)


def _check_start_thread(check: Check, thread: str, name: str, node: Node) -> None:
    if node.start_thread.thread_spec_name not in check.spec.thread_specs:
        check.fail(
            "Tried to start nonexistent thread {started}", thread, name, started=node.start_thread.thread_spec_name
        )


def _check_start_threads(check: Check, thread: str, name: str, node: Node) -> None:
    started = node.start_multiple_threads.thread_spec_name
    if started not in check.spec.thread_specs:
        check.fail("Tried to start nonexistent thread {started}", thread, name, started=started)


def _check_wait(check: Check, thread: str, name: str, node: Node) -> None:
    for handler in node.wait_for_threads.per_thread_failure_handlers:
        _check_handler(check, thread, name, handler)


def _check_child(check: Check, thread: str, name: str, node: Node) -> None:
    child = node.run_child_wf
    if child.WhichOneof("wf_spec") is None:
        check.fail("A valid WfSpec name must be specified", thread, name)
    if child.WhichOneof("wf_spec") == "wf_spec_name" and child.wf_spec_name != check.spec.id.name:
        major = child.major_version if child.major_version >= 0 else None
        if find_spec(check.work, child.wf_spec_name, major) is None:
            check.fail("Could not find WfSpec {child}", thread, name, child=child.wf_spec_name, major=major)


def _check_child_wait(check: Check, thread: str, name: str, node: Node) -> None:
    source = node.wait_for_child_wf.child_wf_run_source_node
    nodes = check.spec.thread_specs[thread].nodes
    if source and (source not in nodes or nodes[source].WhichOneof("node") != "run_child_wf"):
        check.fail("the node that is waited for starts no run", thread, name, source=source)


_NODE_CHECKS: Final[dict[str, Callable[[Check, str, str, Node], None]]] = {
    "exit": _check_exit,
    "task": _check_task,
    "user_task": _check_user_task,
    "external_event": _check_external_event,
    "throw_event": _check_throw_event,
    "start_thread": _check_start_thread,
    "start_multiple_threads": _check_start_threads,
    "wait_for_threads": _check_wait,
    "run_child_wf": _check_child,
    "wait_for_child_wf": _check_child_wait,
}


def _check_interrupts(check: Check) -> None:
    """An event interrupts one thread only, and no node waits for it."""
    interrupted: dict[str, str] = {}
    waited = {
        node.external_event.external_event_def_id.name
        for thread in check.spec.thread_specs.values()
        for node in thread.nodes.values()
        if node.WhichOneof("node") == "external_event"
    }
    for name in sorted(check.spec.thread_specs):
        for definition in check.spec.thread_specs[name].interrupt_defs:
            event = definition.external_event_def_id.name
            if event in waited or interrupted.setdefault(event, name) != name:
                check.fail("an event is used by one thread's interrupt alone", name, event=event)
            if definition.handler_spec_name not in check.spec.thread_specs:
                check.fail("the thread of a handler does not exist", name, handler=definition.handler_spec_name)
            event_def = check.work.rows.get(ExternalEventDef, (event,))
            if event_def is None:
                check.fail("Refers to nonexistent ExternalEventDef {event}", name, event=event)
            content = event_def.type_information
            content_type = content.return_type if content.HasField("return_type") else None
            _check_handler_inputs(check, definition.handler_spec_name, content_type=content_type)
