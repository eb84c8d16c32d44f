"""Our values in a real kernel of Jupyter, in an environment of its own: tables, in which no name is markup."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("process")]
ROOT = Path(__file__).parents[2]
CELLS = {
    "import millpond; pond = millpond.open('pond')": "",
    "m = pond.create_map('m', kind='state', value='`<b>` double', store='layers'); m": "&lt;b&gt;",
    "m.load([{'key': 'JFK', 'value': {'<b>': 1.0}}])": "<td>rows</td><td>1</td>",
    "pond": "1 map<",
    "m.snapshot()": "<td>map</td><td>m</td>",
    "main = pond.repositories.create('flights').branch('main'); main.put('<b>.csv', b'1'); main.commit('<i>')":
        "<td>message</td><td>&lt;i&gt;</td>",
    "pond.repository('flights').diff('main~1', 'main')": "<td>added</td><td>&lt;b&gt;.csv</td>",
    "pond.repository('flights').branches()": "<td>main</td>",
    "from millpond.events.event import NewEvent": "",
    "_ = pond.events.append('etl', '<u>', [NewEvent(1_767_225_600_000, b'x', 'new', {})])": "",
    "pond.runs": ": the newest",
    "pond.events.index('etl', '<u>')": '<svg role="img" aria-label="events by day of etl/&lt;u&gt;"',
}  # fmt: skip


@pytest.fixture(scope="session")
def jupyter() -> Path:
    """The Python of the environment with a kernel."""
    with FileLock(str(ROOT / ".venv" / "jupyter.lock")):
        subprocess.run([ROOT / "tools" / "setup", "jupyter"], check=True)
    return ROOT / ".venv" / "jupyter" / "bin" / "python"


def test_values_are_shown_as_tables(jupyter: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MILLPOND_"))}
    environment["PYTHONPATH"] = str(ROOT / "src")
    program = subprocess.run(
        [jupyter, Path(__file__).with_name("jupyter_kernel.py"), sys.executable, tmp_path],
        input="".join(f"{code}\n" for code in CELLS), env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert program.returncode == 0, program.stderr[-3_000:]
    shown = [json.loads(line) for line in program.stdout.splitlines()]
    for (code, expected), data in zip(CELLS.items(), shown, strict=True):
        page = data.get("text/html", "")
        assert expected in page, (code, data)
        assert "<b>" not in page and "<i>" not in page and "<u>" not in page, code
