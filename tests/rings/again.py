"""A few tests that fail are run once more, alone: what passes then is unsteady, and is named as such.

Several workers on two cores bring some test of thousands past a time that suffices on a quiet machine. `--again=3`, as
in `make test`, lets up to three such tests have a second run of their own; a change that breaks something fails twice.
An unsteady test is a fault to mend, of the test or of what it shows: its first failure stays in the output.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

__all__ = ("Again",)


def _passes(nodeids: Sequence[str]) -> bool:
    words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *nodeids]
    return subprocess.run(words, check=False).returncode == 0


@dataclass(eq=False)
class Again:
    """The plugin: it works where the run is controlled, after all workers have ended."""

    count_max: int
    passes: Callable[[Sequence[str]], bool] = _passes
    failed: dict[str, None] = field(default_factory=dict)
    unsteady: tuple[str, ...] = ()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        few = 0 < len(self.failed) <= self.count_max
        if few and session.exitstatus == pytest.ExitCode.TESTS_FAILED and self.passes(tuple(self.failed)):
            self.unsteady = tuple(self.failed)
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for nodeid in self.unsteady:
            terminalreporter.write_line(f"unsteady: {nodeid} failed, and passed alone: mend it", yellow=True)
