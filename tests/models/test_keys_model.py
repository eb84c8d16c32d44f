"""One rule for keys: what `load` stores, every door finds by the same value; what one refuses, all refuse."""

from __future__ import annotations

import datetime
import math
import re
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.errors import Invalid
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond import Map, Pond

TEXTS = ["JFK", "5", "+7", " 8 ", "-0", "٣", "", "é", "1.5", "true", "9" * 18, "9" * 30, "O'Hare", "a\\x41"]
FLOATS = [5.0, -3.0, 0.0, -0.0, 1.5, 2.0**11, math.nan, math.inf]


@dataclass(frozen=True)
class Column:
    """A type of column: values to draw from, and what DuckDB calls the type, where it has it."""

    arrow: pa.DataType
    values: list[Any]
    duckdb: str | None = None


def integers(bits: int, signed: bool) -> list[int]:
    top = (1 << (bits - 1 if signed else bits)) - 1
    return [0, 1, 5, 42, top, top - 1, *([-1, -top - 1] if signed else [])]


TAKEN = [
    Column(pa.string(), TEXTS, "VARCHAR"),
    Column(pa.large_string(), TEXTS),
    Column(pa.string_view(), TEXTS),
    Column(pa.binary(), [b"JFK", b"\xff", b"", "é".encode(), b"a\\b"], "BLOB"),
    Column(pa.large_binary(), [b"JFK", b"\xff"]),
    Column(pa.binary_view(), [b"JFK", b"5"]),
    Column(pa.binary(3), [b"JFK", b"\xff\xff\xff"]),
    Column(pa.int8(), integers(8, True), "TINYINT"),
    Column(pa.int16(), integers(16, True), "SMALLINT"),
    Column(pa.int32(), integers(32, True), "INTEGER"),
    Column(pa.int64(), integers(64, True), "BIGINT"),
    Column(pa.uint8(), integers(8, False), "UTINYINT"),
    Column(pa.uint16(), integers(16, False), "USMALLINT"),
    Column(pa.uint32(), integers(32, False), "UINTEGER"),
    Column(pa.uint64(), integers(64, False), "UBIGINT"),
    Column(pa.float16(), FLOATS),
    Column(pa.float32(), [*FLOATS, 123456792.0], "FLOAT"),
    Column(pa.float64(), [*FLOATS, 2.0**53, 2.0**52 + 1, 1e300], "DOUBLE"),
    Column(pa.decimal128(10, 2), [Decimal("1.50"), Decimal("5.00"), Decimal("-3.00")], "DECIMAL(10,2)"),
    Column(pa.decimal128(38, 0), [Decimal(5), Decimal(10) ** 37], "DECIMAL(38,0)"),
    Column(pa.decimal128(12, 9), [Decimal("0.000000001"), Decimal("7.000000000")], "DECIMAL(12,9)"),
    Column(pa.decimal256(76, 0), [Decimal(5), Decimal(10) ** 70]),
    Column(pa.bool_(), [True, False], "BOOLEAN"),
    Column(pa.date32(), [datetime.date(2013, 2, 8), datetime.date(1, 1, 1)], "DATE"),
    Column(pa.date64(), [datetime.date(2013, 2, 8)]),
    Column(pa.dictionary(pa.int8(), pa.string()), TEXTS),
    Column(pa.dictionary(pa.int32(), pa.int64()), [5, 6]),
    Column(pa.dictionary(pa.int8(), pa.float64()), FLOATS),
    Column(pa.run_end_encoded(pa.int32(), pa.string()), TEXTS),
    Column(pa.run_end_encoded(pa.int32(), pa.int64()), [5, 6]),
    Column(pa.null(), [None], '"NULL"'),
]

NOON = datetime.datetime(2013, 2, 8, 12)
AWARE = NOON.replace(tzinfo=datetime.UTC)
REFUSED = [
    Column(pa.timestamp("us"), [NOON], "TIMESTAMP"),
    Column(pa.timestamp("ms", tz="UTC"), [AWARE], "TIMESTAMPTZ"),
    Column(pa.time64("us"), [datetime.time(12)], "TIME"),
    Column(pa.duration("s"), [datetime.timedelta(1)]),
    Column(pa.list_(pa.int64()), [[], [1]], "BIGINT[]"),
    Column(pa.list_(pa.string(), 1), [["a"]]),
    Column(pa.struct([("a", pa.int64())]), [{"a": 1}], "STRUCT(a BIGINT)"),
    Column(pa.map_(pa.string(), pa.int64()), [[("a", 1)]]),
    Column(pa.uuid(), [uuid.UUID(int=5)], "UUID"),
]


def stored(value: Any, keyed: bool) -> str | int | None:
    """The rule, one value at a time: the key of a row; `null`, `never`, `invalid` or `type` where there is none."""
    match value:
        case None:
            return "null:"
        case bool():
            return str(value).lower() if keyed else "type:"
        case int():
            return str(value) if keyed else _long(value)
        case float():
            if not (math.isfinite(value) and value == int(value) and abs(value) < 2**53):
                return "invalid:"
            return str(int(value)) if keyed else int(value)
        case Decimal():
            return f"{value:f}" if keyed else _long(int(value)) if value == int(value) else "invalid:"
        case datetime.date() if keyed and not isinstance(value, datetime.datetime):
            return value.isoformat()
        case bytes() if keyed:
            return value.decode() if value.decode(errors="replace").encode() == value else "never:"
        case str() if keyed:
            return value
        case str():
            return _long(int(value)) if re.fullmatch(r"\s*[+-]?[0-9]+\s*", value, re.ASCII) else "invalid:"
    return "type:"


def _long(number: int) -> int | str:
    return number if -(1 << 63) <= number < 1 << 63 else "never:"


@pytest.fixture(scope="module")
def pond(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pond]:
    with millpond.open(tmp_path_factory.mktemp("keys") / "pond") as opened:
        yield opened


def fresh(pond: Pond, keyed: bool) -> Map:
    pond.drop_map("m") if any(pond_map.name == "m" for pond_map in pond.maps()) else None
    return pond.create_map("m", kind="state" if keyed else "ranged_state", value="string")


def outcome(act: Any) -> Any:
    try:
        return act()
    except Invalid as error:
        return f"{error.kind}:"


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "ranged"])
@settings(max_examples=examples(4, 8))
@given(data=st.data())
def test_what_is_stored_is_found_by_the_same_value(pond: Pond, keyed: bool, data: st.DataObject) -> None:
    column = data.draw(st.sampled_from(TAKEN))
    wanted = data.draw(st.lists(st.sampled_from([*column.values, None]), min_size=1, max_size=6))
    array = array_of(column.arrow, wanted)
    check_column(fresh(pond, keyed), pond, array, column, wanted, keyed)


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(6)
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "ranged"])
@pytest.mark.parametrize("column", TAKEN, ids=lambda column: str(column.arrow))
def test_every_type_that_is_taken(pond: Pond, keyed: bool, column: Column) -> None:
    check_column(fresh(pond, keyed), pond, array_of(column.arrow, column.values), column, column.values, keyed)


def array_of(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    if pa.types.is_run_end_encoded(kind):
        return pa.compute.run_end_encode(pa.array(values, kind.value_type))
    return pa.array(values, kind)


def check_column(map: Map, pond: Pond, array: pa.Array, column: Column, values: list[Any], keyed: bool) -> None:
    keys = [stored(value, keyed) for value in values]
    if "type:" in [stored(value, keyed) for value in column.values] or (
        keyed is False and column.arrow in (pa.bool_(), pa.date32(), pa.date64(), pa.binary())
    ):
        return  # of ranged maps: see the types that are refused
    model = {key: str(row) for row, key in enumerate(keys) if not str(key).endswith(":")}
    rows = pa.table({"key": array, "value": [str(row) for row in range(len(values))]})
    assert map.load(rows, max_rejects=len(values)).rejected == sum(str(key).endswith(":") for key in keys)
    answers = ["key_number:" if key == "invalid:" else model.get(key) for key in keys]
    assert [outcome(lambda value=value: map.get(value)) for value in values] == answers
    assert [outcome(lambda one=one: map.get(one)) for one in array] == answers
    misses = [None if answer == "key_number:" else answer for answer in answers]
    assert map.lookup(array, on_invalid="miss").to_pylist() == misses
    assert map.lookup(pa.chunked_array([array, array]), on_invalid="miss").to_pylist() == misses * 2
    bulk = outcome(lambda: map.lookup(array).to_pylist())
    assert bulk == ("key_number:" if "key_number:" in answers else misses)
    assert [outcome(lambda value=value: scanned(map, value, keyed)) for value in values if value is not None] == [
        answer for answer, value in zip(answers, values, strict=True) if value is not None
    ]
    if column.duckdb is not None:
        assert [outcome(lambda value=value: by_sql(pond, value, column.duckdb)) for value in values] == answers


def scanned(map: Map, value: Any, keyed: bool) -> str | None:
    where = [("key", "=", value)] if keyed else [("key_start", "=", value), ("key_end", "in", [value])]
    if not keyed and isinstance(value, float) and not value.is_integer():
        assert not map.scan(where).read_all().num_rows, "a column of numbers compares with any number"
        raise Invalid("which is no key", kind="key_number")
    found = map.scan(where).read_all().column("value").to_pylist()
    return found[0] if found else None


def by_sql(pond: Pond, value: Any, kind: str | None) -> Any:
    if value is None:
        return pond.sql("select get_state('m', null) as found").column("found")[0].as_py()
    text = "".join(f"\\x{byte:02X}" for byte in value) if isinstance(value, bytes) else str(value).replace("'", "''")
    [found] = pond.sql(f"select get_state('m', '{text}'::{kind}) as found").column("found").to_pylist()
    return found


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "ranged"])
@pytest.mark.parametrize("column", REFUSED, ids=lambda column: str(column.arrow))
def test_a_type_that_is_refused_is_refused_everywhere(pond: Pond, keyed: bool, column: Column) -> None:
    check_refused(fresh(pond, keyed), pond, column, keyed)


@pytest.mark.parametrize(
    "column", [one for one in TAKEN if stored(one.values[0], False) == "type:"], ids=lambda one: str(one.arrow)
)
def test_a_type_that_only_keyed_maps_take(pond: Pond, column: Column) -> None:
    check_refused(fresh(pond, False), pond, column, keyed=False)


def check_refused(map: Map, pond: Pond, column: Column, keyed: bool) -> None:
    array = pa.array(column.values, column.arrow)
    key = "key" if keyed else "key_start"
    names = {"key": array} if keyed else {"key_start": array, "key_end": array}
    calls = [
        lambda: map.load(pa.table({**names, "value": ["v"] * len(array)})),
        lambda: map.get(column.values[0]),
        lambda: map.get(array[0]),
        lambda: map.lookup(array),
        lambda: map.lookup(array, on_invalid="miss"),
        lambda: map.lookup(array.slice(0, 0)),
        lambda: map.scan([(key, "=", column.values[0])]),
    ]
    assert [outcome(call) for call in calls] == ["key_type:"] * len(calls)
    if column.duckdb is not None:
        # No row is read: the type is refused while the query is planned.
        empty = f"select get_state('m', x) from (select null::{column.duckdb} as x from range(0))"
        assert outcome(lambda: pond.sql(empty)) == "key_type:"


def test_values_of_several_types_in_one_column(pond: Pond) -> None:
    map = fresh(pond, True)
    map.load([{"key": key, "value": str(key)} for key in (1, "two", True, 2.0, Decimal("1.50"), b"six")])
    assert map.lookup([1, "1", "two", True, 2.0, Decimal("1.50"), b"six", None]).to_pylist() == [
        "1", "1", "two", "True", "2.0", "1.50", "b'six'", None,
    ]  # fmt: skip
