"""The guide to tests of pipelines: its Python does what it says, and its tests pass."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("littlehorse")

from tests.docs.snippets import ROOT, snippets

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "docs/testing.md"


def test_the_guide_does_what_it_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [block.text for block in snippets(PAGE) if not block.text.startswith("# ")]
    text = "\n".join(blocks)
    exec(compile(text, PAGE, "exec"), {})
    promised = re.findall(r"^ *print\(.*\)  # (.*)$", text, re.MULTILINE)
    assert promised
    assert capsys.readouterr().out.splitlines() == promised


def test_its_tests_pass_with_the_fixtures(tmp_path: Path) -> None:
    for block in snippets(PAGE):
        if named := re.match(r"# (\w+\.py)\n", block.text):
            (tmp_path / named[1]).write_text(block.text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", str(tmp_path)]
    ran = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout


def test_the_names_load_neither_pond_nor_client() -> None:
    """So that children which need a fault alone start soon."""
    heavy = ("millpond.pond", "numba", "littlehorse", "pytest", "hypothesis")
    script = f"import sys, millpond.testing; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
