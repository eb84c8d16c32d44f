"""Turns by chance: of several threads one runs at a time, and at each of its pauses another may go on.

Invariants:
* One thread runs at a time: the schedule is a function of the seed and of what the threads do.
* A process that is killed runs no further: each of its pauses raises `Killed`, and so do all calls of its stores, so
  that nothing of what its code does while it unwinds takes effect.
* A thread that pauses inside a write of the space goes on by itself: a write is one step for all others.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ("Killed", "Process", "Schedule")


class Killed(BaseException):
    """The end of a process, for all but the simulation: no code of a repository catches it."""


class Process:
    """One thread of a schedule, which stands for a process."""

    def __init__(self, name: str, work: Callable[[Process], None], schedule: Schedule) -> None:
        self.name = name
        self.killed = False
        self.over = False
        self.error: BaseException | None = None
        self.pauses = 0
        self._schedule = schedule
        self._together = 0
        self._go = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Let others go on.

        Raises: `Killed`.
        """
        if self.killed:
            raise Killed
        if self._together or threading.current_thread() is not self._thread:
            return
        self.pauses += 1
        self._schedule.paused.release()
        self._go.acquire()
        if self.killed:
            raise Killed

    @contextmanager
    def undivided(self) -> Iterator[None]:
        """Pause nowhere meanwhile."""
        self._together += 1
        try:
            yield
        finally:
            self._together -= 1

    def go_on(self) -> None:
        """Let it run to its next pause; called by the schedule."""
        self._go.release()
        self._schedule.paused.acquire()
        if self.over:
            self._thread.join()

    def _run(self, work: Callable[[Process], None]) -> None:
        self._go.acquire()
        try:
            if not self.killed:
                work(self)
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.over = True
            self._schedule.paused.release()


class Schedule:
    """All processes that run, and the chance that picks the next."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.paused = threading.Semaphore(0)
        self.processes: list[Process] = []

    def start(self, name: str, work: Callable[[Process], None]) -> Process:
        """A new process, which begins when its turn comes."""
        process = Process(name, work, self)
        self.processes.append(process)
        return process

    def turn(self) -> Process | None:
        """Let one process go on to its next pause; the process, None when all are over.

        Raises: what its work raised.
        """
        if not self.processes:
            return None
        process = self.chance.choice(self.processes)
        process.go_on()
        if process.over:
            self.processes.remove(process)
        if process.error is not None:
            raise process.error
        return process

    def kill(self, process: Process) -> None:
        """End a process where it stands."""
        process.killed = True
        while not process.over:
            process.go_on()
        self.processes.remove(process)

    def close(self) -> None:
        """End all of them."""
        for process in list(self.processes):
            self.kill(process)
