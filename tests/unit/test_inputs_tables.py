"""Rows in memory of every form become record batches."""

from __future__ import annotations

import itertools
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from millpond.errors import Invalid
from millpond.maps.inputs.mapping import ColumnMapping
from millpond.maps.inputs.normalise import normalise
from millpond.maps.inputs.tables import BATCH_ROWS_MAX, batches_of
from millpond.maps.model.definition import Kind, MapDefinition, parse_value_type
from millpond.maps.model.one_value import python_value

ROWS = [{"key": "a", "value": 1}, {"key": "b", "value": 2}]
TABLE = pa.Table.from_pylist(ROWS)


def rows_of(data: Any) -> list[dict[str, Any]]:
    return [row for batch in batches_of(data) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    "data",
    [
        TABLE,
        TABLE.to_batches()[0],
        TABLE.to_reader(),
        TABLE.to_batches(),
        [TABLE.slice(0, 1), TABLE.slice(1)],
        ds.dataset(TABLE),
        ds.dataset(TABLE).scanner(),
        pd.DataFrame(ROWS),
        pl.DataFrame(ROWS),
        pl.DataFrame(ROWS, schema={"key": pl.Categorical, "value": pl.Int8}),
        ROWS,
        tuple(ROWS),
        iter(ROWS),
        {"key": ["a", "b"], "value": [1, 2]},
        {"key": pa.array(["a", "b"]), "value": pa.chunked_array([[1], [2]])},
        {"key": pd.Series(["a", "b"]), "value": np.array([1, 2])},
        {"key": pl.Series(["a", "b"]), "value": range(1, 3)},
    ],
    ids=itertools.count(),
)
def test_every_holder_of_rows_is_read(data: Any) -> None:
    assert rows_of(data) == ROWS


def test_a_query_of_duckdb_is_read() -> None:
    with duckdb.connect() as connection:
        assert rows_of(connection.from_arrow(TABLE)) == ROWS


@pytest.mark.parametrize("data", [[], {}, iter(()), TABLE.slice(0, 0), pd.DataFrame()])
def test_nothing_is_no_rows(data: Any) -> None:
    assert rows_of(data) == []


def test_batches_stay_small_enough() -> None:
    table = pa.table({"key": np.arange(2 * BATCH_ROWS_MAX + 5)})
    sizes = [batch.num_rows for batch in batches_of(table)]
    assert sizes == [BATCH_ROWS_MAX, BATCH_ROWS_MAX, 5]


def test_a_key_that_only_some_dicts_have_is_not_lost() -> None:
    assert rows_of([{"key": "a"}, {"key": "b", "value": 2}]) == [{"key": "a", "value": None}, {"key": "b", "value": 2}]


def test_the_index_of_a_pandas_frame_comes_along_when_it_has_a_name() -> None:
    frame = pd.DataFrame({"value": [1]}, index=pd.Index(["a"], name="key"))
    assert rows_of(frame) == [{"value": 1, "key": "a"}]


@pytest.mark.parametrize(
    "values",
    [
        [1, 1.0, True, "1", b"1", None, datetime(2020, 1, 1, tzinfo=UTC)],
        [1, 2.5],
        [None, 1, "x"],
        [2**63 - 1, -(2**63), 0.1],
    ],
)
def test_values_of_several_types_keep_them(values: list[object]) -> None:
    definition = MapDefinition(name="m", kind=Kind.STATE, incarnation="0" * 16)
    rows = [{"key": str(number), "value": value} for number, value in enumerate(values)]
    (batch,) = batches_of(rows)
    made = normalise(batch, definition)
    got = [python_value(value, None) for value in made.rows.column("value").to_pylist()]
    assert [(type(value), value) for value in got] == [(type(value), value) for value in values]


def test_objects_for_maps_of_json_keep_their_own_keys() -> None:
    values = [{"x": 1}, {"y": [1, "é"]}, [1, {}], 7, True, '{"t": 1}', None]
    rows = [{"key": str(number), "value": value} for number, value in enumerate(values)]
    definition = MapDefinition(name="m", kind=Kind.STATE, incarnation="0" * 16, value=parse_value_type("json"))
    (batch,) = batches_of(rows, definition)
    assert normalise(batch, definition).rows.column("value").to_pylist() == [
        '{"x": 1}', '{"y": [1, "é"]}', "[1, {}]", "7", "true", '{"t": 1}', None,
    ]  # fmt: skip


def test_fields_of_json_are_spread_or_whole() -> None:
    value = parse_value_type("n long, doc json")
    definition = MapDefinition(name="m", kind=Kind.STATE, incarnation="0" * 16, value=value)
    spread = [{"key": "a", "n": 1, "d": {"x": 1}}, {"key": "b", "n": 2, "d": [2]}]
    mapping = ColumnMapping(value={"doc": "d"})
    (batch,) = batches_of(spread, definition, mapping)
    records = [{"n": 1, "doc": '{"x": 1}'}, {"n": 2, "doc": "[2]"}]
    assert normalise(batch, definition, mapping).rows.column("value").to_pylist() == records
    (batch,) = batches_of([{"key": "a", "value": {"n": 1, "doc": {"x": 1}}}], definition)
    assert normalise(batch, definition).rows.column("value").to_pylist() == records[:1]


def test_a_number_too_wide_for_64_bits_is_its_rows_fault() -> None:
    definition = MapDefinition(name="m", kind=Kind.STATE, incarnation="0" * 16)
    (batch,) = batches_of([{"key": "a", "value": 1}, {"key": "b", "value": 2**70}])
    made = normalise(batch, definition)
    assert made.rows.num_rows == 1
    assert made.rejected.column("reason").to_pylist() == ["value 1180591620717411303424 does not fit 64 bits"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (7, "int"),
        ("rows.csv", "millpond load MAP FILE"),
        ([1, 2], "a dict for each row"),
        ([{"key": "a"}, "b"], "row is no dict"),
        ({"key": "a", "value": 1}, "column is a single value"),
        ({"key": ["a", "b"], "value": [1]}, "different lengths. key=2 value=1"),
        ({"value": [{"a": 1}, [2]]}, "column=value"),
        (pd.DataFrame({"value": [1, "x"]}), "give each column one type"),
        (pl.LazyFrame(ROWS), "collect it first"),
    ],
)
def test_input_without_rows_is_an_error_that_names_the_way_out(data: Any, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        rows_of(data)
    assert message in str(caught.value)


@pytest.mark.parametrize("other", [np.int64(5), np.bool_(True), np.str_("a"), np.float32(1)])
def test_datetimes_of_numpy_beside_its_other_scalars_are_refused_before_arrow_sees_them(other: Any) -> None:
    for values in ([np.datetime64("2020-01-01", "ms"), other], [np.datetime64("NaT"), None, other]):
        with pytest.raises(Invalid) as caught:
            rows_of({"key": values})
        assert caught.value.kind == "column_values"


BELOW = (
    lambda time, other: [[time, other]], lambda time, other: [[time], None, [other]],
    lambda time, other: [{"x": time}, {"x": other}], lambda time, other: [[{"x": time}], [{"x": other}]],
    lambda time, other: [np.array([time, other], object)], lambda time, other: np.array([other, time, None], object),
    lambda time, other: pd.Series([time, other], dtype=object), lambda time, other: pd.Categorical([time, other]),
)  # fmt: skip


@pytest.mark.parametrize("form", BELOW, ids=itertools.count())
def test_they_are_refused_in_lists_dicts_and_arrays_of_objects_too(form: Any) -> None:
    column = form(np.datetime64("2020-01-01", "ms"), np.int64(5))
    for data in ({"key": column}, *([pd.DataFrame({"key": column})] if hasattr(column, "dtype") else [])):
        with pytest.raises(Invalid) as caught:
            rows_of(data)
        assert caught.value.kind == "column_values"
    apart = {"key": [{"time": np.datetime64("2020-01-01", "ms"), "number": np.float64(5)}]}
    with suppress(Invalid):  # Arrow says of itself what it cannot read
        rows_of(apart)


AWARE = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("missing", [None, pd.NaT, pd.NA, np.nan], ids=str)
@pytest.mark.parametrize("other", [datetime(2024, 1, 1), 1_700_000_000_000, 1.7e12, "2024-01-01T00:00Z"], ids=str)
def test_what_stands_beside_times_is_none_in_any_holder(other: Any, missing: Any) -> None:
    values = [AWARE, other, missing]
    series = pd.Series(values, dtype=object)
    frame = pd.DataFrame({"value": 1, "key": series}).set_index(pd.Index(list("abc"), name="name"))
    holders = [frame, frame[["key"]].reset_index(drop=True), {"key": series}, {"key": np.array(values, object)}]
    if missing is not np.nan:
        holders.append([{"key": value} for value in values])
    for data in holders:
        assert [row["key"] for row in rows_of(data)] == [AWARE, other, None]
    assert [row["name"] for row in rows_of(frame)] == ["a", "b", "c"]
