"""The hand-written pages use the field's words, their links lead to headings, and every decision is a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT

GENERATED = ("docs/cli.md", "docs/errors.md", "docs/limits.md", "docs/reference/python.md", "docs/reference/spark.md")
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/decisions/*.md")]
)
WRITTEN = [page for page in PAGES if page not in GENERATED]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))

# this -> that
WORDS = {
    r"set aside|put aside": "quarantined",
    r"pullers?": "follower",
    r"catch(es)? up|catching up": "follow",
    r"refusals?": "error response",
    r"(broken|breaking) lines?|over the line|to nodes: lines": "lost connection",
    r"at hand": "cached",
    r"narrow(ed|ing) snapshots?|is narrowed|be narrowed": "subset",
    r"unless told|is told|are told": "by default; reports",
    r"who(ever)? (asks|reads|writes|runs|loads)": "the process, the reader",
    r"questions?": "lookup, request",
}
QUESTIONS_ARE_MEANT = ("docs/decisions/", "docs/benchmarks.md")


@pytest.mark.parametrize("page", WRITTEN)
def test_the_words_are_those_of_the_field(page: str) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    for words, better in WORDS.items():
        if words.startswith("questions") and page.startswith(QUESTIONS_ARE_MEANT):
            continue
        found = re.search(rf"\b({words})\b", text, re.IGNORECASE)
        assert found is None, f"{page}: not '{found and found[0]}' but '{better}'"


def _anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_headings(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", text):
        if "://" not in target:
            there = (ROOT / page).parent / target if target else ROOT / page
            assert anchor in _anchors(there), f"{target}#{anchor}"


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_is_one_page_and_linked(decision: Path) -> None:
    text = decision.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    for heading in ("Context", "Choice", "Alternatives", "What would change our mind"):
        assert f"\n## {heading}\n" in text
    assert f"](decisions/{decision.name})" in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert f"]({decision.name})" in (decision.parent / "README.md").read_text(encoding="utf-8")
