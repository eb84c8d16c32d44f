"""Threads that are awake: those that may have something to do, because something that they depend on has changed.

The others are not looked at, so that a step of a run with many threads costs what it changes.

Invariants:

* A thread depends on its own node's rows, on the statuses of its parent, its children and their failure handlers, on
  external events, and, where its specification has nodes that watch variables, on the variables that it sees.
* Advancing all threads after a command would change nothing that advancing the awake ones has not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from littlehorse.model import ThreadRun, ThreadType

__all__ = ("Awake",)


class Awake:
    """The numbers of the threads of one run that are awake."""

    def __init__(self, threads: Mapping[int, ThreadRun]) -> None:
        self.numbers: set[int] = set()
        self._threads = threads

    def wake(self, numbers: Iterable[int]) -> None:
        """Let threads be looked at."""
        self.numbers.update(numbers)

    def wake_if(self, specs: frozenset[str]) -> None:
        """Let threads of some thread specifications be looked at."""
        if specs:
            self.wake(number for number, thread in self._threads.items() if thread.thread_spec_name in specs)

    def touch(self, thread: ThreadRun) -> None:
        """Note that a thread's status, or a reason for which it halts, has changed."""
        self.numbers.add(thread.number)
        self.wake(thread.child_thread_ids)
        if thread.HasField("parent_thread_id"):
            self.numbers.add(thread.parent_thread_id)
            parent = self._threads.get(thread.parent_thread_id)
            if thread.type == ThreadType.FAILURE_HANDLER and parent is not None and parent.HasField("parent_thread_id"):
                self.numbers.add(parent.parent_thread_id)  # it may wait for the failed thread to be handled

    def taken(self) -> set[int]:
        """The threads that are awake; none is any more."""
        numbers, self.numbers = self.numbers, set()
        return numbers
