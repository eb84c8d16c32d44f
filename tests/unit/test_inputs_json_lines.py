"""JSON lines: the quick way and the careful way read the same language, and bad lines are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.errors import Invalid
from millpond.maps.inputs.formats import json_lines
from millpond.maps.inputs.mapping import ColumnMapping
from millpond.maps.model.definition import Kind
from tests.rings.sampling import examples
from tests.unit.test_inputs_files import a_map, read_file, reading, write


def lines(*rows: Any) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def test_values_keep_the_types_json_gives_them(tmp_path: Path) -> None:
    mixed = [1, 1.0, True, "1", None, 2**62, -0.5, "2020-01-01", "2020-01-01T00:00:00Z"]
    for group in (mixed, [1, 2], [1.5, 2], ["2020-01-01"], [1.0, 2.0]):
        file = write(tmp_path, "a.jsonl", lines(*({"key": str(at), "value": value} for at, value in enumerate(group))))
        rows, rejects = read_file(file, reading(a_map(value=None)))
        assert rejects == []
        assert [(type(row["value"]), row["value"]) for row in rows] == [(type(value), value) for value in group]


def test_keys_that_look_like_times_stay_text(tmp_path: Path) -> None:
    file = write(tmp_path, "a.jsonl", lines({"key": "2013-01-01", "value": "x"}, {"key": 7, "value": "x"}))
    assert [row["key"] for row in read_file(file)[0]] == [b"2013-01-01", b"7"]


def test_a_number_that_no_double_holds_is_not_rounded(tmp_path: Path) -> None:
    file = write(tmp_path, "a.jsonl", lines({"key": 2**63, "value": "x"}, {"key": 2**53 + 1, "value": "y"}))
    assert [row["key"] for row in read_file(file)[0]] == [b"9223372036854775808", b"9007199254740993"]


@pytest.mark.parametrize("fields", [{}, {"fields": True}])
def test_whole_numbers_beside_others_stay_what_they_are(tmp_path: Path, fields: dict[str, bool]) -> None:
    texts = ["1.5", "9007199254740993", "10000000000", "1e400"]
    file = write(tmp_path, "a.jsonl", lines(*(f'{{"key": "{text}", "value": {text}}}' for text in texts)))

    def read(value: str) -> tuple[list[Any], list[tuple[int, str]]]:
        rows, rejects = read_file(file, reading(a_map(value=f"value {value}" if fields else value)))
        return [row["value"]["value"] if fields else row["value"] for row in rows], rejects

    numbers, rejects = read("double")
    assert numbers == [1.5, 1e10]
    assert [row for row, _ in rejects] == [2, 4]
    assert "is not exact as a double" in rejects[0][1] and "is too large for a double" in rejects[1][1]
    assert read("string")[0] == texts[:3]


def test_bad_lines_are_rejected_where_they_stand(tmp_path: Path) -> None:
    text = lines(
        {"key": "a", "value": "1"}, "", "{", '{"key": "b"}{"key": "c"}', [1], '"text"', {"key": "d", "value": "2"},
        '{"key": "\\ud800", "value": "x"}', "7" * 5000, {"value": "x"}, "[" * 100_000,
    )  # fmt: skip
    rows, rejects = read_file(write(tmp_path, "a.jsonl", text.encode() + b'{"key": "\xff"}\n'))
    assert [row["key"] for row in rows] == [b"a", b"d"]
    assert [row for row, _ in rejects] == [3, 4, 5, 6, 8, 9, 10, 11, 12]
    reasons = dict(rejects)
    assert reasons[5] == "line is no JSON object"
    assert reasons[10] == "key is missing"
    assert all(reasons[row].startswith("line is no JSON") for row in (3, 4, 8, 9, 11, 12))


def test_only_bad_lines(tmp_path: Path) -> None:
    rows, rejects = read_file(write(tmp_path, "a.jsonl", "nope\nno\n"), reading(columns=ColumnMapping(key="id")))
    assert rows == []
    assert [row for row, _ in rejects] == [1, 2]


def test_a_column_that_a_later_block_leaves_out_is_null_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", 120)
    session = a_map(Kind.SESSION, None)
    records = [{"key": "a", "start": at * 1000, **({"timeout": 1} if at % 7 else {})} for at in range(40)]
    rows, rejects = read_file(write(tmp_path, "a.jsonl", lines(*records)), reading(session))
    assert rejects == []
    assert [row["end"] - row["start"] for row in rows] == [1 if at % 7 else 0 for at in range(40)]


def loaded(rows: millpond.Map, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in rows.scan(columns=["key", *columns]).read_all().to_pylist())


def test_a_column_that_only_later_lines_or_files_have_is_null_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", 60)
    folder = tmp_path / "rows"
    folder.mkdir()
    write(folder, "1.jsonl", lines(*({"key": f"{at:02}", "a": at} for at in range(9)), {"key": "09", "B": 1, "a": 2}))
    write(folder, "2.jsonl", lines({"key": "10", "b": 3}))
    write(folder, "3.json", json.dumps([{"key": "11"}]))
    with millpond.open(tmp_path / "pond") as pond:
        spread = pond.create_map("m", kind="state", value="a double, b double")
        assert pond.load_files(folder, "m").rows == 12
        assert loaded(spread, "a", "b")[8:] == [("08", 8, None), ("09", 2, 1), ("10", None, 3), ("11", None, None)]
        whole = pond.create_map("whole", kind="state", value="a double, b double")
        late = lines({"key": "1"}, {"key": "2", "value": {"a": 1}}, {"key": "3", "value": {"a": 1, "b": 2}})
        pond.load_files(write(tmp_path, "whole.jsonl", late), "whole")
        assert loaded(whole, "a", "b") == [("1", None, None), ("2", 1, None), ("3", 1, 2)]
        with pytest.raises(Invalid) as refused:
            pond.load_files(write(tmp_path, "never.jsonl", lines({"key": "b", "a": 1})), "m")
        assert refused.value.kind == "column_missing"


def test_what_lines_leave_out_does_not_depend_on_where_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", 60)
    time = "2024-01-01T00:00Z"
    events = [{"key": f"{at:02}", "time": time, "v": 1.0} for at in range(9)]
    counted = {"key": "00", "time": time, "v": 1.0, "n": 5}
    with millpond.open(tmp_path / "pond") as pond:
        counts = []
        for name, rows in (("first", [counted, *events]), ("last", [*events, counted])):
            sums = pond.create_map(name, kind="aggregate", value="n long count, v double sum", resolution="1 day")
            pond.load_files(write(tmp_path, f"{name}.jsonl", lines(*rows)), name)
            counts.append(loaded(sums, "n", "v"))
        assert counts[0] == counts[1]
        pond.create_map("s", kind="session")
        ends = [*({"key": f"{at:02}", "start": time} for at in range(9)), {"key": "99", "start": time, "end": time}]
        with pytest.raises(Invalid, match="end is missing"):
            pond.load_files(write(tmp_path, "s.jsonl", lines(*ends)), "s")


def test_values_of_maps_of_json_stay_json(tmp_path: Path) -> None:
    values = [{"b": 1, "a": [1, None]}, [1, {"x": "é"}], 7, True, '{"t": 1}', None]
    file = write(tmp_path, "a.jsonl", lines(*({"key": str(at), "value": value} for at, value in enumerate(values))))
    rows, rejects = read_file(file, reading(a_map(value="json")))
    assert rejects == []
    assert [row["value"] for row in rows] == [
        '{"b": 1, "a": [1, null]}', '[1, {"x": "é"}]', "7", "true", '{"t": 1}', None,
    ]  # fmt: skip


def test_fields_of_json_are_objects_or_text(tmp_path: Path) -> None:
    definition = a_map(value="n long, doc json")
    records = [{"key": "a", "n": 1, "doc": {"x": 1}}, {"key": "b", "n": 2, "doc": "[2]"}]
    rows, rejects = read_file(write(tmp_path, "a.jsonl", lines(*records)), reading(definition))
    assert rejects == []
    assert [row["value"] for row in rows] == [{"n": 1, "doc": '{"x": 1}'}, {"n": 2, "doc": "[2]"}]
    whole = lines({"key": "a", "value": {"n": 1, "doc": {"x": 1}}})
    rows, _ = read_file(write(tmp_path, "b.jsonl", whole), reading(definition))
    assert [row["value"] for row in rows] == [{"n": 1, "doc": '{"x": 1}'}]


def test_a_struct_may_be_an_object_or_spread(tmp_path: Path) -> None:
    definition = a_map(value="temp double, note string")
    whole = lines({"key": "a", "value": {"temp": 1, "note": "x"}}, {"key": "b", "value": None})
    rows, _ = read_file(write(tmp_path, "a.jsonl", whole), reading(definition))
    assert [row["value"] for row in rows] == [{"temp": 1.0, "note": "x"}, None]
    spread = lines({"key": "a", "temp": 1, "note": "x", "tags": [1, "two"]}, {"key": "b", "temp": None})
    how = reading(definition, columns=ColumnMapping(extra="ignore"))
    rows, _ = read_file(write(tmp_path, "b.jsonl", spread), how)
    assert [row["value"] for row in rows] == [{"temp": 1.0, "note": "x"}, {"temp": None, "note": None}]


@pytest.mark.parametrize("kind", ["double", "long"])
def test_a_column_of_booleans_is_rejects_where_numbers_belong(tmp_path: Path, kind: str) -> None:
    rows, rejects = read_file(
        write(tmp_path, "a.jsonl", lines({"key": "a", "n": True}, {"key": "b", "n": False}, {"key": "c", "n": None})),
        reading(a_map(value=f"n {kind}")),
    )
    assert [row["value"] for row in rows] == [{"n": None}]
    assert rejects == [(1, "n true is not a number"), (2, "n false is not a number")]


def test_an_array_is_read_whole_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(
        tmp_path,
        "a.json",
        "\ufeff\n[" + ",\n".join(json.dumps({"key": str(at), "value": "v"}) for at in range(5)) + ", 7]",
    )
    rows, rejects = read_file(file)
    assert len(rows) == 5
    assert rejects == [(6, "line is no JSON object")]
    with pytest.raises(Invalid, match="begins like a JSON array"):
        read_file(write(tmp_path, "b.json", "[1,"))
    monkeypatch.setattr(json_lines, "ARRAY_BYTES_MAX", 10)
    with pytest.raises(Invalid, match="too large"):
        read_file(file)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=4), st.sampled_from(["2020-01-01", "1e3", "true", ""]),
)  # fmt: skip


@pytest.mark.usefixtures("processor")
@given(st.lists(st.tuples(st.text("ab", min_size=1), scalars), min_size=1, max_size=8))
@settings(max_examples=examples(40, 150))
def test_what_was_written_is_read(tmp_path_factory: Any, rows: list[tuple[str, Any]]) -> None:
    text = lines(*({"key": key, "value": value} for key, value in rows))
    file = write(tmp_path_factory.mktemp("jsonl"), "a.jsonl", text)
    read_rows, rejects = read_file(file, reading(a_map(value=None)))
    assert rejects == []
    got = [(row["key"].decode(), type(row["value"]), row["value"]) for row in read_rows]
    assert got == [(key, type(value), value) for key, value in rows]


@pytest.mark.parametrize("misfit", ["[1]", '{"a": 1}', "[]", "true"])
@pytest.mark.parametrize("beside", ["1", "2.5", "12345678901234567168", '"7"', "1e400"])
def test_a_value_of_another_shape_is_the_fault_of_its_row(tmp_path: Path, misfit: str, beside: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"key": "a", "temp": {beside}}}\n{{"key": "b", "temp": {misfit}}}\n')
    with millpond.open(tmp_path / "pond") as pond:
        weather = pond.create_map("weather", kind="state", value="temp double")
        result = pond.load_files(path, "weather", max_rejects=2, rejects=tmp_path / "bad.jsonl")
        bad = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
        assert bad[-1]["row"] == 2 and bad[-1]["record"] == {"key": "b", "temp": json.loads(misfit)}
        assert bad[-1]["reason"].startswith("temp ")
        assert (result.rows, result.rejected) == (2 - len(bad), len(bad)) and weather.get("b") is None
        assert len(bad) == 1 + (beside == "1e400")


@pytest.mark.parametrize("beside", ["1", "2.5", '"7"', "null", "-12345678901234567890"])
@pytest.mark.parametrize(
    "exact", [2**53 - 1, 2**53 + 1, 2**63 + 2**11, 12345678901234567890, 10**22, 10**22 + 1, -(10**23)]
)
def test_whole_numbers_are_doubles_where_they_are_exact(tmp_path: Path, beside: str, exact: int) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"key": "a", "temp": {beside}}}\n{{"key": "b", "temp": {exact}}}\n')
    with millpond.open(tmp_path / "pond") as pond:
        weather = pond.create_map("weather", kind="state", value="temp double")
        pond.load_files(path, "weather", max_rejects=2)
        rows = [{"key": "c", "temp": exact}]
        weather.load(rows, max_rejects=1)
        stored = {"temp": float(exact)} if int(float(exact)) == exact else None
        assert weather.get("b") == weather.get("c") == stored
