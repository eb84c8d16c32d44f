"""Links between the pages lead to headings, and every decision is one page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT

PAGES = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))


def _anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]+))?\)", text):
        if "://" not in target:
            there = (ROOT / page).parent / target if target else ROOT / page
            assert there.exists(), target
            assert not anchor or anchor in _anchors(there), f"{target}#{anchor}"


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_is_one_page_and_linked(decision: Path) -> None:
    text = decision.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    for heading in ("Context", "Choice", "Alternatives", "What would change our mind"):
        assert f"\n## {heading}\n" in text
    assert f"]({decision.name})" in (decision.parent / "README.md").read_text(encoding="utf-8")
