"""The page about versions: its example of a client runs against a real process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import millpond
from tests.clients.conftest import Server

PAGE = Path(__file__).parents[2] / "docs" / "versions.md"


def example(word: str) -> Any:
    """The block of Python that has a word."""
    [found] = [
        block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        if word in block
    ]  # fmt: skip
    return compile(found, str(PAGE), "exec")


def test_the_example_of_a_client_runs(server: Server) -> None:
    found: dict[str, Any] = {"url": server.url, "access_key": server.access_key, "secret": server.secret}
    exec(example("import lakefs"), found)
    assert [commit.message for commit in found["log"]][1:] == ["January", "Repository created"]
    assert found["table"].to_dict("list") == {"carrier": ["UA"], "delay": [2]}


def test_the_example_of_repositories_on_a_node_runs(server: Server) -> None:
    known = {"millpond": millpond, "url": server.url, "access_key": server.access_key, "secret_key": server.secret}
    exec(example("client_token="), known)
    assert server.branch("flights-2014").head().message == "January 2014"
