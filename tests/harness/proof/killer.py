"""The killer: which process it ends and when, from one seed; the server and the worker begin anew at once."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from millpond.demo.processes import PipelineWorker, WorkflowServer

__all__ = ("VICTIMS", "Killer", "children")

VICTIMS = ("server", "worker", "driver", "java")
"""The processes: of the driver of Spark its Python, or its Java."""
_STEPS = (0, 1, 1, 2)


@dataclass(slots=True)
class Killer:
    """Ends processes; `killed` counts them. The pauses between are drawn up to `pause_seconds_max`."""

    rng: random.Random
    server: WorkflowServer
    worker: PipelineWorker
    pause_seconds_max: float
    killed: Counter[str] = field(default_factory=Counter)

    @property
    def kills(self) -> int:
        """The processes that were ended so far."""
        return self.killed.total()

    def pause(self) -> tuple[int, float]:
        """The steps that end before the next kill, and the seconds after the last of them.

        Without the steps a busy machine would kill each driver before it has begun.
        """
        return self.rng.choice(_STEPS), self.rng.uniform(0.1, self.pause_seconds_max)

    def strike(self) -> str:
        """End a process, and begin it anew if nobody else does; which one it was, or nothing when it was not there."""
        victim = self.rng.choice(VICTIMS)
        if victim == "server":
            self.server.end(signal.SIGKILL)
            self.server.start()
        elif victim == "worker":
            self.worker.end(signal.SIGKILL)
            self.worker.start()
        elif not self._end_driver(java=victim == "java"):
            return ""
        self.killed[victim] += 1
        return victim

    def _end_driver(self, *, java: bool) -> bool:
        process = self.worker.process
        found = [] if process is None else children(process.pid)
        if java:
            found = [child for driver in found for child in children(driver)]
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(found)


def children(pid: int) -> list[int]:
    """The processes that a process started, whichever of its threads did."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, thread.read_text().split())
    return found
