"""Loads of layers to the same maps, entered together: those that come while others are entered share the next write.

    load 1   layer ─▶ leads: placed, one write ─▶ answered
    load 2   ── layer ─▶ waits ───────┐
    load 3   ───── layer ─▶ waits ────┴─▶ leads: 2 and 3 placed, one on the other, one write ─▶ answered

Invariants:
* each load has its own layer, its entry in the log and its version of the map, as if they had come one after another,
  in the order in which they came;
* a load that cannot be entered fails alone: then each of its group is entered by itself;
* nobody is answered before the write that enters it is made, and whoever waits is in the next group.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeVar

from millpond.clock import Clock
from millpond.errors import Unavailable, Uncertain
from millpond.kernel.head import again_when_moved
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.kernel.steps import step
from millpond.maps.loads.committed import Committed
from millpond.maps.loads.layered_load import LayeredLoad, place_layers
from millpond.maps.loads.outcomes import of_load, write_certainly

__all__ = ("LoadGroups", "QueuedLoad")

T = TypeVar("T")

TRIES_TOGETHER = 3
"""The tries of a group: one that is overtaken again and again, or has a load twice, is entered load by load."""
_OF_ONE = ("disk_full", "files_collected")
"""The kinds of `Unavailable` that one load has, and others may be spared."""


@dataclass(slots=True, eq=False)
class QueuedLoad:
    """A load of layers alone. `enter` enters it when its layers are placed; `entered` looks whether it is."""

    load: str
    layered: LayeredLoad
    enter: Callable[[Transaction], Committed]
    entered: Callable[[ReadTransaction], Committed | None]
    committed: Committed | None = None
    error: BaseException | None = None

    @property
    def done(self) -> bool:
        """True when it was entered, or failed."""
        return self.committed is not None or self.error is not None


@dataclass(slots=True, eq=False)
class _Queue:
    """The loads that wait for the same maps; `led` while the thread of one of them enters some."""

    changed: threading.Condition
    loads: list[QueuedLoad] = field(default_factory=list)
    led: bool = False


class LoadGroups:
    """The groups of one pond, in this process. `turn` has the maps of these names to itself."""

    def __init__(
        self, space: Space, clock: Clock, turn: Callable[[AbstractSet[str]], AbstractContextManager[None]]
    ) -> None:
        self._space, self._clock, self.turn = space, clock, turn
        self._lock = threading.Lock()
        self._queues: dict[frozenset[str], _Queue] = {}

    def commit(self, load: QueuedLoad) -> Committed:
        """Enter a load, with those to the same maps that wait by then.

        Raises: as `Loads.commit`.
        """
        names = frozenset(load.layered.names)
        with self._lock:
            queue = self._queues.setdefault(names, _Queue(threading.Condition(self._lock)))
            queue.loads.append(load)
        try:
            with self._lock:
                queue.changed.wait_for(lambda: load.done or not queue.led)
                leads = not load.done
                queue.led = queue.led or leads
            if leads:
                self._lead(names, queue)
        except BaseException:
            with self._lock:
                if load in queue.loads:  # nobody enters a load whose thread has gone
                    queue.loads.remove(load)
            raise
        if load.error is not None:
            raise load.error
        assert load.committed is not None, "it is done"
        return load.committed

    def _lead(self, names: frozenset[str], queue: _Queue) -> None:
        group: list[QueuedLoad] = []
        try:
            with self.turn(names):
                with self._lock:
                    group, queue.loads = queue.loads, []
                self._enter(group)
        finally:
            with self._lock:
                queue.led = False
                queue.loads = [load for load in group if not load.done] + queue.loads  # the leader was interrupted
                if not queue.loads:
                    self._queues.pop(names, None)
                queue.changed.notify_all()

    def _enter(self, group: list[QueuedLoad]) -> None:
        """Enter loads in one write; where one fails, each in its own."""
        try:
            outcomes = self._entered(group)
        except Exception as error:
            if len(group) == 1 or (isinstance(error, Unavailable) and error.kind not in _OF_ONE):
                for load in group:
                    load.error = (of_load(error, load.load) if isinstance(error, Unavailable) else None) or error
                return
            for load in group:
                self._enter([load])
        except BaseException:
            # The thread that leads was interrupted: that interrupts nobody else, but nobody knows what was made.
            for load in group:
                load.error = Uncertain("the commit was interrupted", kind="commit_interrupted", load=load.load,
                                       hint="look whether it was made")  # fmt: skip
            raise
        else:
            for load, committed in zip(group, outcomes, strict=True):
                load.committed = committed

    def _entered(self, group: list[QueuedLoad]) -> list[Committed]:
        def enter(tx: Transaction) -> list[Committed]:
            return [load.enter(tx) for load in group]

        def entered(tx: ReadTransaction) -> list[Committed] | None:
            there = [committed for load in group if (committed := load.entered(tx)) is not None]
            return there if len(there) == len(group) else None

        def placed() -> list[Committed]:
            place_layers([load.layered for load in group], self._space, self._clock.now_ms())
            step("load.received")
            return write_certainly(self._space, enter, entered)

        outcomes = again_when_moved(placed, TRIES_TOGETHER if len(group) > 1 else None)
        step("load.committed")
        return outcomes
