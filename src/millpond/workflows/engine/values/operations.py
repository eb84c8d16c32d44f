"""The types of operations: what each takes on its right, by the type on its left, and the type of its result.

| operation | on the left | on the right | result |
|---|---|---|---|
| ASSIGN | anything | anything | the right |
| ADD, SUBTRACT, MULTIPLY, DIVIDE, POW | INT, DOUBLE | INT, DOUBLE | DOUBLE, if one side is |
| AND, OR | BOOL | BOOL | BOOL |
| ADD | STR, JSON_ARR | anything | the left |
| ADD | ARRAY of T | T | the left |
| EXTEND | STR, JSON_ARR | anything | the left |
| EXTEND | BYTES, MAP | its like | the left |
| EXTEND | ARRAY of T | T, or its like | the left |
| REMOVE_IF_PRESENT | JSON_ARR; ARRAY of T | anything; T | the left |
| REMOVE_INDEX | JSON_ARR, ARRAY | INT | the left |
| REMOVE_KEY | JSON_OBJ; MAP of K | STR; K | the left |

A type on the right is taken where it is `assignable`, and its value is converted; an open type is taken everywhere.
Registration asks here for types, and a run for those of its values.
"""

from __future__ import annotations

from typing import Final

from littlehorse.model import TypeDefinition, VariableMutationType, VariableType

from millpond.workflows.engine.values.conversions import assignable, kind_name

__all__ = ("BOOL", "DOUBLE", "INT", "OPEN", "STR", "operands", "result_type")

OPEN: Final = TypeDefinition()
BOOL: Final = TypeDefinition(primitive_type=VariableType.BOOL)
DOUBLE: Final = TypeDefinition(primitive_type=VariableType.DOUBLE)
INT: Final = TypeDefinition(primitive_type=VariableType.INT)
STR: Final = TypeDefinition(primitive_type=VariableType.STR)
_NUMBERS: Final = ("INT", "DOUBLE", "ANY")
_ARITHMETIC: Final = (
    VariableMutationType.SUBTRACT, VariableMutationType.MULTIPLY, VariableMutationType.DIVIDE, VariableMutationType.POW,
)  # fmt: skip


def result_type(
    operation: VariableMutationType, left: TypeDefinition, right: TypeDefinition
) -> TypeDefinition | None:  # fmt: skip
    """The type of an operation's result; None where it takes no values of these types."""
    sides = kind_name(left), kind_name(right)
    if operation == VariableMutationType.ASSIGN:
        return right
    if operation in (VariableMutationType.AND, VariableMutationType.OR):
        return BOOL if set(sides) <= {"BOOL", "ANY"} else None
    if operation in _ARITHMETIC or (operation == VariableMutationType.ADD and sides[0] in _NUMBERS[:2]):
        return _number(sides)
    taken = any(assignable(right, operand) for operand in operands(operation, left))
    return left if taken else None


def _number(sides: tuple[str, str]) -> TypeDefinition | None:
    if not set(sides) <= set(_NUMBERS):
        return None
    return DOUBLE if "DOUBLE" in sides else OPEN if "ANY" in sides else INT


def operands(operation: VariableMutationType, left: TypeDefinition) -> tuple[TypeDefinition, ...]:
    """The types that an operation takes on its right to change a value of a type; none where it changes no such value.

    An array is first extended by an element, then by its like.
    """
    match VariableMutationType.Name(operation), kind_name(left):
        case "ADD" | "EXTEND", "STR" | "JSON_ARR" | "ANY":
            return (OPEN,)
        case "ADD" | "REMOVE_IF_PRESENT", "ARRAY":
            return (left.inline_array_def.array_type,)
        case "EXTEND", "ARRAY":
            return left.inline_array_def.array_type, left
        case "EXTEND", "BYTES" | "MAP":
            return (left,)
        case "REMOVE_IF_PRESENT", "JSON_ARR" | "ANY":
            return (OPEN,)
        case "REMOVE_INDEX", "JSON_ARR" | "ARRAY" | "ANY":
            return (INT,)
        case "REMOVE_KEY", "MAP":
            return (left.inline_map_def.key_type,)
        case "REMOVE_KEY", "JSON_OBJ":
            return (STR,)
        case "REMOVE_KEY", "ANY":
            return (OPEN,)
    return ()
