"""Records too long to be read are named by their row and column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millpond
from millpond.maps.inputs.formats import delimited
from millpond.maps.inputs.formats.delimited import find_long_record

if TYPE_CHECKING:
    from pathlib import Path

CELL = st.sampled_from(["", "a", "bb", "c" * 9, '"x,y"', '"line\nend"', '"' + "q" * 30 + '"'])


@given(st.lists(st.lists(CELL, min_size=1, max_size=4), min_size=1, max_size=8), st.integers(5, 40), st.integers(1, 9))
def test_the_first_long_record_is_found_however_it_is_cut(records: list[list[str]], most: int, step: int) -> None:
    lines = [",".join(cells) for cells in records]
    text = "\n".join(lines).encode() + b"\n"
    found = find_long_record((text[at : at + step] for at in range(0, len(text), step)), most, ",")
    filled = [line for line in lines if line]
    long = [number for number, line in enumerate(filled) if len(line) > most]
    assert found.number == (long[0] if long else len(filled))
    assert not found.open
    if long:
        cells = next(cells for cells in records if ",".join(cells) == filled[long[0]])
        assert found.size == len(filled[long[0]])
        assert found.cell < len(cells)


@pytest.mark.parametrize(("end", "kind", "said"), [('"', "record_long", "too long"), ("", "input_damaged", "closed")])
def test_a_cell_that_is_too_long_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, kind: str, said: str
) -> None:
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 1000)
    file = tmp_path / "a.csv"
    file.write_text("key,note,other\n" + "a,b,c\n" * 500 + 'k,"' + "x\n" * 5000 + end + (",v\nz,y,x\n" if end else ""))
    pond = millpond.open(tmp_path / "pond")
    pond.create_map("notes", kind="state", value="note string, other string")
    with pytest.raises(millpond.Invalid, match=said) as caught:
        pond.load_files(file, "notes")
    error = caught.value
    assert (error.kind, error.values["row"], error.values["column"]) == (kind, 501, "note")
    assert error.values["path"] == str(file)
    assert error.hint
