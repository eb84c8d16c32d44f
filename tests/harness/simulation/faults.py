"""Faults of a simulation: a crash or a full disk at a step of the work, and commits whose answers are lost.

A crash takes an **image** of the pond's files at the step, and only then unwinds the stack: what the code does while it
unwinds, which no killed process would do, is not in the image. The image is the pond from then on.

A power cut is a crash whose image has, by chance, nothing of what was written and not synced (`power.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millpond.errors import Unavailable

if TYPE_CHECKING:
    import random

    from millpond.testing.faulty_space import FaultySpace

__all__ = ("CRASHES", "NO_FAULT", "Fault", "SimulatedCrash", "Steps", "draw_fault")

CRASHES = ("crash", "power-cut")
STEPS_MAX = 16
"""A crash comes within so many steps, or not in this action."""


class SimulatedCrash(BaseException):
    """The end of the process, for all but the simulation: no code of a pond catches it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of one action; `at` counts steps of the work, from 1."""

    name: str = ""
    at: int = 0

    def __str__(self) -> str:
        return f"{self.name}:{self.at}" if self.at else self.name

    def of_space(self, space: FaultySpace) -> AbstractContextManager[None]:
        """The fault of the space while the action lasts, if it is one."""
        faults: dict[str, Callable[[], AbstractContextManager[None]]] = {
            "answer-lost": lambda: space.losing_results(committed=True),
            "commit-lost": lambda: space.losing_results(committed=False),
            "silent": lambda: space.losing_results(committed=True, silent=True),
            "space-full": space.full,
        }
        return faults.get(self.name, nullcontext)()


NO_FAULT = Fault()
_NAMES = (
    ("crash",) * 3 + ("power-cut",) * 3 + ("disk-full",) * 2 + ("answer-lost", "commit-lost", "silent", "space-full")
)


def draw_fault(chance: random.Random) -> Fault:
    """A fault, in two of five actions."""
    if chance.random() < 0.6:
        return NO_FAULT
    name = chance.choice(_NAMES)
    return Fault(name, chance.randint(1, STEPS_MAX) if name in (*CRASHES, "disk-full") else 0)


class Steps:
    """The listener to the steps of the work: it makes the faults that come at one.

    `crashed_at`: the step at which the present action crashed. `struck`: its fault came, whether or not it was noticed.
    """

    def __init__(self) -> None:
        self.crashed_at: str | None = None
        self.struck = False
        self._fault = NO_FAULT
        self._left = 0
        self._crash: Callable[[], None] = lambda: None

    def begin(self, fault: Fault, crash: Callable[[], None]) -> None:
        """Count the steps of an action anew; `crash` takes the image."""
        self.struck = False
        self.crashed_at, self._fault, self._left, self._crash = None, fault, fault.at, crash

    def __call__(self, name: str) -> None:
        if self.crashed_at is not None:
            raise SimulatedCrash(self.crashed_at)  # another thread, or a clean-up: this process is over
        self._left -= 1
        if self._left != 0:
            return
        self.struck = True
        if self._fault.name == "disk-full":
            raise Unavailable("the disk is full", kind="disk_full", hint="free some space", step=name)
        if self._fault.name in CRASHES:
            self._crash()
            self.crashed_at = name
            raise SimulatedCrash(name)
