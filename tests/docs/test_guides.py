"""The guides' Python does what the comments beside it say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.docs.snippets import snippets

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("page", [f"docs/{page}.md" for page in ("branches", "sql", "maintenance", "inputs", "xslt")])
def test_the_guide_does_what_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "\n".join(snippet.text for snippet in snippets(page) if snippet.language == "python")
    exec(compile(text, page, "exec"), {})
    promised = re.findall(r"^ *print\(.*\)  # (.*)$", text, re.MULTILINE)
    assert promised
    assert capsys.readouterr().out.splitlines() == promised
