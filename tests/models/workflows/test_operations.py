"""Operations on values: what each takes, by a table of its own; registration and runs take the same, at any depth."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("littlehorse")

from google.protobuf.timestamp_pb2 import Timestamp
from littlehorse.model import Struct, StructDefId, TypeDefinition, VariableMutationType, VariableType, VariableValue

from millpond.workflows.engine import run_id
from millpond.workflows.engine.failures import NodeFailed
from millpond.workflows.engine.values.conversions import assignable, coerced, fits, kind_name
from millpond.workflows.engine.values.operations import OPEN, result_type
from millpond.workflows.engine.values.operators import combined

SCALARS = {
    "INT": VariableValue(int=0),
    "DOUBLE": VariableValue(double=1.5),
    "STR": VariableValue(str="a"),
    "BOOL": VariableValue(bool=True),
    "BYTES": VariableValue(bytes=b"a"),
    "TIMESTAMP": VariableValue(utc_timestamp=Timestamp(seconds=0)),
    "WF_RUN_ID": VariableValue(wf_run_id=run_id("r")),
    "JSON_OBJ": VariableValue(json_obj='{"a":1}'),
    "JSON_ARR": VariableValue(json_arr="[1]"),
}


def array_of(type_: TypeDefinition) -> TypeDefinition:
    return TypeDefinition(inline_array_def={"array_type": type_})


def map_of(key: TypeDefinition, value: TypeDefinition) -> TypeDefinition:
    return TypeDefinition(inline_map_def={"key_type": key, "value_type": value})


def array(type_: TypeDefinition, *items: VariableValue) -> VariableValue:
    return VariableValue(array={"element_type": type_, "items": items})


def mapping(type_: TypeDefinition, *entries: tuple[VariableValue, VariableValue]) -> VariableValue:
    return VariableValue(
        map={"map_type": type_.inline_map_def, "entries": [{"key": key, "value": value} for key, value in entries]}
    )


TYPES = {name: TypeDefinition(primitive_type=VariableType.Value(name)) for name in SCALARS}
INT, DOUBLE, STR, BOOL = (TYPES[name] for name in ("INT", "DOUBLE", "STR", "BOOL"))
CAR = StructDefId(name="car", version=0)
OF_ARRAYS = {"INTS": INT, "DOUBLES": DOUBLE, "TEXTS": STR, "ROWS": array_of(INT)}
OF_MAPS = {"NUMBERS": (STR, INT), "NAMES": (STR, STR), "FLAGS": (INT, BOOL)}
TYPES |= {name: array_of(type_) for name, type_ in OF_ARRAYS.items()}
TYPES |= {name: map_of(*types) for name, types in OF_MAPS.items()}
TYPES |= {"CAR": TypeDefinition(struct_def_id=CAR)}


def some(name: str) -> VariableValue:
    """A value of a type that is not empty."""
    if name in SCALARS:
        return SCALARS[name]
    if name == "CAR":
        return VariableValue(struct=Struct(struct_def_id=CAR))
    if name in OF_ARRAYS:
        item = array(INT, SCALARS["INT"]) if name == "ROWS" else SCALARS[kind_name(OF_ARRAYS[name])]
        return array(OF_ARRAYS[name], item)
    key, value = OF_MAPS[name]
    return mapping(TYPES[name], (SCALARS[kind_name(key)], SCALARS[kind_name(value)]))


ALL = set(TYPES)
NUMBERS = {"INT", "DOUBLE"}
WORDS = {"INT", "DOUBLE", "STR", "BOOL", "BYTES", "WF_RUN_ID"}
TAKEN: dict[str, dict[str, set[str]]] = {
    "ASSIGN": dict.fromkeys(ALL, ALL),
    "ADD": {
        "INT": NUMBERS, "DOUBLE": NUMBERS, "STR": ALL, "JSON_ARR": ALL, "INTS": {"INT", "TIMESTAMP"},
        "DOUBLES": NUMBERS, "TEXTS": WORDS, "ROWS": {"INTS"},
    },
    "EXTEND": {
        "STR": ALL, "JSON_ARR": ALL, "BYTES": {"BYTES"}, "INTS": {"INT", "TIMESTAMP", "INTS"},
        "DOUBLES": {"INT", "DOUBLE", "INTS", "DOUBLES"}, "TEXTS": WORDS | {"INTS", "DOUBLES", "TEXTS"},
        "ROWS": {"INTS", "ROWS"}, "NUMBERS": {"NUMBERS"}, "NAMES": {"NUMBERS", "NAMES", "FLAGS"}, "FLAGS": {"FLAGS"},
    },
    **{name: dict.fromkeys(NUMBERS, NUMBERS) for name in ("SUBTRACT", "MULTIPLY", "DIVIDE", "POW")},
    "REMOVE_IF_PRESENT": {
        "JSON_ARR": ALL, "INTS": {"INT", "TIMESTAMP"}, "DOUBLES": NUMBERS, "TEXTS": WORDS, "ROWS": {"INTS"},
    },
    "REMOVE_INDEX": {name: {"INT", "TIMESTAMP"} for name in ("JSON_ARR", "INTS", "DOUBLES", "TEXTS", "ROWS")},
    "REMOVE_KEY": {"JSON_OBJ": WORDS, "NUMBERS": WORDS, "NAMES": WORDS, "FLAGS": {"INT", "TIMESTAMP"}},
    "AND": {"BOOL": {"BOOL"}},
    "OR": {"BOOL": {"BOOL"}},
}  # fmt: skip
"""The types that an operation takes on its right, by the type on its left."""


def done(operation: int, left: VariableValue, right: VariableValue) -> VariableValue | None:
    """The result of an operation, None where it takes no such values."""
    try:
        return combined(operation, left, right, keep_int=False)  # type: ignore[arg-type]
    except NodeFailed as failed:
        return VariableValue(int=0) if failed.message == "Cannot divide by zero" else None


@pytest.mark.parametrize("operation", sorted(TAKEN))
def test_an_operation_takes_what_its_table_says(operation: str) -> None:
    number = VariableMutationType.Value(operation)
    for left, left_type in TYPES.items():
        for right, right_type in TYPES.items():
            type_ = result_type(number, left_type, right_type)
            result = done(number, some(left), some(right))
            taken = right in TAKEN[operation].get(left, set())
            assert (type_ is not None, result is not None) == (taken, taken), f"{left} {operation} {right}"
            if type_ is not None and result is not None and operation != "DIVIDE":
                assert fits(result, type_), f"{left} {operation} {right}"


def test_all_operations_have_a_table() -> None:
    assert set(TAKEN) == set(VariableMutationType.keys())


# -- any depth ---------------------------------------------------------------------------------------------

VALUES: dict[str, st.SearchStrategy[VariableValue]] = {
    "INT": st.integers(0, 9).map(lambda number: VariableValue(int=number)),
    "DOUBLE": st.floats(0, 9).map(lambda number: VariableValue(double=number)),
    "STR": st.text("ab", max_size=2).map(lambda text: VariableValue(str=text)),
    "BOOL": st.booleans().map(lambda truth: VariableValue(bool=truth)),
    "TIMESTAMP": st.integers(0, 9).map(lambda at: VariableValue(utc_timestamp=Timestamp(seconds=at))),
}
DEEP = st.recursive(
    st.sampled_from([TYPES[name] for name in VALUES]),
    lambda parts: parts.map(array_of) | st.builds(map_of, st.sampled_from([INT, STR]), parts),
    max_leaves=3,
)


def values_of(type_: TypeDefinition) -> st.SearchStrategy[VariableValue]:
    """Values of a type that say so at each depth, empty ones among them."""
    match type_.WhichOneof("defined_type"):
        case "inline_array_def":
            inner = type_.inline_array_def.array_type
            return st.lists(values_of(inner), max_size=2).map(lambda items: array(inner, *items))
        case "inline_map_def":
            key, value = type_.inline_map_def.key_type, type_.inline_map_def.value_type
            entries = st.lists(st.tuples(values_of(key), values_of(value)), max_size=2)
            return entries.map(lambda entries: mapping(type_, *entries))
    return VALUES[kind_name(type_)]


@given(st.data(), DEEP, DEEP)
def test_a_value_becomes_what_its_type_may(data: st.DataObject, source: TypeDefinition, target: TypeDefinition) -> None:
    value = data.draw(values_of(source))
    if assignable(source, target):
        assert fits(coerced(value, target), target)


@given(st.data(), st.sampled_from(VariableMutationType.values()), DEEP, DEEP | st.none())
def test_a_run_takes_what_registration_takes(
    data: st.DataObject, operation: Any, kind: TypeDefinition, other: TypeDefinition | None
) -> None:
    """Also where the right side is drawn from within the left one, or the left one from within the right."""
    related = [kind, array_of(kind), kind.inline_array_def.array_type, kind.inline_map_def.key_type]
    right = other or data.draw(st.sampled_from([type_ for type_ in related if type_ != OPEN]))
    values = data.draw(values_of(kind)), data.draw(values_of(right))
    type_, problem = result_type(operation, kind, right), ""
    try:
        result = combined(operation, *values, keep_int=False)
    except NodeFailed as failed:
        problem = failed.message
    if type_ is None or problem:
        assert problem and (type_ is None or problem.startswith(("Cannot divide", "index ", "the power")))
    else:
        assert fits(result, type_)
