"""The output of orders to the nodes of a pond."""

from __future__ import annotations

import pytest

from millpond.cli import members
from millpond.json_forms import plain
from millpond.nodes.changes import ListChange


def test_nodes_that_have_not_followed_yet_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    change = ListChange(3, ("http://one", "http://two"), changed=True, pending=("http://two",))
    members._show(plain(change), False, "done", "was so already")
    assert "following by themselves: http://two" in capsys.readouterr().out
