"""A simulated pond on its disk: opened, crashed, and opened again from the files that the crash left."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.errors import MillpondError
from millpond.maps.model.beginning import Retention
from millpond.pond import Pond
from millpond.stores.lmdb.space import LmdbSpace
from millpond.testing.faulty_space import FaultySpace
from tests.harness.audit import canonical_bits
from tests.harness.simulation.faults import SimulatedCrash

if TYPE_CHECKING:
    from millpond.clock import ManualClock
    from millpond.maps.map import Map
    from tests.harness.simulation.power import DurableRecord

__all__ = ("Site", "rows_of")

RETENTION_MS = 9_999 * 86_400_000
"""A follower needs the parts of the whole log."""


class Site:
    """One pond's folder, and the pond while it is open.

    `disturbed`: an action ended in an error, so a map may be further than the queue says until all is merged.
    """

    def __init__(self, name: str, folder: Path, clock: ManualClock, record: DurableRecord) -> None:
        self.name, self.folder, self.clock = name, folder / name, clock
        self.disturbed = False
        self._record = record
        self._image = folder / f"{name}.image"
        self._pond: Pond | None = None
        self._space: FaultySpace | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def pond(self) -> Pond:
        """The open pond."""
        assert self._pond is not None, self.name
        return self._pond

    @property
    def space(self) -> FaultySpace:
        """Its space, whose commits can be made to fail."""
        assert self._space is not None, self.name
        return self._space

    def open(self) -> None:
        """Open the pond, which repairs what a crash left."""
        self._pond = Pond(
            self.folder, create=True, clock=self.clock, retention=Retention(RETENTION_MS), open_space=self._open_space
        )
        self.disturbed = False

    def close(self) -> None:
        """Close the pond."""
        pond, self._pond = self._pond, None
        if pond is not None:
            pond.close()

    def take_image(self, power_cut: int | None = None) -> None:
        """Copy the files as they are at this moment, or as a power cut with this seed leaves them.

        LMDB makes its locks anew.
        """
        if power_cut is None:
            shutil.copytree(self.folder, self._image, ignore=shutil.ignore_patterns("lock.mdb"))
        else:
            self._record.image(self.folder, self._image, power_cut)

    def crash(self) -> None:
        """Let go of the pond, and put the image in its place."""
        with suppress(MillpondError, SimulatedCrash):
            self.close()
        shutil.rmtree(self.folder)
        self._image.rename(self.folder)
        self._record.adopt(self.folder)

    def _open_space(self, place: Path) -> FaultySpace:
        self._space = FaultySpace(LmdbSpace(place))
        return self._space


def rows_of(found: Map) -> list[object]:
    """All rows of a map in the form in which models are compared."""
    return canonical_bits(found.shard.read_rows(None), found.definition)
