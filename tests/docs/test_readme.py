"""The README's commands for a new user work as they stand, from top to bottom."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT, snippets
from tests.rings.forked import script
from tests.rings.servers import shared


def run(command: list[str], folder: Path) -> str:
    """The view of a new user: the commands on the path, and a folder of their own."""
    programs = folder / ".bin"
    programs.mkdir(exist_ok=True)
    shim = programs / "millpond"
    shim.write_text(script(shared("commands")))
    shim.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "MILLPOND_EVENTS_REPORTS": "on",
    }
    environment.pop("MILLPOND_POND", None)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.usefixtures("spark_process")
def test_the_readme_works_from_top_to_bottom_with_spark(tmp_path: Path) -> None:
    blocks = snippets("README.md")
    shell = "\n".join(
        snippet.text
        for snippet in blocks
        if snippet.language == "sh" and not snippet.for_the_checkout and not snippet.serves
    )
    printed = run(["bash", "-euc", shell], tmp_path)
    assert "wrote 3 events to enriched.csv" in printed
    (answer,) = [block.text for block in blocks if block.language == "text" and block.heading == "Five minutes"]
    assert answer in printed
    (difference,) = [block.text for block in blocks if block.language == "text" and block.heading == "Branches"]
    assert difference in printed
    assert re.search(r"nightly-\w+\s+nightly\s+COMPLETED", printed), printed
    assert re.search(r"weather\s+weather\s+2\s+66\.7%", printed), printed
    assert re.search(r"succeeded [0-9a-f]{16} load=[0-9a-f]{16} rows=3", printed), printed
    assert re.search(r"millpond\s+load/weather\s+4", printed), printed
    python = "\n".join(snippet.text for snippet in blocks if snippet.language == "python")
    printed = run([sys.executable, "-c", python], tmp_path)
    promised = re.findall(r"^\s*print\(.*\)  # (.*)$", python, re.MULTILINE)
    assert promised == [line for line in printed.splitlines() if line in promised]
    assert re.search(r"\|\s*submitted\|", printed) and re.search(r"\|\s*succeeded\|", printed), printed


def test_the_first_screen_is_short() -> None:
    """The answer of *Five minutes* stands within a screen of its heading, and eight lines of Python stand before it."""
    first, _, rest = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Five minutes\n")
    assert len(re.findall(r"^```python\n", first, re.MULTILINE)) == 1
    assert rest.index('"DL461"') < rest.index("\n## ")
    assert rest[: rest.index('"DL461"')].count("\n") <= 40


def test_every_page_is_linked_once() -> None:
    _, _, links = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Read on\n")
    targets = re.findall(r"\]\((.*?)\)", links)
    assert len(targets) == len(set(targets))
    elsewhere = {"docs/benchmarks.md"}  # linked below its charts
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} - elsewhere <= set(targets)


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "pictures").glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_is_well_formed_and_has_a_ground(picture: Path) -> None:
    drawn = ElementTree.parse(picture).getroot()
    shapes = [element for element in drawn.iter() if element.tag.endswith("rect")]
    assert shapes[0].get("class") == "ground"
    assert "prefers-color-scheme: dark" in picture.read_text(encoding="utf-8")


def test_make_has_every_documented_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in ("README.md", "CONTRIBUTING.md"):
        for snippet in snippets(page):
            if snippet.for_the_checkout:
                for line in snippet.text.strip().splitlines():
                    assert re.search(rf"^{line.split()[1]}:", makefile, re.MULTILINE), line


@pytest.mark.parametrize(
    "page", sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target
