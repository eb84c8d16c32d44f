"""Values survive their bytes: column to bytes to column, and one at a time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.arrays.byte_columns import bytes_of
from millpond.maps.model.columns import value_arrow
from millpond.maps.model.definition import ScalarType, ValueType, parse_value_type
from millpond.maps.model.one_value import python_value
from millpond.maps.model.values import decode_values, encode_values, present_values
from tests.harness.rows import encode_mixed

SCALARS: dict[ScalarType, st.SearchStrategy[Any]] = {
    ScalarType.STRING: st.text(st.characters(codec="utf-8")),
    ScalarType.LONG: st.integers(-(2**63), 2**63 - 1),
    ScalarType.DOUBLE: st.floats(allow_nan=False),
    ScalarType.BOOLEAN: st.booleans(),
    ScalarType.TIMESTAMP: st.integers(-(10**13), 10**13),
    ScalarType.BINARY: st.binary(),
    ScalarType.JSON: st.just('{"a": 1}'),
}


@st.composite
def columns(draw: st.DrawFn) -> tuple[ValueType, pa.Array]:
    if draw(st.booleans()):
        scalar = draw(st.sampled_from(ScalarType))
        kind = ValueType(scalar=scalar)
        rows = draw(st.lists(st.none() | SCALARS[scalar], max_size=12))
        return kind, pa.array(rows, value_arrow(kind))
    scalars = draw(st.lists(st.sampled_from(ScalarType), min_size=1, max_size=4))
    kind = ValueType(fields=tuple((f"f{i}", scalar) for i, scalar in enumerate(scalars)))
    row = st.fixed_dictionaries({name: st.none() | SCALARS[scalar] for name, scalar in kind.fields})
    return kind, pa.array(draw(st.lists(st.none() | row, max_size=8)), value_arrow(kind))


@pytest.mark.usefixtures("processor")
@given(columns(), st.integers(0, 3))
def test_columns_survive(typed: tuple[ValueType, pa.Array], skipped: int) -> None:
    kind, array = typed
    array = array[skipped:]
    encoded = encode_values(array, kind)
    assert decode_values(encoded, kind).to_pylist() == array.to_pylist()
    one_by_one = [python_value(row, kind) for row in encoded.to_arrow().to_pylist()]
    assert one_by_one == array.to_pylist()


def test_empty_is_not_null() -> None:
    kind = parse_value_type("string")
    assert encode_values(pa.array(["", None]), kind).to_arrow().to_pylist() == [b"\x07", b"\x00"]


def test_mixed_values_name_their_types() -> None:
    mixed = pa.concat_arrays([
        encode_mixed(pa.array(["x", None])), encode_mixed(pa.array([7])), encode_mixed(pa.array([1.5])),
        encode_mixed(pa.array([True])), encode_mixed(pa.array([0], pa.timestamp("s", "UTC"))),
        encode_mixed(pa.array([b"\x01"])), encode_mixed(pa.nulls(1)),
    ])  # fmt: skip
    kinds, values = present_values(mixed)
    assert kinds.to_pylist() == [
        "string", "null", "long", "double", "boolean", "timestamp", "binary", "null",
    ]  # fmt: skip
    assert values.to_pylist() == ["x", None, "7", "1.5", "true", "1970-01-01T00:00:00.000Z", "AQ==", None]
    assert len(bytes_of(mixed)) == 8
