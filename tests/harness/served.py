"""`millpond serve` as a test wants it: with steps to be killed at, and a clock that is wrong.

    python -m tests.harness.served serve …

is `millpond serve …` with these in its environment:

| variable | what it does |
|---|---|
| `MILLPOND_STEPS_LOG`, `MILLPOND_KILL_AT`, `MILLPOND_KILL_FILE` | see `millpond/testing/faults.py` |
| `MILLPOND_CLOCK_FILE=path` | the file holds milliseconds, which are added to the wall clock; it may change meanwhile |
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from millpond.clock import SystemClock
from millpond.testing.faults import arm

__all__ = ("CLOCK_FILE", "main", "shift_clock")

CLOCK_FILE = "MILLPOND_CLOCK_FILE"


def shift_clock(path: Path) -> None:
    """Let every system clock of this process be wrong by what the file says; only the wall clock, as in life."""

    def now_ms(self: SystemClock) -> int:
        shift = 0
        with suppress(OSError, ValueError):
            shift = int(path.read_text(encoding="ascii"))
        return time.time_ns() // 1_000_000 + shift

    SystemClock.now_ms = now_ms  # type: ignore[method-assign]


def main() -> None:
    """Arm this process, then be the command line."""
    if file := os.environ.get(CLOCK_FILE):
        shift_clock(Path(file))
    with arm():
        from millpond.cli.main import main as command_line

        command_line()


if __name__ == "__main__":
    main()
