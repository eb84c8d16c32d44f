"""The page of concepts defines each word once, and the words of all four parts stand there."""

from __future__ import annotations

import re
from collections import Counter

from tests.docs.snippets import ROOT

PAGE = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
PARTS = {
    "maps": ("map", "load", "part", "shard", "snapshot"),
    "versions": ("repository", "branch", "commit", "staging", "tag"),
    "events": ("event", "stream", "queue", "job set"),
    "workflows": ("run", "task", "tenant", "worker", "command"),
    "nodes": ("node", "primary", "replica"),
}


def words_defined(text: str) -> list[str]:
    """The words of every table whose head is `word | means`, as they are compared: small, each of a list by itself."""
    tables = re.findall(r"^\| word \| means \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [line.strip("|").split("|") for table in tables for line in table.splitlines()]
    return [word.strip().lower() for row in rows for word in row[0].split(",")]


def test_no_word_is_defined_twice() -> None:
    twice = [word for word, times in Counter(words_defined(PAGE)).items() if times > 1]
    assert not twice


def test_words_are_defined_on_this_page_alone() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        if page.name != "concepts.md":
            assert not words_defined(page.read_text(encoding="utf-8")), page


def test_every_part_has_its_words() -> None:
    for part, words in PARTS.items():
        _, _, rest = PAGE.partition(f"\n## Words of {part}\n")
        here = words_defined(rest.partition("\n## ")[0])
        assert set(words) <= set(here), (part, set(words) - set(here))


def test_a_word_that_is_defined_twice_is_found() -> None:
    table = "| word | means |\n|---|---|\n| log, Entry | one |\n| entry | another |\n"
    assert words_defined(table) == ["log", "entry", "entry"]
