"""The folders of a pond's parts, drawn in `loads.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from millpond.maps.log.queue import Queued

__all__ = ("PartFolders",)


@dataclass(frozen=True, slots=True)
class PartFolders:
    """The folders below that of the pond in which a part may lie."""

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

    def quarantine(self, name: str, number: int) -> Path:
        """Path of a quarantined part."""
        return self.folder / "quarantine" / f"{number:012d}-{name}"

    def of(self, queued: Queued) -> tuple[Path, ...]:
        """The paths at which a queued or retained part may be found."""
        usual = (
            self.merging(queued.map, queued.number), self.retained(queued.part), self.staged(queued.number),
            self.folder / "receive" / queued.load / queued.part,
        )  # fmt: skip
        return (*usual, self.quarantine(queued.map, queued.number)) if queued.again else usual
