"""The Python reference says what the docstrings say, holds every public name, and its examples run."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import millpond
import millpond.spark
from tests.docs.snippets import ROOT, snippets
from tools import api_reference

if TYPE_CHECKING:
    from pathlib import Path

PAGES = api_reference.pages()
PYTHON, SPARK = PAGES["python.md"], PAGES["spark.md"]
EVERYTHING = "".join(PAGES.values())
OF_SPARK = (pytest.mark.spark, pytest.mark.sample(1, of="examples of Spark"))


def test_the_reference_is_up_to_date(subtests: pytest.Subtests) -> None:
    for name in PAGES:
        with subtests.test(name=name):
            page = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
            assert page == PAGES[name], "run `make docs`"


def test_every_name_of_the_front_door_is_there(subtests: pytest.Subtests) -> None:
    for name in millpond.__all__:
        with subtests.test(name=name):
            assert re.search(rf"`(millpond\.)?{name}`|^## {name}$", PYTHON, re.MULTILINE), name


def test_every_name_of_the_spark_door_is_there() -> None:
    assert set(api_reference.SPARK_NAMES) == set(millpond.spark.__all__)


def test_every_example_stands_somewhere() -> None:
    for name in api_reference.named_examples():
        assert re.search(rf"^##+ `?{re.escape(name)}`?$", PYTHON + SPARK, re.MULTILINE), name


def test_every_entry_is_explained(subtests: pytest.Subtests) -> None:
    for title in re.findall("^### `([\\w.]+)`$", EVERYTHING, re.MULTILINE):
        with subtests.test(title=title):
            (body,) = re.findall(rf"^### `{re.escape(title)}`\n(.*?)(?=^##|\Z)", EVERYTHING, re.MULTILINE | re.DOTALL)
            prose = re.sub(r"```.*?```", "", body, flags=re.DOTALL).strip()
            assert len(prose.split()) >= 3, title
            assert not re.match(r"(Who|What|Whether|Where|How|When|Why)\b", prose), title


def test_a_long_signature_is_cut_at_its_parameters() -> None:
    def wide(one: dict[str, tuple[int, int]], *, two: str = "a, b", three: list[int] | None = None) -> set[str]:
        raise AssertionError((one, two, three))

    assert api_reference.signature("wide", wide).startswith("wide(")
    long = api_reference.signature("w" * 100, wide).splitlines()
    assert [line.strip() for line in long[1:-1]] == [
        "one: dict[str, tuple[int, int]],", "*,", "two: str = 'a, b',", "three: list[int] | None = None,",
    ]  # fmt: skip
    assert inspect.signature(wide).parameters


@pytest.mark.parametrize("page", ["docs/reference/python.md", pytest.param("docs/reference/spark.md", marks=OF_SPARK)])
def test_the_examples_do_what_they_say(page: str, tmp_path: Path) -> None:
    """In a process of their own: Spark is started there with other settings than in the tests of Spark."""
    code = "\n".join(block.text for block in snippets(page) if block.language == "python")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    promised = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert len(promised) >= 3
    assert done.stdout.splitlines() == promised
