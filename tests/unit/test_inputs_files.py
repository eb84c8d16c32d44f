"""Files are found, distinguished by their names, and read whole or in pieces alike."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from millpond.errors import Invalid, MillpondError, NotFound
from millpond.maps.inputs.formats.files import Format, Piece, find_files
from millpond.maps.inputs.formats.readers import Reading, read_piece, split_file
from millpond.maps.inputs.mapping import ColumnMapping
from millpond.maps.model.definition import Kind, MapDefinition, parse_value_type
from millpond.maps.model.one_value import python_value
from tests.rings.sampling import examples


def a_map(kind: Kind = Kind.STATE, value: str | None = "string") -> MapDefinition:
    declared = None if value is None else parse_value_type(value)
    return MapDefinition(name="m", kind=kind, incarnation="0" * 16, value=declared)


def reading(definition: MapDefinition | None = None, **options: Any) -> Reading:
    definition = definition or a_map()
    return Reading(maps={definition.name: definition}, map=definition.name, **options)


def read(pieces: list[Piece], how: Reading) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    """Rows and rejects of pieces that follow each other, positions as in the whole."""
    rows: list[dict[str, Any]] = []
    rejects: list[tuple[int, str]] = []
    done = 0
    for piece in pieces:
        last = 0
        for block in read_piece(piece, how):
            rows += block.rows.to_pylist() if block.rows is not None else []
            rejected = block.rejected.to_pydict()
            rejects += [(row + done, reason) for row, reason in zip(rejected["row"], rejected["reason"], strict=True)]
            last = max(last, block.last)
        done += last
    if how.maps["m"].value is None and how.maps["m"].kind.valued:
        rows = [row | {"value": python_value(row["value"], None)} for row in rows]
    return rows, rejects


def read_file(file: Path, how: Reading | None = None, written: str | None = None) -> Any:
    return read([Piece(find_files([file], written)[0])], how or reading())


def write(folder: Path, name: str, content: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


# -- which files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "written", "compression"),
    [
        ("a.parquet", Format.PARQUET, None),
        ("a.b.CSV", Format.CSV, None),
        ("a.tsv.gz", Format.CSV, "gzip"),
        ("a.jsonl.zst", Format.JSON_LINES, "zstd"),
        ("a.ndjson.bz2", Format.JSON_LINES, "bz2"),
        ("a.json", Format.JSON_LINES, None),
        ("a.xml.gz", Format.XML, "gzip"),
        ("a.feather", Format.ARROW, None),
    ],
)
def test_the_format_follows_from_the_name(tmp_path: Path, name: str, written: Format, compression: str | None) -> None:
    (found,) = find_files([write(tmp_path, name, "x")])
    assert (found.format, found.compression, found.size) == (written, compression, 1)


def test_folders_and_patterns(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "_SUCCESS", ".part.csv.crc", "deep/c.csv", "_tmp/d.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path, name, "key,value\n")
    names = [Path(file.path).name for file in find_files([tmp_path])]
    assert names == ["a.csv", "b.csv", "c.csv"]
    assert [Path(file.path).name for file in find_files([str(tmp_path / "*.csv")])] == ["a.csv", "b.csv"]
    assert [Path(file.path).name for file in find_files([f"{tmp_path}/**/c.csv"])] == ["c.csv"]
    ordered = find_files([tmp_path / "b.csv", tmp_path / "a.csv"])
    assert [Path(file.path).name for file in ordered] == ["b.csv", "a.csv"]


def test_a_file_whose_name_looks_like_a_pattern_is_found_by_its_name(tmp_path: Path) -> None:
    file = write(tmp_path, "year=[1].csv", "key,value\na,b\n")
    assert read_file(file)[0] == [{"key": b"a", "value": "b"}]


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        ("none.csv", NotFound, "file does not exist"),
        ("none*.csv", NotFound, "no file is named so"),
        ("empty", NotFound, "the folder holds no files"),
        ("rows.dat", Invalid, "cannot tell how the file is written"),
        ("rows", Invalid, "cannot tell how the file is written"),
        ("rows.parquet.gz", Invalid, "unpack it first"),
        ("s3://bucket/rows.parquet", Invalid, "only files of this machine"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, target: str, error: type[MillpondError], message: str) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("rows.dat", "rows", "rows.parquet.gz"):
        write(tmp_path, name, "x")
    with pytest.raises(error) as caught:
        find_files([target if "://" in target else tmp_path / target])
    assert message in str(caught.value)
    assert target in str(caught.value)


def test_a_format_may_be_named(tmp_path: Path) -> None:
    file = write(tmp_path, "rows.dat", "key,value\na,b\n")
    assert read_file(file, written="CSV")[0] == [{"key": b"a", "value": "b"}]
    with pytest.raises(Invalid, match="one of: parquet, csv, jsonl, arrow, xml"):
        find_files([file], "excel")
    with pytest.raises(Invalid, match="no parquet that can be read"):
        read_file(file, written="parquet")
    with pytest.raises(Invalid, match="no arrow that can be read"):
        read_file(file, written="arrow")


# -- every format says the same -----------------------------------------------------------------------

ROWS = [
    {"key": "007", "value": "x"}, {"key": "", "value": ""}, {"key": "é\n\"'", "value": None}, {"key": "2013-01-01",
     "value": "1.0"},
]  # fmt: skip


def as_csv(rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_NOTNULL if hasattr(csv, "QUOTE_NOTNULL") else csv.QUOTE_ALL)
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer.writerow(names)
    for row in rows:
        # Python's writer before 3.12 cannot leave one cell of a record without quotes.
        cells = ["" if row.get(name) is None else '"' + str(row[name]).replace('"', '""') + '"' for name in names]
        out.write(",".join(cells) + "\n")
    return out.getvalue()


def as_json_lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    "name", ["r.parquet", "r.arrow", "r.arrows", "r.csv", "r.csv.gz", "r.jsonl", "r.jsonl.bz2", "r.json"]
)
def test_rows_are_the_same_from_every_format(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    table = pa.Table.from_pylist([{"extra": number} | row for number, row in enumerate(ROWS)])
    if name == "r.parquet":
        parquet.write_table(table, file)
    elif name == "r.arrow":
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    elif name == "r.arrows":
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    else:
        text = as_csv(table.to_pylist()) if ".csv" in name else as_json_lines(table.to_pylist())
        if name == "r.json":
            text = json.dumps(table.to_pylist(), indent=1)
        packed = {".gz": gzip.compress, ".bz2": bz2.compress}.get(file.suffix, bytes)(text.encode())
        file.write_bytes(packed)
    how = reading(columns=ColumnMapping(extra="ignore"))
    assert read_file(file, how) == ([row | {"key": str(row["key"]).encode()} for row in ROWS], [])
    with pytest.raises(Invalid, match="columns=extra"):
        read_file(file)


@pytest.mark.parametrize(
    "name", ["cut.csv.gz", "cut.jsonl.gz", "cut.xml.gz", "cut.parquet", "cut.arrow", "none.csv.gz"]
)
def test_damaged_files_are_named(tmp_path: Path, name: str) -> None:
    whole = gzip.compress(b"key,value\n" + b"abc,def\n" * 1000) if name.endswith(".gz") else b"ARROW1\0\0PAR1"
    file = write(tmp_path, name, b"key,value\n" if name == "none.csv.gz" else whole[: len(whole) - 20])
    with pytest.raises(Invalid) as caught:
        read_file(file)
    assert caught.value.kind in ("input_damaged", "xml_malformed")
    assert caught.value.values["path"] == str(file)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("a.parquet", "name"), ("a.arrow", "name"), ("a.arrows", "name"), ("a.arrow", "offsets"), ("a.arrows", "offsets")],
)
def test_a_file_whose_bytes_are_no_rows_is_damaged(tmp_path: Path, name: str, wrong: str) -> None:
    texts = pa.array(["a", "b", "c"])
    if wrong == "offsets":
        texts = pa.StringArray.from_buffers(
            3, pa.array([0, 5, 1, 7], pa.int32()).buffers()[1], pa.py_buffer(b"abcdefg")
        )
    table, file = pa.table({"key": ["a", "b", "c"], "value": texts}), tmp_path / name
    if name == "a.parquet":
        parquet.write_table(table, file, store_schema=False)
    else:
        with (pa.ipc.new_file if name == "a.arrow" else pa.ipc.new_stream)(file, table.schema) as writer:
            writer.write_table(table)
    if wrong == "name":
        file.write_bytes(file.read_bytes().replace(b"value", b"val\xff\xfe"))
    with pytest.raises(Invalid) as caught:
        read_file(file)
    assert (caught.value.kind, caught.value.values["path"]) == ("input_damaged", str(file))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_a_missing_column_is_reported_with_those_that_are_there(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    if name == "a.parquet":
        parquet.write_table(pa.table({"key": ["a"], "temperature": ["b"]}), file)
    else:
        file.write_text("key,temperature\na,b\n" if name == "a.csv" else '{"key":"a","temperature":"b"}\n')
    with pytest.raises(Invalid) as caught:
        read_file(file, reading(columns=ColumnMapping(value="temprature")))
    message = str(caught.value)
    assert f"path={file} column=temprature" in message
    assert "did you mean 'temperature'? " in message
    assert "there are: key, temperature" in message


def test_rows_need_a_map(tmp_path: Path) -> None:
    file = write(tmp_path, "a.csv", "key,value\na,b\n")
    with pytest.raises(Invalid, match="does not say which map"):
        read_file(file, Reading(maps={"m": a_map()}))
    with pytest.raises(NotFound, match="no such map"):
        read_file(file, Reading(maps={"m": a_map()}, map="x"))


# -- pieces -------------------------------------------------------------------------------------------

cells = st.one_of(st.none(), st.text('ab\n\r",;\té', max_size=6))
some_rows = st.lists(st.fixed_dictionaries({"key": cells, "value": cells}), min_size=1, max_size=12)


@pytest.mark.usefixtures("processor")
@given(some_rows, st.integers(1, 40))
@settings(max_examples=examples(25, 100))
def test_splits_of_a_csv_hold_every_record_once(tmp_path_factory: Any, rows: list[dict[str, Any]], size: int) -> None:
    file = write(tmp_path_factory.mktemp("csv"), "r.csv", as_csv(rows))
    (found,) = find_files([file])
    pieces = split_file(found, size)
    assert [piece.start for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
    assert read(pieces, reading()) == read([Piece(found)], reading())


@pytest.mark.usefixtures("processor")
@given(some_rows, st.integers(1, 40), st.sets(st.integers(0, 11), max_size=3))
@settings(max_examples=examples(25, 100))
def test_splits_of_json_lines_hold_every_line_once(
    tmp_path_factory: Any, rows: list[dict[str, Any]], size: int, spoilt: set[int]
) -> None:
    lines = [line if number not in spoilt else "{" for number, line in enumerate(as_json_lines(rows).splitlines())]
    file = write(tmp_path_factory.mktemp("jsonl"), "r.jsonl", "\n".join(lines))
    (found,) = find_files([file])
    whole = read([Piece(found)], reading())
    assert read(split_file(found, size), reading()) == whole
    good = [row for number, row in enumerate(rows) if number not in spoilt and row["key"] is not None]
    assert [row["value"] for row in whole[0]] == [row["value"] for row in good]


def test_pieces_of_parquet_are_row_groups(tmp_path: Path) -> None:
    table = pa.table({"key": [str(number) for number in range(100)], "value": ["x"] * 100})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    (found,) = find_files([tmp_path / "a.parquet"])
    pieces = split_file(found, 1)
    assert len(pieces) == 15
    assert [row["key"] for row in read(pieces, reading())[0]] == [str(number).encode() for number in range(100)]
    parquet.write_table(table.slice(0, 0), tmp_path / "none.parquet")
    assert read(split_file(find_files([tmp_path / "none.parquet"])[0], 1), reading()) == ([], [])


def test_what_is_packed_or_an_array_is_one_piece(tmp_path: Path) -> None:
    for name, content in (
        ("a.csv.gz", gzip.compress(as_csv(ROWS).encode())),
        ("a.json", json.dumps(ROWS, indent=1).encode()),
        ("a.xml", b"<plan-b>\n</plan-b>"),
    ):
        (found,) = find_files([write(tmp_path, name, content)])
        assert split_file(found, 5) == [Piece(found)]
