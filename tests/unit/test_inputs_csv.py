"""CSV: nothing is guessed, and text that is not a record is reported by its place."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from millpond.errors import Invalid
from millpond.maps.inputs.formats import delimited
from millpond.maps.inputs.formats.delimited import CsvForm, csv_form, holds_long_records
from millpond.maps.inputs.formats.files import find_files
from millpond.maps.inputs.mapping import ColumnMapping
from millpond.maps.model.definition import Kind
from tests.unit.test_inputs_files import a_map, read_file, reading, write


@pytest.mark.parametrize(
    "text",
    [
        "key,value\n007,1\n", "\ufeffkey,value\r\n007,1\r\n", "key;value\n007;1", "key\tvalue\n007\t1\n",
        "key|value\n007|1\n", '"key","value"\n"007","1"\n', "\n\nkey,value\n\n007,1\n\n", "value,a b,key\n1,x,007\n",
        'key,value,"no,te"\n007,1,"a\nb"\n',
    ],
)  # fmt: skip
def test_csv_as_people_write_it(tmp_path: Path, text: str) -> None:
    how = reading(columns=ColumnMapping(extra="ignore"))
    assert read_file(write(tmp_path, "a.csv", text), how) == ([{"key": b"007", "value": "1"}], [])


def test_an_empty_cell_is_null_and_a_quoted_one_is_empty(tmp_path: Path) -> None:
    file = write(tmp_path, "a.csv", 'key,value\na,\nb,""\nc,NA\n"",x\n,y\n')
    rows, rejects = read_file(file, reading(null="NA"))
    assert [(row["key"], row["value"]) for row in rows] == [(b"a", None), (b"b", ""), (b"c", None), (b"", "x")]
    assert rejects == [(5, "key is missing")]


def test_numbers_and_times_are_read_by_the_map(tmp_path: Path) -> None:
    definition = a_map(Kind.TEMPORAL_STATE, "temp double, count long, dry boolean")
    file = write(
        tmp_path, "a.csv",
        "id,when,temp,count,dry\n1,2020-01-01T00:00Z,1.5,7,true\n1,1577840400000,,-3,0\n1,never,1,1,1\n1,1577840400001,1,1.5,1\n",
    )  # fmt: skip
    rows, rejects = read_file(file, reading(definition, columns=ColumnMapping(key="id", time="when")))
    assert [(row["effective_time"], row["value"]) for row in rows] == [
        (1577836800000, {"temp": 1.5, "count": 7, "dry": True}),
        (1577840400000, {"temp": None, "count": -3, "dry": False}),
    ]
    assert [row for row, _ in rejects] == [3, 4]
    assert rejects[1][1] == "count '1.5' is not a whole number"


def test_records_with_another_number_of_cells_are_rejected_where_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 64)
    lines = ["key,value"] + [f"k{number},v" if number % 10 else f"k{number}" for number in range(1, 101)]
    lines[45] = ",v"
    rows, rejects = read_file(write(tmp_path, "a.csv", "\n".join(lines) + "\n"))
    assert len(rows) == 89
    assert [row for row, _ in rejects] == [10, 20, 30, 40, 45, 50, 60, 70, 80, 90, 100]
    assert rejects[0][1] == "record has 1 cells, the first one has 2"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\n\n", "the file is empty"),
        (b"key,value\na,\xff\n", "the file is not UTF-8"),
        (b"k\xe9y,value\n", "iconv -f latin1"),
        ("key,value\n".encode("utf-16"), "iconv -f utf-16"),
        (b"key,key,value\n1,2,3\n", "column is there more than once"),
        (b"a,b\n1,2\n", "there are: a, b"),
    ],
)
def test_files_that_are_no_csv(tmp_path: Path, content: bytes, message: str) -> None:
    file = write(tmp_path, "a.csv", content)
    with pytest.raises(Invalid) as caught:
        read_file(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "long"),
    [
        ("a,b\n1,2\n", False), ('a,b\n"1","2"\n', False), ('a,b\n"1\n",2\n', True), ('a,b\n"x""\ny",2\n', True),
        ('a,b\n"x""",2\n', False), ('a,b\n1,"' + "x" * 100 + '\n"', True), ('"' + "\n" * 100, True),
    ],
)  # fmt: skip
def test_records_of_several_lines_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, long: bool
) -> None:
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 16)
    (found,) = find_files([write(tmp_path, "a.csv", text)])
    assert holds_long_records(found) is long


def test_the_form_of_a_file_is_declared(tmp_path: Path) -> None:
    (found,) = find_files([write(tmp_path, "a.csv", '\ufeff"a,b";c;d\n1;2;3\n')])
    assert csv_form(found) == CsvForm(("a,b", "c", "d"), ";")


def test_a_header_alone_is_no_rows(tmp_path: Path) -> None:
    for text in ("key,value\n", "key,value"):
        assert read_file(write(tmp_path, "a.csv", text)) == ([], [])


def test_a_quote_that_is_never_closed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 64)
    file = write(tmp_path, "a.csv", 'key,value\na,"b\n' + "c,d\n" * 100)
    with pytest.raises(Invalid, match="never closed"):
        read_file(file)


@pytest.mark.parametrize(
    ("text", "row", "problem"),
    [
        ('a,1\nb,"x\nc,2\n', 2, "never closed"),
        ('a,1\nb,"say \\"hi\\" now"\n', 2, "behind a closing quote"),
        ('b,"5\\""\nc,1\n', 1, "never closed"),
        ('b,"5\\""\nc,1\nd,"6\\""\n', 1, "behind a closing quote"),
        ('b,"C:\\dir\\"\nc,"a ""b"" \\"""\n', 0, ""),
        ('b,5" pipe\nc,6"\n', 0, ""),
        (f'b,"{"x" * 200_000}\\"\n', 0, ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("packed", [False, True])
def test_quotes_enclose_a_cell_or_end_the_load(tmp_path: Path, text: str, row: int, problem: str, packed: bool) -> None:
    content = f"key,value\n{text}".encode()
    file = write(tmp_path, "a.csv.gz" if packed else "a.csv", gzip.compress(content) if packed else content)
    if problem:
        with pytest.raises(Invalid, match=problem) as refused:
            read_file(file)
        assert (refused.value.kind, refused.value.values["row"]) == ("input_damaged", row)
        return
    rows, rejects = read_file(file)
    assert (len(rows), rejects) == (text.count("\n"), [])
