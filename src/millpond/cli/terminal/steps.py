"""A bar over the steps of a long command, on standard error, off a terminal too.

A terminal shows one line that moves. A pipe or a log gets a line at each step, and one at least every four seconds:

    [########------------]  40 %    9 s  loading the map weather
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TextIO

from millpond.clock import Clock
from millpond.kernel.worker import repeating

__all__ = ("steps",)

LINE_SECONDS = 4.0
_LOOK_SECONDS = 0.2
_BAR_COLUMNS = 20


class _Bar:
    """The line as it is now; the thread that writes it again and the steps that change it take turns."""

    def __init__(self, stream: TextIO, total: int, clock: Clock) -> None:
        self._stream, self._total, self._clock = stream, total, clock
        self._terminal = stream.isatty()
        self._began, self._ended, self._step = clock.monotonic(), -1, "starting"
        self._turn = threading.Lock()

    def begin(self, step: str) -> None:
        """The step before has ended, this one begins."""
        with self._turn:
            self._ended, self._step = self._ended + 1, step
            self._write()

    def watched(self) -> AbstractContextManager[None]:
        """Write the line again and again while this lasts."""
        seconds = _LOOK_SECONDS if self._terminal else LINE_SECONDS
        return repeating("the bar of steps", self._again, seconds, self._clock)

    def _again(self) -> None:
        with self._turn:
            self._write()

    def end(self) -> None:
        """Take the line from the terminal."""
        if self._terminal:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()

    def _write(self) -> None:
        share = min(max(self._ended, 0) / self._total, 1.0)
        bar = "#" * int(share * _BAR_COLUMNS)
        seconds = self._clock.monotonic() - self._began
        line = f"[{bar:-<{_BAR_COLUMNS}}] {share * 100:3.0f} % {seconds:4.0f} s  {self._step}"
        self._stream.write(f"\r\x1b[2K{line[:79]}" if self._terminal else f"{line}\n")
        self._stream.flush()


@contextmanager
def steps(total: int, clock: Clock, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show how far a command is: yields the function to call with the name of each of its `total` steps."""
    if quiet:
        yield lambda _step: None
        return
    with _standard_error() as stream:
        bar = _Bar(stream, total, clock)
        try:
            with bar.watched():
                yield bar.begin
        finally:
            bar.end()


@contextmanager
def _standard_error() -> Iterator[TextIO]:
    """Standard error as it is now: it stays this while `quiet_spark` puts a pipe in its place."""
    with suppress(OSError, ValueError):  # a test's standard error has no number
        with os.fdopen(os.dup(sys.stderr.fileno()), "w") as stream:
            yield stream
        return
    yield sys.stderr
