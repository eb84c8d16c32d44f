"""Progress on a terminal: the stage, the tasks, the rows and their rate; and silence elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from millpond.cli.terminal import console


class Terminal(io.StringIO):
    """Standard error as a terminal has it."""

    def isatty(self) -> bool:
        """It says that it is one."""
        return True


def test_stages_are_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with console.stages() as show:
        show("enriching, stage 3", 1_500_000, (3, 8))
    written = terminal.getvalue()
    assert "enriching, stage 3" in written
    assert "3 of 8 tasks" in written
    assert "1,500,000 rows" in written


@pytest.mark.parametrize("quiet", [True, False])
def test_nothing_is_shown_elsewhere(capsys: pytest.CaptureFixture[str], quiet: bool) -> None:
    with console.stages(quiet=quiet) as show:
        show("reading", 10)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
