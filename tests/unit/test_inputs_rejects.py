"""Rejected rows: counted, written down, and an error when they are too many."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from millpond.errors import Invalid, NotFound
from millpond.maps.inputs import rejects
from millpond.maps.inputs.faults import REJECTED
from millpond.maps.inputs.rejects import RejectWriter


def rejected(*rows: int) -> pa.RecordBatch:
    records = [{"row": row, "reason": f"reason {row}", "record": json.dumps({"key": row})} for row in rows]
    return pa.RecordBatch.from_pylist(records, schema=REJECTED)


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_rejects_are_counted_and_written_where_they_stood(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    with RejectWriter(file, max_rejects=3, source="a.csv") as writer:
        writer.write(rejected(0, 2), first_row=10)
        writer.write(rejected())
        writer.write(rejected(1), rows=[5, 77], source="b.xml")
    assert writer.count == 3
    assert lines(file) == [
        {"source": "a.csv", "row": 10, "reason": "reason 0", "record": {"key": 0}},
        {"source": "a.csv", "row": 12, "reason": "reason 2", "record": {"key": 2}},
        {"source": "b.xml", "row": 77, "reason": "reason 1", "record": {"key": 1}},
    ]


def test_the_file_of_the_load_before_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text("old\n")
    with RejectWriter(file):
        pass
    assert file.read_text() == ""


def test_without_a_file_the_first_too_many_ends_the_load() -> None:
    with RejectWriter(None, max_rejects=1) as writer:
        writer.write(rejected(4))
        with pytest.raises(Invalid) as caught:
            writer.write(rejected(5))
        writer.count = 0
    message = str(caught.value)
    assert "nothing was loaded: row 4: reason 4; row 5: reason 5" in message
    assert "rejects" in message
    assert caught.value.kind == "too_many_rejects"


def test_with_a_file_all_are_written_before_the_load_fails(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    with pytest.raises(Invalid) as caught, RejectWriter(file, source="a.csv") as writer:
        for start in range(4):
            writer.write(rejected(start))
    assert len(lines(file)) == 4
    message = str(caught.value)
    assert "4 rows cannot be stored" in message
    assert "a.csv row 0: reason 0" in message
    assert "and 1 more" in message
    assert str(file) in message


def test_when_all_is_wrong_it_does_not_read_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejects, "ENOUGH", 3)
    writes = 0
    with pytest.raises(Invalid), RejectWriter(tmp_path / "bad.jsonl", max_rejects=1) as writer:
        while True:
            writer.write(rejected(writes))
            writes += 1
    assert writes == 3


def test_another_error_is_not_hidden_by_rejects(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), RejectWriter(tmp_path / "bad.jsonl") as writer:
        writer.write(rejected(1))
        raise ZeroDivisionError


def test_a_reject_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nowhere"), RejectWriter(tmp_path / "nowhere" / "bad.jsonl"):
        pass
    with pytest.raises(Invalid, match="max_rejects"):
        RejectWriter(None, max_rejects=-1)
