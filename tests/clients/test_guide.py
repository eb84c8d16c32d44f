"""The page about versions: its example of a client runs against a real process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.clients.conftest import Server

PAGE = Path(__file__).parents[2] / "docs" / "versions.md"


def test_the_example_of_a_client_runs(server: Server) -> None:
    [example] = [
        block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        if "import lakefs" in block
    ]  # fmt: skip
    found: dict[str, Any] = {"url": server.url, "access_key": server.access_key, "secret": server.secret}
    exec(compile(example, str(PAGE), "exec"), found)
    assert [commit.message for commit in found["log"]][1:] == ["January", "Repository created"]
    assert found["table"].to_dict("list") == {"carrier": ["UA"], "delay": [2]}
