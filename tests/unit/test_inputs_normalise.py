"""Canonical rows from input of every shape; rows that cannot be stored are reported one by one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Invalid
from millpond.maps.inputs.keys import KEY_BYTES_MAX
from millpond.maps.inputs.mapping import mapping_of
from millpond.maps.inputs.normalise import ColumnMapping, Normalised, normalise
from millpond.maps.inputs.zones import time_form
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.definition import PLAIN_KINDS, Kind, MapDefinition, parse_value_type
from millpond.maps.model.one_value import python_value
from tests.harness import rows as model_rows
from tests.harness import strategies


def a_map(kind: Kind = Kind.STATE, value: str | None = None) -> MapDefinition:
    declared = None if value is None else parse_value_type(value)
    return MapDefinition(name="m", kind=kind, incarnation="0" * 16, value=declared)


def run(
    columns: dict[str, Any], kind: Kind = Kind.STATE, value: str | None = None, mapping: ColumnMapping | None = None
) -> Normalised:
    arrays = {name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in columns.items()}
    batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    definition = a_map(kind, value)
    made = normalise(batch, definition, mapping)
    assert made.rows.schema == canonical_schema(definition)
    made.rows.validate(full=True)
    assert made.rows.num_rows + made.rejected.num_rows == batch.num_rows
    return made


def values(made: Normalised) -> list[object]:
    """Values of an undeclared map."""
    return [python_value(encoded, None) for encoded in made.rows.column("value").to_pylist()]


def reasons(made: Normalised) -> dict[int, str]:
    return dict(zip(*(made.rejected.column(name).to_pylist() for name in ("row", "reason")), strict=True))


@pytest.mark.usefixtures("processor")
@given(st.data())
def test_what_people_load_becomes_the_models_rows(data: st.DataObject) -> None:
    definition = data.draw(strategies.definitions())
    rows = data.draw(strategies.rows(definition, data.draw(strategies.pools(definition))))
    batch = model_rows.table_of(definition, rows).combine_chunks().to_batches()[0]
    made = normalise(batch, definition)
    assert made.rejected.num_rows == 0
    expected = model_rows.canonical_of(definition, rows)
    for name in expected.schema.names:
        assert bits(made.rows.column(name)) == bits(expected.column(name)), name


def bits(column: pa.Array) -> list[object]:
    """Values that compare by their bits: NaN is itself, -0.0 is not 0.0."""
    return [repr(value) for value in column.to_pylist()]


# -- keys ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["007", "", "é\0\U0001f600"], ["007", "", "é\0\U0001f600"]),
        (pa.array(["a", "b"], pa.large_string()), ["a", "b"]),
        (pa.array(["a", "b"], pa.string_view()), ["a", "b"]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        (pa.array([b"\xc3\xa9"], pa.large_binary()), ["é"]),
        ([7, -7, 2**63 - 1], ["7", "-7", "9223372036854775807"]),
        (pa.array([2**64 - 1], pa.uint64()), ["18446744073709551615"]),
        ([True, False], ["true", "false"]),
        ([1.0, -2.0], ["1", "-2"]),
        ([Decimal("1.50")], ["1.50"]),
        (pa.array([0], pa.date32()), ["1970-01-01"]),
    ],
)
def test_keys_are_written_in_their_one_way(column: Any, expected: list[str]) -> None:
    made = run({"key": column, "value": ["v"] * len(column)})
    assert [key.decode() for key in made.rows.column("key").to_pylist()] == expected


def test_keys_that_are_none_are_rejected_with_the_reason() -> None:
    made = run({"key": ["x" * KEY_BYTES_MAX, "é" * (KEY_BYTES_MAX // 2) + "x", None], "value": [1, 2, 3]})
    assert made.rows.num_rows == 1
    assert "longer than 65536 bytes" in reasons(made)[1]
    assert reasons(made)[2] == "key is missing"
    made = run({"key": [1.0, 1.5, float("nan"), float("inf"), None, 2.0**60], "value": [1] * 6})
    assert sorted(reasons(made)) == [1, 2, 3, 4, 5]
    assert reasons(made)[2] == "key nan is a float, which has no one way of being written"
    made = run({"key": [b"ok", b"\xff"], "value": [1, 2]})
    assert reasons(made) == {1: "key b'\\xff' is not UTF-8"}
    assert run({"key": pa.nulls(2), "value": [1, 2]}).rows.num_rows == 0


def test_a_column_that_cannot_be_a_key_is_refused() -> None:
    with pytest.raises(Invalid, match="cannot be read as keys") as caught:
        run({"key": [[1]], "value": [1]})
    assert caught.value.values["column"] == "key"


# -- times, ranges, sessions --------------------------------------------------------------------------


def test_times_are_floored_and_bad_ones_rejected_by_row() -> None:
    times = ["1969-12-31T23:59:59.9999Z", "2024-10-27T01:30:00+01:00", "yesterday", None, "2024-01-01T00:00:00"]
    made = run(
        {"key": ["k"] * 5, "when": times, "value": [1] * 5}, Kind.TEMPORAL_STATE, None, ColumnMapping(time="when")
    )
    assert made.rows.column("effective_time").to_pylist() == [-1, 1_729_989_000_000]
    by_row = reasons(made)
    assert by_row[2] == "when 'yesterday' is not a time with a zone in the years 1 to 9999"
    assert by_row[3] == "when is missing"
    assert 4 in by_row


def test_naive_columns_are_refused_and_named() -> None:
    naive = pa.array([0], pa.timestamp("us"))
    with pytest.raises(Invalid, match="no zone") as caught:
        run({"key": ["k"], "effective_time": naive, "value": [1]}, Kind.TEMPORAL_STATE)
    assert caught.value.kind == "time_naive"
    assert caught.value.values["column"] == "effective_time"


def test_ranges_come_from_numbers_and_text() -> None:
    made = run(
        {
            "KEY_START": ["-5", " +010 ", "2", None, "9223372036854775808", "x"],
            "key_end": [5, 10, 1, 1, 1, 1],
            "value": ["v"] * 6,
        },
        Kind.RANGED_STATE,
    )
    assert made.rows.column("key_start").to_pylist() == [-5, 10]
    assert reasons(made) == {
        2: "range starts at 2 and ends before that, at 1",
        3: "KEY_START is missing",
        4: "KEY_START '9223372036854775808' does not fit 64 bits",
        5: "KEY_START 'x' is not a whole number",
    }


@given(st.lists(st.integers(-(2**65), 2**65) | st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 0])))
def test_whole_numbers_in_text_are_read_exactly(numbers: list[int]) -> None:
    text = [f"{number:+030d}" if number % 2 else str(number) for number in numbers]
    made = run({"key": pa.array([str(n) for n in range(len(text))], pa.string()),
                "value": pa.array(text, pa.string())}, value="long")  # fmt: skip
    assert made.rows.column("value").to_pylist() == [n for n in numbers if -(2**63) <= n < 2**63]


def test_a_single_number_is_a_range_of_one() -> None:
    made = run({"key": ["7", "8"], "value": [1, 2]}, Kind.RANGED_STATE)
    assert made.rows.column("key_start").to_pylist() == made.rows.column("key_end").to_pylist() == [7, 8]
    made = run({"n": [7], "value": [1]}, Kind.RANGED_STATE, None, ColumnMapping(key="n"))
    assert made.rows.column("key_end").to_pylist() == [7]


def test_sessions_end_where_they_say() -> None:
    made = run(
        {
            "key": list("abcdefgh"),
            "start": [0, 10, 20, 30, 40, None, 50, 60],
            "end": [5, None, None, 29, 40, 1, None, None],
            "timeout": ["1h", "15m", None, None, None, None, "soon", "999999999999999y"],
        },
        Kind.SESSION,
    )
    assert made.rows.to_pydict() == {
        "key": [b"a", b"b", b"e"],
        "start": [0, 10, 40],
        "end": [5, 900_010, 40],
    }
    start, end = "1970-01-01T00:00:00.030000+00:00", "1970-01-01T00:00:00.029000+00:00"
    assert reasons(made) == {
        2: "end is missing", 3: f"session starts at {start} and ends before that, at {end}",
        5: "start is missing",
        6: "timeout 'soon' is not a duration such as 15m",
        7: "timeout '999999999999999y' is not a duration such as 15m",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("timeouts", "millis"),
    [
        (pa.array([1500, 0, None]), [1500, 0, 0]),
        (pa.array([1, 2], pa.duration("s")), [1000, 2000]),
        (pa.array(["2 s", "1ms", "1w"]), [2000, 1, 604_800_000]),
        (pa.nulls(1), [0]),
    ],
)
def test_timeouts_of_every_type(timeouts: pa.Array, millis: list[int]) -> None:
    made = run({"key": ["k"] * len(timeouts), "time": [0] * len(timeouts), "timeout": timeouts}, Kind.SESSION)
    assert made.rows.column("end").to_pylist() == millis


def test_sessions_that_would_never_end_are_rejected() -> None:
    made = run({"key": ["k", "k"], "start": ["9999-12-31T23:00:00Z"] * 2, "timeout": ["2h", "1h"]}, Kind.SESSION)
    assert "end" in reasons(made)[0]
    assert run({"key": ["k"], "start": [0], "timeout": [-1]}, Kind.SESSION).rows.num_rows == 0


# -- declared values ----------------------------------------------------------------------------------

CASES = [
    ("string", ["a", "", None], ["a", "", None]),
    ("string", [1, None], ["1", None]),
    ("string", [True], ["true"]),
    ("string", [b"\xc3\xa9"], ["é"]),
    ("long", [1.0, None], [1, None]),
    ("long", ["-0", "007"], [0, 7]),
    ("long", [Decimal("5.00")], [5]),
    ("double", [1, 2**62], [1.0, 2.0**62]),
    ("double", ["1.5", " -2e3 ", "+.5", "5."], [1.5, -2000.0, 0.5, 5.0]),
    ("double", ["-inf", "Infinity"], [float("-inf"), float("inf")]),
    ("boolean", ["TRUE", "false", "1", "0", None], [True, False, True, False, None]),
    ("boolean", [1, 0], [True, False]),
    ("binary", ["é", b"\xff"][:1], ["é".encode()]),
    ("binary", [b"\xff", b""], [b"\xff", b""]),
    ("json", ['{"a": [1]}', "null", "1e400", None], ['{"a": [1]}', "null", "1e400", None]),
    ("json", [{"a": ["é"]}, None], ['{"a": ["é"]}', None]),
    ("timestamp", ["1970-01-01T00:00Z"], [datetime(1970, 1, 1, tzinfo=UTC)]),
    ("double", pa.nulls(1), [None]),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "given_values", "expected"), CASES)
def test_values_take_the_declared_type(declared: str, given_values: Any, expected: list[object]) -> None:
    made = run({"key": [str(n) for n in range(len(expected))], "value": given_values}, value=declared)
    assert made.rows.column("value").to_pylist() == expected


@pytest.mark.parametrize(
    ("declared", "bad", "problem"),
    [
        ("long", 1.5, "is not an exact whole number"),
        ("long", float("nan"), "is not an exact whole number"),
        ("long", 2.0**60, "is not an exact whole number"),
        ("long", "1.0", "is not a whole number"),
        ("long", "", "is not a whole number"),
        ("long", "--1", "is not a whole number"),
        ("long", "1 2", "is not a whole number"),
        ("long", "٣", "is not a whole number"),
        ("long", str(2**63), "does not fit 64 bits"),
        ("long", "1" * 400, "does not fit 64 bits"),
        ("long", Decimal("1.5"), "is not a whole number"),
        ("double", "abc", "is not a number"),
        ("double", "", "is not a number"),
        ("double", "1_0", "is not a number"),
        ("double", "1e999", "is too large for a double"),
        ("double", 2**53 + 1, "is not exact as a double"),
        ("double", 2**63 - 1, "is not exact as a double"),
        ("boolean", "yes", "is neither true nor false"),
        ("boolean", 2, "is neither true nor false"),
        ("string", b"\xff", "is not UTF-8"),
        ("json", "{", "is not JSON"),
        ("json", "", "is not JSON"),
        ("json", "NaN", "is not JSON"),
        ("json", "[" * 100_000, "is nested more than 256 deep"),
        ("timestamp", "2024-13-01T00:00Z", "is not a time with a zone in the years 1 to 9999"),
        ("timestamp", "2024-01-01", "is a time without a zone: write one, or say which it is (zone, --zone ZONE)"),
    ],
)
def test_values_that_do_not_fit_exactly_are_rejected(declared: str, bad: object, problem: str) -> None:
    made = run({"key": ["a", "b"], "value": pa.array([bad, None])}, value=declared)
    assert made.rows.column("value").to_pylist() == [None]
    assert reasons(made)[0].endswith(problem)
    assert reasons(made)[0].startswith("value ")
    assert len(reasons(made)[0]) < 200
    assert json.loads(made.rejected.column("record")[0].as_py())["key"] == "a"


@pytest.mark.parametrize(
    ("declared", "column"),
    [
        ("long", pa.array([True])), ("long", pa.array([[1]])), ("double", pa.array([b"1"])),
        ("boolean", pa.array([1.0])), ("string", pa.array([[1]])), ("binary", pa.array([1])),
        ("string", pa.array([0], pa.timestamp("ms", "UTC"))), ("timestamp", pa.array([0], pa.timestamp("ms"))),
    ],
)  # fmt: skip
def test_columns_of_an_unsuited_type_are_refused(declared: str, column: pa.Array) -> None:
    with pytest.raises(Invalid) as caught:
        run({"key": ["k"], "value": column}, value=declared)
    assert caught.value.values["column"] == "value"
    assert caught.value.hint


# -- structs ------------------------------------------------------------------------------------------


def test_structs_come_from_a_column_per_field_or_from_one() -> None:
    declared = "temp double, code string"
    spread = run({"key": ["a", "b"], "temp": ["1.5", None], "CODE": [7, None]}, value=declared)
    assert spread.rows.column("value").to_pylist() == [{"temp": 1.5, "code": "7"}, {"temp": None, "code": None}]
    whole = run({"key": ["a", "b"], "value": [{"code": "x", "temp": 1}, None]}, value=declared)
    assert whole.rows.column("value").to_pylist() == [{"temp": 1.0, "code": "x"}, None]
    mapped = run(
        {"key": ["a"], "t": [1], "c": ["x"]}, Kind.STATE, declared, ColumnMapping(value={"temp": "t", "code": "c"})
    )
    assert mapped.rows.column("value").to_pylist() == [{"temp": 1.0, "code": "x"}]
    named = run({"key": ["a"], "s": [{"temp": 1, "Code": None}]}, Kind.STATE, declared, ColumnMapping(value="s"))
    assert named.rows.column("value").to_pylist() == [{"temp": 1.0, "code": None}]


def test_a_bad_field_is_named() -> None:
    made = run({"key": ["a"], "temp": ["warm"], "code": ["x"]}, value="temp double, code string")
    assert reasons(made) == {0: "temp 'warm' is not a number"}
    made = run({"key": ["a"], "value": [{"temp": "warm", "code": None}]}, value="temp double, code string")
    assert reasons(made) == {0: "value.temp 'warm' is not a number"}


def test_struct_mistakes_are_reported_with_the_fields() -> None:
    with pytest.raises(Invalid, match="no such column") as caught:
        run({"key": ["a"], "temp": [1]}, value="temp double, code string")
    assert caught.value.values["column"] == "code"
    with pytest.raises(Invalid, match="no such field"):
        run({"key": ["a"]}, Kind.STATE, "temp double", ColumnMapping(value={"tmp": "x"}))
    with pytest.raises(Invalid, match="no struct"):
        run({"key": ["a"], "value": [1]}, value="temp double")


# -- undeclared values --------------------------------------------------------------------------------


def test_undeclared_values_keep_their_own_type() -> None:
    for column in (["a", "", None], [1, None], [1.5], [True], [b"\xff"], [datetime(1970, 1, 1, tzinfo=UTC)]):
        assert values(run({"key": ["k"] * len(column), "value": column})) == column
    assert values(run({"key": ["k"], "value": pa.nulls(1)})) == [None]
    assert values(run({"key": ["k"], "value": pa.array(["x"]).dictionary_encode()})) == ["x"]
    made = run({"key": ["a", "b"], "value": pa.array([2**63, 5], pa.uint64())})
    assert values(made) == [5]
    assert reasons(made) == {0: "value 9223372036854775808 does not fit 64 bits"}


def test_undeclared_values_may_be_mixed_in_one_column() -> None:
    union = pa.UnionArray.from_dense(
        pa.array([1, 0, 1, 0], pa.int8()),
        pa.array([0, 0, 1, 1], pa.int32()),
        [pa.array([1, None]), pa.array(["x", "y"])],
    )
    assert values(run({"key": list("abcd"), "value": union})) == ["x", 1, "y", None]
    assert run({"key": union, "value": list("abcd")}).rows.column("key").to_pylist() == [b"x", b"1", b"y"]
    sliced = pa.record_batch({"key": list("abcd"), "value": union}).slice(1, 2)
    assert values(normalise(sliced, a_map())) == [1, "y"]


def test_type_names_may_stand_beside_text() -> None:
    named = {
        "string": ("x", "x"), "LONG": ("5", 5), "double": ("1.5", 1.5), "boolean": ("true", True),
        "xml": ("<a/>", "<a/>"),
        "timestamp": ("1970-01-01T00:00:00.001Z", datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)),
        "json": ("[1]", "[1]"), "binary": ("/w==", b"\xff"), "null": (None, None), None: ("y", "y"),
    }  # fmt: skip
    texts = [text for text, _ in named.values()]
    made = run({"key": ["k"] * len(named), "value_type": list(named), "value": texts})
    assert values(made) == [value for _, value in named.values()]
    assert made.rows.column("value").to_pylist()[4] == b"\x0d<a/>"
    made = run(
        {"key": list("abcd"), "value_type": ["long", "floaty", "binary", "long"], "value": ["x", "1", "?", None]}
    )
    assert values(made) == [None]
    assert reasons(made) == {
        0: "value 'x' is not a whole number",
        1: "value '1' has the unknown value type 'floaty'",
        2: "value '?' is not base64",
    }


def test_what_is_no_scalar_is_refused_with_the_way_out() -> None:
    for column in (pa.array([[1]]), pa.array([0], pa.date32()), pa.array([{"a": 1}])):
        with pytest.raises(Invalid, match="cannot hold") as caught:
            run({"key": ["k"], "value": column})
        assert "json" in str(caught.value.hint)
    with pytest.raises(Invalid, match="typed values"):
        run({"key": ["k"], "value_type": ["long"], "value": [1]})


# -- columns ------------------------------------------------------------------------------------------


def test_missing_columns_are_named_with_what_is_there() -> None:
    with pytest.raises(Invalid, match="no such column") as caught:
        run({"keys": ["a"], "value": [1]})
    assert "perhaps columns={'key': 'keys'}; there are: keys, value" in str(caught.value)
    with pytest.raises(Invalid, match="column=tiem"):
        run({"key": ["a"], "time": [1], "value": [1]}, Kind.TEMPORAL_STATE, None, ColumnMapping(time="tiem"))
    with pytest.raises(Invalid, match="several columns"):
        run({"KEY": ["a"], "Key": ["b"], "value": [1]})
    with pytest.raises(Invalid, match="single column"):
        run({"key": ["a"]}, Kind.STATE, "long", ColumnMapping(value={"a": "b"}))
    for columns in ({}, {"key_end": [1]}, {"key_start": [1]}):
        with pytest.raises(Invalid, match="no such column"):
            run(columns | {"value": [1]}, Kind.RANGED_STATE)


def test_the_first_fault_of_a_row_is_reported_with_its_record() -> None:
    columns = {"key": [None], "effective_time": ["x"], "value": ["é"], "raw": [b"\xff"]}
    made = run(columns, Kind.TEMPORAL_STATE, mapping=ColumnMapping(extra="ignore"))
    assert reasons(made) == {0: "key is missing"}
    record = json.loads(made.rejected.column("record")[0].as_py())
    assert record == {"key": None, "effective_time": "x", "value": "é", "raw": "/w=="}


def test_records_hold_what_python_cannot() -> None:
    far = pa.array([2**40], pa.timestamp("s", "UTC"))
    fine = pa.array([1], pa.timestamp("ns", "UTC"))
    columns = {"key": pa.nulls(1, pa.string()), "value": ["v"], "far": far, "fine": fine}
    made = run(columns, mapping=ColumnMapping(extra="ignore"))
    assert f"{2**40} as timestamp" in made.rejected.column("record")[0].as_py()


def test_no_rows_are_no_rows() -> None:
    for kind in PLAIN_KINDS:
        names = (*kind.address, "value") if kind.valued else kind.address
        schema = {name: pa.array([], pa.string()) for name in names}
        assert run(schema, kind).rows.num_rows == 0


def test_a_mapping_may_be_a_dict_and_is_checked() -> None:
    assert mapping_of({"key": "id", "effective_time": "at"}) == ColumnMapping(key="id", time="at")
    assert mapping_of(None) == ColumnMapping()
    assert mapping_of({"key": "id"}, "ignore") == ColumnMapping(key="id", extra="ignore")
    with pytest.raises(Invalid, match=r"name=valeu \(one of: key, time, value"):
        mapping_of({"valeu": "v"})


def test_a_column_that_is_there_twice_is_an_error() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["a"])] * 3, names=["key", "key", "value"])
    with pytest.raises(Invalid, match="column is there more than once"):
        normalise(batch, a_map())


# -- times without a zone -----------------------------------------------------------------------------


def starts(instants: Any, zone: str) -> tuple[list[str | None], dict[int, str]]:
    """Effective times as UTC text, and why others have none."""
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["k"] * len(instants)), pa.array(instants), pa.nulls(len(instants))], names=["key", "time", "value"]
    )
    made = normalise(batch, a_map(Kind.TEMPORAL_STATE), times=time_form(zone))
    times = made.rows.column("effective_time").cast(pa.timestamp("ms")).cast(pa.string()).to_pylist()
    return times, reasons(made)


def test_times_without_a_zone_are_in_the_given_one() -> None:
    texts = ["2024-07-01 12:00", "2024-07-01T12:00:00.5", "2024-07-01", " 2024-07-01T12:00Z ", "2024-07-01T12:00+05:00"]
    times, bad = starts(texts, "Europe/Berlin")
    assert times == [
        "2024-07-01 10:00:00.000", "2024-07-01 10:00:00.500", "2024-06-30 22:00:00.000", "2024-07-01 12:00:00.000",
        "2024-07-01 07:00:00.000",
    ]  # fmt: skip
    assert bad == {}
    assert starts(["2024-07-01 12:00"], "UTC")[0] == ["2024-07-01 12:00:00.000"]


def test_a_wall_clock_time_that_is_no_instant_is_a_fault_of_its_row() -> None:
    texts = ["2024-10-27 02:30", "2024-03-31 02:30", "2024-10-27 01:30", "2024-02-30 00:00"]
    times, bad = starts(texts, "Europe/Berlin")
    assert times == ["2024-10-26 23:30:00.000"]
    problem = "is a time that clocks in Europe/Berlin show twice or never"
    assert bad == {
        0: f"time '2024-10-27 02:30' {problem}", 1: f"time '2024-03-31 02:30' {problem}",
        3: "time '2024-02-30 00:00' is not a time with a zone in the years 1 to 9999",
    }  # fmt: skip


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_naive_columns_take_the_zone(unit: str) -> None:
    column = pa.array([datetime(2024, 7, 1, 12), datetime(1969, 12, 31, 23, 59, 59), None], pa.timestamp(unit))
    times, bad = starts(column, "Europe/Berlin")
    assert times == ["2024-07-01 10:00:00.000", "1969-12-31 22:59:59.000"]
    assert bad == {2: "time is missing"}
    dates = pa.array([datetime(2024, 7, 1, 12)], pa.timestamp("ms")).cast(pa.date32())
    assert starts(dates, "Europe/Berlin")[0] == ["2024-06-30 22:00:00.000"]


def test_far_away_seconds_do_not_overflow() -> None:
    column = pa.array([2**61, 0], pa.timestamp("s"))
    for zone in ("UTC", "Europe/Berlin", "America/New_York"):
        times, bad = starts(column, zone)
        assert (len(times), list(bad)) == (1, [0])


def test_finer_than_a_millisecond_is_floored_in_a_zone_too() -> None:
    column = pa.array([-1, 1_999], pa.timestamp("us"))
    times, _ = starts(column, "Europe/Berlin")
    assert times == ["1969-12-31 22:59:59.999", "1969-12-31 23:00:00.001"]
