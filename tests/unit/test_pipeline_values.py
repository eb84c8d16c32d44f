"""Values of a run in Python: the run computes, or it is refused where the pipeline is declared."""

from __future__ import annotations

import hashlib
import json
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("littlehorse")

from millpond.errors import Invalid, MillpondError
from millpond.pipelines import notify, pipeline, python
from millpond.pipelines.programs import call_function, pipelines_of, read_program
from millpond.pipelines.values import Value, filled, template_of

HERE = "not there yet when the pipeline is declared. value=day"
FILE = """
import os, re
from millpond.pipelines import load, notify, pipeline, python

def place(day):
    return f"raw/{day}"

def tell(failure):
    notify("stream:etl/failed", step=failure.step)

@pipeline(on_failure=tell)
def nightly(day: str):
    first = python(place, day)
    assert first is not None
    notify("stream:etl/a", text=%s)
"""


def declared_with(act: Callable[[Any], object]) -> None:
    def nightly(day: str) -> None:
        python(template_of, day)
        act(day)

    pipeline(nightly)


def number_or_none(value: Any) -> int | None:
    try:
        return int(value)
    except ValueError:  # which a refusal is, too
        return None


ACTS: list[Callable[[Any], object]] = [
    lambda day: f"{day}".replace("-", "/"), lambda day: len(f"{day}"), lambda day: f"{day}"[:4],
    lambda day: day[:4], lambda day: day[0], lambda day: "a" in f"{day}", lambda day: "a" in day,
    lambda day: day.upper(), lambda day: f"{day}".split("-"), lambda day: int(day), lambda day: float(f"{day}"),
    lambda day: f"{f'{day}':>5}", lambda day: f"{day!s:>5}", lambda day: "%5s".__mod__(day), lambda day: f"{day:{day}}",
    lambda day: f"{day}" % 5, lambda day: day + 1, lambda day: 1 - day, lambda day: -day,
    lambda day: {day: 1}, lambda day: {f"{day}"}, lambda day: list(f"{day}"), lambda day: [*day],
    lambda day: f"{day}" * 2, lambda day: range(day), lambda day: sorted([day, day]), lambda day: round(day),
    lambda day: 1 if f"{day}" == "a" else 2, lambda day: 1 < day < 3, lambda day: (day > 1) == (day > 2),
    lambda day: f"{day > 1:>5}", lambda day: (day > 1) and 3, lambda day: not day, number_or_none,
    lambda day: f"{day}".join("ab"), lambda day: str(day), lambda day: print(day),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(ACTS)))
def test_what_is_asked_of_a_value_that_is_not_there_is_refused(number: int) -> None:
    with pytest.raises(Invalid, match=HERE):
        declared_with(ACTS[number])


CHANGES: list[Callable[[str], Any]] = [
    lambda text: text.replace("-", "/"), str.upper, str.strip, lambda text: text.split("-")[-1],
    lambda text: text.replace("day", "DAY"), lambda text: text[:-1], json.dumps, repr, urllib.parse.quote,
    lambda text: text.translate({ord("1"): None}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_plain_text_that_was_changed_is_found_where_it_arrives(number: int) -> None:
    with pytest.raises(Invalid, match=r"changed as text, before it is there\. value="):
        declared_with(lambda day: notify("stream:a/b", text=CHANGES[number](f"raw/{day}")))


@pytest.mark.parametrize(
    "act",
    [
        'f"raw/{day}".replace("2", "3")', 'len(f"raw/{day}")', '"2" in f"raw/{day}"', 'f"{day}" in "raw/2"',
        "1 if day is None else 2", "isinstance(day, str)", 'os.path.exists(f"raw/{day}")', 'open(f"raw/{day}")',
        '"raw/2".startswith(f"{day}")', "place(day)[:3]", '"/".join(["a", place(day)]).upper()',
        '"{}".format(day).upper()', '("a" + place(day)).lower()', 're.match("raw", place(day)) and 1',
        "[own for own in place(day)]", 'dict(a=f"x{day}")["a"].title()', '1 if place(day) == "raw/2" else 2',
    ],
)  # fmt: skip
def test_functions_of_a_file_ask_nothing_of_text_with_values(act: str, tmp_path: Path) -> None:
    file = tmp_path / "nightly.py"
    file.write_text(FILE % act)
    with pytest.raises(Invalid, match=HERE):
        pipelines_of(read_program(file))


HELPERS = """
from millpond.pipelines import notify, pipeline

WIDTH = 3

def length(day):
    return len(f"raw/{day}")

def cut(days, *, width=WIDTH):
    def inner(day):
        return f"raw/{day}"[:width]
    return inner(days[0])

def through(day):
    return length(day)

def told(day):
    notify("stream:etl/b", text=1 if f"raw/{day}" == "raw/1" else 2)

def made(prefix):
    def place(day):
        return f"{prefix}/{day}".startswith("raw")
    return place

def whole(day, *days):
    return f"raw/{day}/" + "/".join(days)

class Place:
    def __init__(self):
        self.root = "raw"

    def of(self, day):
        return f"{self.root}/{day}".upper()

@pipeline
def inner(day: str):
    notify("stream:etl/b", text="x")
    notify("stream:etl/c", text=whole(day) if day else "")
"""


@pytest.mark.parametrize(
    "act",
    ["length(day)", "cut([day])", "through(day)", "told(day)", 'made("raw")(day)', "Place().of(day)", "inner(day)",
     "helpers.length(day)"],
)  # fmt: skip
def test_functions_of_other_files_ask_nothing_of_text_with_values(
    act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _beside_helpers(tmp_path, monkeypatch, HELPERS.replace(' if day else ""', ""))
    file.write_text(file.read_text() % "whole(day, f'{day:%d}')")
    fields = pipelines_of(read_program(file))["nightly"].plan.steps[1].inputs["fields"]
    assert filled(fields, {"day": "2026-01-02"}) == {"text": "raw/2026-01-02/02"}
    file = _beside_helpers(tmp_path, monkeypatch, HELPERS.replace("whole(day) if day", "whole(day)[:3] if 1"))
    file.write_text(file.read_text() % act)
    with pytest.raises(Invalid, match=HERE):
        pipelines_of(read_program(file))


def _beside_helpers(folder: Path, monkeypatch: pytest.MonkeyPatch, helpers: str) -> Path:
    """A file of a pipeline, and one of helpers that it imports."""
    name = f"helpers_{hashlib.sha256((str(folder) + helpers).encode()).hexdigest()[:8]}"
    (folder / f"{name}.py").write_text(helpers)
    monkeypatch.syspath_prepend(folder)
    file = folder / "nightly.py"
    file.write_text(f"import {name} as helpers\nfrom {name} import *\n{FILE}")
    return file


def test_text_of_a_file_is_put_together_as_ever(tmp_path: Path) -> None:
    file = tmp_path / "nightly.py"
    text = '"/".join(["a", place(day), "{:>3}".format(day), f"{day:%d}" + f"{first.value}{[1]}"])'
    file.write_text(FILE % text)
    declared = pipelines_of(read_program(file))["nightly"]
    fields = filled(declared.plan.steps[1].inputs["fields"], {"day": "2026-01-02", "place": {"value": "x"}})
    assert fields == {"text": "a/raw/2026-01-02/2026-01-02/02x[1]"}
    assert declared.functions["place"]("7") == "raw/7"  # when its step runs


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("return object()", r"is no JSON\. function=rows type=object"),
        ("return {'a': [float('nan')]}", r"is no JSON\. .*finite numbers"),
        ("return '\\ud800'", r"is no JSON\. .*surrogates"),
        ("return 'x' * 1_000_000", r"too large\. function=rows bytes=1000004 limit=1000000 \(write it to a file"),
        ("raise SystemExit(3)", r"failed\. function=rows reason=SystemExit: 3 line=own\.py:4"),
        ("raise KeyboardInterrupt", r"failed\. function=rows reason=KeyboardInterrupt"),
    ],
)
def test_the_result_of_a_function_is_json(tmp_path: Path, code: str, words: str) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        f"from millpond.pipelines import pipeline, python\n\ndef rows():\n    {code}\n\n"
        "@pipeline\ndef own():\n    python(rows)\n"
    )
    with pytest.raises(MillpondError, match=words):
        call_function(read_program(file), "own", "rows", [])


DAY = Value(("day",))
PLAIN = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x02\x03"), max_size=5)
SPECS = st.sampled_from(["", ">5", "<3", "^4", ".2"])


@given(st.lists(PLAIN | SPECS.map(lambda spec: ("day", spec)), max_size=6), PLAIN, st.booleans())
def test_the_run_makes_the_text_that_python_would(pieces: list[Any], value: str, joined: bool) -> None:
    def text(day: Any) -> str:
        parts = [piece if isinstance(piece, str) else f"{day:{piece[1]}}" for piece in pieces]
        if joined:
            return "".join(parts)
        whole = ""
        for part in parts:
            whole = whole + part
        return whole

    assert filled(template_of(text(DAY)), {"day": value}) == text(value)


def test_times_are_compared_as_times() -> None:
    at = template_of(DAY > "2026-01-01T05:00:00+00:00")
    assert not filled(at, {"day": "2026-01-01T06:00:00+02:00"})
    assert filled(at, {"day": "2026-01-01T06:00:00.5+00:00"})
    with pytest.raises(Invalid, match="no order"):
        filled(at, {"day": "2026-01-01T06:00:00"})
