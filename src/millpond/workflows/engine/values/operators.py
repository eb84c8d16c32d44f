"""Operators of mutations and expressions, and comparators. They take values, and raise NodeFailed for others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from littlehorse.model import Comparator, TypeDefinition, VariableMutationType, VariableValue

from millpond.workflows.engine.failures import substitution
from millpond.workflows.engine.values.conversions import (
    NULL,
    assignable,
    coerced,
    fits,
    integer,
    is_null,
    json_text,
    kind_of,
    plain,
    text_of,
    type_of_value,
    value_type_name,
)
from millpond.workflows.engine.values.operations import operands, result_type

__all__ = (
    "UNSIZED",
    "Operator",
    "combined",
    "same",
    "holds",
    "equal",
    "size_of",
)

UNSIZED: Final = "size() only supports STR, ARRAY or JSON_ARR operands"
Operator: TypeAlias = Callable[[VariableValue, VariableValue], VariableValue]

_NUMBERS: Final = ("int", "double")
_JSON: Final = ("json_obj", "json_arr")


def combined(
    operation: VariableMutationType, left: VariableValue, right: VariableValue, *, keep_int: bool
) -> VariableValue:
    """The result of an operation. With `keep_int` an INT on the left stays INT, as a variable of that type does."""
    operator = _OPERATORS.get(operation)
    if operator is None:
        raise substitution(f"no operation has the number {operation}")
    result = operator(left, _operand(operation, left, right))
    if keep_int and kind_of(left) == "int" and kind_of(result) == "double":
        return integer(result.double)
    return result


def _operand(operation: VariableMutationType, left: VariableValue, right: VariableValue) -> VariableValue:
    """The right side of an operation, as the type that it takes; an element that extends an array, as an array."""
    if is_null(left):
        return right
    kind = type_of_value(left, parts=True)
    if not is_null(right) and result_type(operation, kind, type_of_value(right, parts=True)) is None:
        raise _unsuitable(VariableMutationType.Name(operation), left, right)
    types = operands(operation, kind)
    if len(types) == 2 and _is_element(types[0], right):
        return VariableValue(array={"items": [coerced(right, types[0])]})
    return coerced(right, types[-1]) if types else right


def _is_element(type_: TypeDefinition, value: VariableValue) -> bool:
    """True for a value that becomes an element of an array of this type, and is no such array: that would be joined."""
    if kind_of(value) != "array":
        return True
    parts, open_ = value.array.element_type, type_.WhichOneof("defined_type") is None
    return not open_ and not (parts.ListFields() and assignable(parts, type_)) and fits(value, type_)


def _both_numbers(name: str, left: VariableValue, right: VariableValue) -> tuple[float, float, bool]:
    """Two numbers, and True when both are INT."""
    kinds = kind_of(left), kind_of(right)
    if kinds[0] not in _NUMBERS or kinds[1] not in _NUMBERS:
        raise _unsuitable(name, left, right)
    return getattr(left, kinds[0]), getattr(right, kinds[1]), kinds == ("int", "int")


def _unsuitable(name: str, left: VariableValue, right: VariableValue) -> Exception:
    return substitution(f"{name} does not take {value_type_name(left)} and {value_type_name(right)}")


def _number(number: float, whole: bool) -> VariableValue:
    return integer(number) if whole else VariableValue(double=number)


def _assign(_left: VariableValue, right: VariableValue) -> VariableValue:
    return right


def _add(left: VariableValue, right: VariableValue) -> VariableValue:
    match kind_of(left):
        case "str":
            return VariableValue(str=left.str + text_of(right))
        case "json_arr":
            return VariableValue(json_arr=json_text([*plain(left), plain(right)]))
        case "array":
            return _lengthened(left, [right])
    first, second, whole = _both_numbers("ADD", left, right)
    return _number(first + second, whole)


def _subtract(left: VariableValue, right: VariableValue) -> VariableValue:
    first, second, whole = _both_numbers("SUBTRACT", left, right)
    return _number(first - second, whole)


def _multiply(left: VariableValue, right: VariableValue) -> VariableValue:
    first, second, whole = _both_numbers("MULTIPLY", left, right)
    return _number(first * second, whole)


def _divide(left: VariableValue, right: VariableValue) -> VariableValue:
    first, second, whole = _both_numbers("DIVIDE", left, right)
    if second == 0:
        raise substitution("Cannot divide by zero")
    if not whole:
        return VariableValue(double=first / second)
    quotient = abs(int(first)) // abs(int(second))  # toward zero, as integers are divided elsewhere in the protocol
    return integer(quotient if (first < 0) == (second < 0) else -quotient)


def _power(left: VariableValue, right: VariableValue) -> VariableValue:
    first, second, whole = _both_numbers("POW", left, right)
    try:
        if whole and second >= 0:
            # 2**64 is beyond INT, so larger exponents fail without being computed
            if abs(first) > 1 and second > 64:
                raise substitution("the power is beyond 64 bits")
            return integer(int(first) ** int(second))
        result = math.pow(first, second)
    except (OverflowError, ValueError) as beyond:
        raise substitution("the power is not a finite number") from beyond
    return integer(result) if whole else VariableValue(double=result)


def _extend(left: VariableValue, right: VariableValue) -> VariableValue:
    kinds = kind_of(left), kind_of(right)
    match kinds:
        case ("str", _):
            return VariableValue(str=left.str + text_of(right))
        case ("bytes", "bytes"):
            return VariableValue(bytes=left.bytes + right.bytes)
        case ("json_arr", "json_arr"):
            return VariableValue(json_arr=json_text(plain(left) + plain(right)))
        case ("json_arr", _):
            return VariableValue(json_arr=json_text([*plain(left), plain(right)]))
        case ("array", "array"):
            return _lengthened(left, right.array.items)
        case ("map", "map"):
            return _merged(left, right)
    raise _unsuitable("EXTEND", left, right)


def _lengthened(left: VariableValue, items: Sequence[VariableValue]) -> VariableValue:
    array = VariableValue()
    array.CopyFrom(left)
    array.array.items.extend(items)
    return array


def _merged(left: VariableValue, right: VariableValue) -> VariableValue:
    """Two maps as one: the right one's values win, the left one's order stays."""
    result = VariableValue()
    result.CopyFrom(left)
    entries = {text_of(entry.key): entry for entry in result.map.entries}
    for entry in right.map.entries:
        if text_of(entry.key) in entries:
            entries[text_of(entry.key)].value.CopyFrom(entry.value)
        else:
            result.map.entries.append(entry)
    return result


def _remove_if_present(left: VariableValue, right: VariableValue) -> VariableValue:
    removed = plain(right)
    if kind_of(left) == "json_arr":
        return VariableValue(json_arr=json_text([item for item in plain(left) if not same(item, removed)]))
    if kind_of(left) == "array":
        return _array_without(left, lambda _at, item: same(plain(item), removed))
    raise _unsuitable("REMOVE_IF_PRESENT", left, right)


def _remove_index(left: VariableValue, right: VariableValue) -> VariableValue:
    if kind_of(left) not in ("json_arr", "array") or kind_of(right) != "int":
        raise _unsuitable("REMOVE_INDEX", left, right)
    items, index = plain(left), right.int
    if not 0 <= index < len(items):
        raise substitution(f"index {index} is outside of a list of {len(items)}")
    if kind_of(left) == "json_arr":
        return VariableValue(json_arr=json_text(items[:index] + items[index + 1 :]))
    return _array_without(left, lambda at, _item: at == index)


def _array_without(left: VariableValue, dropped: Callable[[int, VariableValue], bool]) -> VariableValue:
    result = VariableValue()
    result.CopyFrom(left)
    del result.array.items[:]
    result.array.items.extend(item for at, item in enumerate(left.array.items) if not dropped(at, item))
    return result


def _remove_key(left: VariableValue, right: VariableValue) -> VariableValue:
    if is_null(right):
        raise _unsuitable("REMOVE_KEY", left, right)
    name = text_of(right)
    if kind_of(left) == "json_obj":
        return VariableValue(json_obj=json_text({key: item for key, item in plain(left).items() if key != name}))
    if kind_of(left) == "map":
        result = VariableValue()
        result.CopyFrom(left)
        del result.map.entries[:]
        result.map.entries.extend(entry for entry in left.map.entries if text_of(entry.key) != name)
        return result
    raise _unsuitable("REMOVE_KEY", left, right)


def _and(left: VariableValue, right: VariableValue) -> VariableValue:
    if kind_of(left) != "bool" or kind_of(right) != "bool":
        raise _unsuitable("AND", left, right)
    return VariableValue(bool=left.bool and right.bool)


def _or(left: VariableValue, right: VariableValue) -> VariableValue:
    if kind_of(left) != "bool" or kind_of(right) != "bool":
        raise _unsuitable("OR", left, right)
    return VariableValue(bool=left.bool or right.bool)


_OPERATORS: Final[dict[int, Operator]] = {
    VariableMutationType.ASSIGN: _assign,
    VariableMutationType.ADD: _add,
    VariableMutationType.EXTEND: _extend,
    VariableMutationType.SUBTRACT: _subtract,
    VariableMutationType.MULTIPLY: _multiply,
    VariableMutationType.DIVIDE: _divide,
    VariableMutationType.REMOVE_IF_PRESENT: _remove_if_present,
    VariableMutationType.REMOVE_INDEX: _remove_index,
    VariableMutationType.REMOVE_KEY: _remove_key,
    VariableMutationType.AND: _and,
    VariableMutationType.OR: _or,
    VariableMutationType.POW: _power,
}


def same(left: Any, right: Any) -> bool:
    """True when two JSON values are equal: 1 equals 1.0, but true is no number."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


def holds(comparator: Comparator, left: VariableValue, right: VariableValue) -> bool:
    """True when a comparison holds.

    Raises:
        NodeFailed: VAR_SUB_ERROR; the two have no common order.
    """
    match comparator:
        case Comparator.EQUALS:
            return equal(left, right)
        case Comparator.NOT_EQUALS:
            return not equal(left, right)
        case Comparator.IN:
            return _contains(right, left)
        case Comparator.NOT_IN:
            return not _contains(right, left)
        case Comparator.LESS_THAN:
            return _order(left, right) < 0
        case Comparator.LESS_THAN_EQ:
            return _order(left, right) <= 0
        case Comparator.GREATER_THAN:
            return _order(left, right) > 0
        case _:
            return _order(left, right) >= 0


def equal(left: VariableValue, right: VariableValue) -> bool:
    """True when two values are equal; null equals only null. Values of two types, and JSON, are not compared so."""
    if is_null(left) or is_null(right):
        return is_null(left) and is_null(right)
    if kind_of(left) != kind_of(right) or kind_of(left) in _JSON:
        raise _incomparable(left, right)
    return same(plain(left), plain(right))


def _incomparable(left: VariableValue, right: VariableValue) -> Exception:
    return substitution(f"{value_type_name(left)} and {value_type_name(right)} cannot be compared")


def _order(left: VariableValue, right: VariableValue) -> int:
    """Negative, zero or positive, as the left value is before, with or behind the right one. Null is first."""
    if is_null(left) or is_null(right):
        return (not is_null(left)) - (not is_null(right))
    kinds = kind_of(left), kind_of(right)
    both_numbers = kinds[0] in _NUMBERS and kinds[1] in _NUMBERS
    if not both_numbers and (kinds[0] != kinds[1] or kinds[0] in (*_JSON, "struct", "map", "array")):
        raise _incomparable(left, right)
    first, second = _sortable(left), _sortable(right)
    return (first > second) - (first < second)


def _sortable(value: VariableValue) -> Any:
    match kind_of(value):
        case "bytes":
            return value.bytes
        case "utc_timestamp":
            return value.utc_timestamp.ToNanoseconds()
        case _:
            return plain(value)


def _contains(container: VariableValue, item: VariableValue) -> bool:
    content = plain(container)
    match kind_of(container):
        case "str":
            return text_of(item) in content
        case "json_arr" | "array":
            return any(same(entry, plain(item)) for entry in content)
        case "json_obj" | "map":
            return text_of(item) in content
        case None:
            return False
    raise substitution(f"IN does not look into {value_type_name(container)}")


def size_of(value: VariableValue) -> VariableValue:
    """The number of letters of a text, or of items of a list."""
    match kind_of(value):
        case "str" | "json_arr" | "array":
            return VariableValue(int=len(plain(value)))
        case None:
            return NULL
    raise substitution(f"{UNSIZED}: the value has type {value_type_name(value)}")
