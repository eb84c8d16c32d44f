"""The queue of parts to be merged, as the space lists it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from millpond.kernel.space import Space
from millpond.maps.log.queue import Quarantined, Queued, first_waiting, queued_parts, waiting_maps
from millpond.maps.model.keyspaces import QUARANTINE

__all__ = ("PartQueue",)


@dataclass(frozen=True, slots=True)
class PartQueue:
    """The queued and the quarantined parts of a pond."""

    space: Space

    def parts(self, name: str | None = None) -> list[Queued]:
        """Parts that wait, in order; of one map or of all."""
        with self.space.read() as tx:
            names = waiting_maps(tx) if name is None else [name]
            parts = [queued for name in names for queued in queued_parts(tx, name)]
        return sorted(parts, key=lambda part: part.number)

    def waits(self, name: str, up_to: float = inf) -> bool:
        """True when parts or maintenance orders of a map are queued that were entered up to a position of the log."""
        with self.space.read() as tx:
            front = first_waiting(tx, name)
        return front is not None and front <= up_to

    def maps(self) -> list[str]:
        """The maps that something waits for, by name."""
        with self.space.read() as tx:
            return waiting_maps(tx)

    def quarantined(self) -> list[Quarantined]:
        with self.space.read() as tx:
            return [Quarantined.from_json(value) for _, value in tx.scan(QUARANTINE.range())]
