"""The page of errors says what the code says, and misses none."""

from __future__ import annotations

import re

import millpond
from millpond import errors
from millpond.cli.terminal import exits
from tests.docs.snippets import ROOT
from tools import error_reference


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "errors.md").read_text(encoding="utf-8") == error_reference.page(), "run `make docs`"


def test_every_kind_that_is_written_anywhere_is_on_the_page() -> None:
    page = error_reference.page()
    for path in (ROOT / "src").rglob("*.py"):
        text = re.sub(r'"""[\s\S]*?"""', "", path.read_text(encoding="utf-8"))
        for name in errors.__all__:
            for kind in re.findall(rf'\b{name}\([^()]*?kind="([a-z0-9_]+)"', text):
                assert f"| `{kind}` |" in page, f"{path}: {kind}"


def test_the_front_door_has_every_class() -> None:
    assert set(errors.__all__) <= set(millpond.__all__)


def test_every_class_has_its_own_exit_code() -> None:
    classes = {getattr(errors, name) for name in error_reference.CLASSES}
    assert set(exits.EXITS) == classes
    assert len(set(exits.EXITS.values())) == len(classes)
    assert not {0, exits.EXIT_NO_ANSWER, exits.EXIT_USAGE, exits.EXIT_INTERRUPTED} & set(exits.EXITS.values())
