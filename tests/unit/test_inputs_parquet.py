"""Parquet as Spark, pandas, Polars and DuckDB write it by default is loaded as it was meant."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

import millpond
from millpond.cli.enrich.event_files import EventFiles
from millpond.errors import Invalid
from millpond.maps.inputs.formats import columnar
from millpond.maps.inputs.formats.files import Piece, find_files
from millpond.maps.inputs.mapping import mapping_of
from millpond.maps.model.new_map import new_map

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOON = datetime(2013, 2, 8, 12, 0, 0, 123456, tzinfo=UTC)
FOR_EVER = datetime(9999, 12, 31, tzinfo=UTC)
FIELDS = "temp double, seats long, price double, ok boolean, note string, day string, seen timestamp, code string"
ROW: dict[str, Any] = {
    "temp": 1.5, "seats": 7, "price": 65492907.8, "ok": True, "note": "é", "day": "2013-02-08", "seen": NOON,
    "code": "a",
}  # fmt: skip
COLUMNS = {
    "key": ["JFK", "LGA"], "effective_time": [NOON, NOON], "temp": [1.5, None], "seats": [7, None],
    "price": [Decimal("65492907.8"), None], "ok": [True, None], "note": ["é", None], "day": [date(2013, 2, 8), None],
    "seen": [NOON, FOR_EVER], "code": ["a", None],
}  # fmt: skip


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[millpond.Pond]:
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("m", kind="temporal_state", value=FIELDS)
        yield pond


def check(pond: millpond.Pond, file: Path) -> None:
    """Every value is as it was written."""
    assert pond.load_files(file, "m").rejected == 0
    assert pond.map("m").get("JFK", at=NOON) == ROW
    assert pond.map("m").get("LGA", at=NOON) == dict.fromkeys(ROW) | {"seen": FOR_EVER}


def as_spark(table: pa.Table, file: Path, version: str = "4.0.1", *more: str) -> Path:
    """A file with instants as Spark writes them by default: INT96, its version, no unit and no zone."""
    metadata = {"org.apache.spark.version": version} | dict.fromkeys((f"org.apache.spark.{name}" for name in more), "")
    plain = table.cast(pa.schema([field.with_type(_naive(field.type)) for field in table.schema]))
    with parquet.ParquetWriter(file, plain.schema, use_deprecated_int96_timestamps=True, store_schema=False) as writer:
        writer.write_table(plain)
        writer.add_key_value_metadata(metadata)
    return file


def _naive(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_naive(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _naive(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_naive(kind.value_type))
    return pa.timestamp("us") if pa.types.is_timestamp(kind) else kind


def test_spark(pond: millpond.Pond, tmp_path: Path) -> None:
    file = as_spark(pa.table(COLUMNS), tmp_path / "a.parquet")
    check(pond, file)
    (event,) = EventFiles(find_files([file])).batches()
    assert event.rows.column("seen").to_pylist() == [NOON, FOR_EVER]


def test_spark_within_structs_lists_and_maps(pond: millpond.Pond, tmp_path: Path) -> None:
    moment = pa.timestamp("us", "UTC")
    pond.create_map("n", kind="state", value="seen timestamp, all json, by json")
    value = pa.struct([("seen", moment), ("all", pa.list_(moment)), ("by", pa.map_("string", moment))])
    rows = pa.array([{"seen": NOON, "all": [NOON], "by": [("x", NOON)]}], value)
    pond.load_files(as_spark(pa.table({"key": ["a"], "value": rows}), tmp_path / "a.parquet"), "n")
    text = "2013-02-08T12:00:00.123456Z"
    assert pond.map("n").get("a") == {"seen": NOON, "all": f'["{text}"]', "by": f'{{"x": "{text}"}}'}


@pytest.mark.parametrize(("version", "more"), [("2.4.8", ()), ("3.0.3", ()), ("3.5.1", ("legacyINT96",)), ("x", ())])
def test_spark_of_another_calendar_needs_a_zone(
    pond: millpond.Pond, tmp_path: Path, version: str, more: tuple[str, ...]
) -> None:
    file = as_spark(pa.table(COLUMNS), tmp_path / "a.parquet", version, *more)
    with pytest.raises(Invalid, match=r"no zone.*zone='UTC'"):
        pond.load_files(file, "m")
    pond.load_files(file, "m", zone="UTC")
    assert pond.map("m").get("LGA", at=NOON)["seen"] == FOR_EVER


def test_pandas(pond: millpond.Pond, tmp_path: Path) -> None:
    frame = pd.DataFrame(COLUMNS, index=[3, 5])
    frame["code"] = frame["code"].astype("category")
    frame.to_parquet(tmp_path / "a.parquet")
    check(pond, tmp_path / "a.parquet")


def test_polars(pond: millpond.Pond, tmp_path: Path) -> None:
    pl.DataFrame(COLUMNS).with_columns(pl.col("code").cast(pl.Categorical)).write_parquet(tmp_path / "a.parquet")
    check(pond, tmp_path / "a.parquet")


def test_duckdb(pond: millpond.Pond, tmp_path: Path) -> None:
    table = pa.table(COLUMNS)
    with duckdb.connect() as connection:
        connection.register("rows", table)
        text = "select * replace (code::enum('a', 'b') as code, seats::hugeint::decimal(38, 0) as seats) from rows"
        connection.execute(f"copy ({text}) to '{tmp_path / 'a.parquet'}'")
    check(pond, tmp_path / "a.parquet")


@pytest.mark.parametrize("writer", ["pandas", "polars", "duckdb"])
def test_times_without_a_zone_need_one(pond: millpond.Pond, tmp_path: Path, writer: str) -> None:
    file, naive = tmp_path / "a.parquet", NOON.replace(tzinfo=None)
    columns = {name: values[:1] for name, values in COLUMNS.items()} | {"effective_time": [naive], "seen": [naive]}
    if writer == "pandas":
        pd.DataFrame(columns).to_parquet(file)
    elif writer == "polars":
        pl.DataFrame(columns).write_parquet(file)
    else:
        with duckdb.connect() as connection:
            connection.register("rows", pa.table(columns))
            connection.execute(f"copy rows to '{file}'")
    with pytest.raises(Invalid, match=r"no zone.*zone='UTC'"):
        pond.load_files(file, "m")
    pond.load_files(file, "m", zone="UTC")
    assert pond.map("m").get("JFK", at=NOON) == ROW


def test_large_rows_come_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, once, bytes_max = 16, 300, 8_000
    for name, value in (("ROWS_READ", few), ("BATCH_ROWS_MAX", once), ("BATCH_BYTES", bytes_max)):
        monkeypatch.setattr(columnar, name, value)
    definition = new_map("texts", "state", "string", "1" * 32, {})
    ignoring = mapping_of(None, "ignore")
    keys = [str(number) for number in range(1_000)]
    for size, repeated in ((2, False), (100, False), (3_000, False), (100, True)):
        values = [f"{0 if repeated else number:0{size}d}" for number in range(1_000)]
        table = pa.table({"key": keys, "other": ["x" * 1_000] * 1_000, "value": values})
        parquet.write_table(table, tmp_path / "a.parquet", row_group_size=450)
        [file] = find_files([tmp_path / "a.parquet"])
        batches = [arrived.rows for arrived in columnar.read_parquet(Piece(file), definition, ignoring)]
        found = pa.Table.from_batches([batch for batch in batches if batch is not None])
        assert found.to_pydict() == {"key": keys, "value": values}
        assert max(batch.num_rows for batch in batches if batch is not None) <= once
        assert max(batch.nbytes for batch in batches if batch is not None) <= bytes_max, (size, repeated)
        assert len(batches) < 1_100 * (size + 12) // bytes_max * 2 + 5, "batches are as large as may be"
