"""A struct has the fields of its map, as a table has its columns; what is missing is named, never null in silence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import millpond

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.maps.map import Map


@pytest.fixture
def readings(tmp_path: Path) -> Map:
    pond = millpond.open(tmp_path / "pond")
    return pond.create_map("readings", kind="state", value="temp double, code string")


@pytest.mark.parametrize(
    "names", [("tmp", "code"), ("temp",), ("t", "c"), ()], ids=lambda names: " ".join(names) or "-"
)
def test_a_struct_without_the_fields_of_the_map_is_refused(readings: Map, names: tuple[str, ...]) -> None:
    rows = pa.array([dict.fromkeys(names, 1)], pa.struct([(name, pa.int64()) for name in names]))
    missing = [name for name in ("temp", "code") if name not in names]
    with pytest.raises(millpond.Invalid, match="has not the fields") as caught:
        readings.load(pa.table({"key": ["a"], "value": rows}))
    values = caught.value.values
    assert (values["column"], values["missing"]) == ("value", ", ".join(missing))
    assert values.get("unexpected", "") == ", ".join(name for name in names if name not in ("temp", "code"))
    assert ("rename 'tmp' to 'temp'" in str(caught.value.hint)) == ("tmp" in names)


def test_a_struct_with_other_fields_is_refused(readings: Map, tmp_path: Path) -> None:
    row = {"temp": 1.0, "code": "x", "Temp": 2.0, "wind": 3.0}
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"key": "a", "value": row}))
    for load in (
        lambda: readings.load([{"key": "a", "value": row}]),
        lambda: millpond.open(tmp_path / "pond").load_files(file, "readings"),
    ):
        with pytest.raises(millpond.Invalid, match="fields that the map has not") as caught:
            load()
        assert caught.value.values["unexpected"] == "Temp, wind"
        assert "temp, code" in str(caught.value.hint)
    assert readings.get("a") is None


def test_all_missing_columns_of_fields_are_reported_at_once(readings: Map) -> None:
    with pytest.raises(millpond.Invalid, match="no such columns") as caught:
        readings.load(pa.table({"key": ["a"], "Tmp": [1], "value_code": ["x"], "x": [1]}), columns={"value": {}})
    assert caught.value.values["column"] == "temp, code"


@pytest.mark.parametrize("rows", [[{"temp": 1, "cde": "x"}], [{"temp": 1}]], ids=["misspelt", "missing"])
def test_dicts_and_json_lines_are_refused_alike(readings: Map, tmp_path: Path, rows: list[dict[str, Any]]) -> None:

    with pytest.raises(millpond.Invalid, match="has not the fields"):
        readings.load([{"key": "a", "value": row} for row in rows])
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"key": "a", "value": row}) + "\n" for row in rows))
    with pytest.raises(millpond.Invalid, match="has not the fields"):
        millpond.open(tmp_path / "pond").load_files(file, "readings")


def test_a_line_may_leave_out_a_field_that_others_have(readings: Map, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"key": "a", "value": {"temp": 1}}\n{"key": "b", "value": {"CODE": "x"}}\n')
    millpond.open(tmp_path / "pond").load_files(file, "readings")
    assert readings.get("a") == {"temp": 1.0, "code": None}
    assert readings.get("b") == {"temp": None, "code": "x"}


MISNAMED = [
    ("temporal_state", "long", {"key": ["a"], "effective": [1], "value": [1]}, "columns={'time': 'effective'}; there"),
    ("session", None, {"key": ["a"], "timeout": ["15m"]}, ""),
    ("state", "long", {"key": ["a"], "value_type": ["x"], "vlaue": [1]}, "columns={'value': 'vlaue'}; there"),
    ("state", "temp double, wind double", {"key": ["a"], "Tmp": [1], "wnd": [2]},
     "columns={'value': {'temp': 'Tmp', 'wind': 'wnd'}}; there"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "rows", "hint"), MISNAMED)
def test_a_column_that_nobody_named_is_mapped_by_the_hint(
    tmp_path: Path, kind: str, value: str | None, rows: dict[str, Any], hint: str
) -> None:
    made = millpond.open(tmp_path / "pond").create_map("m", kind=kind, value=value)
    with pytest.raises(millpond.Invalid, match="no such column") as caught:
        made.load(rows)
    assert hint in str(caught.value)
    assert ("perhaps" in str(caught.value)) == bool(hint)
    assert "did you mean" not in str(caught.value)
