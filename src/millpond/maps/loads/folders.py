"""The folders of a pond's parts, drawn in `loads.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from millpond.maps.log.queue import Quarantined, Queued, quarantine_folder

__all__ = ("PartFolders",)


@dataclass(frozen=True, slots=True)
class PartFolders:
    """The folders below that of the pond in which a part lies."""

    folder: Path

    def part(self, part: str) -> Path:
        """Path of a part that is queued, merged now or retained."""
        return self.folder / "parts" / part

    def quarantine(self, part: Queued | Quarantined) -> Path:
        """Path of a quarantined part."""
        return quarantine_folder(self.folder, part)

    def of(self, queued: Queued) -> tuple[Path, ...]:
        """The paths at which a queued or retained part may be found: taken again, where it was quarantined, too."""
        place = self.part(queued.part)
        return (place, self.quarantine(queued)) if queued.again else (place,)
