"""Batches of one stream that travel as one: single events cost as little as batches, where many are given at once.

Invariants:
* a joined batch is stored as its members would be, one after another: with one source, each begins behind the last
  position of the one before;
* its outcome gives each member its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millpond.events.event import Appended, EventBatch

__all__ = ("JOINED_BYTES", "Joined", "joined")

JOINED_BYTES = 256 << 10
JOINED_EVENTS = 10_000


@dataclass(frozen=True, slots=True)
class Joined:
    """A batch, and the places and numbers of events of those that it is made of."""

    batch: EventBatch
    members: Sequence[tuple[int, int]]

    def outcomes(self, whole: Appended) -> Iterable[tuple[int, Appended]]:
        """The outcome of each member, from that of the batch: what was stored before is at its begin."""
        if len(self.members) == 1:
            yield self.members[0][0], whole
            return
        start = 0
        for place, count in self.members:
            repeated = min(max(whole.repeated - start, 0), count)
            new = count - repeated
            first = whole.first_id + max(start - whole.repeated, 0) if new else 0
            yield place, Appended(new, repeated, first, first + new - 1 if new else whole.last_id)
            start += count


def joined(batches: Iterable[tuple[int, EventBatch]]) -> list[Joined]:
    """Neighbouring batches of one stream, with their places among all, as few batches of bounded size."""
    runs: list[list[tuple[int, EventBatch]]] = []
    size = events = 0
    before: EventBatch | None = None
    for place, batch in batches:
        few, more = len(batch.events), _bytes_of(batch)
        size, events = size + more, events + few
        if before is not None and size <= JOINED_BYTES and events <= JOINED_EVENTS and _follows(before, batch):
            runs[-1].append((place, batch))
        else:
            runs.append([(place, batch)])
            size, events = more, few
        before = batch
    return [_join(run) for run in runs]


def _bytes_of(batch: EventBatch) -> int:
    return len(batch.events[0][1]) if len(batch.events) == 1 else sum(len(event[1]) for event in batch.events)


def _follows(before: EventBatch, batch: EventBatch) -> bool:
    """True when two batches together are stored as they would be one by one."""
    if before.source != batch.source or not before.events or not batch.events:
        return False
    if before.expected_id is not None or batch.expected_id is not None:
        return False
    if len(before.positions) != len(before.events) or len(batch.positions) != len(batch.events):
        return not (batch.source or batch.positions or before.positions)
    return batch.positions[0] > before.positions[-1]


def _join(run: Sequence[tuple[int, EventBatch]]) -> Joined:
    members = [(place, len(batch.events)) for place, batch in run]
    first = run[0][1]
    if len(run) == 1:
        return Joined(first, members)
    events = [event for _, batch in run for event in batch.events]
    positions = [position for _, batch in run for position in batch.positions]
    return Joined(EventBatch(first.stream, events, first.source, positions), members)
