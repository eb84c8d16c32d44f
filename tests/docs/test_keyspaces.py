"""The page of the space lists the keyspaces as they are registered."""

from __future__ import annotations

from tools import keyspaces


def test_the_table_is_up_to_date() -> None:
    text = keyspaces.PAGE.read_text(encoding="utf-8")
    assert text == keyspaces.page(text), "run `make docs`"
