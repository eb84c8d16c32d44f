"""The types within a specification: whatever a node is given fits where it goes, as far as types tell it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from google.protobuf.message import Message
from littlehorse.model import (
    Node,
    TaskDef,
    TaskNode,
    ThreadSpec,
    ThreadVarDef,
    TypeDefinition,
    VariableAssignment,
    WorkflowEventDef,
)

from millpond.workflows.engine.metadata.assignment_types import CONTENT, INPUT_TYPE, LIST, Types, output_of
from millpond.workflows.engine.metadata.spec_faults import Check
from millpond.workflows.engine.threads import INPUT
from millpond.workflows.engine.values.conversions import assignable, type_name, type_of_def
from millpond.workflows.engine.values.messages import parts_of
from millpond.workflows.engine.values.operations import BOOL, OPEN, STR
from millpond.workflows.engine.variable_scopes import INHERITED
from millpond.workflows.engine.work import find_spec

__all__ = ("check_returns", "check_types")

_INSTANTS: Final = ("TIMESTAMP", "INT")
_THREADS: Final = "`threadRunNumber` for WAIT_FOR_THREAD node must resolve to"


def check_types(check: Check, thread: str, name: str, node: Node) -> None:
    """Every assignment of a node can be computed, and fits where it goes."""
    types = check.types(thread, name)
    for assignment in _assignments(node):
        types.of(assignment)
    for edge in node.outgoing_edges:
        if edge.WhichOneof("edge_condition") == "condition":
            types.check("a condition is no BOOL", edge.condition, BOOL)
        for mutation in edge.variable_mutations:
            types.check_mutation(mutation, types.variable(mutation.lhs_name), name)
    for problem, assignment, names in _operands(node):
        types.check_kind(problem, assignment, names)
    match node.WhichOneof("node"):
        case "task":
            _check_task(check, types, node.task)
        case "user_task":
            for action in node.user_task.actions:
                _check_task(check, types, action.task.task)
        case "throw_event":
            _check_content(check, types, node)
        case "start_thread" | "start_multiple_threads":
            _check_started(check, types, node)
        case "run_child_wf":
            _check_child(check, types, node)


def _assignments(part: Message) -> Iterator[VariableAssignment]:
    """The outermost assignments within a message."""
    if isinstance(part, VariableAssignment):
        yield part
    else:
        for inner in parts_of(part):
            yield from _assignments(inner)


def _operands(node: Node) -> Iterator[tuple[str, VariableAssignment, tuple[str, ...]]]:
    """The assignments of a node that have to be of certain types, with the mistake that others are."""
    match node.WhichOneof("node"):
        case "external_event":
            yield (
                "the timeout of an external event is an INT, in seconds",
                node.external_event.timeout_seconds,
                ("INT",),
            )
        case "sleep":
            sleep = node.sleep
            yield "the length of a sleep is an INT, in seconds", sleep.raw_seconds, ("INT",)
            yield "a sleep lasts until a TIMESTAMP, or an INT of milliseconds since 1970", sleep.timestamp, _INSTANTS
            yield "a sleep lasts until a TIMESTAMP, or its text", sleep.iso_date, ("STR", "TIMESTAMP")
        case "user_task":
            for action in node.user_task.actions:
                yield "the delay of a user task's action is an INT, in seconds", action.delay_seconds, ("INT",)
        case "start_multiple_threads":
            iterable = node.start_multiple_threads.iterable
            yield "threads are started for the elements of a JSON_ARR or an ARRAY", iterable, LIST
        case "wait_for_threads":
            for waited in node.wait_for_threads.threads.threads:
                yield f"{_THREADS} INT", waited.thread_run_number, ("INT",)
            yield f"{_THREADS} JSON_ARR", node.wait_for_threads.thread_list, LIST
        case "wait_for_condition" if node.wait_for_condition.WhichOneof("node_condition") == "condition":
            yield "a condition is no BOOL", node.wait_for_condition.condition, ("BOOL",)
        case "wait_for_child_wf":
            child = node.wait_for_child_wf.child_wf_run_id
            yield "Provided value is not a valid WF_RUN_ID", child, ("WF_RUN_ID",)


def _check_task(check: Check, types: Types, task: TaskNode) -> None:
    """Inputs of a task have the types of its definition; the name of one that is computed is a text."""
    if task.WhichOneof("task_to_execute") == "dynamic_task":
        types.check("the name of a task is a STR", task.dynamic_task, STR)
        return
    definition = check.work.rows.get(TaskDef, (task.task_def_id.name,)) or TaskDef()
    for declared, assignment in zip(definition.input_vars, task.variables, strict=False):
        types.check(INPUT_TYPE, assignment, type_of_def(declared), input=declared.name)


def _check_content(check: Check, types: Types, node: Node) -> None:
    """A workflow event has content of the type that its definition states."""
    event = node.throw_event.event_def_id.name
    definition = check.work.rows.get(WorkflowEventDef, (event,)) or WorkflowEventDef()
    types.check(CONTENT, node.throw_event.content, definition.content_type.return_type, event=event)


def _check_started(check: Check, types: Types, node: Node) -> None:
    """Threads get what they require; each of several gets an element as INPUT, where it declares that."""
    if node.WhichOneof("node") == "start_thread":
        started = node.start_thread
        declared = check.spec.thread_specs[started.thread_spec_name].variable_defs
        _check_inputs(types, started.thread_spec_name, declared, started.variables)
        return
    many = node.start_multiple_threads
    elements = types.of(many.iterable).inline_array_def.array_type
    declared = check.spec.thread_specs[many.thread_spec_name].variable_defs
    for variable in declared:
        type_ = type_of_def(variable.var_def)
        if variable.var_def.name == INPUT and not assignable(elements, type_):
            types.fail(INPUT_TYPE, input=INPUT, type=type_name(type_), given=type_name(elements))
    _check_inputs(types, many.thread_spec_name, [v for v in declared if v.var_def.name != INPUT], many.variables)


def _check_child(check: Check, types: Types, node: Node) -> None:
    """A child run gets what its newest specification requires, and its computed name and id are texts."""
    child = node.run_child_wf
    for problem, assignment in (
        ("Only STR variables are valid", child.wf_spec_var),
        ("Child WfRun ID must be a STR", child.child_id),
    ):
        types.check(problem, assignment, STR)
    if child.WhichOneof("wf_spec") == "wf_spec_name" and child.wf_spec_name != check.spec.id.name:
        spec = find_spec(check.work, child.wf_spec_name, child.major_version if child.major_version >= 0 else None)
        if spec is not None:
            declared = spec.thread_specs[spec.entrypoint_thread_name].variable_defs
            _check_inputs(types, child.wf_spec_name, declared, child.inputs)


def _check_inputs(
    types: Types, child: str, declared: Sequence[ThreadVarDef], inputs: Mapping[str, VariableAssignment]
) -> None:
    """A child gets what it requires, of the types that it declares, and nothing that it does not take."""
    variables = {variable.var_def.name: variable for variable in declared if variable.access_level != INHERITED}
    for name in sorted(inputs):
        if name not in variables:
            types.fail("the child takes no such input", child=child, input=name)
        types.check(INPUT_TYPE, inputs[name], type_of_def(variables[name].var_def), input=name)
    missing = sorted(name for name, variable in variables.items() if variable.required and name not in inputs)
    if missing:
        types.fail("the child needs an input that it is not given", child=child, input=missing[0])


def check_returns(check: Check, thread: str, spec: ThreadSpec) -> None:
    """The exits of a thread that do not fail give one type, or all of them nothing."""
    first: TypeDefinition | None = None
    nothing = ""
    for name in sorted(spec.nodes):
        node = spec.nodes[name]
        if node.WhichOneof("node") != "exit" or node.exit.WhichOneof("result") == "failure_def":
            continue
        returned = output_of(node)
        if returned is None:
            nothing = name
            continue
        type_ = check.types(thread, name).of(returned)
        if first is not None and not (assignable(first, type_) and assignable(type_, first)):
            check.fail("the exits of a thread returned different output types", thread, name, type=type_name(type_),
                       other=type_name(first))  # fmt: skip
        first = type_ if first in (None, OPEN) else first
    if nothing and first is not None:
        check.fail("one exit of a thread returns void, and another returns non-void", thread, nothing)
