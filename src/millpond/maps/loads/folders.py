"""The folders of a pond's parts, and the queue of parts to be merged."""

from __future__ import annotations

from pathlib import Path

from millpond.kernel.scans import first_parts
from millpond.kernel.space import ReadTransaction, Space
from millpond.maps.log.queue import Quarantined, Queued, queued_parts
from millpond.maps.model.catalogue import map_names
from millpond.maps.model.keyspaces import MAINTENANCE, QUARANTINE, QUEUE

__all__ = ("PartPlaces", "MergeQueue")


class PartPlaces:
    """The folders of parts, drawn in `loads.py`."""

    folder: Path

    def staged(self, number: int) -> Path:
        """Path of a queued part."""
        return self.folder / "staging" / f"{number:012d}"

    def merging(self, name: str, number: int) -> Path:
        """Path of a part while it is merged."""
        return self.folder / "merging" / name / f"{number:012d}"

    def retained(self, part: str) -> Path:
        """Path of a retained part."""
        return self.folder / "retained" / part

    def quarantine_folder(self, name: str, number: int) -> Path:
        """Path of a quarantined part."""
        return self.folder / "quarantine" / f"{number:012d}-{name}"

    def places(self, queued: Queued) -> tuple[Path, ...]:
        """The paths at which a queued or retained part may be found."""
        usual = (
            self.merging(queued.map, queued.number), self.retained(queued.part), self.staged(queued.number),
            self.folder / "receive" / queued.load / queued.part,
        )  # fmt: skip
        return (*usual, self.quarantine_folder(queued.map, queued.number)) if queued.again else usual


class MergeQueue:
    """The queued and the quarantined parts, as listed in the space."""

    space: Space

    def queued(self, name: str | None = None) -> list[Queued]:
        """Parts that wait, in order; of one map or of all."""
        with self.space.read() as tx:
            names = map_names(tx) if name is None else [name]
            found = [queued for name in names for queued in queued_parts(tx, name)]
        return sorted(found, key=lambda part: part.number)

    def waits(self, name: str) -> bool:
        """True when parts of a map are queued."""
        with self.space.read() as tx:
            return _waits(tx, name)

    def queued_maps(self) -> list[str]:
        """The maps that something waits for, by name: one look for each of them, however many maps there are."""
        with self.space.read() as tx:
            return sorted({str(name) for prefix in (QUEUE, MAINTENANCE) for name in first_parts(tx, prefix)})

    def quarantined(self) -> list[Quarantined]:
        """Parts that were quarantined."""
        with self.space.read() as tx:
            return [Quarantined.from_json(value) for _, value in tx.scan(QUARANTINE.range())]


def _waits(tx: ReadTransaction, name: str) -> bool:
    return any(next(tx.keys(prefix[name].range()), None) is not None for prefix in (QUEUE, MAINTENANCE))
