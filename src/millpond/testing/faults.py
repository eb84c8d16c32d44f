"""Faults on purpose: kill a process at a named step, record the steps it takes, damage a file.

A crash test runs a child that calls `arm()` first, with one of these in its environment:

| variable | what happens at a step (`kernel/steps.py`) |
|---|---|
| `MILLPOND_STEPS_LOG=path` | the step's name is appended to the file as one line |
| `MILLPOND_KILL_AT=name` or `name:3` | SIGKILL at the first (third) such step; name `*` means any |
| `MILLPOND_KILL_FILE=path` | the same as the file says, from when it is there; `name:3 812` kills that process |

It runs once with the log to learn the steps, then once for each of them with the kill. The log is written before
the kill, so its last line names the step at which the process died.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from millpond.kernel.steps import listening

__all__ = ("KILL_AT", "KILL_FILE", "STEPS_LOG", "arm", "flip_byte", "occurrences", "truncate")

KILL_AT = "MILLPOND_KILL_AT"
KILL_FILE = "MILLPOND_KILL_FILE"
STEPS_LOG = "MILLPOND_STEPS_LOG"


class _Killer:
    """Ends the process, as a crash does, when a step is taken for the chosen time."""

    def __init__(self, chosen: str) -> None:
        chosen, _, pid = chosen.partition(" ")
        self.name, _, count = chosen.partition(":")
        self.pid = int(pid or os.getpid())
        self.count = int(count or 1)
        self.seen: Counter[str] = Counter()
        self.lock = threading.Lock()

    def __call__(self, name: str) -> None:
        with self.lock:
            self.seen[name] += 1
            taken = self.seen.total() if self.name == "*" else self.seen[self.name]
            if self.name in (name, "*") and taken == self.count:
                os.kill(self.pid, signal.SIGKILL)


class _FileKiller:
    """A killer that learns from a file when to begin, and what to wait for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.killer: _Killer | None = None
        self.lock = threading.Lock()

    def __call__(self, name: str) -> None:
        with self.lock:
            if self.killer is None and self.path.exists():
                self.killer = _Killer(self.path.read_text(encoding="ascii").strip())
        if self.killer is not None:
            self.killer(name)


def _recorder(path: Path) -> Callable[[str], None]:
    lock = threading.Lock()

    def record(name: str) -> None:
        assert not {":", "\n"} & set(name), name
        with lock, path.open("a", encoding="ascii") as log:
            log.write(f"{name}\n")

    return record


def arm(*, log: str | None = None, kill_at: str | None = None) -> ExitStack:
    """Listen to the steps of this process until the returned stack is closed.

    What is not given is taken from the environment.
    """
    armed = ExitStack()
    if log := log or os.environ.get(STEPS_LOG):
        armed.enter_context(listening(_recorder(Path(log))))
    if chosen := kill_at or os.environ.get(KILL_AT):
        armed.enter_context(listening(_Killer(chosen)))
    if file := os.environ.get(KILL_FILE):
        armed.enter_context(listening(_FileKiller(Path(file))))
    return armed


def occurrences(log: Path) -> list[str]:
    """The recorded steps as `name:count`, each a moment to be killed at, in the order they were taken.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log"
    >>> _ = path.write_text("a\\nb\\na\\n")
    >>> occurrences(path)
    ['a:1', 'b:1', 'a:2']
    """
    seen: Counter[str] = Counter()
    names = []
    for name in log.read_text(encoding="ascii").splitlines():
        seen[name] += 1
        names.append(f"{name}:{seen[name]}")
    return names


def flip_byte(path: Path, at: int) -> None:
    """Change one byte of a file in place; a negative `at` counts from the end."""
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = file.read(1)
        assert byte, f"{path} has no byte {at}"
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0xFF]))


def truncate(path: Path, size: int) -> None:
    """Cut a file short, as a crash of the machine may."""
    assert size < path.stat().st_size
    os.truncate(path, size)
