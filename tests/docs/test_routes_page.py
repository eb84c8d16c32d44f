"""The page of routes says what the routes of a node say."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("littlehorse")

from tools import routes_page

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_code_says() -> None:
    assert (ROOT / "docs" / "reference" / "routes.md").read_text(encoding="utf-8") == routes_page.page(), (
        "run `make docs`"
    )


def test_every_row_is_whole() -> None:
    rows = [line for line in routes_page.page().splitlines() if line.startswith("| `")]
    assert len(rows) == len(routes_page.routes()) + len(routes_page.methods())
    assert all(line.count("|") == 6 for line in rows)
