"""Tellers of a story in children of a warm process (`template.py`), which may be killed at any of its moments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness.scratch import scratch_folder

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Teller:
    """The warm process, and a place for ponds."""

    process: subprocess.Popen[str]
    folder: Path

    def tell(self, name: str, *, kill_at: str | None = None, telling: int = 0) -> tuple[Path, int, int]:
        """Tell the story in a child, on from the last act that was done in this folder.

        The folder, the child's exit code, how many acts are done.
        """
        folder = self.folder / name
        task = {"folder": str(folder), "telling": telling, "log": f"{folder}.log", "kill_at": kill_at}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(task), file=self.process.stdin, flush=True)
        code = int(self.process.stdout.readline())
        return folder, code, len(Path(f"{folder}.done").read_text().split())


@contextmanager
def telling(story: str) -> Iterator[Teller]:
    """A teller of the story in this module."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-m", "tests.crash.template", story]
    with (
        scratch_folder() as folder,
        subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as process,
    ):  # fmt: skip
        yield Teller(process, folder)
