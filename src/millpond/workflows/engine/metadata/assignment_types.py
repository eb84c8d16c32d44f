"""The types of assignments, as far as a specification tells them: what no run could do is refused when it is put.

A type is open (no kind is set) where only a run shows it: within JSON, and the output of a task that declares none. An
open type fits everywhere. The output of a child run has the type that the child's exits give it; what a child hands on
from a child of its own is open.

Invariants:
* What is refused here would fail in every run that comes by it with a value that is not null.
* The rules of one type into another are those of `conversions`: `assignable`, and `castable` where a cast is stated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from littlehorse.model import (
    ExternalEventDef,
    InlineStructBuilder,
    InlineStructDef,
    LHPath,
    Node,
    RunChildWfNode,
    StructDef,
    TaskDef,
    TypeDefinition,
    VariableAssignment,
    VariableMutation,
    VariableMutationType,
    VariableType,
    WfSpec,
)

from millpond.errors import Invalid
from millpond.workflows.engine.metadata.struct_values import is_required
from millpond.workflows.engine.values.conversions import (
    assignable,
    castable,
    is_null,
    kind_name,
    type_name,
    type_of_def,
    type_of_value,
)
from millpond.workflows.engine.values.operations import BOOL, DOUBLE, INT, OPEN, STR, result_type
from millpond.workflows.engine.values.operators import UNSIZED
from millpond.workflows.engine.work import Work, find_spec

__all__ = (
    "BUILT",
    "CAST",
    "CONTENT",
    "ENTRY",
    "FIELD",
    "INPUT_TYPE",
    "JSON",
    "LACKING",
    "LIST",
    "MUTATION",
    "OPERAND",
    "Types",
    "is_computed",
    "operand_of",
    "output_of",
    "output_type",
)

BUILT: Final = "The field {field} of the struct expects type {type} but is type {given}"
CAST: Final = "Cannot cast from {given} to {type}. This conversion is not supported"
CONTENT: Final = (
    "The content of {event} expects type {type} but is type {given}: cannot assign {given} to {type} without a cast"
)
FIELD: Final = "Could not find field '{field}' of the struct"
INPUT_TYPE: Final = (
    "The input {input} expects type {type} but is type {given}: cannot assign {given} to {type} without a cast"
)
LACKING: Final = "The struct needs the field {field}"
MUTATION: Final = "Mutation of variable {variable} invalid: cannot use a {given} as a {type}"
_CHANGED: Final = "Cannot {operation} to a {given}"
ENTRY: Final = "An entry of the map expects type {type} but is type {given}"
OPERAND: Final = "{operation} to a {given} takes no {operand}"
_PART: Final = "only JSON is changed in parts"

JSON: Final = ("JSON_OBJ", "JSON_ARR")
LIST: Final = ("JSON_ARR", "ARRAY")
_BUILDABLE: Final = ("STRUCT", "ANY")
_SIZED: Final = ("STR", *LIST)
_OUTPUTS: Final = {
    "start_thread": INT,
    "start_multiple_threads": TypeDefinition(primitive_type=VariableType.JSON_ARR),
    "run_child_wf": TypeDefinition(primitive_type=VariableType.WF_RUN_ID),
    "user_task": TypeDefinition(primitive_type=VariableType.JSON_OBJ),
}
"""The types of the outputs of nodes whose kind decides it."""


@dataclass(frozen=True, slots=True)
class Types:
    """The types of one thread's assignments; `fail` raises for a problem with values that explain it.

    Without `children` the outputs of child runs are open.
    """

    work: Work
    spec: WfSpec
    thread: str
    fail: Callable[..., NoReturn]
    children: bool = True

    def of(self, assignment: VariableAssignment) -> TypeDefinition:
        """The type of an assignment; what cannot be computed fails."""
        type_ = self._source(assignment)
        match assignment.WhichOneof("path"):
            case "json_path":
                self._require(type_, JSON, "a JSON path looks into JSON only")
                type_ = OPEN
            case "lh_path":
                type_ = self._entered(type_, assignment.lh_path)
        if not assignment.HasField("target_type"):
            return type_
        if not castable(type_, assignment.target_type):
            self.fail(CAST, type=type_name(assignment.target_type), given=type_name(type_))
        return assignment.target_type

    def check(self, problem: str, assignment: VariableAssignment, kind: TypeDefinition, **values: object) -> None:
        """Fail where an assignment can never be a value of this type."""
        type_ = self.of(assignment)
        if not assignable(type_, kind):
            self.fail(problem, **values, type=type_name(kind), given=type_name(type_))

    def check_kind(self, problem: str, assignment: VariableAssignment, names: tuple[str, ...]) -> None:
        """Fail where an assignment can never be a value of one of these types."""
        self._require(self.of(assignment), names, problem)

    def check_mutation(self, mutation: VariableMutation, kind: TypeDefinition, node: str) -> None:
        """Fail where a mutation behind a node can never be done on a variable of this type."""
        if mutation.HasField("lhs_json_path") or mutation.HasField("lhs_lh_path"):
            self._require(kind, JSON, _PART, variable=mutation.lhs_name)
            return
        operand = operand_of(mutation, node)
        if mutation.operation == VariableMutationType.ASSIGN:
            truncated = is_computed(operand) and kind_name(kind) == "INT"
            self.check(MUTATION, operand, DOUBLE if truncated else kind, variable=mutation.lhs_name)
            return
        self._combined(mutation.operation, kind, self.of(operand))

    def variable(self, name: str) -> TypeDefinition:
        """The type of a variable; `INPUT`, which several threads may declare, is first that of this thread."""
        threads = [self.spec.thread_specs[self.thread], *self.spec.thread_specs.values()]
        declared = (v.var_def for thread in threads for v in thread.variable_defs if v.var_def.name == name)
        return next(map(type_of_def, declared), OPEN)

    def returned(self) -> TypeDefinition | None:
        """The type of the thread's output, open where its exits leave it so; None when it returns nothing."""
        outputs = [
            self.of(node.exit.return_content)
            for _name, node in sorted(self.spec.thread_specs[self.thread].nodes.items())
            if output_of(node) is not None
        ]
        return None if not outputs else outputs[0] if outputs.count(outputs[0]) == len(outputs) else OPEN

    def _source(self, assignment: VariableAssignment) -> TypeDefinition:
        match assignment.WhichOneof("source"):
            case "variable_name":
                return self.variable(assignment.variable_name)
            case "literal_value":
                return OPEN if is_null(assignment.literal_value) else type_of_value(assignment.literal_value)
            case "format_string":
                for part in (assignment.format_string.format, *assignment.format_string.args):
                    self.of(part)
                return STR
            case "node_output":
                return self._output(self.spec.thread_specs[self.thread].nodes[assignment.node_output.node_name])
            case "expression":
                return self._expression(assignment)
            case "size_of":
                self._require(self.of(assignment.size_of.operand), _SIZED, UNSIZED)
                return INT
            case "struct_builder":
                struct = TypeDefinition(struct_def_id=assignment.struct_builder.struct_def_id)
                self._check_built(struct, assignment.struct_builder.value)
                return struct
            case "map_builder":
                declared = assignment.map_builder.map_type
                for entry in assignment.map_builder.entries:
                    self.check(ENTRY, entry.key, declared.key_type)
                    self.check(ENTRY, entry.value, declared.value_type)
                return TypeDefinition(inline_map_def=declared)
        return OPEN

    def _output(self, node: Node) -> TypeDefinition:
        kind = node.WhichOneof("node")
        match kind:
            case "task" if node.task.WhichOneof("task_to_execute") == "task_def_id":
                task = self.work.rows.get(TaskDef, (node.task.task_def_id.name,))
                returned = task.return_type if task is not None and task.HasField("return_type") else None
            case "external_event":
                event = self.work.rows.get(ExternalEventDef, (node.external_event.external_event_def_id.name,))
                returned = event.type_information if event is not None and event.HasField("type_information") else None
            case "wait_for_child_wf" if self.children:
                return self._child_output(node.wait_for_child_wf.child_wf_run_source_node)
            case _:
                return _OUTPUTS.get(kind or "", OPEN)
        return returned.return_type if returned is not None and returned.HasField("return_type") else OPEN

    def _child_output(self, source: str) -> TypeDefinition:
        """The type of the output of the child run that a node starts; a run of the same workflow stays open."""
        nodes = self.spec.thread_specs[self.thread].nodes
        started = nodes[source].run_child_wf if source in nodes else RunChildWfNode()
        if started.WhichOneof("wf_spec") != "wf_spec_name" or started.wf_spec_name == self.spec.id.name:
            return OPEN
        child = find_spec(
            self.work, started.wf_spec_name, started.major_version if started.major_version >= 0 else None
        )
        if child is None:
            return OPEN
        return output_type(self.work, child, children=False) or OPEN

    def _expression(self, assignment: VariableAssignment) -> TypeDefinition:
        expression = assignment.expression
        left, right = self.of(expression.lhs), self.of(expression.rhs)
        if expression.WhichOneof("operation") == "comparator":
            return BOOL
        return self._combined(expression.mutation_type, left, right)

    def _combined(self, operation: VariableMutationType, left: TypeDefinition, right: TypeDefinition) -> TypeDefinition:
        """The type of an operation's result; operands that it never takes fail."""
        if operation not in VariableMutationType.values():
            self.fail("no operation has this number", operation=operation)
        result = result_type(operation, left, right)
        if result is None:
            problem = OPERAND if result_type(operation, left, OPEN) is not None else _CHANGED
            self.fail(problem, operation=VariableMutationType.Name(operation), given=type_name(left),
                      operand=type_name(right))  # fmt: skip
        return result

    def _entered(self, type_: TypeDefinition, path: LHPath) -> TypeDefinition:
        """The type at a path of keys and indices."""
        for selector in path.path:
            match type_.WhichOneof("defined_type"):
                case "struct_def_id" | "inline_struct_def" if selector.WhichOneof("selector_type") == "key":
                    type_ = self._field(type_, selector.key)
                case "inline_array_def" if selector.WhichOneof("selector_type") == "key":
                    self.fail("the parts of an array have no names", key=selector.key)
                case "inline_array_def":
                    type_ = type_.inline_array_def.array_type
                case "inline_map_def":
                    type_ = type_.inline_map_def.value_type
                case "primitive_type" if type_name(type_) not in JSON:
                    self.fail("a path looks into a value without parts", given=type_name(type_))
                case _:
                    return OPEN
        return type_

    def _check_built(self, struct: TypeDefinition, built: InlineStructBuilder) -> None:
        """Fail where a struct is built without a field that it needs, or with one of another type."""
        content = self._content(struct) or InlineStructDef()
        for name in sorted(content.fields):
            kind, part = content.fields[name].field_type, built.fields.get(name)
            if part is None:
                if is_required(content.fields[name]):
                    self.fail(LACKING, field=name)
            elif part.HasField("sub_structure"):
                if kind_name(kind) not in _BUILDABLE:
                    self.fail(BUILT, field=name, type=type_name(kind), given="STRUCT")
                self._check_built(kind, part.sub_structure)
            else:
                self.check(BUILT, part.simple_value, kind, field=name)

    def _content(self, struct: TypeDefinition) -> InlineStructDef | None:
        """The fields of a struct; None for a type that has none, and for a struct that is not defined."""
        if struct.HasField("inline_struct_def"):
            return struct.inline_struct_def
        definition = self.work.rows.get(StructDef, (struct.struct_def_id.name, struct.struct_def_id.version))
        return None if definition is None else definition.struct_def

    def _field(self, struct: TypeDefinition, name: str) -> TypeDefinition:
        content = self._content(struct)
        if content is None:
            return OPEN
        if name not in content.fields:
            self.fail(FIELD, struct=struct.struct_def_id.name or "inline", field=name)
        return content.fields[name].field_type

    def _require(self, type_: TypeDefinition, names: tuple[str, ...], problem: str, **values: object) -> None:
        if kind_name(type_) not in (*names, "ANY"):
            self.fail(problem, given=type_name(type_), **values)


def operand_of(mutation: VariableMutation, node: str) -> VariableAssignment:
    """The right side of a mutation behind a node, also where an older client gives it in another field."""
    match mutation.WhichOneof("rhs_value"):
        case "literal_value":
            return VariableAssignment(literal_value=mutation.literal_value)
        case "node_output":
            output = VariableAssignment(node_output={"node_name": node})
            match mutation.node_output.WhichOneof("path"):
                case "jsonpath":
                    output.json_path = mutation.node_output.jsonpath
                case "lh_path":
                    output.lh_path.CopyFrom(mutation.node_output.lh_path)
            return output
    return mutation.rhs_assignment


def output_of(node: Node) -> VariableAssignment | None:
    """The value that an exit returns; None for other nodes, for an exit that fails, and for null."""
    if node.WhichOneof("node") != "exit" or node.exit.WhichOneof("result") != "return_content":
        return None
    returned = node.exit.return_content
    literal = returned.WhichOneof("source") == "literal_value"
    nothing = returned.WhichOneof("source") is None or (literal and is_null(returned.literal_value))
    return None if nothing else returned


def output_type(work: Work, spec: WfSpec, *, children: bool = True) -> TypeDefinition | None:
    """The type of the output of a stored specification's runs, open where it cannot be told; None for no output."""
    try:
        return Types(work, spec, spec.entrypoint_thread_name, _undecided, children).returned()
    except Invalid:
        return OPEN


def _undecided(problem: str, **_values: object) -> NoReturn:
    raise Invalid(problem, kind="workflow_spec_invalid")


def is_computed(assignment: VariableAssignment) -> bool:
    """True for arithmetic: its result may be DOUBLE, and becomes INT where it is assigned to one."""
    return (
        assignment.WhichOneof("source") == "expression"
        and assignment.expression.WhichOneof("operation") == "mutation_type"
    )
