"""Time that passes while a test waits: threads that wait on a manual clock go on as if the time had come.

    until(clock, lambda: follower.status().healed == 1)
    report = while_time_passes(clock, lambda: compare(nodes))

The clock moves to the next time that a thread waits for, and only when all threads are quiet: none has begun or ended a
wait for a moment. So an hour of pauses takes a second, and a slow machine is given all the time it needs. Elsewhere in
a test the clock stands still, and nothing happens by itself.

Invariants:
* The clock moves in steps of at most `STEP_MS_MAX`, so no long time runs out while a thread computes for a moment.
* There is no limit of real time: what never becomes true ends with the time limit of the test.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from millpond.clock import ManualClock

__all__ = ("until", "while_time_passes")

T = TypeVar("T")

QUIET_SECONDS = 0.01
"""The real time without a turn after which threads count as quiet: some looks of a thread at its manual clock."""
STEP_MS_MAX = 1000


def until(clock: ManualClock, true: Callable[[], object]) -> None:
    """Let time pass until something is true."""
    pause = threading.Event()
    while not true():
        turns = clock.turns
        pause.wait(QUIET_SECONDS)
        if clock.turns == turns and not true():
            clock.jump(STEP_MS_MAX)


def while_time_passes(clock: ManualClock, act: Callable[[], T]) -> T:
    """Do something in another thread while time passes; its result.

    Raises: what it raises.
    """
    with ThreadPoolExecutor(1, "while-time-passes") as pool:
        pending = pool.submit(act)
        until(clock, pending.done)
        return pending.result()
