"""Files loaded by Spark mean what they mean when one process loads them, to the last reject."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import millpond
from millpond import spark as mp
from millpond.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PIECE_BYTES = 2_000
"""So small that every file is read by several tasks."""


def a_pond(folder: Path) -> millpond.Pond:
    pond = millpond.open(folder)
    pond.create_map("weather", kind="temporal_state", value="temp double, note string")
    pond.create_map("city", kind="state")
    pond.create_map("blocks", kind="ranged_state", value="string")
    pond.create_map("airborne", kind="session")
    return pond


def rows(pond: millpond.Pond) -> dict[str, Any]:
    return {pond_map.name: rows_of(pond_map) for pond_map in pond.maps()}


def rows_of(pond_map: millpond.Map) -> list[str]:
    with pond_map.shard.view() as view:
        return sorted(repr(row) for batch in view.read_rows() for row in batch.to_pylist())


def both(
    spark: SparkSession, tmp_path: Path, files: list[Path], map_name: str | None, **options: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Load here and with Spark; the rejects and the rows, which agree."""
    loaded = []
    for how in ("here", "spark"):
        rejects = tmp_path / f"{how}.jsonl"
        with a_pond(tmp_path / f"pond-{how}") as pond:
            if how == "here":
                result = pond.load_files(files, map_name, rejects=rejects, **options)
            else:
                result = mp.load(files, pond, map_name, rejects=rejects, piece_bytes=PIECE_BYTES, **options)
            lines = [json.loads(line) for line in rejects.read_text().splitlines()]
            assert result.rejected == len(lines)
            loaded.append((lines, rows(pond)))
    assert loaded[0] == loaded[1]
    return loaded[0]


def weather_lines(count: int) -> list[dict[str, Any]]:
    return [
        {
            "origin": f"{number % 50:03d}", "at": f"2013-01-01T{number // 60 % 24:02d}:{number % 60:02d}:00Z",
            "temp": number / 4, "note": f"line\n{number}" if number % 7 == 0 else None,
        }
        for number in range(count)
    ]  # fmt: skip


COLUMNS = {"key": "origin", "time": "at"}


def test_csv_is_cut_between_records(spark: SparkSession, tmp_path: Path) -> None:
    lines = ["origin,at,temp,note"]
    for number, row in enumerate(weather_lines(400)):
        note = "" if row["note"] is None else f'"{row["note"]}"'
        lines.append(f"{row['origin']},{row['at']},{'warm' if number % 97 == 5 else row['temp']},{note}")
        if number % 150 == 149:
            lines.append("cut off")
    file = tmp_path / "w.csv"
    file.write_text("\n".join(lines))
    rejects, loaded = both(spark, tmp_path, [file], "weather", columns=COLUMNS, max_rejects=10)
    assert [reject["row"] for reject in rejects] == [6, 103, 151, 201, 298, 302, 396]
    assert len(loaded["weather"]) == 395


def test_json_lines_and_several_files(spark: SparkSession, tmp_path: Path) -> None:
    files = []
    for number in range(2):
        texts = [json.dumps(row) for row in weather_lines(150 + number)]
        texts[20] = "{"
        files.append(tmp_path / f"w{number}.jsonl")
        files[-1].write_text("\n".join(texts))
    rejects, _ = both(spark, tmp_path, files, "weather", columns=COLUMNS, max_rejects=2)
    assert [(reject["source"], reject["row"]) for reject in rejects] == [(str(file), 21) for file in files]


def test_parquet_is_cut_between_row_groups(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.Table.from_pylist(weather_lines(300))
    file = tmp_path / "w.parquet"
    parquet.write_table(table, file, row_group_size=40)
    rejects, loaded = both(spark, tmp_path, [file], "weather", columns=COLUMNS)
    assert rejects == []
    assert len(loaded["weather"]) == 300


def test_xml_feeds_many_maps(spark: SparkSession, tmp_path: Path) -> None:
    files = []
    for number in range(3):
        records = "\n".join(
            f"<reference><map>city</map><key>{number}-{item}</key><value>v</value></reference>"
            f"<reference><map>blocks</map><from>{item}</from><to>{item + number}</to><value>b</value></reference>"
            for item in range(20)
        )
        files.append(tmp_path / f"r{number}.xml")
        files[-1].write_text(
            f"<referenceData>\n{records}\n<session><map>airborne</map><key>k</key>"
            f"<time>2020-01-0{number + 1}T00:00:00Z</time><timeout>1h</timeout></session>\n"
            "<reference><map>nowhere</map></reference>\n</referenceData>"
        )
    rejects, loaded = both(spark, tmp_path, files, None, max_rejects=3)
    assert [reject["row"] for reject in rejects] == [23, 23, 23]
    assert {name: len(rows) for name, rows in loaded.items()} == {
        "airborne": 3, "blocks": 20 * 3, "city": 60, "weather": 0,
    }  # fmt: skip


def test_a_file_that_cannot_be_read_fails_the_load_as_it_does_here(spark: SparkSession, tmp_path: Path) -> None:
    good, bad = tmp_path / "a.xml", tmp_path / "b.xml"
    good.write_text("<plan-b><state><map>city</map><key>a</key><value>b</value></state></plan-b>")
    bad.write_text("<plan-b>\n<state></plan-b>")
    with a_pond(tmp_path / "pond") as pond:
        with pytest.raises(millpond.Invalid) as caught:
            mp.load([good, bad], pond)
        assert caught.value.kind == "xml_malformed"
        assert (caught.value.values["path"], caught.value.values["line"]) == (str(bad), 2)
        assert rows_of(pond.map("city")) == []
        assert list((tmp_path / "pond" / "writer").iterdir()) == []


def test_too_many_rejects_fail_the_load(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "c.csv"
    file.write_text("key,value\n" + "x,1\n" * 1000 + ",2\n")
    with a_pond(tmp_path / "pond") as pond:
        with pytest.raises(millpond.Invalid, match=r"c.csv row 1001: key is missing"):
            mp.load(file, pond, "city", piece_bytes=PIECE_BYTES)
        assert rows_of(pond.map("city")) == []


WRITTEN_AS = "spark.sql.parquet.outputTimestampType"


def test_parquet_of_spark_with_its_defaults_needs_no_zone(spark: SparkSession, tmp_path: Path) -> None:
    noon, end = datetime(2013, 2, 8, 12, 0, 0, 123456, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
    frame = spark.createDataFrame(
        [("JFK", noon, noon), ("LGA", noon, end)], "key string, time timestamp, value timestamp"
    )
    spark.conf.set(WRITTEN_AS, "INT96")  # Spark's default until it is another
    try:
        frame.coalesce(1).write.parquet(str(tmp_path / "rows"))
    finally:
        spark.conf.unset(WRITTEN_AS)
    (file,) = (tmp_path / "rows").glob("*.parquet")
    assert "int96" in str(parquet.ParquetFile(file).schema)
    with millpond.open(tmp_path / "pond") as pond:
        seen = pond.create_map("seen", kind="temporal_state", value="timestamp")
        pond.load_files(tmp_path / "rows", "seen")
        assert [seen.get(key, at=noon) for key in ("JFK", "LGA")] == [noon, end]


def test_files_are_named_by_texts_and_paths(spark: SparkSession, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(f"key,value\n{name},1\n")
    one, other = tmp_path / "a.csv", str(tmp_path / "b.csv")
    with a_pond(tmp_path / "pond") as pond:
        named: list[tuple[Any, int]] = [(one, 1), (other, 1), ([one, other], 2), ((other,), 1)]
        for files, count in named:
            assert mp.load(files, pond=pond, map="city", again=True).rows == count
        assert mp.load(str(tmp_path / "*.csv"), pond=pond, map="city", again=True, session=spark).rows == 2
        two = spark.createDataFrame([("c", 1), ("d", 2)], ["name", "value"])
        assert mp.load(two, pond=pond, map="city", key="name").rows == 2
        assert len(rows(pond)["city"]) == 4


@pytest.mark.parametrize("wrong", [5, None, {"key": ["a"]}, ["a.csv", 5], b"a.csv"])
def test_what_is_no_frame_and_no_file_is_refused(spark: SparkSession, wrong: Any) -> None:
    with pytest.raises(Invalid, match="list of paths") as caught:
        mp.load(wrong, pond="pond", map="city")
    assert caught.value.kind == "data_unknown"
    assert caught.value.values["value"] == repr(wrong[1] if isinstance(wrong, list) else wrong)


def test_what_the_other_form_is_told_is_refused(spark: SparkSession) -> None:
    with pytest.raises(Invalid, match="epoch") as of_files:
        mp.load("a.csv", pond="pond", map="city", epoch=3)
    with pytest.raises(Invalid, match="zone") as of_frame:
        mp.load(spark.range(1), pond="pond", map="city", zone="UTC")
    assert {of_files.value.kind, of_frame.value.kind} == {"load_option"}
