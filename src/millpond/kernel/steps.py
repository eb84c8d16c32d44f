"""Named steps of the work that must survive a crash: where a test may stop the process.

Code that changes what is on disk in several acts calls `step("what.has_just_happened")` between two acts.
In normal life that costs one test of a module variable. Three things may listen:

| who | how | what happens at a step |
|---|---|---|
| a crash test | `MILLPOND_KILL_AT=name` or `name:3` in the environment | SIGKILL at the first (third) such step |
| its recorder | `MILLPOND_STEPS_LOG=path` | the name is appended to the file as one line |
| a test in this process | `with listening(callback)` | `callback(name)`; what it raises reaches `step`'s caller |

Names are dotted lower-case words, stable, without a colon: `merge.batch_committed`, `shard.swapped`.
A step in a loop (one a batch, one a file) keeps one name; occurrences are counted from 1.
The environment is read once, when this module is imported, so a child process must be started with it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ("KILL_AT", "STEPS_LOG", "listening", "step")

KILL_AT = "MILLPOND_KILL_AT"
STEPS_LOG = "MILLPOND_STEPS_LOG"

_lock = threading.Lock()
_listeners: list[Callable[[str], None]] = []


def step(name: str) -> None:
    """Say that the named act is done and the next has not begun."""
    if _listeners:
        for listener in tuple(_listeners):
            listener(name)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Call `listener(name)` at every step of this process, in the thread that takes it."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class _Killer:
    """Ends the process, as a crash does, when a step is taken for the chosen time."""

    def __init__(self, wanted: str) -> None:
        self.name, _, count = wanted.partition(":")
        self.count = int(count or 1)
        self.seen: Counter[str] = Counter()

    def __call__(self, name: str) -> None:
        with _lock:
            self.seen[name] += 1
            if name == self.name and self.seen[name] == self.count:
                os.kill(os.getpid(), signal.SIGKILL)


def _recorder(path: str) -> Callable[[str], None]:
    def record(name: str) -> None:
        assert not {":", "\n"} & set(name), name
        with _lock, Path(path).open("a", encoding="ascii") as log:
            log.write(f"{name}\n")

    return record


# The order matters: the log names the step at which the process was killed.
if os.environ.get(STEPS_LOG):
    _listeners.append(_recorder(os.environ[STEPS_LOG]))
if os.environ.get(KILL_AT):
    _listeners.append(_Killer(os.environ[KILL_AT]))
