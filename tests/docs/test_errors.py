"""The page and the list of errors say what the code says, and miss none."""

from __future__ import annotations

import json
import re

import millpond
from millpond import errors
from millpond.cli.terminal import exits
from tests.docs.snippets import ROOT
from tools import error_reference


def test_the_page_is_up_to_date() -> None:
    assert error_reference.PAGE.read_text(encoding="utf-8") == error_reference.page(), "run `make docs`"


def test_the_list_is_up_to_date() -> None:
    assert error_reference.KINDS.read_text(encoding="utf-8") == error_reference.kinds(), "run `make docs`"


def test_every_kind_is_listed_with_its_messages_and_hints() -> None:
    rows = {(row["class"], row["kind"]): row for row in json.loads(error_reference.kinds())}
    found = error_reference.raised()
    assert rows.keys() == {(name, kind) for name, kinds in found.items() for kind in kinds}
    for (name, kind), row in rows.items():
        assert row["what_happened"] == found[name][kind].messages
        assert row["way_out"] == found[name][kind].hints
        assert row["exit_code"] == exits.EXITS[getattr(errors, name)]


def test_the_page_has_every_class() -> None:
    page = error_reference.page()
    for name in error_reference.CLASSES:
        assert f"| `{name}` | " in page


def test_every_kind_that_is_written_anywhere_is_listed() -> None:
    listed = error_reference.kinds()
    for path in (ROOT / "src").rglob("*.py"):
        text = re.sub(r'"""[\s\S]*?"""', "", path.read_text(encoding="utf-8"))
        for name, kind in re.findall(rf'\b({"|".join(errors.__all__)})\([^()]*?kind="([a-z0-9_]+)"', text):
            assert f'"kind": "{kind}", "class": "{name}"' in listed, f"{path}: {kind}"


def test_the_front_door_has_every_class() -> None:
    assert set(errors.__all__) <= set(millpond.__all__)


def test_every_class_has_its_own_exit_code() -> None:
    classes = {getattr(errors, name) for name in error_reference.CLASSES}
    assert set(exits.EXITS) == classes
    assert len(set(exits.EXITS.values())) == len(classes)
    assert not {0, exits.EXIT_NO_ANSWER, exits.EXIT_USAGE, exits.EXIT_INTERRUPTED} & set(exits.EXITS.values())
