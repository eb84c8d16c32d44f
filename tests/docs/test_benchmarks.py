"""Results of benchmarks satisfy their schema; the page is made of them, and short."""

from __future__ import annotations

import doctest
import json
import platform
import re
from pathlib import Path

import jsonschema_rs
import pytest
from bench import _figures, _results
from bench._claims import CLAIMS
from bench._results import FOLDER, SCHEMA, Result, Run, read_result, read_results, schema

from tests.docs.snippets import ROOT
from tools import benchmarks_page

FILES = sorted(file for file in (ROOT / FOLDER).glob("*.json") if file != SCHEMA)
VALIDATOR = jsonschema_rs.validator_for(json.loads(SCHEMA.read_bytes()))
WORDS_MAX = 3_050
PRIVATE = re.compile(r"(?<![\w./])/(?:home|root|tmp|var|usr|work|mnt|Users)\b|\b\d+\.\d+\.\d+\.\d+\b|://")
"""Paths of a machine and addresses."""


def test_the_schema_is_that_of_the_code() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == schema(), "run `make docs`"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_result_satisfies_the_schema(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert [str(error) for error in VALIDATOR.iter_errors(json.loads(text))] == []
    result = read_result(file)
    assert result.claim == file.stem
    assert len({figure.key for figure in result.figures}) == len(result.figures) > 0
    for figure in result.figures:
        assert 0 < figure.span[0] <= figure.median <= figure.span[1], figure
    assert not PRIVATE.search(text)
    assert platform.node() not in text or platform.node() in ("", "localhost")


def test_a_result_that_breaks_the_schema_is_found() -> None:
    good = json.loads(FILES[0].read_bytes())
    bad = [good | {"claim": "a/b"}, good | {"date": "yesterday"}, good | {"more": 1}, good | {"figures": [{}]}]
    assert VALIDATOR.is_valid(good)
    assert not any(VALIDATOR.is_valid(one) for one in bad)


def test_every_result_has_a_claim_and_every_claim_a_script() -> None:
    assert {claim.name for claim in CLAIMS} >= {file.stem for file in FILES}
    scripts = {claim.command.split()[0] for claim in CLAIMS}
    # These have no claim yet, but for the one that compares runs.
    tools = {f"bench/{name}.py" for name in ("bucket_head", "compare", "console")}
    assert scripts == {f"bench/{file.name}" for file in (ROOT / "bench").glob("[a-z]*.py")} - tools


def test_every_script_writes_its_claims() -> None:
    for claim in CLAIMS:
        script = (ROOT / claim.command.split()[0]).read_text(encoding="utf-8")
        helpers = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "bench").glob("_*_rows.py"))
        assert f'Run("{claim.name}")' in script + helpers, claim.name


def test_the_page_is_up_to_date_and_short() -> None:
    text = benchmarks_page.PAGE.read_text(encoding="utf-8")
    assert text == benchmarks_page.page(), "run `make docs`"
    assert len(text.split()) <= WORDS_MAX


def test_every_claim_is_on_the_page_with_its_command_and_its_figures() -> None:
    text, results = benchmarks_page.page(), read_results()
    for claim in (claim for claim in CLAIMS if claim.name in results):
        assert claim.title in text
        assert f"`python {claim.command}`" in text
        shown = [one for one in results[claim.name].figures if not claim.shown or one.task in claim.shown]
        assert shown
        for figure in shown:
            assert _figures.text_of(figure.median, figure.unit) in text, figure


def test_a_run_is_published_when_it_is_whole(tmp_path: Path) -> None:
    for whole, folder in ((True, "bench/results"), (False, "build/bench")):
        run = Run("made_up", tmp_path)
        run.note("load", "Millpond", [0.3, 0.1, 0.2], size="1 M rows", things=1_000_000)
        run.note("load", "rival", 0.5, size="1 M rows")
        run.write({"Rival": "1.2"}, whole=whole, rows=1_000_000)
        result: Result = read_result(tmp_path / folder / "made_up.json")
        assert VALIDATOR.is_valid(json.loads((tmp_path / folder / "made_up.json").read_bytes()))
        first, second = result.figures
        assert (first.median, first.span, first.repetitions) == (0.2, (0.1, 0.3), 3)
        assert (second.median, second.repetitions, result.sizes) == (0.5, 1, {"rows": 1_000_000})
        assert result.load is not None
        assert result.recorded == "by its script"
        assert result.machine.cores >= 1


def test_a_run_without_figures_writes_nothing(tmp_path: Path) -> None:
    Run("made_up", tmp_path).write(whole=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", [_figures, _results], ids=lambda module: module.__name__)
def test_examples_in_docstrings_hold(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]
