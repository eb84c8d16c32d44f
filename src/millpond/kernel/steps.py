"""Named steps of the work that must survive a crash: where a test may stop the process.

Code that changes what is on disk in several acts calls `step("what.has_just_happened")` between two acts.
In normal life that costs one look at an empty list. Tests listen: `millpond.testing.faults` kills the process at
a chosen step, records the steps of a run, or reads while a batched change is half way.

Names are dotted lower-case words, stable, without a colon: `merge.batch_committed`, `shard.swapped`.
A step in a loop (one a batch, one a file) keeps one name; its occurrences are counted from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ("listening", "step")

# Of the process, not of a thread: who listens wants the steps of other threads, too.
_listeners: list[Callable[[str], None]] = []


def step(name: str) -> None:
    """Say that the named act is done and the next has not begun."""
    if _listeners:
        # Over a copy: a listener may leave, or another one come in another thread, while they are called.
        for listener in tuple(_listeners):
            listener(name)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Call `listener(name)` at every step of this process, in the thread that takes it.

    What the listener raises reaches the caller of `step`.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
