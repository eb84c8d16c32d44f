"""The page of keyspaces lists them as they are registered."""

from __future__ import annotations

from tools import keyspaces


def test_the_page_is_up_to_date() -> None:
    assert keyspaces.PAGE.read_text(encoding="utf-8") == keyspaces.page(), "run `make docs`"
