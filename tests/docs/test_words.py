"""The written pages stay short enough to be read, and the index of pages names them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT

WORDS_MAX = 52_400
MADE = ("CHANGELOG.md", "benchmarks.md")
"""The page of benchmarks is made from their results, and has a limit of its own: `test_benchmarks.py`."""
WRITTEN = [
    path for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    if path.name not in MADE and ROOT / "docs" / "reference" not in path.parents
]  # fmt: skip
GUIDES = sorted(path.name for path in ROOT.glob("docs/*.md") if path.name != "README.md")


def words(path: Path) -> int:
    """The words of a page, without its blocks of code: whatever stands between blanks and has a letter or digit."""
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return sum(1 for word in text.split() if re.search(r"\w", word))


def test_the_written_pages_have_few_words() -> None:
    counted = {path.relative_to(ROOT).as_posix(): words(path) for path in WRITTEN}
    longest = sorted(counted.items(), key=lambda item: -item[1])[:5]
    assert sum(counted.values()) <= WORDS_MAX, f"{sum(counted.values()):,} words; the longest pages: {longest}"


@pytest.mark.parametrize("guide", GUIDES)
def test_the_index_names_every_guide(guide: str) -> None:
    assert f"({guide})" in (ROOT / "docs" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted(path.name for path in ROOT.glob("docs/coming-from/*.md")))
def test_the_index_names_every_system_to_come_from(page: str) -> None:
    assert f"(coming-from/{page})" in (ROOT / "docs" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs" / "reference").iterdir()))
def test_the_list_of_references_names_every_page(page: str) -> None:
    text = (ROOT / "docs" / "reference" / "README.md").read_text(encoding="utf-8")
    assert page == "README.md" or f"({page})" in text
