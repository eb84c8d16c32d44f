"""The cookbook and the pages for who comes from another system do what they say, from top to bottom."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.snippets import ROOT, Snippet, snippets

if TYPE_CHECKING:
    from tests.docs.shell import Shell

COMING_FROM = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "coming-from").glob("*.md"))
COOKBOOK = "docs/cookbook.md"
PAGE_WORDS_MAX = 700
RECIPE_LINES_MAX = 15
LANGUAGES = {"sh", "python", "text", "toml", "xml"}
"""Blocks of shell and Python are run; `text`, `toml` and `xml` show what others write, or what needs other machines."""


def run(page: str, blocks: list[Snippet], shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Type the blocks in their order; what a comment promises (`# → …`, or beside a print) is what they print."""
    monkeypatch.chdir(shell.folder)
    shell.environment["MILLPOND_EVENTS_REPORTS"] = "on"  # as for users; other tests do without
    names: dict[str, Any] = {"__name__": page}
    for block in blocks:
        text = shell.on_free_ports(block.text)
        if block.language == "sh":
            printed = shell.type(block.text)
            for promised in re.findall(r"  # → (.*)$", text, re.MULTILINE):
                assert promised in printed, f"{block.heading}: {promised!r} is not in\n{printed}"
        elif block.language == "python":
            shell.wait_until_ready()
            for name in shell.environment:
                if name.startswith(("MILLPOND_", "LHC_")):
                    monkeypatch.setenv(name, shell.environment[name])
            with redirect_stdout(StringIO()) as output:
                exec(compile(text, f"{page}, {block.heading}", "exec"), names)
            assert output.getvalue().splitlines() == promises(text), block.heading


def promises(code: str) -> list[str]:
    return re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)


def of_spark(block: Snippet) -> bool:
    return "spark" in block.text


@pytest.mark.sample(3)
@pytest.mark.parametrize("page", COMING_FROM)
def test_the_page_does_what_it_says(page: str, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    run(page, [block for block in snippets(page) if "armada_client" not in block.text], shell, monkeypatch)


def test_the_recipes_do_what_they_say(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    run(COOKBOOK, [block for block in snippets(COOKBOOK) if not of_spark(block)], shell, monkeypatch)


@pytest.mark.sample(1, of="examples of Spark")
@pytest.mark.usefixtures("spark_process")
def test_the_recipes_of_spark_do_what_they_say(shell: Shell) -> None:
    """In a process of their own: Spark is started there with other settings than in the tests of Spark."""
    first, *others = snippets(COOKBOOK)
    shell.type(first.text)
    code = "\n".join(block.text for block in others if of_spark(block))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=shell.folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert done.stdout.splitlines() == promises(code)


@pytest.mark.parametrize("page", [*COMING_FROM, COOKBOOK])
def test_blocks_are_run_or_shown_for_a_reason(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    fences = re.findall(r"^ *```", text, re.MULTILINE)
    assert len(fences) == 2 * len(snippets(page)), "a block begins its line, and names its language"
    assert {block.language for block in snippets(page)} <= LANGUAGES


@pytest.mark.parametrize("page", COMING_FROM)
def test_a_page_is_short_and_complete(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(text.split()) <= PAGE_WORDS_MAX
    for heading in ("Words", "What works as it is", "What does not", "How to move"):
        assert f"\n## {heading}\n" in text, heading


def test_a_recipe_is_short() -> None:
    for block in snippets(COOKBOOK)[1:]:
        assert sum(map(bool, block.text.splitlines())) <= RECIPE_LINES_MAX, block.heading
