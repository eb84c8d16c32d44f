"""A map whose log is followed: its loads after a position, and the rows of their parts.

The pond of a folder is open while it is followed. Nodes are asked not more often than each `POLL_SECONDS`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from millpond.clock import Clock, SystemClock
from millpond.errors import Corrupt, NotFound
from millpond.maps.kinds import MapDefinition
from millpond.maps.log import Entry
from millpond.maps.merge import Received, part_rows
from millpond.maps.parts import read_manifest
from millpond.pond import Pond
from millpond.spark.ponds import Place, open_place

__all__ = ("Change", "ChangesSettings", "FollowedMap", "changed_rows")

POLL_SECONDS = 0.05
ENTRIES_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesSettings:
    """Where a new query starts, how much a micro-batch takes, and what becomes of changes that are gone.

    `start`: `earliest` (what is still kept), `latest`, or the position of the log that a new query begins after.
    """

    start: str | int = "earliest"
    rows_max: int | None = None
    fail_on_trimmed: bool = True


@dataclass(frozen=True, slots=True)
class Change:
    """A part that a load brought; `folder` is where it lies, of a pond in a folder."""

    position: int
    part: str
    rows: int
    folder: str | None = None


class FollowedMap:
    """One map of an open pond."""

    def __init__(self, place: Place, definition: MapDefinition, clock: Clock) -> None:
        self.definition = definition
        self._pond = open_place(place)
        self._remote, self._clock = place.remote, clock
        self._applied, self._asked = 0, clock.monotonic() - POLL_SECONDS

    @property
    def pond_id(self) -> str:
        """What tells the pond from others."""
        return self._pond.id

    def close(self) -> None:
        """Let go of the pond."""
        self._pond.close()

    def applied(self) -> int:
        """The position up to which the map has merged everything."""
        now = self._clock.monotonic()
        if not self._remote or now - self._asked >= POLL_SECONDS:
            self._applied, self._asked = self._pond.applied(self.definition.name), now
        return self._applied

    def first(self) -> int:
        """The oldest position that the log still has."""
        try:
            self._pond.entries(0, 1)
        except NotFound as error:
            if error.kind != "log_trimmed":
                raise
            return int(str(error.values["first"]))
        return 1

    def earliest(self) -> int:
        """The position after which every change of the map is still there."""
        changes = self.changes(self.first() - 1, self.applied())
        gone = [each.position for each in changes if self.kept(each) is None]
        return max(gone, default=self.first() - 1)

    def changes(self, after: int, end: int) -> list[Change]:
        """The parts that loads brought to the map after a position, up to another, in order.

        Of a map that was made in between, or is made anew later on, what came to the old one is left out.

        Raises: `NotFound`, kind `log_trimmed`.
        """
        found: list[Change] = []
        name = self.definition.name
        for entry in self._entries(after):
            if name not in entry.maps:
                continue
            if entry.kind in ("create", "drop"):
                found = []
            elif entry.kind == "load" and entry.position <= end:
                found += [_change(entry, part) for part in entry.body["parts"] if part["map"] == name]
        return found

    def _entries(self, after: int) -> Iterator[Entry]:
        while entries := self._pond.entries(after, ENTRIES_AT_ONCE):
            yield from entries
            after = entries[-1].position

    def kept(self, change: Change) -> Change | None:
        """The change with the place of its part; None when it is kept no more."""
        if not isinstance(self._pond, Pond):
            return change if change.part in self._kept_there() else None
        folder = self._pond.part_folder(change.part)
        return None if folder is None else replace(change, folder=str(folder))

    def _kept_there(self) -> frozenset[str]:
        return frozenset(each.part for each in self._pond.parts() if each.map == self.definition.name)


def _change(entry: Entry, part: dict[str, object]) -> Change:
    return Change(entry.position, str(part["id"]), int(str(part["rows"])))


def changed_rows(place: Place, definition: MapDefinition, change: Change) -> Iterator[pa.RecordBatch]:
    """The canonical rows of a change, on an executor.

    Raises: `NotFound` when the part is kept no more.
    """
    with _part(place, change) as folder:
        try:
            received = Received(folder, read_manifest(folder))
        except Corrupt as error:
            if folder.exists():
                raise
            raise NotFound("the part is kept no more", kind="part_expired", part=change.part) from error
        yield from part_rows(definition, received)


@contextmanager
def _part(place: Place, change: Change) -> Iterator[Path]:
    if change.folder is not None:
        yield Path(change.folder)
        return
    from millpond.nodes.remote_pond import RemotePond

    with (
        tempfile.TemporaryDirectory(prefix="millpond-") as scratch,
        RemotePond(place.where, place.settings(), clock=SystemClock()) as pond,
    ):
        folder = Path(scratch) / change.part
        pond.fetch_part(change.part, folder)
        yield folder
