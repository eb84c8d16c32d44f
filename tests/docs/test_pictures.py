"""The pictures of the console are small, and those that the page shows are those that a tool makes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.docs.snippets import ROOT

PAGE, FOLDER = ROOT / "docs" / "console.md", ROOT / "docs" / "pictures"
BYTES_MAX = 60_000


def test_the_page_shows_the_pictures_that_are_there() -> None:
    shown = {*re.findall(r"pictures/([\w-]+\.webp)", PAGE.read_text(encoding="utf-8"))}
    assert shown == {path.name for path in FOLDER.glob("console-*")} and len(shown) == 6
    for path in FOLDER.glob("console-*"):
        data = path.read_bytes()
        assert (data[:4], data[8:12]) == (b"RIFF", b"WEBP") and len(data) <= BYTES_MAX, path.name


@pytest.mark.full
def test_the_tool_names_them() -> None:
    tool = [sys.executable, ROOT / "tools" / "pictures.py"]
    named = subprocess.run(
        tool, cwd=ROOT, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}, capture_output=True, check=True
    )
    assert {*named.stdout.decode().split()} == {path.name for path in FOLDER.glob("console-*")}
