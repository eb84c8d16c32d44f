"""Edges: the first whose condition holds is taken, and its mutations happen all together or not at all."""

from __future__ import annotations

from littlehorse.model import Edge, Node, VariableAssignment, VariableMutation, VariableMutationType, VariableValue

from millpond.workflows.engine.assignments import (
    Scope,
    condition_holds,
    evaluated,
    legacy_holds,
)
from millpond.workflows.engine.failures import NodeFailed, substitution
from millpond.workflows.engine.metadata.assignment_types import is_computed, operand_of
from millpond.workflows.engine.metadata.struct_values import settled
from millpond.workflows.engine.values import json_paths
from millpond.workflows.engine.values.conversions import (
    check_size,
    coerced,
    is_null,
    kind_of,
    plain,
    type_of_def,
    value_of,
)
from millpond.workflows.engine.values.json_paths import at_json_path
from millpond.workflows.engine.values.operators import combined
from millpond.workflows.engine.variable_scopes import find, write

__all__ = (
    "chosen",
    "mutate",
    "inputs_of",
)


def chosen(scope: Scope, node: Node) -> Edge:
    """The first edge of a node whose condition holds.

    Raises:
        NodeFailed: VAR_SUB_ERROR; no condition holds, or one cannot be computed.
    """
    for edge in node.outgoing_edges:
        if _open(scope, edge):
            return edge
    raise substitution("no outgoing edge has a condition that holds")


def _open(scope: Scope, edge: Edge) -> bool:
    match edge.WhichOneof("edge_condition"):
        case "condition":
            return condition_holds(scope, edge.condition)
        case "legacy_condition":
            return legacy_holds(scope, edge.legacy_condition)
        case _:
            return True


def mutate(scope: Scope, edge: Edge, node_name: str) -> None:
    """Do the mutations of an edge that leaves a node: all of them, or none when one fails."""
    for mutation in edge.variable_mutations:
        try:
            scope.buffer[mutation.lhs_name] = _mutated(scope, mutation, node_name)
        except NodeFailed as failed:
            raise substitution(f"{failed.message}, in the mutation of {mutation.lhs_name}") from failed
    for name, value in scope.buffer.items():
        write(scope.run, scope.thread, name, value)


def _mutated(scope: Scope, mutation: VariableMutation, node_name: str) -> VariableValue:
    """The new value of the variable on the left."""
    _row, declared = find(scope.run, scope.thread, mutation.lhs_name)
    type_ = type_of_def(declared.var_def)
    source = operand_of(mutation, node_name)
    old, operand = scope.variable(mutation.lhs_name), evaluated(scope, source)
    if mutation.HasField("lhs_json_path"):
        new = _with_part(old, mutation.lhs_json_path, mutation.operation, operand)
    elif mutation.HasField("lhs_lh_path"):
        new = _with_part(old, _as_json_path(scope, mutation), mutation.operation, operand)
    elif mutation.operation == VariableMutationType.ASSIGN:
        new = operand
    else:
        new = combined(mutation.operation, old, operand, keep_int=True)
    truncated = kind_of(new) == "double" and is_computed(source)
    value = settled(scope.run.work, coerced(new, type_, cast=truncated), type_)
    check_size(f"variable {mutation.lhs_name}", value)
    return value


def _with_part(old: VariableValue, path: str, operation: VariableMutationType, operand: VariableValue) -> VariableValue:
    """A JSON value in which one part was changed."""
    part = at_json_path(old, path)
    new = operand if is_null(part) else combined(operation, part, operand, keep_int=True)
    document = json_paths.write(plain(old), path, plain(new))
    value = value_of(document)
    if kind_of(value) != kind_of(old):
        raise substitution(f"a change at {path!r} makes {kind_of(value)} of {kind_of(old)}")
    return value


def _as_json_path(scope: Scope, mutation: VariableMutation) -> str:
    """A path of keys and indices in the form of a JSON path; a struct or map is changed through JSON alone."""
    if kind_of(scope.variable(mutation.lhs_name)) not in ("json_obj", "json_arr"):
        raise substitution("a part can be changed in JSON values only")
    steps = []
    for selector in mutation.lhs_lh_path.path:
        match selector.WhichOneof("selector_type"):
            case "key":
                steps.append(f"['{selector.key}']")
            case "index":
                steps.append(f"[{selector.index}]")
            case _:
                selected = plain(evaluated(scope, selector.dynamic))
                steps.append(f"[{selected}]" if isinstance(selected, int) else f"['{selected}']")
    return "$" + "".join(steps)


def inputs_of(scope: Scope, assignments: dict[str, VariableAssignment]) -> dict[str, VariableValue]:
    """The values of named assignments, in the order of the names."""
    return {name: evaluated(scope, assignments[name]) for name in sorted(assignments)}
