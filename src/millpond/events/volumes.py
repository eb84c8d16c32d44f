"""The volume of what a process appended, by surface: the API that the events came through."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from millpond.events.event import Appended, EventBatch
from millpond.events.ids import id_time_ms
from millpond.kernel.hours import Hours

__all__ = ("Append", "Volume", "Volumes")

Append: TypeAlias = "Callable[[Sequence[EventBatch]], list[Appended]]"


@dataclass(slots=True)
class Volume:
    """Events that were stored, the bytes of their payloads, and those that retention drops.

    An append that is uncertain does not count.
    """

    append: Append
    events: int = 0
    bytes: int = 0
    past_retention: int = 0
    hours: Hours = field(default_factory=Hours, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def __call__(self, batches: Sequence[EventBatch]) -> list[Appended]:
        outcomes = self.append(batches)
        self.count(batches, outcomes)
        return outcomes

    def count(self, batches: Sequence[EventBatch], outcomes: Sequence[Appended]) -> None:
        """Count batches that were appended otherwise."""
        # Positions never fall, so what was stored before is the beginning of a batch.
        payloads = [
            payload for batch, done in zip(batches, outcomes, strict=True) if done.count
            for payload in batch.columns(done.repeated).payloads
        ]  # fmt: skip
        size = sum(map(len, payloads))
        with self._lock:
            self.events += len(payloads)
            self.bytes += size
            self.past_retention += sum(done.past_retention for done in outcomes)
        for done in outcomes:
            if done.count:
                self.hours.add(id_time_ms(done.last_id), done.count)


class Volumes:
    """The volumes of a place, each made when its surface first asks for it."""

    def __init__(self, append: Append) -> None:
        self._append = append
        self.by_surface: dict[str, Volume] = {}
        self.hours = Hours()
        """The events of all surfaces, by the hour in which they were appended."""

    def of(self, surface: str) -> Volume:
        """The append of a surface, counted."""
        return self.by_surface.setdefault(surface, Volume(self._append, hours=self.hours))
