"""Assignments: the value that a `VariableAssignment` names, in the scope of a thread.

First the source, then the path, then the cast. A buffer of values not yet written comes before the variables, so that
the mutations of an edge see one another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from littlehorse.model import (
    Comparator,
    InlineStructBuilder,
    LegacyEdgeCondition,
    LHPath,
    ThreadRun,
    TypeDefinition,
    VariableAssignment,
    VariableValue,
)

from millpond.workflows.engine.failures import substitution
from millpond.workflows.engine.limits import JSON_DEPTH_MAX
from millpond.workflows.engine.metadata.struct_values import settled
from millpond.workflows.engine.runs import Run
from millpond.workflows.engine.values.conversions import (
    NULL,
    coerced,
    kind_of,
    plain,
    text_of,
    value_of,
    value_type_name,
)
from millpond.workflows.engine.values.json_paths import at_json_path
from millpond.workflows.engine.values.operators import combined, holds, size_of
from millpond.workflows.engine.variable_scopes import find

__all__ = (
    "Scope",
    "evaluated",
    "condition_holds",
    "legacy_holds",
)

_NUMBERED = re.compile(r"\{(\d{1,4})\}")


@dataclass(slots=True)
class Scope:
    """A thread of a run, as assignments see it."""

    run: Run
    thread: ThreadRun
    buffer: dict[str, VariableValue] = field(default_factory=dict)
    depth: int = 0

    def variable(self, name: str) -> VariableValue:
        """The value of a variable, also one that is not yet written."""
        if name in self.buffer:
            return self.buffer[name]
        return find(self.run, self.thread, name)[0].value

    def output(self, node: str) -> VariableValue:
        """The newest output of a node of this thread."""
        output = self.run.output(self.thread, node)
        if output is None:
            raise substitution(f"node {node} has no output in thread {self.thread.number}")
        return output


def evaluated(scope: Scope, assignment: VariableAssignment) -> VariableValue:
    """The value of an assignment.

    Raises:
        NodeFailed: VAR_SUB_ERROR; a variable is out of scope, an operand does not fit, a cast fails.
    """
    if scope.depth >= JSON_DEPTH_MAX:
        raise substitution(f"expression nested deeper than json_depth_max={JSON_DEPTH_MAX}")
    source = assignment.WhichOneof("source")
    scope.depth += 1
    value = _SOURCES[source](scope, assignment) if source else NULL
    scope.depth -= 1
    match assignment.WhichOneof("path"):
        case "json_path":
            value = at_json_path(value, assignment.json_path)
        case "lh_path":
            value = _at_path(scope, value, assignment.lh_path)
    return coerced(value, assignment.target_type, cast=True) if assignment.HasField("target_type") else value


def _format_string(scope: Scope, assignment: VariableAssignment) -> VariableValue:
    text = text_of(evaluated(scope, assignment.format_string.format))
    args = [_formatted(evaluated(scope, arg)) for arg in assignment.format_string.args]

    def shown_value(match: re.Match[str]) -> str:
        at = int(match[1])
        return args[at] if at < len(args) else match[0]

    # quoted text is every second part; an empty one is a quote
    parts = text.replace("''", "\0").split("'")
    shown = [part if at % 2 else _NUMBERED.sub(shown_value, part) for at, part in enumerate(parts)]
    return VariableValue(str="".join(shown).replace("\0", "'"))


def _formatted(value: VariableValue) -> str:
    """A value within a format string: numbers in groups of three digits, with at most three decimals."""
    match kind_of(value):
        case "int":
            return f"{value.int:,}"
        case "double":
            text = f"{value.double:,.3f}".rstrip("0").rstrip(".")
            return "0" if text == "-0" else text
        case _:
            return text_of(value)


def _expression(scope: Scope, assignment: VariableAssignment) -> VariableValue:
    expression = assignment.expression
    left, right = evaluated(scope, expression.lhs), evaluated(scope, expression.rhs)
    if expression.WhichOneof("operation") == "comparator":
        return VariableValue(bool=holds(expression.comparator, left, right))
    return combined(expression.mutation_type, left, right, keep_int=False)


def _struct(scope: Scope, assignment: VariableAssignment) -> VariableValue:
    name = assignment.struct_builder.struct_def_id
    return settled(scope.run.work, _built(scope, assignment.struct_builder.value), TypeDefinition(struct_def_id=name))


def _built(scope: Scope, builder: InlineStructBuilder) -> VariableValue:
    """A struct with the fields of a builder, without the name of its type."""
    struct = VariableValue()
    struct.struct.SetInParent()
    for key in sorted(builder.fields):
        part = builder.fields[key]
        if part.WhichOneof("struct_value") == "sub_structure":
            value = _built(scope, part.sub_structure)
        else:
            value = evaluated(scope, part.simple_value)
        struct.struct.struct.fields[key].value.CopyFrom(value)
    return struct


def _map(scope: Scope, assignment: VariableAssignment) -> VariableValue:
    value = VariableValue()
    value.map.SetInParent()
    for entry in assignment.map_builder.entries:
        value.map.entries.add(key=evaluated(scope, entry.key), value=evaluated(scope, entry.value))
    type_ = TypeDefinition(inline_map_def=assignment.map_builder.map_type)
    return settled(scope.run.work, coerced(value, type_), type_)


_SOURCES: Mapping[str, Callable[[Scope, VariableAssignment], VariableValue]] = {
    "variable_name": lambda scope, source: scope.variable(source.variable_name),
    "literal_value": lambda _scope, source: source.literal_value,
    "format_string": _format_string,
    "node_output": lambda scope, source: scope.output(source.node_output.node_name),
    "expression": _expression,
    "struct_builder": _struct,
    "size_of": lambda scope, source: size_of(evaluated(scope, source.size_of.operand)),
    "map_builder": _map,
}


def _at_path(scope: Scope, value: VariableValue, path: LHPath) -> VariableValue:
    """The value at a path of keys and indices."""
    for selector in path.path:
        match selector.WhichOneof("selector_type"):
            case "key":
                step: str | int = selector.key
            case "index":
                step = selector.index
            case _:
                selected = evaluated(scope, selector.dynamic)
                step = selected.int if kind_of(selected) == "int" else text_of(selected)
        value = _entered(value, step)
    return value


def _entered(value: VariableValue, step: str | int) -> VariableValue:
    if isinstance(step, int) and step < 0:
        raise substitution(f"index {step} is negative")
    match kind_of(value):
        case "struct":
            if step not in value.struct.struct.fields:
                raise substitution(f"the struct has no field {step}")
            return value.struct.struct.fields[str(step)].value
        case "array":
            if not isinstance(step, int) or step >= len(value.array.items):
                raise substitution(f"index {step} is outside of an array of {len(value.array.items)}")
            return value.array.items[step]
        case "map":
            return next((entry.value for entry in value.map.entries if text_of(entry.key) == str(step)), NULL)
        case "json_obj" | "json_arr":
            return value_of(_json_entry(plain(value), step))
    raise substitution(f"a path looks into {value_type_name(value)}")


def _json_entry(document: Any, step: str | int) -> Any:
    if isinstance(document, dict):
        return document.get(str(step))
    return document[step] if isinstance(step, int) and step < len(document) else None


def condition_holds(scope: Scope, assignment: VariableAssignment) -> bool:
    """True when a condition gives true; one that is not BOOL raises NodeFailed."""
    value = evaluated(scope, assignment)
    if kind_of(value) != "bool":
        raise substitution(f"a condition gave {value_type_name(value)}, not BOOL")
    return value.bool


def legacy_holds(scope: Scope, condition: LegacyEdgeCondition) -> bool:
    """True when a condition in its older form holds."""
    comparator: Comparator = condition.comparator
    return holds(comparator, evaluated(scope, condition.left), evaluated(scope, condition.right))
